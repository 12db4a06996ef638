//! Fills one limiter in a child process and samples its memory.

use std::hint::black_box;
use std::process::{Command, Stdio};
use std::str::FromStr;
use std::{env, fs, io};

use bench_subjects::{Allowance, Key, LimiterSubject};

/// A million keys.
pub(crate) const MILLION: usize = 1_000_000;

/// Keys between two samples.
const STEP: usize = 250_000;

/// Memory in use at one number of keys, beyond that of the empty limiter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MemorySample {
    /// Keys charged so far.
    pub(crate) keys: usize,
    /// Pages in memory.
    pub(crate) resident_bytes: usize,
    /// Bytes allocated and not freed.
    pub(crate) allocated_bytes: usize,
}

/// The samples of one subject, taken in a child; empty when this build does not include it.
pub(crate) fn in_child(name: &str, max_keys: usize) -> io::Result<Vec<MemorySample>> {
    let child = Command::new(env::current_exe()?)
        .args(["--fill", name, "--keys", &max_keys.to_string()])
        .stderr(Stdio::inherit())
        .output()?;
    if !child.status.success() {
        return Err(io::Error::other(format!("filling {name} ended with {}", child.status)));
    }
    let printed = String::from_utf8_lossy(&child.stdout);
    printed.lines().map(str::parse).collect()
}

/// Charges keys up to `max_keys` and prints a sample after every step.
pub(crate) fn print_samples<S: LimiterSubject>(max_keys: usize) -> io::Result<()> {
    let limiter = S::new(Allowance::ORDINARY, max_keys);
    black_box(limiter.decide(&Key::number(0)));
    let (resident, allocated) = (resident_bytes()?, allocated_bytes());
    for number in 1..=max_keys {
        black_box(limiter.decide(&Key::number(number)));
        if number % STEP == 0 {
            let resident = resident_bytes()?.saturating_sub(resident);
            println!("{number} {resident} {}", allocated_bytes().saturating_sub(allocated));
        }
    }
    Ok(())
}

impl MemorySample {
    /// Resident bytes for each key.
    pub(crate) fn resident_per_key(&self) -> f64 {
        self.resident_bytes as f64 / self.keys as f64
    }

    /// Allocated bytes for each key.
    pub(crate) fn allocated_per_key(&self) -> f64 {
        self.allocated_bytes as f64 / self.keys as f64
    }
}

impl FromStr for MemorySample {
    type Err = io::Error;

    fn from_str(line: &str) -> io::Result<Self> {
        let numbers: Vec<usize> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [keys, resident_bytes, allocated_bytes] = numbers[..] else {
            return Err(io::Error::other(format!("`{line}` is not three numbers: keys, resident, allocated")));
        };
        Ok(MemorySample { keys, resident_bytes, allocated_bytes })
    }
}

fn resident_bytes() -> io::Result<usize> {
    let statm = fs::read_to_string("/proc/self/statm")?;
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.map(|pages| pages * 4_096).ok_or_else(|| io::Error::other("no second number in /proc/self/statm"))
}

fn allocated_bytes() -> usize {
    let stats = crate::ALLOCATOR.stats();
    stats.bytes_allocated.saturating_sub(stats.bytes_deallocated)
}
