//! A store in shards charges them one after another. When a later one denies, it refunds the earlier ones
//! in the background, and until then they count what nobody was allowed.

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::described::{Manner, RefusedPays, ZeroHits};
use tidegate::request::Request;
use tidegate::store::{ChargeSet, Outcome, Store, StoreError};
use tidegate::stores::memory::MemoryStore;
use tidegate::{Limiter, Secret};
use tidegate_core::pass_on;

use crate::bench::{START, at_once, described, policy, told};

/// A memory store whose refund of a denied request is still in flight when more is charged.
struct LateRefund(MemoryStore<Arc<ManualClock>>);

impl Store for LateRefund {
    async fn force(&self, set: &ChargeSet<'_>) -> Result<Outcome, StoreError> {
        let mut outcome = self.0.force(set).await?;
        for (charge, reading) in set.charges.iter().zip(&mut outcome.readings) {
            let remaining = &mut reading.figures.remaining;
            *remaining = remaining.saturating_sub(charge.cost.get());
        }
        Ok(outcome)
    }

    pass_on!(self => self.0; charge, peek, refund, grant, reserve, settle, seed, hold, renew, release, inspect, reset);
}

const LIMITS: &str = "
domain: d
descriptors:
  - key: user
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: path
    rate_limit: { unit: hour, requests_per_unit: 2 }
";

/// The first denied answer reported a descriptor that passed with one unit too few.
#[test]
fn what_passed_is_reported_without_a_charge_that_is_being_refunded() {
    let clock = Arc::new(ManualClock::at(START));
    let store = LateRefund(MemoryStore::new(Arc::clone(&clock)));
    let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
    let limiter = Limiter::new(store, policy(&[LIMITS]).unwrap(), secret, clock);
    let manner = Manner {
        refused: RefusedPays::All,
        zero_hits: ZeroHits::OverWhenExceeded,
        ..Manner::default()
    };
    let check = |words: &str, want: &str| {
        let (view, request) = (limiter.view(), Request::default());
        let described = described(words);
        let judged = at_once(view.check_described(request, &described, manner));
        assert_eq!(told(&judged.unwrap()), want, "{words}");
    };
    check("path=/ hits=2", "pass: ok 0 of 2/hour");
    check(
        "user=a | path=/",
        "refuse: ok 8 of 9/minute | over 0 of 2/hour",
    );
    check(
        "user=a hits=3 | path=/",
        "refuse: ok 5 of 9/minute | over 0 of 2/hour",
    );
    check("user=a", "pass: ok 4 of 9/minute");
}
