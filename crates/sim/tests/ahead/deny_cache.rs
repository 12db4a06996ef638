//! The deny cache: which denials it caches, for how long, and what ends them.

use std::borrow::Cow;

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Retry, Spec, Verdict};
use tidegate_core::store::{Charge, ChargeSet, Counters, Counting, Outcome, Refund, Role, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::recording_store::{DATE, LeaseTestbed, MS};

fn limit(algorithm: Algorithm, count: u64, window: Nanos) -> Limit {
    let spec = Spec::new(algorithm, count, window);
    Limit::compile(&spec, Precision::Memory).expect("a valid rate")
}

/// A node on a memory store, both on one clock.
struct DenyCacheTestbed {
    node: LeaseTestbed,
    rule: RuleName,
    options: RuleOptions,
}

impl DenyCacheTestbed {
    fn new() -> Self {
        DenyCacheTestbed::counting(Counting::Exact)
    }

    fn counting(counting: Counting) -> Self {
        DenyCacheTestbed {
            node: LeaseTestbed::with(1, 16),
            rule: RuleName::new("denying"),
            options: RuleOptions { counting, ..RuleOptions::DEFAULT },
        }
    }

    fn pass(&self, span: Nanos) {
        self.node.pass(span);
    }

    fn set<'a>(&'a self, limit: &'a Limit, cost: u64) -> ChargeSet<'a> {
        let charge = Charge {
            subject: Fingerprint::new(7),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(limit),
            cost: Cost::new(cost).expect("a positive cost"),
            role: Role::Enforce,
            options: &self.options,
        };
        ChargeSet::of([charge])
    }

    /// Charges once and compares `(admitted, source)`.
    #[track_caller]
    fn check(&self, limit: &Limit, cost: u64, want: (bool, Source)) -> Outcome {
        let set = self.set(limit, cost);
        let outcome = self.node.sim.block_on(self.node.lease.charge(&set));
        let outcome = outcome.expect("memory replies");
        assert_eq!((outcome.admitted, outcome.source), want, "cost {cost}");
        outcome
    }
}

const ADMITTED: (bool, Source) = (true, Source::Exact);
const DENIED: (bool, Source) = (false, Source::Exact);
const CACHED: (bool, Source) = (false, Source::DenyCache);

#[test]
fn a_denial_is_cached_for_as_long_as_it_lasts_and_for_its_cost_and_more() {
    let (setup, limit) = (DenyCacheTestbed::new(), limit(Algorithm::TokenBucket, 10, MS(1_000)));
    setup.check(&limit, 9, ADMITTED);
    setup.check(&limit, 4, DENIED); // three more are needed: 300 ms
    setup.check(&limit, 4, CACHED);
    setup.check(&limit, 5, CACHED);
    setup.check(&limit, 1, ADMITTED);
    setup.pass(MS(299));
    setup.check(&limit, 4, CACHED);
    setup.pass(MS(101));
    setup.check(&limit, 4, ADMITTED);
}

#[test]
fn a_denial_is_cached_for_at_most_a_second() {
    let limit = limit(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    let setup = DenyCacheTestbed::new();
    setup.check(&limit, 1, ADMITTED);
    setup.check(&limit, 1, DENIED);
    setup.pass(MS(999));
    setup.check(&limit, 1, CACHED);
    setup.pass(MS(1));
    setup.check(&limit, 1, DENIED);
}

#[test]
fn retry_after_shrinks_as_time_passes() {
    let limit = limit(Algorithm::TokenBucket, 1, MS(1_000));
    let setup = DenyCacheTestbed::new();
    setup.check(&limit, 1, ADMITTED);
    let wait = |outcome: &Outcome| outcome.readings[0].figures.more_after;
    assert_eq!(wait(&setup.check(&limit, 1, DENIED)), MS(1_000));
    setup.pass(MS(400));
    assert_eq!(wait(&setup.check(&limit, 1, CACHED)), MS(600));
}

#[test]
fn another_limit_and_a_refund_end_a_cached_denial() {
    let hour = Nanos::from_secs(3_600);
    let (small, large) = (limit(Algorithm::FixedWindow, 2, hour), limit(Algorithm::FixedWindow, 3, hour));
    let setup = DenyCacheTestbed::new();
    let charged = setup.check(&small, 2, ADMITTED);
    setup.check(&small, 1, DENIED);
    setup.check(&small, 1, CACHED);
    let refund = Refund { id: 1, charged_at: charged.at, expires_at: charged.at.plus(hour), set: setup.set(&small, 2) };
    let refunded = setup.node.sim.block_on(setup.node.lease.refund(&refund));
    refunded.expect("memory replies");
    setup.check(&small, 2, ADMITTED);
    setup.check(&small, 1, DENIED);
    setup.check(&large, 1, ADMITTED);
}

/// A charge that the store denies, whose reply arrives after the reply to a call that refunds units in between.
#[track_caller]
fn check_reply_after(refunds: impl AsyncFn(&DenyCacheTestbed, &ChargeSet<'_>)) {
    let hour = Nanos::from_secs(3_600);
    let (setup, limit) = (DenyCacheTestbed::new(), limit(Algorithm::FixedWindow, 2, hour));
    setup.check(&limit, 2, ADMITTED);
    let sim = &setup.node.sim;
    let latency = |one_way| setup.node.store.behave(|behaviour| behaviour.one_way = one_way);
    latency(MS(1));
    let (lease, rule, denied_limit) = (setup.node.lease.clone(), setup.rule.clone(), limit.clone());
    sim.spawn(None, async move {
        let charge = Charge {
            subject: Fingerprint::new(7),
            rule: &rule,
            rate: 0,
            limit: Cow::Owned(denied_limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        };
        let denied = lease.charge(&ChargeSet::of_one(charge)).await;
        assert!(!denied.expect("memory replies").admitted);
    });
    setup.pass(Nanos::new(1));
    latency(MS(5));
    setup.pass(MS(1)); // denied, and its reply takes 5 ms
    latency(MS(1));
    sim.block_on(refunds(&setup, &setup.set(&limit, 2)));
    latency(Nanos::ZERO);
    setup.pass(MS(10));
    setup.check(&limit, 1, ADMITTED);
}

/// It was cached after the refund had ended all denials of its counter.
#[test]
fn a_denial_from_before_a_refund_is_not_cached_when_its_reply_arrives_after_it() {
    check_reply_after(async |setup, set| {
        let hour = Nanos::from_secs(3_600);
        let refund = Refund { id: 1, charged_at: DATE, expires_at: DATE.plus(hour), set: set.clone() };
        setup.node.lease.refund(&refund).await.expect("memory replies");
    });
    check_reply_after(async |setup, set| {
        setup.node.lease.reset(set).await.expect("memory replies");
    });
}

#[test]
fn a_cached_denial_does_not_deny_requests_that_may_use_more() {
    let all = limit(Algorithm::FixedWindow, 10, Nanos::from_secs(3_600));
    let low = all.with_ceiling(8);
    let setup = DenyCacheTestbed::new();
    setup.check(&all, 8, ADMITTED);
    setup.check(&low, 1, DENIED);
    setup.check(&low, 1, CACHED);
    setup.check(&all, 1, ADMITTED);
    setup.check(&all, 2, DENIED);
    setup.check(&low, 1, DENIED);
}

/// The reading of a limit that did not deny shows the part of it that this request may use.
#[test]
fn a_cached_denial_does_not_answer_requests_that_may_use_more_of_another_limit() {
    let hour = Nanos::from_secs(3_600);
    let (tight, all) = (limit(Algorithm::FixedWindow, 1, hour), limit(Algorithm::FixedWindow, 10, hour));
    let (low, beside, setup) = (all.with_ceiling(8), RuleName::new("beside"), DenyCacheTestbed::new());
    let charge = |part| {
        let mut set = setup.set(&tight, 1);
        let mut other = setup.set(part, 1).charges.remove(0);
        other.rule = &beside;
        set.charges.push(other);
        let outcome = setup.node.sim.block_on(setup.node.lease.charge(&set));
        let outcome = outcome.expect("memory replies");
        (outcome.source, outcome.readings[1].figures.remaining)
    };
    assert_eq!(charge(&all), (Source::Exact, 9));
    assert_eq!(charge(&low), (Source::Exact, 7));
    assert_eq!(charge(&low), (Source::DenyCache, 7));
    assert_eq!(charge(&all), (Source::Exact, 9));
}

#[test]
fn another_ceiling_of_a_queue_is_another_limit() {
    let queue = limit(Algorithm::LeakyQueue, 10, MS(1_000));
    let impatient = queue.clone().with_max_delay(Nanos::ZERO);
    let setup = DenyCacheTestbed::new();
    setup.check(&queue, 3, ADMITTED);
    setup.check(&impatient, 1, DENIED);
    setup.check(&impatient, 1, CACHED);
    setup.check(&queue, 1, ADMITTED);
}

/// A thousand per second, a hundred at once: a denial by itself lasts a millisecond.
fn fast() -> Limit {
    let mut spec = Spec::new(Algorithm::TokenBucket, 1_000, MS(1_000));
    spec.burst = Some(100);
    Limit::compile(&spec, Precision::Memory).expect("a valid rate")
}

#[test]
fn a_short_denial_is_cached_longer_unless_counting_is_exact() {
    let wait = |outcome: &Outcome| match outcome.readings[0].verdict {
        Verdict::Deny { retry: Retry::After(wait) } => wait,
        other => panic!("{other:?}"),
    };
    for counting in [Counting::Leased, Counting::Lenient] {
        let (setup, limit) = (DenyCacheTestbed::counting(counting), fast());
        setup.check(&limit, 100, ADMITTED);
        assert_eq!(wait(&setup.check(&limit, 1, DENIED)), MS(1));
        assert_eq!(wait(&setup.check(&limit, 1, CACHED)), MS(20));
        setup.pass(MS(19));
        assert_eq!(wait(&setup.check(&limit, 1, CACHED)), MS(1));
        setup.pass(MS(1));
        setup.check(&limit, 20, ADMITTED); // none of the inflow is lost
    }
    let (setup, limit) = (DenyCacheTestbed::new(), fast());
    setup.check(&limit, 100, ADMITTED);
    setup.check(&limit, 1, DENIED);
    setup.pass(MS(1));
    setup.check(&limit, 1, ADMITTED);
}

#[test]
fn a_denial_of_a_small_bucket_is_cached_for_a_quarter_of_its_fill_time() {
    let mut spec = Spec::new(Algorithm::TokenBucket, 1_000, MS(1_000));
    spec.burst = Some(8);
    let limit = Limit::compile(&spec, Precision::Memory).expect("a valid rate");
    let setup = DenyCacheTestbed::counting(Counting::Leased);
    setup.check(&limit, 8, ADMITTED);
    setup.check(&limit, 1, DENIED);
    setup.pass(Nanos::new(1_999_999));
    setup.check(&limit, 1, CACHED);
    setup.pass(Nanos::new(1));
    setup.check(&limit, 1, ADMITTED);
}

#[test]
fn a_leased_denial_is_cached_for_50_ms_only() {
    let mut spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    spec.lease_ttl = Some(MS(1_000));
    let limit = Limit::compile(&spec, Precision::Memory).expect("a valid rate");
    let setup = DenyCacheTestbed::counting(Counting::Leased);
    setup.check(&limit, 1, ADMITTED);
    setup.check(&limit, 1, DENIED);
    setup.pass(MS(49));
    setup.check(&limit, 1, CACHED);
    setup.pass(MS(1));
    setup.check(&limit, 1, DENIED);
}
