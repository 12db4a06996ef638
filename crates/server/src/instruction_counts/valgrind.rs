//! Runs one path of this test program under callgrind.

use std::process::{Command, Output};
use std::{env, fs, io};

use super::paths::{Path, REQUESTS};

/// The instructions of one request.
pub(super) fn count(path: &Path) -> io::Result<f64> {
    let counts = env::temp_dir().join(format!("tidegate-callgrind-{}", std::process::id()));
    let test = format!("instruction_counts::paths::{}", path.test);
    let run = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=*::counted_section*"])
        .arg(format!("--callgrind-out-file={}", counts.display()))
        .arg(env::current_exe()?)
        .args(["--exact", &test, "--test-threads=1"])
        .output()
        .map_err(|error| {
            let what = "valgrind does not start; `scripts/tools` installs it";
            io::Error::new(error.kind(), format!("{what}: {error}"))
        })?;
    let _ = fs::remove_file(&counts);
    let total = collected(&run).filter(|total| *total > 0 && run.status.success()).ok_or_else(|| {
        let (out, err) = (&run.stdout, &run.stderr);
        let [out, err] = [out, err].map(|text| String::from_utf8_lossy(text));
        io::Error::other(format!("no count of {test}: {}\n{out}{err}", run.status))
    })?;
    Ok(total as f64 / REQUESTS as f64)
}

/// The number that callgrind prints after `Collected :` when the program has ended.
fn collected(run: &Output) -> Option<u64> {
    let text = String::from_utf8_lossy(&run.stderr);
    let mut lines = text.lines().rev();
    let (_, total) = lines.find_map(|line| line.split_once("Collected :"))?;
    total.trim().parse().ok()
}
