//! Requests that find no lease while a draw is in flight: they wait for that draw, for a short time, and no
//! unit is lost when a request gives up.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Source, Store};
use tidegate_core::units::Nanos;

use super::recording_store::{LEASE, LeaseTestbed, MS, RecordedCall, TestLimit, leased};
use super::{draws, roomy};

/// One-way latency. A round trip takes a millisecond; two take longer than a request waits.
const QUICK: Nanos = Nanos::new(500_000);
const SLOW: Nanos = Nanos::from_millis(2);

/// Sends requests of one unit at once. Returns how the completed ones were decided, in order: `e` by the
/// store, `l` by a lease, `-` denied by the store, `x` denied without a call.
fn send_at_once(setup: &LeaseTestbed, own: &TestLimit, requests: usize) -> Arc<Mutex<String>> {
    let decided = Arc::new(Mutex::new(String::new()));
    for _ in 0..requests {
        let (lease, own, decided) = (setup.lease.clone(), own.clone(), Arc::clone(&decided));
        setup.sim.spawn(None, async move {
            let outcome = lease.charge(&own.set(1)).await.expect("a decision");
            decided.lock().push(match (outcome.admitted, outcome.source) {
                (true, Source::Lease) => 'l',
                (true, _) => 'e',
                (false, Source::DenyCache) => 'x',
                (false, _) => '-',
            });
        });
    }
    decided
}

/// A node that holds eight units, and a store with this one-way latency.
fn with_eight(own: &TestLimit, one_way: Nanos) -> LeaseTestbed {
    let setup = LeaseTestbed::new();
    setup.stream(own, 8, Nanos::ZERO);
    assert_eq!(setup.lease.lease_stats().units_outstanding, 8);
    setup.store.behave(|behaviour| behaviour.one_way = one_way);
    setup.store.calls();
    setup
}

fn charges(calls: &[RecordedCall]) -> usize {
    let charge = |call: &&RecordedCall| matches!(call, RecordedCall::Charge(_));
    calls.iter().filter(charge).count()
}

/// Each request called the store on its own. At three times the limit that was every sixth request.
#[test]
fn concurrent_requests_without_a_lease_wait_for_the_draw_in_flight() {
    let own = roomy(1);
    let setup = with_eight(&own, QUICK);
    let decided = send_at_once(&setup, &own, 30);
    setup.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(8 + 12), "of the first refill");
    setup.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(30), "and of the next");
    let calls = setup.store.calls();
    assert_eq!(draws(&calls), [(12, 12), (38, 38)]);
    assert_eq!(charges(&calls), 0);
}

/// Such requests once looped without waiting, for ever.
#[test]
fn the_store_decides_if_the_drawing_task_is_gone() {
    let own = roomy(1);
    let setup = with_eight(&own, QUICK);
    let decided = send_at_once(&setup, &own, 10);
    setup.pass(Nanos::new(1));
    assert_eq!(*decided.lock(), "l".repeat(8), "two wait");
    setup.sim.kill(0);
    let more = send_at_once(&setup, &own, 3);
    setup.pass(MS(2));
    assert_eq!(*decided.lock(), "llllllllee");
    assert_eq!(*more.lock(), "eee");
}

#[test]
fn a_denied_draw_denies_all_waiting_requests() {
    let spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    let own = TestLimit::new(1, &spec);
    let setup = with_eight(&own, QUICK);
    let rest = setup.sim.block_on(setup.store.charge(&own.set(1_000 - 16)));
    assert!(rest.expect("a decision").admitted);
    setup.store.calls();
    let decided = send_at_once(&setup, &own, 20);
    setup.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(8) + &"x".repeat(12));
    assert_eq!(setup.store.calls(), [RecordedCall::Draw(12, 0)]);
}

