//! A store that cannot grow: new subjects share counters, and no count is lost.

use std::borrow::Cow;

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, PermitRequest, Refund, Refunded, Role, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

const CAP: u64 = 4 << 20;
const HOUR: u64 = 3_600;

/// A small store, full of counters that live for `secs`.
struct FullStore {
    store: MemoryStore<ManualClock>,
    clock: ManualClock,
    rule: RuleName,
}

impl FullStore {
    fn of(secs: u64) -> FullStore {
        FullStore::with(CAP, 100_000, secs)
    }

    fn with(cap: u64, strangers: u64, secs: u64) -> FullStore {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        let full = FullStore { store: MemoryStore::with_cap(clock.clone(), cap), clock, rule: RuleName::new("full") };
        let limit = limit(Algorithm::TokenBucket, 1, secs);
        for who in 0..strangers {
            full.charge(&limit, who);
        }
        let stats = full.store.stats();
        assert!(stats.overflow > 10_000 && stats.bytes <= cap, "{stats:?}");
        full
    }

    fn charge(&self, limit: &Limit, who: u64) -> (bool, Source) {
        let charge = charge(&self.rule, limit, who);
        let (reading, source) = self.store.charge_one_at(&charge, self.clock.now());
        (reading.verdict.allows(), source)
    }

    /// The number of requests of `attempts` of one subject that pass, and the source.
    fn admitted(&self, limit: &Limit, who: u64, attempts: usize) -> (usize, Source) {
        let outcomes: Vec<_> = (0..attempts).map(|_| self.charge(limit, who)).collect();
        let passed = outcomes.iter().filter(|(passed, _)| *passed).count();
        (passed, outcomes[0].1)
    }
}

fn limit(algorithm: Algorithm, count: u64, secs: u64) -> Limit {
    let spec = Spec::new(algorithm, count, Nanos::from_secs(secs));
    Limit::compile(&spec, Precision::Memory).expect("a limit")
}

fn charge<'a>(rule: &'a RuleName, limit: &'a Limit, who: u64) -> Charge<'a> {
    let spread = who.wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let bits = (u128::from(spread.rotate_left(32)) << 64) | u128::from(spread);
    Charge {
        subject: Fingerprint::new(bits),
        rule,
        rate: 0,
        limit: Cow::Borrowed(limit),
        cost: Cost::ONE,
        role: Role::Enforce,
        options: &RuleOptions::DEFAULT,
    }
}

fn set<'a>(charge: Charge<'a>) -> ChargeSet<'a> {
    ChargeSet::of([charge])
}

/// A subject of another rule that finds its table full.
fn newcomer(full: &FullStore, rule: &RuleName, limit: &Limit) -> u64 {
    let shares = |who: &u64| {
        let outcome = full.store.peek_now(&set(charge(rule, limit, *who)));
        outcome.source == Source::Overflow
    };
    (1_000_000..).find(shares).expect("a subject without room")
}

#[test]
fn a_newcomer_shares_a_counter_that_has_the_full_limit() {
    let mut full = FullStore::of(HOUR);
    full.rule = RuleName::new("another");
    let limit = limit(Algorithm::TokenBucket, 5, HOUR);
    let who = newcomer(&full, &full.rule, &limit);
    assert_eq!(full.admitted(&limit, who, 8), (5, Source::Overflow));
    let looked = set(charge(&full.rule, &limit, who));
    let found = full.store.inspect_at(&looked, full.clock.now())[0].expect("a counter");
    assert_eq!(found.source, Source::Overflow);
}

/// Otherwise a subject could use its limit on the shared counter, and again on its own.
#[test]
fn a_subject_that_shared_a_counter_does_not_start_afresh_when_there_is_room() {
    for algorithm in Algorithm::ALL {
        let mut full = FullStore::of(10);
        full.rule = RuleName::new("another");
        let limit = limit(algorithm, 5, HOUR);
        let who = newcomer(&full, &full.rule, &limit);
        let before = full.admitted(&limit, who, 8);
        assert_eq!(before.1, Source::Overflow);
        full.clock.advance(Nanos::from_secs(30)); // all others have expired
        let later = full.admitted(&limit, who, 8);
        assert!(before.0 + later.0 <= 5, "{algorithm}: {before:?}, then {later:?}");
        full.clock.advance(Nanos::from_secs(3 * HOUR));
        assert_eq!(full.admitted(&limit, who, 8), (5, Source::Exact), "{algorithm}");
    }
}

