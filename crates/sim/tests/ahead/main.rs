//! Deciding ahead of the store. Leases: when they are drawn, how large they are, when they expire, and how they are
//! returned.

mod deny_cache;
mod overload;
mod random;
mod recording_store;
mod stack;
mod waiting;

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::{
    ChargeSet, Counters, Epoch, Outcome, Refund, Refunded, Reservations, Reserve, Settle, Settled, Source, Store, Used,
};
use tidegate_core::units::Nanos;

use self::recording_store::{LeaseTestbed, MS, RecordedCall, TestLimit, leased};

/// A thousand per second, counted in windows of a hundred seconds: the inflow of one lease is a hundred.
fn roomy(subject: u128) -> TestLimit {
    TestLimit::new(subject, &leased(Algorithm::FixedWindow, 100_000, Nanos::from_secs(100)))
}

fn draws(calls: &[RecordedCall]) -> Vec<(u64, u64)> {
    let draws = calls.iter().filter_map(|call| match call {
        RecordedCall::Draw(requested, drawn) => Some((*requested, *drawn)),
        _ => None,
    });
    draws.collect()
}

#[test]
fn a_lease_is_drawn_from_the_eighth_request_within_half_a_lease_lifetime() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    assert_eq!(setup.stream(&own, 7, Nanos::ZERO), "eeeeeee");
    assert_eq!(setup.store.calls(), [RecordedCall::Charge(1); 7]);
    assert_eq!(setup.stream(&own, 2, Nanos::ZERO), "el");
    assert_eq!(setup.store.calls(), [RecordedCall::Charge(1), RecordedCall::Draw(8, 8)]);
}

#[test]
fn cold_keys_cost_as_many_calls_as_exact_counting() {
    let setup = LeaseTestbed::new();
    let keys: Vec<TestLimit> = (0..200).map(roomy).collect();
    for _ in 0..50 {
        for own in &keys {
            assert_eq!(setup.stream(own, 1, Nanos::ZERO), "e");
        }
        setup.pass(MS(10));
    }
    assert_eq!(setup.store.calls(), vec![RecordedCall::Charge(1); 50 * 200]);
}

#[test]
fn the_next_lease_is_drawn_when_half_is_used_and_only_one_at_a_time() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 8, Nanos::ZERO);
    assert_eq!(setup.stream(&own, 3, Nanos::ZERO), "lll");
    assert_eq!(draws(&setup.store.calls()), [(8, 8)]);
    setup.store.behave(|behaviour| behaviour.one_way = MS(5));
    assert_eq!(setup.stream(&own, 5, Nanos::ZERO), "lllll");
    setup.flood(&own, 4);
    setup.pass(MS(20));
    assert_eq!(draws(&setup.store.calls()), [(12, 12)]);
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "l");
}

#[test]
fn a_node_holds_at_most_the_inflow_of_one_lease() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    let held = (0..2_000).map(|_| {
        setup.stream(&own, 1, Nanos::new(100_000));
        setup.lease.lease_stats().units_outstanding
    });
    assert_eq!(held.max(), Some(100));
}

/// The source of a request `at_ms` after the start of a window of a second, when a lease was drawn 60 ms
/// before its end.
#[track_caller]
fn check_edge(guard_ms: u64, at_ms: u64, want: &str) {
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = MS(guard_ms);
    let (setup, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    setup.pass(MS(940));
    setup.stream(&own, 9, Nanos::ZERO);
    setup.pass(MS(at_ms - 940));
    setup.store.behave(|behaviour| behaviour.epoch = None); // no more leases are drawn
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), want, "at {at_ms} ms");
}

#[test]
fn a_lease_expires_with_its_window_and_before_the_guard_of_its_end() {
    check_edge(0, 985, "l");
    check_edge(20, 979, "l");
    check_edge(20, 980, "e");
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = Nanos::ZERO;
    let (setup, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    setup.pass(MS(940));
    setup.stream(&own, 9, Nanos::ZERO);
    setup.pass(MS(40));
    setup.store.behave(|behaviour| behaviour.epoch = None);
    assert_eq!(setup.stream(&own, 1, MS(19)), "l");
    assert_eq!(setup.stream(&own, 1, MS(1)), "l", "at 999 ms");
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "e", "at 1000 ms");
}