/// Requests wait for half of the budget. Then they call the store, with enough time left to detect an outage.
#[test]
fn no_request_waits_long_for_a_slow_draw() {
    let own = roomy(1);
    let setup = with_eight(&own, SLOW);
    let decided = send_at_once(&setup, &own, 10);
    setup.pass(Nanos::new(2_499_999));
    assert_eq!(charges(&setup.store.calls()), 0);
    setup.pass(Nanos::new(1));
    assert_eq!(charges(&setup.store.calls()), 2);
    // Later requests do not wait at all.
    send_at_once(&setup, &own, 3);
    setup.pass(Nanos::ZERO);
    assert_eq!(charges(&setup.store.calls()), 3);
    setup.pass(MS(10));
    assert_eq!(*decided.lock(), "l".repeat(8) + "ee");
}

/// Whether a request is sent to the store at once, while a draw is in flight for a counter without units.
#[track_caller]
fn check_charged_at_once(beside: Option<&TestLimit>, cost: u64, want: bool) {
    let own = roomy(1);
    let setup = with_eight(&own, QUICK);
    send_at_once(&setup, &own, 8);
    setup.pass(Nanos::ZERO);
    setup.store.calls();
    let mut set = own.set(cost);
    set.charges.extend(beside.map(|other| other.charge(1)));
    let mut charging = pin!(setup.lease.charge(&set));
    let polled = charging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert_eq!(charges(&setup.store.calls()) == 1, want);
}

#[test]
fn only_requests_that_the_draw_in_flight_can_cover_wait_for_it() {
    check_charged_at_once(None, 1, false);
    check_charged_at_once(None, 12, false);
    check_charged_at_once(None, 13, true);
    // A quiet counter or an exact one needs a call to the store anyway.
    check_charged_at_once(Some(&roomy(2)), 1, true);
    let mut spec = leased(Algorithm::FixedWindow, 100, Nanos::from_secs(1));
    spec.lease_ttl = None;
    check_charged_at_once(Some(&TestLimit::new(2, &spec)), 1, true);
}

#[test]
fn a_request_that_gives_up_waiting_has_taken_nothing() {
    let own = roomy(1);
    let setup = with_eight(&own, QUICK);
    let decided = send_at_once(&setup, &own, 8);
    setup.pass(Nanos::ZERO);
    {
        let set = own.set(1);
        let mut charging = pin!(setup.lease.charge(&set));
        let polled = charging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    setup.pass(MS(1));
    assert_eq!(setup.lease.lease_stats().units_outstanding, 12);
    setup.pass(LEASE.plus(LEASE));
    assert_eq!(*decided.lock(), "l".repeat(8));
    assert_eq!(setup.used_units(&own), 8 + 8);
}

#[test]
fn a_batch_waits_for_draws_and_store_calls_at_the_same_time() {
    let (own, cold) = (roomy(1), roomy(2));
    let setup = with_eight(&own, QUICK);
    let ten: Vec<_> = (0..10).map(|_| own.set(1)).collect();
    let other = cold.set(1);
    let sets: Vec<_> = [&other].into_iter().chain(&ten).collect();
    let began = setup.sim.now();
    let results = setup.sim.block_on(setup.lease.charge_each(&sets));
    assert_eq!(setup.sim.now().since(began), MS(1), "at the same time");
    let sources = results.into_iter().map(|a| a.expect("a decision").source);
    let sources: Vec<Source> = sources.collect();
    assert_eq!((sources.len(), sources[0]), (11, Source::Exact));
    assert!(sources[1..].iter().all(|source| *source == Source::Lease));
    let calls = setup.store.calls();
    assert_eq!((charges(&calls), draws(&calls)), (1, vec![(12, 12)]));
}

#[test]
fn waiting_requests_are_decided_when_the_node_drains() {
    let own = roomy(1);
    let setup = with_eight(&own, QUICK);
    let decided = send_at_once(&setup, &own, 12);
    setup.pass(Nanos::new(1));
    setup.sim.block_on(setup.lease.drain());
    setup.pass(MS(2));
    assert_eq!(*decided.lock(), "l".repeat(8) + &"e".repeat(4));
    assert_eq!(setup.used_units(&own), 8 + 12);
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_outstanding, stats.units_lapsed), (0, 0));
}
