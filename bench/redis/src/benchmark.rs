//! `redis-benchmark`: the maximum rate of a server for one command.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::process;

use bench_load::Concurrency;

use crate::client::CONNECTIONS;
use crate::command::RespCommand;

/// Sends `command` the given number of times, with as many connections as our clients have and as many calls
/// in flight. Returns calls per second, by its own count.
pub(crate) fn run(server: SocketAddr, command: &RespCommand, concurrency: Concurrency, calls: u64) -> io::Result<f64> {
    let mut benchmark = process::Command::new("redis-benchmark");
    benchmark
        .args(["-h", &server.ip().to_string()])
        .args(["-p", &server.port().to_string()])
        .args(["-c", &CONNECTIONS.to_string()])
        .args(["-P", &(concurrency.in_flight / CONNECTIONS).to_string()])
        .args(["-n", &calls.to_string()])
        .arg("--csv");
    if concurrency.keys > 1 {
        benchmark.args(["-r", &concurrency.keys.to_string()]);
    }
    benchmark.args(command.words().iter().map(|word| OsStr::from_bytes(word)));
    let output = benchmark.output()?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    rate(&stdout).filter(|_| output.status.success()).ok_or_else(|| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        io::Error::other(format!("redis-benchmark: {stdout}{complaint}"))
    })
}

/// The second of the eight fields of the last line. The first is the command and may hold anything.
fn rate(stdout: &str) -> Option<f64> {
    let fields: Vec<&str> = stdout.lines().last()?.rsplitn(8, ',').collect();
    fields.get(6)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_behind_any_command() {
        let stdout =
            "\"test\",\"rps\",...\n\"SET a,b\",\"106837.61\",\"0.5\",\"0.2\",\"0.4\",\"0.8\",\"4.3\",\"8.6\"\n";
        assert_eq!(rate(stdout), Some(106_837.61));
    }

    #[test]
    fn an_error_message_is_no_rate() {
        assert_eq!(rate("Error from server: ERR unknown command"), None);
        assert_eq!(rate(""), None);
    }
}