#[test]
fn a_lease_expires_from_when_its_draw_was_sent() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.store.behave(|behaviour| behaviour.one_way = MS(30));
    setup.flood(&own, 8); // charged at 30 ms, reply at 60 ms
    setup.pass(MS(60));
    assert_eq!(setup.stream(&own, 1, MS(39)), "l");
    assert_eq!(setup.stream(&own, 1, MS(1)), "l", "at 99 ms");
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "e", "at 100 ms");
}

#[test]
fn a_lease_whose_reply_arrives_after_its_expiry_is_returned() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.store.behave(|behaviour| behaviour.one_way = MS(60));
    setup.flood(&own, 8);
    setup.pass(MS(120));
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(setup.stream(&own, 1, MS(5)), "e");
    let calls = setup.store.calls();
    assert!(calls.contains(&RecordedCall::Draw(8, 8)) && calls.contains(&RecordedCall::Refund(8)));
    assert_eq!(setup.used_units(&own), 9);
}

#[test]
fn idle_leases_are_returned_and_used_ones_stay() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 10, Nanos::ZERO);
    setup.pass(MS(45));
    assert_eq!(setup.lease.lease_stats().units_outstanding, 6);
    assert_eq!(setup.used_units(&own), 16);
    setup.pass(MS(10));
    assert_eq!(setup.used_units(&own), 10);
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.leases_drawn, stats.units_drawn), (1, 8));
    assert_eq!((stats.units_returned, stats.units_lapsed, stats.units_outstanding), (6, 0, 0));
}

#[test]
fn leftovers_of_an_expired_lease_are_returned_while_others_are_drawn() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    let mut admitted = setup.stream(&own, 60, Nanos::ZERO).len() as u64;
    // Few enough not to use them up, and often enough not to be idle.
    admitted += setup.stream(&own, 10, MS(20)).len() as u64;
    assert!(setup.lease.lease_stats().units_returned > 0);
    setup.pass(MS(200));
    assert_eq!(setup.used_units(&own), admitted);
}

/// One request charged to a leased limit and to an exact one.
fn both<'a>(leased: &'a TestLimit, exact: &'a TestLimit) -> ChargeSet<'a> {
    let mut set = leased.set(1);
    set.charges.push(exact.charge(1));
    set
}

#[test]
fn the_store_decides_the_exact_limits_of_a_request_and_its_denial_returns_leased_units() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 2, Nanos::from_secs(3_600));
    spec.lease_ttl = None;
    let exact = TestLimit::new(2, &spec);
    setup.stream(&own, 9, Nanos::ZERO);
    let set = both(&own, &exact);
    let charge = || {
        let result = setup.sim.block_on(setup.lease.charge(&set));
        result.map(|o| (o.admitted, o.source, o.readings[0].figures.remaining))
    };
    let left = 100_000 - 9;
    assert_eq!(charge().expect("a decision"), (true, Source::Lease, left - 1));
    assert_eq!(charge().expect("a decision"), (true, Source::Lease, left - 2));
    let held = setup.lease.lease_stats().units_outstanding;
    setup.store.behave(|behaviour| behaviour.fails = true);
    assert!(charge().is_err());
    setup.store.behave(|behaviour| behaviour.fails = false);
    assert_eq!(charge().expect("a decision"), (false, Source::Exact, left - 2));
    assert_eq!(setup.lease.lease_stats().units_outstanding, held);
    assert_eq!(setup.used_units(&exact), 2);
}

