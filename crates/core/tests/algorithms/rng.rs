//! A small deterministic source of choices, and seeds that can be replayed.
//!
//! No wall clock and no entropy: the same seed gives the same trace on every machine.

use proptest::test_runner::{Config as ProptestConfig, RngSeed};

/// SplitMix64 (Steele, Lea, Flood 2014).
pub(crate) struct TraceRng(u64);

impl TraceRng {
    pub(crate) fn new(seed: u64) -> Self {
        TraceRng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Discards some choices.
    pub(crate) fn skip(&mut self, choices: u64) {
        for _ in 0..choices {
            self.next();
        }
    }

    /// One of `0..n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// One of `low..=high`.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below((high - low).saturating_add(1))
    }

    /// True once in `n`.
    pub(crate) fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Runs `trace` for `count` seeds, or only for the one in `TG_TEST_SEED`. Prints the seed if `trace` panics.
pub(crate) fn for_each_seed(count: u64, mut trace: impl FnMut(&mut TraceRng)) {
    let only = std::env::var("TG_TEST_SEED").ok();
    let only = only.map(|text| text.parse().expect("TG_TEST_SEED is a number"));
    let seeds = only.map_or(1..count + 1, |seed: u64| seed..seed + 1);
    for seed in seeds {
        let on_panic = PrintSeedOnPanic(seed);
        trace(&mut TraceRng::new(seed.wrapping_mul(0x2545_f491_4f6c_dd1d)));
        drop(on_panic);
    }
}

/// Cases of `proptest`, the same in every run.
pub(crate) fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        rng_seed: RngSeed::Fixed(0x7469_6465),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

struct PrintSeedOnPanic(u64);

impl Drop for PrintSeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "replay: TG_TEST_SEED={} cargo test -p tidegate-core --test algorithms {}",
                self.0,
                std::thread::current().name().unwrap_or_default(),
            );
        }
    }
}
