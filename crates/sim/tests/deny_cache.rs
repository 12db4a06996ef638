//! The deny cache: what it remembers, for how long, and what ends it.

use std::borrow::Cow;

use tidegate::clock::ManualClock;
use tidegate::resilience::DenyCache;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Retry, Spec, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Outcome, Refund, Role, RuleOptions, Source, Store,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::executor::{NodeRuntime, Sim};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const MS: fn(u64) -> Nanos = Nanos::from_millis;

fn limit(algorithm: Algorithm, count: u64, window: Nanos) -> Limit {
    let spec = Spec::new(algorithm, count, window);
    Limit::compile(&spec, Precision::Memory).expect("a fit rate")
}

/// A deny cache on a memory store, both on one time.
struct DenyCacheTestbed {
    sim: Sim,
    clock: ManualClock,
    cache: DenyCache<MemoryStore<ManualClock>, NodeRuntime>,
    rule: RuleName,
    options: RuleOptions,
}

impl DenyCacheTestbed {
    fn new() -> Self {
        DenyCacheTestbed::counting(Counting::Exact)
    }

    fn counting(counting: Counting) -> Self {
        let (sim, clock) = (Sim::new(1), ManualClock::at(DATE));
        let runtime = NodeRuntime::new(&sim, 0, Nanos::ZERO, Nanos::ZERO);
        let store = MemoryStore::new(clock.clone());
        DenyCacheTestbed {
            cache: DenyCache::new(store, runtime, 16, Nanos::from_secs(1)),
            sim,
            clock,
            rule: RuleName::new("denying"),
            options: RuleOptions {
                counting,
                ..RuleOptions::DEFAULT
            },
        }
    }

    fn pass(&self, span: Nanos) {
        self.clock.advance(span);
        let sim = self.sim.clone();
        self.sim.block_on(async move { sim.sleep(span).await });
    }

    fn set<'a>(&'a self, limit: &'a Limit, cost: u64) -> ChargeSet<'a> {
        let charge = Charge {
            subject: Fingerprint::new(7),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(limit),
            cost: Cost::new(cost).expect("a cost"),
            role: Role::Enforce,
            options: &self.options,
        };
        ChargeSet::of([charge])
    }

    /// `admitted source` of one charge.
    #[track_caller]
    fn check(&self, limit: &Limit, cost: u64, want: (bool, Source)) -> Outcome {
        let set = self.set(limit, cost);
        let outcome = self.sim.block_on(self.cache.charge(&set));
        let outcome = outcome.expect("memory answers");
        assert_eq!((outcome.admitted, outcome.source), want, "cost {cost}");
        outcome
    }
}

const ADMITTED: (bool, Source) = (true, Source::Exact);
const DENIED: (bool, Source) = (false, Source::Exact);
const REMEMBERED: (bool, Source) = (false, Source::DenyCache);

#[test]
fn a_refusal_is_remembered_for_as_long_as_it_lasts_and_for_that_cost_and_more() {
    let (bench, limit) = (
        DenyCacheTestbed::new(),
        limit(Algorithm::TokenBucket, 10, MS(1_000)),
    );
    bench.check(&limit, 9, ADMITTED);
    bench.check(&limit, 4, DENIED); // three more are needed: 300 ms
    bench.check(&limit, 4, REMEMBERED);
    bench.check(&limit, 5, REMEMBERED);
    bench.check(&limit, 1, ADMITTED);
    bench.pass(MS(299));
    bench.check(&limit, 4, REMEMBERED);
    bench.pass(MS(101));
    bench.check(&limit, 4, ADMITTED);
}