#[test]
fn a_request_that_cannot_be_covered_goes_to_the_store_as_a_whole() {
    let (setup, hot, cold) = (LeaseTestbed::new(), roomy(1), roomy(2));
    setup.stream(&hot, 9, Nanos::ZERO);
    let held = setup.lease.lease_stats().units_outstanding;
    let mut set = hot.set(1);
    set.charges.push(cold.charge(1));
    let outcome = setup.sim.block_on(setup.lease.charge(&set));
    assert_eq!(outcome.expect("a decision").source, Source::Exact);
    assert_eq!(setup.lease.lease_stats().units_outstanding, held);
    assert_eq!((setup.used_units(&hot), setup.used_units(&cold)), (8 + 8 + 1, 1));
}

#[test]
fn a_batch_charges_the_store_once_for_units_that_are_not_leased() {
    let (setup, hot, cold) = (LeaseTestbed::new(), roomy(1), roomy(2));
    setup.stream(&hot, 8, Nanos::ZERO);
    setup.store.calls();
    let sets = [hot.set(1), cold.set(3), hot.set(2), cold.set(4)];
    let sets = sets.each_ref();
    let results = setup.sim.block_on(setup.lease.charge_each(&sets));
    let results = results.into_iter();
    let sources: Vec<Source> = results.map(|a| a.expect("a decision").source).collect();
    use Source::{Exact, Lease};
    assert_eq!(sources, [Lease, Exact, Lease, Exact]);
    assert_eq!(setup.store.calls(), [RecordedCall::Charge(2)]);
    assert_eq!(setup.used_units(&cold), 7);
}

#[test]
fn a_nearly_used_limit_is_counted_exactly() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    let other = setup.second_node();
    let mut admitted = 0;
    for _ in 0..500 {
        admitted += setup.stream(&own, 1, Nanos::ZERO).matches(['e', 'l']).count();
        let result = setup.sim.block_on(other.charge(&own.set(1)));
        admitted += usize::from(result.expect("a decision").admitted);
        setup.pass(MS(1));
    }
    assert_eq!(admitted, 200);
    assert!(setup.lease.lease_stats().leases_drawn > 0 && other.lease_stats().leases_drawn > 0);
}

/// Units were drawn for requests that cost more than a node may hold, and no request could use them.
#[test]
fn no_lease_is_drawn_for_requests_that_cost_more_than_a_node_may_hold() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    for _ in 0..100 {
        assert!(!setup.charge(&own, 201).admitted);
        setup.charge(&own, 21);
    }
    setup.pass(MS(1));
    assert_eq!(draws(&setup.store.calls()), []);
}

#[test]
fn another_lease_is_drawn_when_a_request_costs_more_than_the_node_holds() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 8, Nanos::ZERO);
    assert_eq!(setup.lease.lease_stats().units_outstanding, 8);
    assert_eq!(setup.charge(&own, 20).source, Source::Lease, "from two leases");
    assert_eq!(setup.lease.lease_stats().units_outstanding, 8 + 28 - 20);
}

/// Nothing else comes so near to the bound: a lease is drawn from a full bucket, waits until it is full
/// again, and is used together with the whole bucket.
#[test]
fn a_waiting_lease_plus_the_inflow_meanwhile_is_the_burst_as_written() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (setup, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    setup.stream(&own, 20_000, Nanos::ZERO); // so that the estimated demand is high
    setup.pass(MS(300));
    assert_eq!(setup.stream(&own, 1, MS(45)), "l", "after a wait for the draw");
    assert_eq!(setup.lease.lease_stats().units_outstanding, 99);
    setup.store.behave(|behaviour| behaviour.epoch = None); // no more leases are drawn
    assert_eq!(setup.stream(&own, 1, MS(45)), "l");
    assert_eq!(setup.stream(&own, 1, MS(9)), "l");
    let at_once: u64 = [97, 199, 4].into_iter().filter(|cost| setup.charge(&own, *cost).admitted).sum();
    assert_eq!(at_once, 97 + 199);
}

