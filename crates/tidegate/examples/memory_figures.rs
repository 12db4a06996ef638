//! Measures the memory store: nanoseconds per decision and resident bytes per counter.
//!
//! `cargo run --release --example memory_figures -- speed|bytes [algorithm] [keys]`

use std::time::Instant;

use std::borrow::Cow;
use tidegate::clock::{Clock, ManualClock, SystemClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, Role};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

fn subject(i: u64) -> Fingerprint {
    Fingerprint::new((u128::from(mix(i + 1)) << 64) | u128::from(mix(!i)))
}

fn charge<'a>(rule: &'a RuleName, limit: &'a Limit, i: u64) -> Charge<'a> {
    Charge {
        subject: subject(i),
        rule,
        rate: 0,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
    }
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0_u64) * 4096
}

#[allow(clippy::print_stdout)]
fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let algorithm = args.get(1).and_then(|name| Algorithm::from_name(name));
    let algorithm = algorithm.unwrap_or(Algorithm::TokenBucket);
    let spec = Spec::new(algorithm, 1_000, Nanos::from_secs(3_600));
    let limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
    let rule = RuleName::new("figures");
    let keys: u64 = args
        .get(2)
        .and_then(|n| n.parse().ok())
        .unwrap_or(10_000_000);
    if args.first().is_some_and(|a| a == "bytes") {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let store = MemoryStore::with_cap(clock.clone(), 8 << 30);
        let before = resident();
        let rounds = if algorithm == Algorithm::SlidingWindowStrict {
            2
        } else {
            1
        };
        let mut worst = 0.0_f64;
        let start = Instant::now();
        let mut slowest = 0;
        for i in 0..keys {
            for _ in 0..rounds {
                let t = Instant::now();
                store.charge_one_at(&charge(&rule, &limit, i), clock.now());
                slowest = slowest.max(t.elapsed().as_nanos());
                if rounds > 1 {
                    clock.advance(Nanos::from_secs(360));
                }
            }
            if i % 250_000 == 249_999 {
                let per = (resident() - before) as f64 / (i + 1) as f64;
                if i >= 999_999 {
                    worst = worst.max(per);
                }
                if (i + 1) % 1_000_000 == 0 {
                    println!("{} keys: {per:.1} bytes per key", i + 1);
                }
            }
        }
        println!(
            "worst from 1M on {worst:.1}; {} ns per insert, slowest {slowest} ns",
            start.elapsed().as_nanos() / u128::from(keys)
        );
        return;
    }
    for keys in [1, 1_000, 1_000_000] {
        let clock = SystemClock::new();
        let store = MemoryStore::with_cap(clock, 8 << 30);
        let now = clock.now();
        for i in 0..keys {
            store.charge_one_at(&charge(&rule, &limit, i), now);
        }
        let rounds = 4_000_000_u64;
        let mut best = [u128::MAX; 3];
        for round in 0..5_u64 {
            let mut sum = 0_u64;
            let start = Instant::now();
            for n in 0..rounds {
                let c = charge(&rule, &limit, mix(n + round * rounds) % keys);
                sum = sum.wrapping_add(c.counter() as u64);
            }
            best[0] = best[0].min(start.elapsed().as_nanos());
            let start = Instant::now();
            let mut at = clock.now();
            for n in 0..rounds {
                if n % 64 == 0 {
                    at = clock.now();
                }
                let c = charge(&rule, &limit, mix(n + round * rounds) % keys);
                sum = sum.wrapping_add(store.charge_one_at(&c, at).0.figures.remaining);
            }
            best[1] = best[1].min(start.elapsed().as_nanos());
            let start = Instant::now();
            for n in 0..rounds {
                let c = charge(&rule, &limit, mix(n + round * rounds) % keys);
                sum = sum.wrapping_add(store.charge_one_at(&c, clock.now()).0.figures.remaining);
            }
            best[2] = best[2].min(start.elapsed().as_nanos());
            std::hint::black_box(sum);
        }
        let [bare, at, now] = best.map(|b| b as f64 / rounds as f64);
        println!(
            "{algorithm} {keys} keys: harness {bare:.1} ns, decision {:.1} ns, with clock {:.1} ns",
            at - bare,
            now - bare
        );
    }
}