#[test]
fn sets_share_counters_like_single_charges() {
    let full = FullStore::of(HOUR);
    let (one, other) = (RuleName::new("one"), RuleName::new("other"));
    let limit = limit(Algorithm::FixedWindow, 5, HOUR);
    let who = newcomer(&full, &one, &limit);
    let both = ChargeSet::of([charge(&one, &limit, who), charge(&other, &limit, who)]);
    let outcomes: Vec<_> = (0..8).map(|_| full.store.charge_now(&both)).collect();
    assert!(outcomes.iter().all(|outcome| outcome.source == Source::Overflow));
    assert_eq!(outcomes.iter().filter(|outcome| outcome.admitted).count(), 5);
    let left = full.store.peek_now(&both).readings;
    assert!(left.iter().all(|reading| reading.figures.remaining == 0));
}

/// The counts and logs of these algorithms grow beyond an entry, and there is no memory for that either.
#[test]
fn counters_that_cannot_grow_count_too_much_rather_than_too_little() {
    let full = FullStore::of(HOUR);
    for algorithm in [Algorithm::SlidingLog, Algorithm::SlidingWindowStrict] {
        let limit = limit(algorithm, 50, 600);
        for who in 0..2_000 {
            full.charge(&limit, who); // converted where they are
        }
        let outcomes = (0..120).map(|_| {
            full.clock.advance(Nanos::from_secs(5));
            full.charge(&limit, 7)
        });
        let passed = outcomes.filter(|outcome| *outcome == (true, Source::Exact)).count();
        assert!(passed <= 50, "{algorithm}: {passed} in one window");
        full.clock.advance(Nanos::from_secs(700));
        assert!(full.charge(&limit, 7).0, "{algorithm} reopens");
        assert!(full.store.stats().bytes <= CAP, "{:?}", full.store.stats());
    }
}

