//! A store in shards charges them one after another. When a later shard denies, the earlier charges are refunded in the
//! background, and until then they count units that no request was allowed. A shard that is late refunds nothing.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, ZeroHits};
use tidegate::request::Request;
use tidegate::store::{ChargeSet, Counters, Outcome, Permits, Refund, Refunded, Reservations, StoreError};
use tidegate::stores::memory::MemoryStore;
use tidegate::units::Nanos;
use tidegate::{Limiter, Secret};

use crate::fixture::{START, at_once, described, policy, summary};

/// A memory store whose refund of a denied request is still in flight when more is charged.
struct SlowRefundStore(MemoryStore<Arc<ManualClock>>);

impl Counters for SlowRefundStore {
    async fn force(&self, set: &ChargeSet<'_>) -> Result<Outcome, StoreError> {
        let mut outcome = self.0.force(set).await?;
        for (charge, reading) in set.charges.iter().zip(&mut outcome.readings) {
            let remaining = &mut reading.figures.remaining;
            *remaining = remaining.saturating_sub(charge.cost.get());
        }
        Ok(outcome)
    }

    delegate!(self => self.0; charge, peek, refund, draw, restore, inspect, reset);
}

impl Permits for SlowRefundStore {
    delegate!(self => self.0; acquire, renew, release);
}

impl Reservations for SlowRefundStore {
    delegate!(self => self.0; reserve, settle);
}

const LIMITS: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

/// The first denied response reported a descriptor that passed with one unit too few.
#[test]
fn a_passed_descriptor_is_reported_without_a_charge_that_is_being_refunded() {
    let clock = Arc::new(ManualClock::at(START));
    let store = SlowRefundStore(MemoryStore::new(Arc::clone(&clock)));
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let builder = Limiter::builder().policy(policy(&[LIMITS]).unwrap()).secret(secret).clock(clock);
    let limiter = builder.build_on(store).unwrap();
    let options = DescriptorOptions {
        charge_on_denial: ChargeOnDenial::All,
        zero_hits: ZeroHits::OverAboveLimit,
        ..DescriptorOptions::default()
    };
    let check = |words: &str, want: &str| {
        let (view, request) = (limiter.view(), Request::default());
        let described = described(words);
        let judged = at_once(view.check_described(request, &described, options));
        assert_eq!(summary(&judged.unwrap()), want, "{words}");
    };
    check("path=/ hits=2", "pass: ok 0 of 2/hour");
    check("user=a | path=/", "deny: ok 8 of 9/minute | over 0 of 2/hour");
    check("user=a hits=3 | path=/", "deny: ok 5 of 9/minute | over 0 of 2/hour");
    check("user=a", "pass: ok 4 of 9/minute");
}

/// A store whose replies are late: this node decides, and no time is left for a refund.
struct LateStore(MemoryStore<Arc<ManualClock>>);

impl Counters for LateStore {
    async fn refund(&self, _: &Refund<'_>) -> Result<Refunded, StoreError> {
        Err(StoreError::Unavailable { waited: Nanos::ZERO, source: "no time is left".into() })
    }

    delegate!(self => self.0; charge, peek, force, draw, restore, inspect, reset);
}

impl Permits for LateStore {
    delegate!(self => self.0; acquire, renew, release);
}

impl Reservations for LateStore {
    delegate!(self => self.0; reserve, settle);
}

/// The whole call failed, and Envoy let the request pass or denied it whatever its limits were.
#[test]
fn a_refund_that_fails_refunds_nothing_and_decides_the_rest() {
    let clock = Arc::new(ManualClock::at(START));
    let store = LateStore(MemoryStore::new(Arc::clone(&clock)));
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let builder = Limiter::builder().policy(policy(&[LIMITS]).unwrap()).secret(secret).clock(clock);
    let limiter = builder.build_on(store).unwrap();
    let check = |words: &str, want: &str| {
        let (view, request) = (limiter.view(), Request::default());
        let described = described(words);
        let judged = at_once(view.check_described(request, &described, DescriptorOptions::default()));
        assert_eq!(summary(&judged.unwrap()), want, "{words}");
    };
    check("user=a hits=3", "pass: ok 6 of 9/minute");
    check("user=a back=2 | path=/", "pass: ok 6 of 9/minute | ok 1 of 2/hour");
    check("user=a back=2 | path=/ hits=2", "deny: ok 6 of 9/minute | over 0 of 2/hour");
    check("user=a", "pass: ok 5 of 9/minute");
}