/// A denial by the reply to a draw: its source and its retry time.
#[test]
fn after_a_denied_draw_requests_are_denied_without_store_calls_for_a_moment() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (setup, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    let decided = setup.stream(&own, 1_000, Nanos::ZERO);
    assert_eq!(decided.matches(['e', 'l']).count(), 200);
    setup.store.calls();
    let denied = setup.charge(&own, 1);
    assert_eq!((denied.admitted, denied.source), (false, Source::DenyCache));
    let wait = denied.readings[0].figures.more_after;
    assert_eq!(wait, MS(20));
    setup.pass(MS(19));
    assert!(!setup.charge(&own, 1).admitted);
    assert_eq!(setup.store.calls(), [], "no call was sent");
    assert!(setup.charge(&own, 2).admitted, "the store decides larger costs");
    // With an exact limit in the set, the store decides.
    let exact = TestLimit::new(2, &Spec { lease_ttl: None, ..spec });
    let outcome = setup.sim.block_on(setup.lease.charge(&both(&own, &exact)));
    assert!(outcome.expect("a decision").admitted);
    setup.pass(MS(1));
    assert!(setup.charge(&own, 1).admitted);
}

#[test]
fn refunded_units_are_available_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    let first = setup.charge(&own, 1);
    setup.stream(&own, 300, Nanos::ZERO);
    assert_eq!(setup.charge(&own, 1).source, Source::DenyCache);
    let refund = Refund { id: 1, charged_at: first.at, expires_at: first.at.plus(MS(1_000)), set: own.set(1) };
    let refunded = setup.sim.block_on(setup.lease.refund(&refund));
    assert_eq!(refunded.expect("memory replies"), Refunded::Done);
    assert!(setup.charge(&own, 1).admitted);
}

fn reserve(setup: &LeaseTestbed, own: &TestLimit, id: u128, units: u64) -> Outcome {
    let reserve = Reserve { id, ttl: MS(1), set: own.set(units) };
    let outcome = setup.sim.block_on(setup.lease.reserve(&reserve));
    outcome.expect("memory replies")
}

#[test]
fn units_freed_by_a_settlement_are_available_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    let reserved = reserve(&setup, &own, 1, 10);
    setup.stream(&own, 300, Nanos::ZERO);
    assert_eq!(setup.charge(&own, 1).source, Source::DenyCache);
    let settle = Settle {
        id: 1,
        charged_at: reserved.at,
        expires_at: reserved.at.plus(MS(1)),
        set: own.set(10),
        used: Used::Known([9].into_iter().collect()),
    };
    let settled = setup.sim.block_on(setup.lease.settle(&settle));
    assert_eq!(settled.expect("memory replies"), Settled::Done);
    assert!(setup.charge(&own, 1).admitted);
}

#[test]
fn units_refunded_by_the_next_reservation_are_available_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    assert!(reserve(&setup, &own, 1, 10).admitted);
    setup.stream(&own, 300, Nanos::ZERO);
    setup.pass(MS(1));
    assert_eq!(setup.charge(&own, 1).source, Source::DenyCache);
    assert!(reserve(&setup, &own, 2, 9).admitted);
    assert!(setup.charge(&own, 1).admitted);
}

