//! The long run: many seeds of every kind, each stretched by long rests, on several threads.
//!
//! `cargo run --release -p tidegate-sim --example soak -- --seeds 10000 --hours 1000 --jobs 2`
//!
//! Progress goes to stderr. The log (`--log FILE`) has a line for every hundred seeds and a summary with the
//! commit. Each violation is logged with the command that replays it, and makes the run fail. `--kind NAME`
//! runs one kind only, `--from SEED` sets the first seed.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use tidegate_core::units::Nanos;
use tidegate_sim::check::judge;
use tidegate_sim::scenario::ScenarioKind;
use tidegate_sim::{Variant, world};

/// The number of seeds per line of the log.
const BATCH: u64 = 100;

struct SoakOptions {
    seeds: u64,
    from: u64,
    hours: u64,
    jobs: u64,
    kinds: Vec<ScenarioKind>,
    log: String,
}

/// The totals of some seeds.
#[derive(Clone, Default)]
struct SoakTotals {
    seeds: u64,
    simulated: Nanos,
    decisions: u64,
    by_lease: u64,
    violations: Vec<String>,
}

impl SoakTotals {
    fn add(&mut self, other: &SoakTotals) {
        self.seeds += other.seeds;
        self.simulated = self.simulated.plus(other.simulated);
        self.decisions += other.decisions;
        self.by_lease += other.by_lease;
        self.violations.extend(other.violations.iter().cloned());
    }

    fn hours(&self) -> f64 {
        self.simulated.get() as f64 / 3.6e12
    }
}

impl SoakOptions {
    fn read(words: impl Iterator<Item = String>) -> Result<SoakOptions, String> {
        let mut options = SoakOptions {
            seeds: 10_000,
            from: 0,
            hours: 1_000,
            jobs: 2,
            kinds: ScenarioKind::ALL.to_vec(),
            log: "bench/results/simulator.log".to_owned(),
        };
        let mut words = words;
        while let Some(flag) = words.next() {
            let value = words.next().ok_or(format!("{flag} needs a value"))?;
            let number = || value.parse::<u64>().map_err(|e| format!("{flag} {value}: {e}"));
            match flag.as_str() {
                "--seeds" => options.seeds = number()?,
                "--from" => options.from = number()?,
                "--hours" => options.hours = number()?,
                "--jobs" => options.jobs = number()?.max(1),
                "--log" => options.log = value,
                "--kind" => {
                    let kind = ScenarioKind::from_name(&value);
                    options.kinds = vec![kind.ok_or(format!("there is no kind `{value}`"))?];
                }
                _ => return Err(format!("there is no option `{flag}`")),
            }
        }
        Ok(options)
    }

    /// The length of each run, so that all runs together last `hours`.
    fn length(&self) -> Nanos {
        let millis = (self.hours * 3_600_000).div_ceil(self.seeds.max(1));
        Nanos::from_millis(millis)
    }

    /// The kinds take turns.
    fn run(&self, i: u64) -> SoakTotals {
        let kinds = self.kinds.len() as u64;
        let (kind, seed) = (self.kinds[(i % kinds) as usize], i / kinds);
        let length = self.length();
        let scenario = kind.scenario(seed).stretched(length);
        let history = world::run(&scenario, Variant::Shipped);
        let findings = judge(&scenario, &history);
        let replay = |finding: &_| {
            format!(
                "{finding}\n    cargo run --release -p tidegate-sim --example replay -- {} {seed} until {}",
                kind.name(),
                length.millis_up()
            )
        };
        let leased = |r: &&_| -> bool {
            let record: &tidegate_sim::history::DecisionRecord = r;
            record.source == tidegate_core::store::Source::Lease
        };
        SoakTotals {
            seeds: 1,
            simulated: scenario.ends,
            decisions: history.records.len() as u64,
            by_lease: history.records.iter().filter(leased).count() as u64,
            violations: findings.iter().take(1).map(replay).collect(),
        }
    }
}

fn commit() -> String {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let head = git(&["rev-parse", "--short=12", "HEAD"]);
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]);
    match (head, dirty) {
        (Some(head), Some(dirty)) if dirty.is_empty() => head,
        (Some(head), _) => format!("{head} and changes"),
        (None, _) => "unknown".to_owned(),
    }
}

fn main() -> ExitCode {
    match SoakOptions::read(std::env::args().skip(1)).map(|options| soak(&options)) {
        Ok(Ok(true)) => ExitCode::SUCCESS,
        Ok(Ok(false)) => ExitCode::FAILURE,
        Ok(Err(error)) => print_error(&error.to_string()),
        Err(error) => print_error(&error),
    }
}

fn print_error(error: &str) -> ExitCode {
    let _stderr_closed = writeln!(io::stderr(), "{error}");
    ExitCode::from(2)
}

/// Runs all seeds and returns whether every promise was kept.
fn soak(options: &SoakOptions) -> io::Result<bool> {
    let began = Instant::now();
    let batches = options.seeds.div_ceil(BATCH);
    let next = AtomicU64::new(0);
    let done: Mutex<Vec<(u64, SoakTotals)>> = Mutex::default();
    std::thread::scope(|threads| {
        for _ in 0..options.jobs {
            threads.spawn(|| {
                loop {
                    let batch = next.fetch_add(1, Ordering::Relaxed);
                    if batch >= batches {
                        return;
                    }
                    let first = options.from + batch * BATCH;
                    let last = (first + BATCH).min(options.from + options.seeds);
                    let mut totals = SoakTotals::default();
                    for i in first..last {
                        totals.add(&options.run(i));
                    }
                    print_progress(&format!("{:6.0} s {}", began.elapsed().as_secs_f64(), line(first, &totals)));
                    if let Ok(mut done) = done.lock() {
                        done.push((first, totals));
                    }
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(first, _)| *first);
    let mut log = String::new();
    let mut all = SoakTotals::default();
    for (first, totals) in &done {
        all.add(totals);
        let _never_fails = writeln!(log, "{}", line(*first, totals));
    }
    let kinds: Vec<&str> = options.kinds.iter().map(|kind| kind.name()).collect();
    let summary = format!(
        "{} seeds of {}, {:.1} cluster-hours, {} decisions ({} by leases), {} violations, {:.0} s on {} threads, commit {}",
        all.seeds,
        kinds.join(", "),
        all.hours(),
        all.decisions,
        all.by_lease,
        all.violations.len(),
        began.elapsed().as_secs_f64(),
        options.jobs,
        commit(),
    );
    for violation in &all.violations {
        let _never_fails = writeln!(log, "{violation}");
    }
    let _never_fails = writeln!(log, "{summary}");
    fs::write(&options.log, log)?;
    print_progress(&summary);
    Ok(all.violations.is_empty())
}

fn line(first: u64, totals: &SoakTotals) -> String {
    let mut line = format!(
        "seeds {first}..{}: {:.2} cluster-hours, {} decisions, {} by leases, {} violations",
        first + totals.seeds,
        totals.hours(),
        totals.decisions,
        totals.by_lease,
        totals.violations.len()
    );
    for violation in &totals.violations {
        let _never_fails = write!(line, "\n  {violation}");
    }
    line
}

fn print_progress(text: &str) {
    let _stderr_closed = writeln!(io::stderr(), "{text}");
}
