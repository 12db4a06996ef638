//! Many threads on the same counters: exactly the limit passes, and no thread waits for ever.

use std::borrow::Cow;
use std::sync::Barrier;
use std::thread;

use tidegate::clock::ManualClock;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

const THREADS: usize = 8;

fn store() -> MemoryStore<ManualClock> {
    MemoryStore::new(ManualClock::at(Nanos::from_secs(1_700_000_000)))
}

fn limit(algorithm: Algorithm, count: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(3_600));
    Limit::compile(&spec, Precision::Memory).expect("a limit")
}

fn charge<'a>(rule: &'a RuleName, limit: &'a Limit, subject: u128) -> Charge<'a> {
    Charge {
        subject: Fingerprint::new(subject),
        rule,
        rate: 0,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    }
}

/// Runs `work` on all threads at once and collects the results.
fn together<T: Send>(work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(THREADS);
    thread::scope(|scope| {
        let start = |number| {
            let (barrier, work) = (&barrier, &work);
            scope.spawn(move || {
                barrier.wait();
                work(number)
            })
        };
        let threads: Vec<_> = (0..THREADS).map(start).collect();
        let done = threads.into_iter().map(|thread| thread.join());
        done.map(|done| done.expect("a thread that finished")).collect()
    })
}

#[test]
fn eight_threads_at_a_limit_of_100_admit_exactly_100() {
    let rule = RuleName::new("threads");
    for algorithm in Algorithm::ALL {
        let (store, limit) = (store(), limit(algorithm, 100));
        let admitted = together(|_| {
            let set = ChargeSet::of([charge(&rule, &limit, 7)]);
            (0..60).filter(|_| store.charge_now(&set).admitted).count()
        });
        assert_eq!(admitted.iter().sum::<usize>(), 100, "{algorithm}");
    }
}

#[test]
fn each_unit_of_a_fixed_window_is_granted_once() {
    let rule = RuleName::new("tickets");
    let (store, limit) = (store(), limit(Algorithm::FixedWindow, 100));
    let mut tickets = together(|_| {
        let set = ChargeSet::of([charge(&rule, &limit, 7)]);
        let outcomes = (0..60).map(|_| store.charge_now(&set));
        let admitted = outcomes.filter(|outcome| outcome.admitted);
        admitted.map(|outcome| outcome.readings[0].figures.remaining).collect::<Vec<_>>()
    })
    .concat();
    tickets.sort_unstable();
    assert_eq!(tickets, (0..100).collect::<Vec<_>>());
}

#[test]
fn sets_in_any_order_neither_deadlock_nor_lose_a_charge() {
    let rule = RuleName::new("sets");
    let (store, limit) = (store(), limit(Algorithm::TokenBucket, 1_000_000));
    let rounds = 3_000;
    together(|number| {
        for round in 0..rounds {
            // Three of seven counters, in an order that differs between threads and rounds.
            let first = (number + round) % 7;
            let step = 1 + (number * 3 + round) % 6;
            let subjects = [0, 1, 2].map(|i| ((first + i * step) % 7) as u128);
            let set = ChargeSet::of(subjects.map(|s| charge(&rule, &limit, s)));
            assert!(store.charge_now(&set).admitted);
        }
    });
    let all = ChargeSet::of((0..7).map(|s| charge(&rule, &limit, s)));
    let readings = store.peek_now(&all).readings;
    let spent: u64 = readings.iter().map(|r| 1_000_000 - r.figures.remaining).sum();
    assert_eq!(spent, (THREADS * rounds * 3) as u64);
}

#[test]
fn threads_that_fill_the_store_concurrently_lose_no_counter() {
    let rule = RuleName::new("growth");
    let (store, limit) = (store(), limit(Algorithm::SlidingWindow, 1));
    let admitted = together(|number| {
        // Neighbours share half of their subjects: each must pass for exactly one of the two.
        let subjects = (0..20_000).map(|i| (number * 10_000 + i) as u128);
        let passes = |subject| {
            let (reading, _) = store.charge_one_at(&charge(&rule, &limit, subject), Nanos::from_secs(1_700_000_000));
            reading.verdict.allows()
        };
        subjects.filter(|subject| passes(*subject)).count()
    });
    let subjects = (THREADS + 1) * 10_000;
    assert_eq!(admitted.iter().sum::<usize>(), subjects);
    assert_eq!(store.stats().keys, subjects as u64);
}