#[test]
fn a_refusal_is_remembered_for_a_second_at_most() {
    let limit = limit(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    let bench = DenyCacheTestbed::new();
    bench.check(&limit, 1, ADMITTED);
    bench.check(&limit, 1, DENIED);
    bench.pass(MS(999));
    bench.check(&limit, 1, REMEMBERED);
    bench.pass(MS(1));
    bench.check(&limit, 1, DENIED);
}

#[test]
fn retry_after_shrinks_as_time_passes() {
    let limit = limit(Algorithm::TokenBucket, 1, MS(1_000));
    let bench = DenyCacheTestbed::new();
    bench.check(&limit, 1, ADMITTED);
    let wait = |outcome: &Outcome| outcome.readings[0].figures.more_after;
    assert_eq!(wait(&bench.check(&limit, 1, DENIED)), MS(1_000));
    bench.pass(MS(400));
    assert_eq!(wait(&bench.check(&limit, 1, REMEMBERED)), MS(600));
}

#[test]
fn another_limit_and_a_refund_end_what_is_remembered() {
    let hour = Nanos::from_secs(3_600);
    let (small, large) = (
        limit(Algorithm::FixedWindow, 2, hour),
        limit(Algorithm::FixedWindow, 3, hour),
    );
    let bench = DenyCacheTestbed::new();
    let charged = bench.check(&small, 2, ADMITTED);
    bench.check(&small, 1, DENIED);
    bench.check(&small, 1, REMEMBERED);
    let refund = Refund {
        id: 1,
        charged_at: charged.at,
        expires_at: charged.at.plus(hour),
        set: bench.set(&small, 2),
    };
    let refunded = bench.sim.block_on(bench.cache.refund(&refund));
    refunded.expect("memory answers");
    bench.check(&small, 2, ADMITTED);
    bench.check(&small, 1, DENIED);
    bench.check(&large, 1, ADMITTED);
}

#[test]
fn who_may_use_more_is_not_refused_for_those_who_may_not() {
    let all = limit(Algorithm::FixedWindow, 10, Nanos::from_secs(3_600));
    let low = all.with_ceiling(8);
    let bench = DenyCacheTestbed::new();
    bench.check(&all, 8, ADMITTED);
    bench.check(&low, 1, DENIED);
    bench.check(&low, 1, REMEMBERED);
    bench.check(&all, 1, ADMITTED);
    bench.check(&all, 2, DENIED);
    bench.check(&low, 1, DENIED);
}

/// What is told of a limit that did not refuse is of the part that this request may use of it.
#[test]
fn a_cached_denial_does_not_answer_requests_that_may_use_more_of_another_limit() {
    let hour = Nanos::from_secs(3_600);
    let (tight, all) = (
        limit(Algorithm::FixedWindow, 1, hour),
        limit(Algorithm::FixedWindow, 10, hour),
    );
    let (low, beside, bench) = (
        all.with_ceiling(8),
        RuleName::new("beside"),
        DenyCacheTestbed::new(),
    );
    let charge = |part| {
        let mut set = bench.set(&tight, 1);
        let mut other = bench.set(part, 1).charges.remove(0);
        other.rule = &beside;
        set.charges.push(other);
        let outcome = bench.sim.block_on(bench.cache.charge(&set));
        let outcome = outcome.expect("memory answers");
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
    let bench = DenyCacheTestbed::new();
    bench.check(&queue, 3, ADMITTED);
    bench.check(&impatient, 1, DENIED);
    bench.check(&impatient, 1, REMEMBERED);
    bench.check(&queue, 1, ADMITTED);
}

/// A thousand in a second, a hundred at once: a refusal stands for a millisecond by itself.
fn fast() -> Limit {
    let mut spec = Spec::new(Algorithm::TokenBucket, 1_000, MS(1_000));
    spec.burst = Some(100);
    Limit::compile(&spec, Precision::Memory).expect("a fit rate")
}

#[test]
fn a_short_wait_is_held_a_little_where_counting_is_not_exact() {
    let wait = |outcome: &Outcome| match outcome.readings[0].verdict {
        Verdict::Deny {
            retry: Retry::After(wait),
        } => wait,
        other => panic!("{other:?}"),
    };
    for counting in [Counting::Leased, Counting::Lenient] {
        let (bench, limit) = (DenyCacheTestbed::counting(counting), fast());
        bench.check(&limit, 100, ADMITTED);
        assert_eq!(wait(&bench.check(&limit, 1, DENIED)), MS(1));
        assert_eq!(wait(&bench.check(&limit, 1, REMEMBERED)), MS(20));
        bench.pass(MS(19));
        assert_eq!(wait(&bench.check(&limit, 1, REMEMBERED)), MS(1));
        bench.pass(MS(1));
        bench.check(&limit, 20, ADMITTED); // nothing of what flowed in is lost
    }
    let (bench, limit) = (DenyCacheTestbed::new(), fast());
    bench.check(&limit, 100, ADMITTED);
    bench.check(&limit, 1, DENIED);
    bench.pass(MS(1));
    bench.check(&limit, 1, ADMITTED);
}

#[test]
fn a_small_bucket_is_held_for_a_quarter_of_what_it_takes_to_fill() {
    let mut spec = Spec::new(Algorithm::TokenBucket, 1_000, MS(1_000));
    spec.burst = Some(8);
    let limit = Limit::compile(&spec, Precision::Memory).expect("a fit rate");
    let bench = DenyCacheTestbed::counting(Counting::Leased);
    bench.check(&limit, 8, ADMITTED);
    bench.check(&limit, 1, DENIED);
    bench.pass(Nanos::new(1_999_999));
    bench.check(&limit, 1, REMEMBERED);
    bench.pass(Nanos::new(1));
    bench.check(&limit, 1, ADMITTED);
}

#[test]
fn a_leased_denial_is_cached_for_50_ms_only() {
    let mut spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    spec.lease_ttl = Some(MS(1_000));
    let limit = Limit::compile(&spec, Precision::Memory).expect("a fit rate");
    let bench = DenyCacheTestbed::counting(Counting::Leased);
    bench.check(&limit, 1, ADMITTED);
    bench.check(&limit, 1, DENIED);
    bench.pass(MS(49));
    bench.check(&limit, 1, REMEMBERED);
    bench.pass(MS(1));
    bench.check(&limit, 1, DENIED);
}
