//! A wall clock for child processes that can be shifted while they run.
//!
//! It is a small library, preloaded into the child and compiled here by the C compiler that linking Rust
//! needs anyway. Debian's libfaketime hangs its redis-server.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use std::{fs, io};

use tempfile::TempDir;

const SOURCE: &str = include_str!("shifted_clock.c");

/// A clock for one or more child processes.
pub struct ShiftedClock {
    folder: TempDir,
}

impl ShiftedClock {
    /// A clock that is right until it is shifted.
    ///
    /// # Errors
    ///
    /// When there is no C compiler, or no room for temporary files.
    pub fn new() -> io::Result<ShiftedClock> {
        let clock = ShiftedClock { folder: TempDir::new()? };
        fs::write(clock.shift(), 0_i64.to_ne_bytes())?;
        let source = clock.folder.path().join("clock.c");
        fs::write(&source, SOURCE)?;
        let compiled =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).args([clock.library(), source]).status()?;
        if compiled.success() { Ok(clock) } else { Err(io::Error::other("cc could not compile the clock")) }
    }

    fn shift(&self) -> PathBuf {
        self.folder.path().join("shift")
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("clock.so")
    }

    /// Makes a child process use this clock.
    pub fn attach(&self, child: &mut Command) {
        child.env("LD_PRELOAD", self.library()).env("SHIFTED_CLOCK", self.shift());
    }

    /// Sets the child's clock ahead of the true one by `by`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_ahead(&self, by: Duration) -> io::Result<()> {
        self.write(i64::try_from(by.as_nanos()).map_err(io::Error::other)?)
    }

    /// Sets the child's clock behind the true one by `by`.
    ///
    /// # Errors
    ///
    /// When the file cannot be written.
    pub fn set_behind(&self, by: Duration) -> io::Result<()> {
        self.write(-i64::try_from(by.as_nanos()).map_err(io::Error::other)?)
    }

    /// Overwrites the file in place: the child has it mapped.
    fn write(&self, nanos: i64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        let file = fs::OpenOptions::new().write(true).open(self.shift())?;
        file.write_all_at(&nanos.to_ne_bytes(), 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    fn child_reads(clock: &ShiftedClock) -> u64 {
        let mut date = Command::new("date");
        clock.attach(date.arg("+%s"));
        let text = String::from_utf8(date.output().unwrap().stdout).unwrap();
        text.trim().parse().unwrap()
    }

    #[test]
    fn a_child_sees_the_shifted_clock() {
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        let clock = ShiftedClock::new().unwrap();
        let two_hours = Duration::from_secs(7_200);
        assert!(child_reads(&clock).abs_diff(now()) < 60);
        clock.set_ahead(two_hours).unwrap();
        assert!(child_reads(&clock).abs_diff(now() + 7_200) < 60);
        clock.set_behind(two_hours).unwrap();
        assert!(child_reads(&clock).abs_diff(now() - 7_200) < 60);
    }
}
