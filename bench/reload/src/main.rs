//! How long a large set of rules and a long list of keys take to come into force, and whether any decision
//! waits meanwhile.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bench_report::{Goal, Options, Table, figure, median};
use clap::Parser;
use tidegate::identity::keys::hash_line;
use tidegate::{Limiter, Policy, Request};

const RULES: usize = 100_000;
const KEYS: usize = 1_000_000;

type ReloadLimiter = Limiter;

/// Times reloads under load
#[derive(Parser)]
struct ReloadArguments {
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ReloadArguments { options } = ReloadArguments::parse();
    let rounds = if options.quick { 1 } else { 5 };
    let folder = tempfile::tempdir()?;
    let rules = folder.path().join("rules.yaml");
    let keyed = folder.path().join("keyed.yaml");
    fs::write(&rules, rules_text(RULES, ""))?;
    fs::write(&keyed, rules_text(10, "tiers: [free]\nkeys_file: keys.txt\n"))?;
    write_keys(&folder.path().join("keys.txt"))?;

    let limiter = limiter(&rules)?;
    let still = worst_wait(&limiter, || std::thread::sleep(Duration::from_secs(1)));
    let reload = |path: &Path| {
        let mut times = Vec::new();
        let waits = worst_wait(&limiter, || {
            for _ in 0..rounds {
                let began = Instant::now();
                let loaded = limiter.policy().replace_with(|| Policy::load(path));
                times.push(began.elapsed().as_secs_f64());
                loaded.expect("the files above are valid");
            }
        });
        (median(&times), waits)
    };
    let (rules_secs, rules_waits) = reload(&rules);
    let (keys_secs, keys_waits) = reload(&keyed);

    let mut page = options.page("reload");
    let mut table = Table::new(["", "seconds", "p99.9 wait, us", "longest wait, us"]);
    let mut row = |what: &str, secs: Option<f64>, waits: &ReloadWaits| {
        let [tail, longest] = waits.micros();
        table.row([what, &figure(secs), &figure(Some(tail)), &figure(Some(longest))]);
    };
    row("no reload, 1 s", None, &still);
    row("100,000 rules", rules_secs, &rules_waits);
    row("1,000,000 keys", keys_secs, &keys_waits);
    page.table("Reload under load", &table, NOTE);
    page.goals(&[
        Goal::below("100,000 rules in force, s", rules_secs, 1.0),
        Goal::below("1,000,000 keys in force, s", keys_secs, 2.0),
        Goal::at_most("p99.9 wait of a decision, us", Some(rules_waits.micros()[0]), 1_000.0),
    ]);
    println!("\nsaved as {}", page.save(&options.results)?.display());
    Ok(())
}

const NOTE: &str = "From the files to the policy in force, median; one thread decides meanwhile and \
    records the time of each decision. The row without a reload shows how long the machine itself makes a \
    decision wait: two cores shared with others take a thread off for milliseconds.";

fn rules_text(count: usize, head: &str) -> String {
    let mut text = format!("version: 1\n{head}rules:\n");
    for n in 0..count {
        let _ = writeln!(
            text,
            "  - {{ name: r{n}, match: {{ path: /api/v1/route-{n}/** }}, by: user, rate: 1000/minute burst 200 }}"
        );
    }
    text
}

fn write_keys(path: &Path) -> io::Result<()> {
    let mut text = String::new();
    for n in 0..KEYS {
        let line = hash_line(&format!("key-{n:020}"), "free", "customer");
        text.push_str(&line.expect("the line is well formed"));
        text.push('\n');
    }
    fs::write(path, text)
}

fn limiter(rules: &Path) -> Result<ReloadLimiter, Box<dyn std::error::Error>> {
    Ok(Limiter::builder().rules_file(rules).build()?)
}

/// How long decisions took, in nanoseconds, by powers of two.
struct ReloadWaits {
    buckets: [u64; 64],
    max: u64,
}

impl ReloadWaits {
    fn record(&mut self, nanos: u64) {
        self.buckets[nanos.max(1).ilog2() as usize] += 1;
        self.max = self.max.max(nanos);
    }

    /// The bound under which 99.9 % lie, and the maximum, in microseconds.
    fn micros(&self) -> [f64; 2] {
        let total: u64 = self.buckets.iter().sum();
        let mut above = total / 1_000;
        let tail = self.buckets.iter().enumerate().rev().find(|(_, count)| {
            let found = above < **count;
            above = above.saturating_sub(**count);
            found
        });
        let tail = tail.map_or(0.0, |(power, _)| (1_u64 << (power + 1)) as f64);
        [tail / 1e3, self.max as f64 / 1e3]
    }
}

/// Decides without pause while `work` runs.
fn worst_wait(limiter: &ReloadLimiter, work: impl FnOnce()) -> ReloadWaits {
    let done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let deciding = threads.spawn(|| {
            let mut waits = ReloadWaits { buckets: [0; 64], max: 0 };
            while !done.load(Ordering::Relaxed) {
                let began = Instant::now();
                limiter.check_now(Request::default().with("path", "/api/v1/route-7/x"));
                waits.record(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
            }
            waits
        });
        work();
        done.store(true, Ordering::Relaxed);
        deciding.join().expect("a decision does not panic")
    })
}
