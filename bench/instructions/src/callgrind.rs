//! Runs this program under callgrind and parses its count.

use std::process::{Command, Output};
use std::{env, fs, io};

use crate::subjects::DECISIONS;

/// Functions whose instructions count, as valgrind's name patterns.
const COUNTED: &str = "*::counted_*";

/// The instructions of one decision; `None` when this build does not include the subject.
pub(crate) fn instructions_per_decision(case: &str) -> io::Result<Option<f64>> {
    let counts = env::temp_dir().join(format!("tidegate-callgrind-{}", std::process::id()));
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", &format!("--toggle-collect={COUNTED}")])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(env::current_exe()?)
        .args(["--count", case])
        .output()
        .map_err(|error| io::Error::new(error.kind(), format!("valgrind does not start: {error}")))?;
    let _ = fs::remove_file(&counts);
    collected(case, &run).map(|total| (total > 0).then(|| total as f64 / DECISIONS as f64))
}

/// The number after `Collected :` in valgrind's final output.
fn collected(case: &str, run: &Output) -> io::Result<u64> {
    let output = String::from_utf8_lossy(&run.stderr);
    let line = output.lines().rev().find_map(|line| line.split_once("Collected :"));
    let total = line.and_then(|(_, total)| total.trim().parse().ok());
    total
        .filter(|_| run.status.success())
        .ok_or_else(|| io::Error::other(format!("valgrind on `{case}` ended with {}:\n{output}", run.status)))
}