#[test]
fn a_refund_that_cannot_be_remembered_is_not_made() {
    let full = FullStore::of(HOUR);
    let limit = limit(Algorithm::TokenBucket, 1, HOUR);
    let refund = |id: u64| Refund {
        id: u128::from(id.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64 | u128::from(id),
        charged_at: full.clock.now(),
        expires_at: full.clock.now().plus(Nanos::from_secs(HOUR)),
        set: set(charge(&full.rule, &limit, 3)),
    };
    let outcomes = (1..2_000).map(|id| full.store.refund_at(&refund(id), full.clock.now()));
    let lapsed = outcomes.filter(|outcome| *outcome == Refunded::Lapsed).count();
    assert!(lapsed > 1_000, "{lapsed} of 2,000");
}

#[test]
fn permits_without_room_are_shared_and_released() {
    let full = FullStore::of(HOUR);
    let permit = |who: u64, holder: u64| PermitRequest {
        subject: Fingerprint::new(u128::from(who) * 4_096),
        rule: &full.rule,
        holder: u128::from(holder),
        max_permits: 2,
        ttl: Nanos::from_secs(60),
        options: &RuleOptions::DEFAULT,
        max_wait: None,
    };
    let now = full.clock.now();
    // All these subjects share one list: their numbers agree in the bits that choose it.
    let granted: Vec<u64> = (0..3_000).filter(|who| full.store.acquire_at(&permit(*who, *who), now).granted).collect();
    assert!(granted.len() < 2_000, "{} lists of their own", granted.len());
    for who in &granted {
        full.store.release_at(&permit(*who, *who), now);
    }
    assert!(full.store.acquire_at(&permit(2_999, 1), now).granted);
    assert!(full.store.acquire_at(&permit(2_999, 2), now).granted);
    assert!(!full.store.acquire_at(&permit(2_999, 3), now).granted);
}

#[test]
fn a_sweep_frees_room() {
    let full = FullStore::of(10);
    let before = full.store.stats();
    full.clock.advance(Nanos::from_secs(60));
    while full.store.sweep(16) > 0 {}
    let after = full.store.stats();
    assert_eq!((after.keys, after.swept), (0, before.keys));
    let limit = limit(Algorithm::TokenBucket, 1, HOUR);
    assert_eq!(full.charge(&limit, 5), (true, Source::Exact));
    assert_eq!(after.bytes, full.store.stats().bytes, "blocks are reused");
}

/// Read under one subject's windows and then under another's, the shared count started afresh at every turn, and both
/// passed without end.
#[test]
fn subjects_with_windows_of_their_own_share_one_window_when_they_share_a_counter() {
    let full = FullStore::of(HOUR);
    let rule = RuleName::new("staggered");
    let mut spec = Spec::new(Algorithm::FixedWindow, 100, Nanos::from_secs(HOUR));
    spec.stagger = true;
    let limit = Limit::compile(&spec, Precision::Memory).expect("a limit");
    // One group of 4,096, windows half an hour apart.
    let group = 4_096 * 7;
    let half_hour = 1_800_000_000_000_u64.next_multiple_of(4_096);
    for several in [false, true] {
        let charges = |subject: Fingerprint| {
            let rates = if several { 0..2 } else { 0..1 };
            let charges = rates.map(|rate| Charge {
                subject,
                rule: &rule,
                rate,
                limit: Cow::Owned(limit.for_subject(subject.seed())),
                cost: Cost::ONE,
                role: Role::Enforce,
                options: &RuleOptions::DEFAULT,
            });
            ChargeSet::of(charges)
        };
        // Subjects of that group none of whose counters finds room.
        let without_room = |subject: &Fingerprint| {
            let each = charges(*subject).charges;
            each.into_iter().all(|one| full.store.peek_now(&set(one)).source == Source::Overflow)
        };
        let subjects = [0, half_hour].map(|phase| {
            let seed = u128::from(group + u64::from(several) + phase);
            let high = |n: u64| u128::from(n.wrapping_mul(0x9E37_79B9_7F4A_7C15)) << 64;
            let mut candidates = (1..10_000).map(|n| Fingerprint::new(high(n) | seed));
            candidates.find(without_room).expect("a full table")
        });
        let turns = subjects.into_iter().cycle().take(1_000);
        let passed = turns.filter(|subject| {
            let outcome = full.store.charge_at(&charges(*subject), full.clock.now());
            assert_eq!(outcome.source, Source::Overflow);
            outcome.admitted
        });
        assert_eq!(passed.count(), 100, "several: {several}");
    }
}

/// The number of counters that find room of their own.
fn room(full: &FullStore, rule: &str) -> u64 {
    let (rule, limit) = (RuleName::new(rule), limit(Algorithm::TokenBucket, 1, HOUR));
    let finds = |who: &u64| {
        let charge = charge(&rule, &limit, *who);
        let (_, source) = full.store.charge_one_at(&charge, full.clock.now());
        source == Source::Exact
    };
    (0..100_000).filter(finds).count() as u64
}

/// The places of logs stayed in use after the logs had expired, and there was less room for all others.
#[test]
fn expired_logs_leave_their_room_to_others() {
    let empty = || {
        let clock = ManualClock::at(Nanos::from_secs(1_700_000_000));
        FullStore { store: MemoryStore::with_cap(clock.clone(), CAP), clock, rule: RuleName::new("logs") }
    };
    let (untouched, flooded) = (empty(), empty());
    let log = limit(Algorithm::SlidingLog, 5, 10);
    for moment in 0..2 {
        flooded.clock.advance(Nanos::from_secs(moment));
        (0..15_000).for_each(|who| _ = flooded.charge(&log, who));
    }
    flooded.clock.advance(Nanos::from_secs(60));
    while flooded.store.sweep(usize::MAX) > 0 {}
    let (had, has) = (room(&untouched, "later"), room(&flooded, "later"));
    assert!(has * 100 >= had * 98, "{has} find room where {had} did");
    let stats = flooded.store.stats();
    assert!(stats.bytes <= CAP, "{stats:?}");
}

/// For each newcomer, the search for room in a full table walked over its 4,096 entries.
#[test]
fn a_newcomer_to_a_full_store_costs_little_more_than_a_known_subject() {
    let full = FullStore::with(64 << 20, 2_000_000, HOUR);
    let limit = limit(Algorithm::TokenBucket, 1, HOUR);
    let charge_all = |who: std::ops::Range<u64>| who.for_each(|who| _ = full.charge(&limit, who));
    let known = tidegate_fuzz_inputs::work_units(|| charge_all(0..10_000));
    let newcomers = tidegate_fuzz_inputs::work_units(|| charge_all(3_000_000..3_010_000));
    assert!(newcomers < 10.0 * known, "{known} work units for known subjects, {newcomers} for newcomers");
}