#[test]
fn a_counter_without_a_table_entry_is_exact_until_one_is_free() {
    let (setup, own, other) = (LeaseTestbed::with(1, 1), roomy(1), roomy(2));
    assert_eq!(setup.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(setup.stream(&other, 20, Nanos::ZERO), "e".repeat(20));
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "l");
    setup.pass(MS(60));
    assert_eq!(setup.stream(&other, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(setup.stream(&own, 9, Nanos::ZERO), "e".repeat(9));
    setup.pass(MS(60));
    assert_eq!((setup.used_units(&own), setup.used_units(&other)), (19, 29));
}

/// The first counter had the entry for half a lease, so an endless sequence of new subjects kept every hot
/// key from drawing a lease.
#[test]
fn a_hot_counter_evicts_cold_ones_at_once() {
    let (setup, hot) = (LeaseTestbed::with(1, 1), roomy(1));
    for cold in 2..100 {
        assert_eq!(setup.stream(&roomy(cold), 1, Nanos::ZERO), "e");
    }
    assert_eq!(setup.stream(&hot, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(setup.stream(&roomy(2), 1, Nanos::ZERO), "e");
    assert_eq!(setup.stream(&hot, 1, Nanos::ZERO), "l", "a hot counter is not evicted");
    // A counter with a draw in flight is not evicted either.
    let (setup, drawing) = (LeaseTestbed::with(1, 1), roomy(1));
    setup.store.behave(|behaviour| behaviour.one_way = MS(10));
    setup.flood(&drawing, 8);
    setup.pass(MS(15));
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(setup.stream(&roomy(2), 1, Nanos::ZERO), "e");
    setup.pass(MS(5));
    assert_eq!(setup.stream(&drawing, 1, Nanos::ZERO), "l");
}

#[test]
fn another_limit_of_the_same_counter_has_leases_of_its_own() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    let smaller = leased(Algorithm::FixedWindow, 90_000, Nanos::from_secs(100));
    let reloaded = TestLimit::new(1, &smaller);
    assert_eq!(setup.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(setup.stream(&reloaded, 7, Nanos::ZERO), "eeeeeee");
}

#[test]
fn no_lease_is_drawn_from_a_store_that_is_not_trusted() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.store.behave(|behaviour| behaviour.epoch = None);
    assert_eq!(setup.stream(&own, 100, Nanos::ZERO), "e".repeat(100));
    assert_eq!(draws(&setup.store.calls()), []);
    setup.store.behave(|behaviour| behaviour.epoch = Some(Epoch(2)));
    setup.pass(MS(20));
    assert_eq!(setup.stream(&own, 2, Nanos::ZERO), "el");
}

#[test]
fn units_of_a_past_epoch_are_used_but_not_returned() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 9, Nanos::ZERO);
    setup.store.behave(|behaviour| behaviour.epoch = Some(Epoch(2)));
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "l");
    setup.store.calls();
    setup.pass(MS(60));
    assert_eq!(setup.store.calls(), []);
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_returned, stats.units_lapsed, stats.units_outstanding), (0, 6, 0));
}

#[test]
fn a_return_counts_only_if_the_store_confirms_it() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 9, Nanos::ZERO);
    setup.store.behave(|behaviour| behaviour.refunds_lapse = true);
    setup.pass(MS(60));
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_returned, stats.units_lapsed, stats.units_outstanding), (0, 7, 0));
    assert_eq!(setup.used_units(&own), 16);
}

#[test]
fn a_reset_drops_held_leases_and_draws_in_flight() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 9, Nanos::ZERO);
    let reset = setup.sim.block_on(setup.lease.reset(&own.set(1)));
    assert_eq!(reset.expect("memory replies"), 1);
    setup.store.behave(|behaviour| behaviour.epoch = None); // no more leases are drawn
    assert_eq!(setup.stream(&own, 1, Nanos::ZERO), "e");
    setup.pass(MS(60));
    assert_eq!(setup.used_units(&own), 1);

    setup.store.behave(|behaviour| (behaviour.one_way, behaviour.epoch) = (MS(10), Some(Epoch(1))));
    setup.flood(&own, 8);
    setup.pass(MS(15)); // charged, reply in flight
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    let reset = setup.sim.block_on(setup.lease.reset(&own.set(1)));
    reset.expect("memory replies");
    setup.pass(MS(5));
    assert_eq!(setup.lease.lease_stats().units_outstanding, 0);
    setup.pass(MS(100));
    assert_eq!(setup.used_units(&own), 0, "nothing is returned either");
}

