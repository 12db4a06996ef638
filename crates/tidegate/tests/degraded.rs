//! What a store says about a degraded outcome decides what clients receive. No layer infers it from the source, the
//! readings or the options of a rule.

mod common;
#[macro_use]
#[path = "common/delegate.rs"]
mod delegate;

use std::sync::Arc;
use std::time::Duration;

use common::{START, request, rules};
use tidegate::clock::ManualClock;
use tidegate::engine::{Decision, DecisionKind};
use tidegate::stores::memory::MemoryStore;
use tidegate::units::Nanos;
use tidegate::{Acquired, Limiter, Policy, Retry, Secret, Verdict};
use tidegate_core::store::{
    ChargeSet, Counters, Degraded, Outcome, PermitReply, PermitRequest, Permits, Reservations, Source, StoreResult,
};

/// A memory store that changes what it says about its outcomes.
struct DegradedStore {
    memory: MemoryStore<Arc<ManualClock>>,
    change: fn(&mut Outcome),
    degraded: Option<Degraded>,
}

impl Counters for DegradedStore {
    async fn charge(&self, set: &ChargeSet<'_>) -> StoreResult<Outcome> {
        let mut outcome = self.memory.charge(set).await?;
        outcome.source = Source::Fallback;
        outcome.degraded = self.degraded;
        (self.change)(&mut outcome);
        Ok(outcome)
    }

    delegate!(self => self.memory; peek, refund, draw, force, restore, inspect, reset);
}

impl Permits for DegradedStore {
    async fn acquire(&self, _: &PermitRequest<'_>) -> StoreResult<PermitReply> {
        let granted = self.degraded.is_none();
        Ok(PermitReply { granted, in_use: 0, source: Source::Fallback, degraded: self.degraded })
    }

    delegate!(self => self.memory; renew, release);
}

impl Reservations for DegradedStore {
    delegate!(self => self.memory; reserve, settle);
}

const RULES: &str = "
version: 1
rules:
  - { name: loose, by: user, match: { path: /check }, rate: 10/minute, algorithm: fixed-window }
  - { name: strict, by: user, match: { path: /check }, rate: 10/minute, algorithm: fixed-window, on_store_failure: deny }
  - { name: open, by: user, match: { path: /open }, concurrent: 5, on_store_failure: deny }
  - { name: opened, by: user, match: { path: /open }, rate: 10/minute, algorithm: fixed-window }
  - { name: slow, by: user, match: { path: /slow }, rate: 10/minute, algorithm: fixed-window, soft: { from: 0.1, max_delay: 1s } }
";

const DENIED_BY_STRICT: Degraded = Degraded::DeniedByPolicy { charge: 1 };

fn limiter(degraded: Option<Degraded>, change: fn(&mut Outcome)) -> Limiter<DegradedStore> {
    let clock = Arc::new(ManualClock::at(START));
    let memory = MemoryStore::new(Arc::clone(&clock));
    let secret = Secret::from_bytes(b"0123456789abcdef").expect("long enough");
    let store = DegradedStore { memory, change, degraded };
    let builder = Limiter::builder().policy(Policy::of(rules(RULES))).secret(secret).clock(clock);
    builder.build_on(store).expect("rules are given")
}

async fn decide(degraded: Degraded, change: fn(&mut Outcome)) -> Decision {
    let decided = limiter(Some(degraded), change).check(request("user=ada path=/check")).await;
    decided.expect("a decision")
}

fn deny(outcome: &mut Outcome, charge: usize, secs: u64) {
    outcome.admitted = false;
    outcome.readings[charge].verdict = Verdict::Deny { retry: Retry::After(Nanos::from_secs(secs)) };
}

#[tokio::test]
async fn a_rule_that_denies_by_policy_binds_though_its_cost_fits() {
    let decision = decide(DENIED_BY_STRICT, |outcome| outcome.admitted = false).await;
    assert_eq!(decision.kind(), DecisionKind::Unavailable);
    assert_eq!(decision.binding().expect("a limit").rule.name().as_str(), "strict");
    let allows: Vec<bool> = decision.limits().map(|limit| limit.allows).collect();
    assert_eq!(allows, [true, false]);
}

/// Not the limit with the longest wait: its response said that this rule denies without its store.
#[tokio::test]
async fn a_rule_that_denies_by_policy_binds_before_an_exhausted_limit() {
    let decision = decide(DENIED_BY_STRICT, |outcome| deny(outcome, 0, 60)).await;
    assert_eq!(decision.kind(), DecisionKind::Unavailable);
    assert_eq!(decision.binding().expect("a limit").rule.name().as_str(), "strict");
}

/// The shard of the strict rule worked and its limit was exhausted, while another shard was down: the client received
/// 503 for its own excess.
#[tokio::test]
async fn an_exhausted_limit_denies_whatever_its_rule_does_without_the_store() {
    let decision = decide(Degraded::StoreUnavailable, |outcome| deny(outcome, 1, 60)).await;
    assert_eq!(decision.kind(), DecisionKind::Deny(Retry::After(Nanos::from_secs(60))));
}

#[tokio::test]
async fn counts_that_may_not_be_durable_deny_nothing() {
    let decision = decide(Degraded::NotDurable, |_| {}).await;
    assert_eq!((decision.kind(), decision.source()), (DecisionKind::Allow, Source::Fallback));
}

/// While the disk was full, soft limits delayed nobody, although the whole usage was known.
#[tokio::test]
async fn a_soft_limit_delays_unless_the_store_was_unavailable() {
    for (degraded, delays) in [(Degraded::NotDurable, true), (Degraded::StoreUnavailable, false)] {
        let limiter = limiter(Some(degraded), |_| {});
        let mut delayed = false;
        for _ in 0..5 {
            let decision = limiter.check(request("user=ada path=/slow")).await.expect("a decision");
            delayed = matches!(decision.kind(), DecisionKind::Delay(_));
        }
        assert_eq!(delayed, delays, "{degraded:?}");
    }
}

#[tokio::test]
async fn a_permit_is_unavailable_only_if_the_store_says_so() {
    for (degraded, unavailable) in [(Degraded::DeniedByPolicy { charge: 0 }, true), (Degraded::StoreUnavailable, false)]
    {
        let limiter = limiter(Some(degraded), |_| {});
        let acquired = limiter.acquire(request("user=ada path=/open"), Duration::from_secs(10)).await;
        let Ok(Acquired::Full(denial)) = acquired else {
            panic!("no permit is granted");
        };
        assert_eq!(denial.unavailable, unavailable, "{degraded:?}");
    }
}

/// It was `exact` where the rate was charged in the store and the permit granted without it.
#[tokio::test]
async fn a_permit_granted_without_the_store_is_the_source_of_the_decision() {
    let limiter = limiter(None, |outcome| outcome.source = Source::Exact);
    let acquired = limiter.acquire(request("user=ada path=/open"), Duration::from_secs(10)).await;
    let Ok(Acquired::Open { decision, .. }) = acquired else {
        panic!("the permit is granted");
    };
    assert_eq!((decision.allowed(), decision.source()), (true, Source::Fallback));
}
