//! Where a server spends its time, by `perf`, for a goal that was not met.

use std::io;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::load::{ServerConcurrency, ServerLoad};
use crate::subject::ServerSubject;

/// Samples per second. Not a round number, so that they do not align with timers.
const PER_SECOND: &str = "1999";

/// The minimum recording, however short the rounds are.
const LENGTH: Duration = Duration::from_secs(2);

/// With fewer samples a share of 1% is noise.
const MIN_SAMPLES: u64 = 500;

/// The name of the kernel among the objects.
const KERNEL: &str = "[kernel.kallsyms]";

/// The separator of the fields of a line; no symbol of Rust or C has it.
const SEPARATOR: char = ';';

/// Shares of a server's time, largest first.
#[derive(Debug)]
pub(crate) struct ServerProfile(Vec<FunctionShare>);

/// The share of one function by itself, without its callees.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FunctionShare {
    /// Of the whole, at most 1.
    pub(crate) share: f64,
    samples: u64,
    /// The binary or library, or the kernel.
    pub(crate) object: String,
    pub(crate) symbol: String,
}

impl ServerProfile {
    /// Samples a server under load, for the length of a round or longer; `work` is a folder for the samples.
    /// Too few samples are an error.
    pub(crate) async fn of(
        subject: &ServerSubject,
        concurrency: ServerConcurrency,
        length: Duration,
        work: &Path,
    ) -> io::Result<Self> {
        let length = length.max(LENGTH);
        let samples = work.join("perf.data");
        let mut load = ServerLoad::open(subject.address(), &subject.load, concurrency).await?;
        load.run(length / 5).await?;
        let recorder = Command::new("perf")
            .args(["record", "--quiet", "--freq", PER_SECOND, "--pid"])
            .arg(subject.server.id().to_string())
            .arg("--output")
            .arg(&samples)
            .args(["--", "sleep", &length.as_secs_f64().to_string()])
            .stderr(Stdio::piped())
            .spawn()?;
        // Longer than the recording, which starts with a delay.
        load.run(length + length / 5).await?;
        check_status(recorder.wait_with_output()?)?;
        let report = Command::new("perf")
            .args(["report", "--quiet", "--stdio", "--no-children", "--no-inline"])
            .args(["--fields", "overhead,sample,dso,symbol", "--field-separator"])
            .arg(SEPARATOR.to_string())
            .arg("--input")
            .arg(&samples)
            .output()?;
        let report = check_status(report)?;
        let profile = ServerProfile(functions(&String::from_utf8_lossy(&report.stdout)));
        match profile.samples() {
            enough if enough >= MIN_SAMPLES => Ok(profile),
            few => Err(io::Error::other(format!(
                "{few} samples in {} s are too few: the server was hardly busy",
                length.as_secs_f64()
            ))),
        }
    }

    /// The largest shares.
    pub(crate) fn largest(&self, count: usize) -> &[FunctionShare] {
        &self.0[..count.min(self.0.len())]
    }

    /// The share of the kernel: the network above all.
    pub(crate) fn kernel(&self) -> f64 {
        let of_kernel = self.0.iter().filter(|function| function.object == KERNEL);
        of_kernel.map(|function| function.share).sum()
    }

    /// The number of samples.
    fn samples(&self) -> u64 {
        self.0.iter().map(|function| function.samples).sum()
    }
}

fn check_status(output: Output) -> io::Result<Output> {
    if output.status.success() {
        return Ok(output);
    }
    let message = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("perf: {}", message.trim())))
}

fn functions(report: &str) -> Vec<FunctionShare> {
    report.lines().filter_map(function).collect()
}

fn function(line: &str) -> Option<FunctionShare> {
    let mut fields = line.splitn(4, SEPARATOR).map(str::trim);
    let share: f64 = fields.next()?.strip_suffix('%')?.parse().ok()?;
    let samples = fields.next()?.parse().ok()?;
    let object = fields.next()?.to_owned();
    // The name follows the mode: `[k]` or `[.]`.
    let symbol = fields.next()?;
    let symbol = symbol.split_once("] ").map_or(symbol, |(_, name)| name);
    Some(FunctionShare { share: share / 100.0, samples, object, symbol: symbol.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_share_an_object_and_a_name() {
        let report =
            "\n 12.50%;   500;[kernel.kallsyms]  ;[k] tcp_sendmsg_locked\n  2.50%;100;tidegate;[.] <a as b>::c\n";
        let profile = ServerProfile(functions(report));
        let names: Vec<_> = profile.largest(9).iter().map(|p| p.symbol.as_str()).collect();
        assert_eq!(names, ["tcp_sendmsg_locked", "<a as b>::c"]);
        assert!((profile.kernel() - 0.125).abs() < 1e-9);
        assert_eq!(profile.samples(), 600);
    }

    #[test]
    fn a_heading_is_no_function() {
        assert_eq!(function("# Overhead;Samples;Shared Object;Symbol"), None);
    }
}