#[test]
fn a_peek_includes_leased_units() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    setup.stream(&own, 9, Nanos::ZERO);
    let peek = |cost| {
        let peeked = setup.sim.block_on(setup.lease.peek(&own.set(cost)));
        let peeked = peeked.expect("memory replies");
        (peeked.admitted, peeked.readings[0].figures.remaining)
    };
    assert_eq!(peek(1), (true, 991));
    let all = setup.sim.block_on(setup.store.charge(&own.set(1_000 - 16)));
    assert!(all.expect("memory replies").admitted);
    assert_eq!(peek(1), (true, 7));
    assert_eq!(peek(8), (false, 7));
    assert_eq!(setup.lease.lease_stats().units_outstanding, 7, "a peek takes nothing");
}

#[test]
fn reported_remaining_includes_leased_units() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)));
    let setup = LeaseTestbed::new();
    setup.stream(&own, 8, MS(1));
    setup.pass(MS(12));
    let outcome = setup.charge(&own, 1);
    assert_eq!(outcome.source, Source::Lease);
    assert_eq!(outcome.at, recording_store::DATE.plus(MS(7)), "when the lease was drawn");
    let figures = outcome.readings[0].figures;
    assert_eq!((figures.remaining, figures.reset_after), (991, MS(980)));
}

#[test]
fn draining_returns_all_leases_and_draws_no_more() {
    let (setup, own, other) = (LeaseTestbed::new(), roomy(1), roomy(2));
    let admitted = setup.stream(&own, 30, Nanos::ZERO).len() as u64;
    setup.store.behave(|behaviour| behaviour.one_way = MS(10));
    setup.flood(&other, 8);
    setup.pass(MS(5)); // the draw is in flight
    setup.sim.block_on(setup.lease.drain());
    assert_eq!((setup.used_units(&own), setup.used_units(&other)), (admitted, 8));
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_outstanding, stats.units_lapsed), (0, 0));
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(setup.stream(&own, 20, Nanos::ZERO), "e".repeat(20));
}

#[test]
fn draining_waits_for_draws_in_flight() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.store.behave(|behaviour| behaviour.one_way = MS(10));
    setup.flood(&own, 8);
    setup.pass(MS(5));
    setup.sim.block_on(setup.lease.drain());
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_drawn, stats.units_returned), (8, 8));
    assert_eq!(setup.used_units(&own), 8);
}

/// The units of a request that was denied after all leases had been returned were lost.
#[test]
fn draining_waits_for_requests_that_may_return_units() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    spec.lease_ttl = None;
    let exact = TestLimit::new(2, &spec);
    setup.stream(&exact, 1, Nanos::ZERO);
    setup.stream(&own, 9, Nanos::ZERO);
    let held = setup.lease.lease_stats().units_outstanding;
    setup.store.behave(|behaviour| {
        (behaviour.one_way, behaviour.epoch) = (MS(10), None); // no lease is drawn meanwhile
    });
    let lease = setup.lease.clone();
    let request = (own.clone(), exact.clone());
    setup.sim.spawn(None, async move {
        let (own, exact) = &request;
        let mut set = own.set(held);
        set.charges.push(exact.charge(1));
        let outcome = lease.charge(&set).await;
        assert!(!outcome.expect("a decision").admitted);
    });
    setup.pass(MS(5));
    assert_eq!(setup.lease.lease_stats().units_outstanding, 0, "all units are taken");
    setup.store.behave(|behaviour| behaviour.epoch = Some(Epoch(1)));
    setup.sim.block_on(setup.lease.drain());
    let stats = setup.lease.lease_stats();
    assert_eq!((stats.units_returned, stats.units_lapsed), (held, 0));
    assert_eq!(setup.used_units(&own), 9);
}

#[test]
fn draining_does_not_wait_for_a_store_that_does_not_reply() {
    let (setup, own) = (LeaseTestbed::new(), roomy(1));
    setup.stream(&own, 9, Nanos::ZERO);
    setup.store.behave(|behaviour| behaviour.one_way = Nanos::from_secs(60));
    let began = setup.sim.now();
    setup.sim.block_on(setup.lease.drain());
    assert_eq!(setup.sim.now().since(began), Nanos::from_secs(3));
}
