//! Measures the memory store: nanoseconds per decision, and resident bytes per counter.
//!
//!     cargo bench -p tidegate --features internals --bench memory_figures -- speed token-bucket
//!     cargo bench -p tidegate --features internals --bench memory_figures -- bytes sliding-window-strict 10000000
//!
//! Times are the best of many short rounds, because the machine has other work.

#![allow(clippy::print_stdout)]

use std::borrow::Cow;
use std::time::Instant;

use tidegate::clock::{Clock, SystemClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

const ROUNDS: u64 = 60;
const PER_ROUND: u64 = 100_000;

struct MemoryBench {
    store: MemoryStore<SystemClock>,
    rule: RuleName,
    limit: Limit,
}

impl MemoryBench {
    fn new(algorithm: Algorithm, count: u64) -> Self {
        let spec = Spec::new(algorithm, count, Nanos::from_secs(3_600));
        MemoryBench {
            store: MemoryStore::with_cap(SystemClock::new(), 8 << 30),
            rule: RuleName::new("figures"),
            limit: Limit::compile(&spec, Precision::Memory).expect("a limit that fits"),
        }
    }

    fn charge(&self, who: u64) -> Charge<'_> {
        let bits = (u128::from(mix(who + 1)) << 64) | u128::from(mix(!who));
        Charge {
            subject: Fingerprint::new(bits),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        }
    }

    fn decide(&self, who: u64, now: Nanos) -> u64 {
        let (reading, _) = self.store.charge_one_at(&self.charge(who), now);
        reading.figures.remaining
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The best round's time for one call of `work`.
fn nanos_each(mut work: impl FnMut(u64) -> u64) -> f64 {
    let round = |round| {
        let start = Instant::now();
        let numbers = round * PER_ROUND..(round + 1) * PER_ROUND;
        let sum = numbers.fold(0_u64, |sum, n| sum.wrapping_add(work(mix(n))));
        std::hint::black_box(sum);
        start.elapsed().as_nanos() as f64 / PER_ROUND as f64
    };
    (0..ROUNDS).map(round).fold(f64::INFINITY, f64::min)
}

fn speed(algorithm: Algorithm) {
    for keys in [1, 1_000, 1_000_000] {
        // A log of a thousand entries would measure the copying of logs.
        let count = if algorithm == Algorithm::SlidingLog { 10 } else { 1_000_000 };
        let bench = MemoryBench::new(algorithm, count);
        let clock = *bench.store.clock();
        let now = clock.now();
        (0..keys).for_each(|who| _ = bench.decide(who, now));
        let harness = nanos_each(|n| bench.charge(n % keys).counter() as u64);
        let decision = nanos_each(|n| bench.decide(n % keys, now)) - harness;
        let clocked = nanos_each(|n| bench.decide(n % keys, clock.now())) - harness;
        println!("{algorithm}, {keys} keys: {decision:.0} ns, {clocked:.0} ns with the clock");
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok());
    pages.unwrap_or(0_u64) * 4_096
}

fn bytes(algorithm: Algorithm, keys: u64) {
    let bench = MemoryBench::new(algorithm, 1_000);
    let (before, now) = (resident(), bench.store.clock().now());
    let each = |keys: u64| (resident() - before) as f64 / keys as f64;
    let mut worst = 0.0_f64;
    for who in 0..keys {
        bench.decide(who, now);
        if who >= 1_000_000 && who % 50_000 == 0 {
            worst = worst.max(each(who));
        }
    }
    println!("{algorithm}, {keys} keys: {:.1} bytes each, {worst:.1} at worst", each(keys));
    // A second sub-window in use is what makes a strict window need more than its entry.
    let later = now.plus(Nanos::from_secs(360));
    (0..keys).for_each(|who| _ = bench.decide(who, later));
    println!("{algorithm}, charged again a while later: {:.1} bytes each", each(keys));
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let algorithm = args.get(1).and_then(|name| Algorithm::from_name(name));
    let algorithm = algorithm.unwrap_or(Algorithm::TokenBucket);
    let keys = args.get(2).and_then(|keys| keys.parse().ok());
    match args.first().map(String::as_str) {
        Some("bytes") => bytes(algorithm, keys.unwrap_or(10_000_000)),
        _ => speed(algorithm),
    }
}
