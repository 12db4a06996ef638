//! Requests that find nothing held while more is under way: they wait for that one, not for long, and
//! nothing is lost of those that give up.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use parking_lot::Mutex;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Source, Store};
use tidegate_core::units::Nanos;

use super::recording_store::{LEASE, LeaseTestbed, MS, RecordedCall, TestLimit, leased};
use super::{draws, roomy};

/// A round trip of a millisecond; of two more than a request waits.
const QUICK: Nanos = Nanos::new(500_000);
const SLOW: Nanos = Nanos::from_millis(2);

/// Requests of one unit that come at once, and how those were decided that are, in order: `e` by the
/// store, `l` by a lease, `-` refused by it, `x` refused without asking.
fn send_at_once(bench: &LeaseTestbed, own: &TestLimit, requests: usize) -> Arc<Mutex<String>> {
    let decided = Arc::new(Mutex::new(String::new()));
    for _ in 0..requests {
        let (lease, own, decided) = (bench.lease.clone(), own.clone(), Arc::clone(&decided));
        bench.sim.spawn(None, async move {
            let outcome = lease.charge(&own.set(1)).await.expect("a decision");
            decided
                .lock()
                .push(match (outcome.admitted, outcome.source) {
                    (true, Source::Lease) => 'l',
                    (true, _) => 'e',
                    (false, Source::DenyCache) => 'x',
                    (false, _) => '-',
                });
        });
    }
    decided
}

/// A node that holds eight units, and a store so far away.
fn with_eight(own: &TestLimit, one_way: Nanos) -> LeaseTestbed {
    let bench = LeaseTestbed::new();
    bench.stream(own, 8, Nanos::ZERO);
    assert_eq!(bench.lease.stats().units_outstanding, 8);
    bench.store.behave(|behaviour| behaviour.one_way = one_way);
    bench.store.calls();
    bench
}

fn charges(calls: &[RecordedCall]) -> usize {
    let charge = |call: &&RecordedCall| matches!(call, RecordedCall::Charge(_));
    calls.iter().filter(charge).count()
}

/// Each asked the store on its own, and at three times a limit that was every sixth request.
#[test]
fn a_crowd_that_finds_nothing_held_waits_for_what_is_under_way() {
    let own = roomy(1);
    let bench = with_eight(&own, QUICK);
    let decided = send_at_once(&bench, &own, 30);
    bench.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(8 + 12), "of the first refill");
    bench.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(30), "and of the next");
    let calls = bench.store.calls();
    assert_eq!(draws(&calls), [(12, 12), (38, 38)]);
    assert_eq!(charges(&calls), 0);
}

/// Such requests once went round without waiting, for ever.
#[test]
fn where_the_drawing_task_is_gone_the_store_decides() {
    let own = roomy(1);
    let bench = with_eight(&own, QUICK);
    let decided = send_at_once(&bench, &own, 10);
    bench.pass(Nanos::new(1));
    assert_eq!(*decided.lock(), "l".repeat(8), "two wait");
    bench.sim.kill(0);
    let more = send_at_once(&bench, &own, 3);
    bench.pass(MS(2));
    assert_eq!(*decided.lock(), "llllllllee");
    assert_eq!(*more.lock(), "eee");
}

#[test]
fn a_denied_draw_denies_all_waiting_requests() {
    let spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    let own = TestLimit::new(1, &spec);
    let bench = with_eight(&own, QUICK);
    let rest = bench.sim.block_on(bench.store.charge(&own.set(1_000 - 16)));
    assert!(rest.expect("a decision").admitted);
    bench.store.calls();
    let decided = send_at_once(&bench, &own, 20);
    bench.pass(MS(1));
    assert_eq!(*decided.lock(), "l".repeat(8) + &"x".repeat(12));
    assert_eq!(bench.store.calls(), [RecordedCall::Draw(12, 0)]);
}

