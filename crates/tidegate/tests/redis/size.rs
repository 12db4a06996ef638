//! The memory that one subject needs on a server, including keys and expiry.

use std::time::Duration;

use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{ChargeSet, Store};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

use crate::{charge, direct, info, on_runtime, set};
use tidegate_testkit::{RedisProgram, TestRedis};

const SUBJECTS: u128 = 100_000;

/// Bytes per subject under `rates` limits of one rule.
fn bytes(program: RedisProgram, algorithm: Algorithm, rates: u8) -> u64 {
    let server = TestRedis::start(program, &[]);
    on_runtime(async {
        // A long timeout: sizes do not depend on the speed of this machine.
        let store = RedisStore::open(&RedisConfig {
            reply_timeout: Duration::from_secs(60),
            ..RedisConfig::new(&server.url())
        });
        let store = store.expect("an address");
        store.ready().await;
        let rule = RuleName::new("search");
        // Long enough that no counter expires during the test.
        let limits: Vec<Limit> = (0..u64::from(rates))
            .map(|rate| {
                let window = Nanos::from_secs(3_600 * (1 + 23 * rate));
                let spec = Spec::new(algorithm, 10 * (rate + 1), window);
                Limit::compile(&spec, Precision::Double).expect("a limit")
            })
            .collect();
        let fill = async |subjects: std::ops::Range<u128>| {
            let sets: Vec<ChargeSet<'_>> = subjects
                .map(|subject| {
                    // Distributed like fingerprints.
                    let id = subject.wrapping_mul(0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835);
                    let limits = (0..).zip(&limits);
                    set(limits.map(|(rate, limit)| charge(id, &rule, rate, limit)))
                })
                .collect();
            for batch in sets.chunks(500) {
                let batch: Vec<&ChargeSet<'_>> = batch.iter().collect();
                for outcome in store.charge_each(&batch).await {
                    assert!(outcome.expect("a reply").admitted);
                }
            }
        };
        fill(1..1_000).await; // connections and scripts are not counted
        let before = info(&server, "memory", "used_memory:");
        fill(1_000..1_000 + SUBJECTS).await;
        let after = info(&server, "memory", "used_memory:");
        direct(&server, &["PING"]);
        (after - before).div_ceil(SUBJECTS as u64)
    })
}

#[test]
fn one_rate_of_a_subject_fits_two_hundred_bytes() {
    for algorithm in
        [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingWindowStrict]
    {
        let one = bytes(RedisProgram::Redis7, algorithm, 1);
        assert!(one <= 200, "{algorithm}: {one} bytes");
        assert!(one >= 100, "{algorithm}: {one} bytes are too few");
    }
}

#[test]
fn four_rates_of_a_subject_cost_less_than_two_subjects() {
    let four = bytes(RedisProgram::Redis7, Algorithm::TokenBucket, 4);
    assert!(four <= 320, "{four} bytes");
}
