//! The machine, commit and date of a run: without them a figure cannot be compared with another.

use std::fs;
use std::process::Command;
use std::thread;

/// The machine, the commit and the command of this run.
#[derive(Debug, Clone)]
pub struct Facts {
    date: String,
    commit: String,
    command: String,
    cpu: String,
    cores: usize,
    kernel: String,
    rustc: String,
    load: String,
}

impl Facts {
    /// Gathers them from this machine. A fact that cannot be read is `unknown`: it never stops a run.
    ///
    /// `command` is how a reader repeats the run, for example `bench/run --quick library`.
    #[must_use]
    pub fn gather(command: impl Into<String>) -> Self {
        Facts {
            date: jiff::Timestamp::now().strftime("%Y-%m-%d").to_string(),
            commit: commit(),
            command: command.into(),
            cpu: cpu_model().unwrap_or_else(unknown),
            cores: thread::available_parallelism().map_or(1, usize::from),
            kernel: first_line("/proc/sys/kernel/osrelease").unwrap_or_else(unknown),
            rustc: output("rustc", &["--version"]).unwrap_or_else(unknown),
            load: load_average().unwrap_or_else(unknown),
        }
    }

    /// The day of the run in UTC, as `2026-11-15`.
    #[must_use]
    pub fn date(&self) -> &str {
        &self.date
    }

    /// The facts as a markdown list.
    #[must_use]
    pub fn markdown(&self) -> String {
        let Facts { date, commit, command, cpu, cores, kernel, rustc, load } = self;
        format!(
            "- command: `{command}`\n- commit: {commit}\n- date: {date}\n\
             - machine: {cores} cores, {cpu}, Linux {kernel}; load average before the run: {load}\n\
             - compiler: {rustc}\n"
        )
    }
}

/// The commit, marked when the tree has uncommitted changes.
fn commit() -> String {
    let hash = output("git", &["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(unknown);
    match output("git", &["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if !changes.is_empty() => format!("{hash} with uncommitted changes"),
        _ => hash,
    }
}

fn cpu_model() -> Option<String> {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = cpuinfo.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, model)| model.trim().to_owned())
}

/// The load of other processes over the last minute: well above zero, times mean little.
fn load_average() -> Option<String> {
    first_line("/proc/loadavg")?.split(' ').next().map(str::to_owned)
}

fn first_line(path: &str) -> Option<String> {
    fs::read_to_string(path).ok()?.lines().next().map(str::to_owned)
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let out = Command::new(program).args(args).output().ok()?;
    out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}