/// Half of the budget: then the store is asked, and there is time to hear that it is away.
#[test]
fn nobody_waits_long_for_a_store_that_is_slow_to_lend() {
    let own = roomy(1);
    let bench = with_eight(&own, SLOW);
    let decided = send_at_once(&bench, &own, 10);
    bench.pass(Nanos::new(2_499_999));
    assert_eq!(charges(&bench.store.calls()), 0);
    bench.pass(Nanos::new(1));
    assert_eq!(charges(&bench.store.calls()), 2);
    // Who comes later than that does not wait at all.
    send_at_once(&bench, &own, 3);
    bench.pass(Nanos::ZERO);
    assert_eq!(charges(&bench.store.calls()), 3);
    bench.pass(MS(10));
    assert_eq!(*decided.lock(), "l".repeat(8) + "ee");
}

/// Whether the store is asked about one request at once, while more is under way for a counter that has
/// nothing left.
#[track_caller]
fn check_charged_at_once(beside: Option<&TestLimit>, cost: u64, want: bool) {
    let own = roomy(1);
    let bench = with_eight(&own, QUICK);
    send_at_once(&bench, &own, 8);
    bench.pass(Nanos::ZERO);
    bench.store.calls();
    let mut set = own.set(cost);
    set.charges.extend(beside.map(|other| other.charge(1)));
    let mut charging = pin!(bench.lease.charge(&set));
    let polled = charging
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()));
    assert!(polled.is_pending());
    assert_eq!(charges(&bench.store.calls()) == 1, want);
}

#[test]
fn only_who_can_be_decided_by_what_is_under_way_waits_for_it() {
    check_charged_at_once(None, 1, false);
    check_charged_at_once(None, 12, false);
    check_charged_at_once(None, 13, true);
    // A quiet counter, or one that is exact, has to be asked about anyway.
    check_charged_at_once(Some(&roomy(2)), 1, true);
    let mut spec = leased(Algorithm::FixedWindow, 100, Nanos::from_secs(1));
    spec.lease_ttl = None;
    check_charged_at_once(Some(&TestLimit::new(2, &spec)), 1, true);
}

#[test]
fn who_gives_up_waiting_has_taken_nothing() {
    let own = roomy(1);
    let bench = with_eight(&own, QUICK);
    let decided = send_at_once(&bench, &own, 8);
    bench.pass(Nanos::ZERO);
    {
        let set = own.set(1);
        let mut charging = pin!(bench.lease.charge(&set));
        let polled = charging
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending());
    }
    bench.pass(MS(1));
    assert_eq!(bench.lease.stats().units_outstanding, 12);
    bench.pass(LEASE.plus(LEASE));
    assert_eq!(*decided.lock(), "l".repeat(8));
    assert_eq!(bench.used_units(&own), 8 + 8);
}

#[test]
fn a_batch_waits_beside_what_it_asks_the_store() {
    let (own, cold) = (roomy(1), roomy(2));
    let bench = with_eight(&own, QUICK);
    let ten: Vec<_> = (0..10).map(|_| own.set(1)).collect();
    let other = cold.set(1);
    let sets: Vec<_> = [&other].into_iter().chain(&ten).collect();
    let began = bench.sim.now();
    let results = bench.sim.block_on(bench.lease.charge_each(&sets));
    assert_eq!(bench.sim.now().since(began), MS(1), "at the same time");
    let sources = results.into_iter().map(|a| a.expect("a decision").source);
    let sources: Vec<Source> = sources.collect();
    assert_eq!((sources.len(), sources[0]), (11, Source::Exact));
    assert!(sources[1..].iter().all(|source| *source == Source::Lease));
    let calls = bench.store.calls();
    assert_eq!((charges(&calls), draws(&calls)), (1, vec![(12, 12)]));
}

#[test]
fn those_who_wait_are_decided_when_everything_is_given_back() {
    let own = roomy(1);
    let bench = with_eight(&own, QUICK);
    let decided = send_at_once(&bench, &own, 12);
    bench.pass(Nanos::new(1));
    bench.sim.block_on(bench.lease.return_all());
    bench.pass(MS(2));
    assert_eq!(*decided.lock(), "l".repeat(8) + &"e".repeat(4));
    assert_eq!(bench.used_units(&own), 8 + 12);
    let facts = bench.lease.stats();
    assert_eq!((facts.units_outstanding, facts.units_lapsed), (0, 0));
}
