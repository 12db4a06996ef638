//! Leases: when units are drawn in advance, how many, until when they are used, and how they come back.

mod overload;
mod random;
mod recording_store;
mod stack;
mod waiting;

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::{
    ChargeSet, Epoch, Outcome, Refund, Refunded, Reserve, Settle, Settled, Source, Store, Used,
};
use tidegate_core::units::Nanos;

use self::recording_store::{LeaseTestbed, MS, RecordedCall, TestLimit, leased};

/// A thousand in a second, counted in windows of a hundred seconds: a hundred flow in during a lease.
fn roomy(subject: u128) -> TestLimit {
    TestLimit::new(
        subject,
        &leased(Algorithm::FixedWindow, 100_000, Nanos::from_secs(100)),
    )
}

fn draws(calls: &[RecordedCall]) -> Vec<(u64, u64)> {
    let draws = calls.iter().filter_map(|call| match call {
        RecordedCall::Draw(requested, drawn) => Some((*requested, *drawn)),
        _ => None,
    });
    draws.collect()
}

#[test]
fn units_are_drawn_from_the_eighth_request_on_that_comes_within_half_a_lease() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    assert_eq!(bench.stream(&own, 7, Nanos::ZERO), "eeeeeee");
    assert_eq!(bench.store.calls(), [RecordedCall::Charge(1); 7]);
    assert_eq!(bench.stream(&own, 2, Nanos::ZERO), "el");
    assert_eq!(
        bench.store.calls(),
        [RecordedCall::Charge(1), RecordedCall::Draw(8, 8)]
    );
}

#[test]
fn cold_keys_cost_as_many_calls_as_if_they_were_exact() {
    let bench = LeaseTestbed::new();
    let keys: Vec<TestLimit> = (0..200).map(roomy).collect();
    for _ in 0..50 {
        for own in &keys {
            assert_eq!(bench.stream(own, 1, Nanos::ZERO), "e");
        }
        bench.pass(MS(10));
    }
    assert_eq!(bench.store.calls(), vec![RecordedCall::Charge(1); 50 * 200]);
}

#[test]
fn the_next_lease_is_drawn_when_half_is_used_and_one_at_a_time() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 8, Nanos::ZERO);
    assert_eq!(bench.stream(&own, 3, Nanos::ZERO), "lll");
    assert_eq!(draws(&bench.store.calls()), [(8, 8)]);
    bench.store.behave(|behaviour| behaviour.one_way = MS(5));
    assert_eq!(bench.stream(&own, 5, Nanos::ZERO), "lllll");
    bench.flood(&own, 4);
    bench.pass(MS(20));
    assert_eq!(draws(&bench.store.calls()), [(12, 12)]);
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
}

#[test]
fn no_more_is_held_than_flows_in_during_one_lease() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    let held = (0..2_000).map(|_| {
        bench.stream(&own, 1, Nanos::new(100_000));
        bench.lease.stats().units_outstanding
    });
    assert_eq!(held.max(), Some(100));
}

/// The source of a request so many milliseconds after the start of a window of a second, when units were
/// drawn 60 ms before its end.
#[track_caller]
fn check_edge(guard_ms: u64, at_ms: u64, want: &str) {
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = MS(guard_ms);
    let (bench, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    bench.pass(MS(940));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.pass(MS(at_ms - 940));
    bench.store.behave(|behaviour| behaviour.epoch = None); // no more are drawn
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), want, "at {at_ms} ms");
}

#[test]
fn a_lease_ends_with_its_window_and_before_the_margin_of_its_end() {
    check_edge(0, 985, "l");
    check_edge(20, 979, "l");
    check_edge(20, 980, "e");
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = Nanos::ZERO;
    let (bench, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    bench.pass(MS(940));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.pass(MS(40));
    bench.store.behave(|behaviour| behaviour.epoch = None);
    assert_eq!(bench.stream(&own, 1, MS(19)), "l");
    assert_eq!(bench.stream(&own, 1, MS(1)), "l", "at 999 ms");
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e", "at 1000 ms");
}

#[test]
fn a_lease_expires_from_when_its_draw_was_sent() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.store.behave(|behaviour| behaviour.one_way = MS(30));
    bench.flood(&own, 8); // charged at 30 ms, answered at 60 ms
    bench.pass(MS(60));
    assert_eq!(bench.stream(&own, 1, MS(39)), "l");
    assert_eq!(bench.stream(&own, 1, MS(1)), "l", "at 99 ms");
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e", "at 100 ms");
}

#[test]
fn a_grant_that_is_answered_after_its_end_is_given_back() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.store.behave(|behaviour| behaviour.one_way = MS(60));
    bench.flood(&own, 8);
    bench.pass(MS(120));
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 1, MS(5)), "e");
    let calls = bench.store.calls();
    assert!(calls.contains(&RecordedCall::Draw(8, 8)) && calls.contains(&RecordedCall::Refund(8)));
    assert_eq!(bench.used_units(&own), 9);
}

#[test]
fn idle_leases_are_returned_and_used_ones_stay() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 10, Nanos::ZERO);
    bench.pass(MS(45));
    assert_eq!(bench.lease.stats().units_outstanding, 6);
    assert_eq!(bench.used_units(&own), 16);
    bench.pass(MS(10));
    assert_eq!(bench.used_units(&own), 10);
    let facts = bench.lease.stats();
    assert_eq!((facts.leases_drawn, facts.units_drawn), (1, 8));
    assert_eq!(
        (
            facts.units_returned,
            facts.units_lapsed,
            facts.units_outstanding
        ),
        (6, 0, 0)
    );
}

#[test]
fn leftovers_of_an_expired_lease_are_returned_while_others_are_drawn() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    let mut admitted = bench.stream(&own, 60, Nanos::ZERO).len() as u64;
    // Few enough not to use them up, and often enough not to be idle.
    admitted += bench.stream(&own, 10, MS(20)).len() as u64;
    assert!(bench.lease.stats().units_returned > 0);
    bench.pass(MS(200));
    assert_eq!(bench.used_units(&own), admitted);
}

/// One request of a leased limit and of one that is exact.
fn both<'a>(leased: &'a TestLimit, exact: &'a TestLimit) -> ChargeSet<'a> {
    let mut set = leased.set(1);
    set.charges.push(exact.charge(1));
    set
}

#[test]
fn the_rest_of_a_request_is_decided_by_the_store_and_its_refusal_puts_units_back() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 2, Nanos::from_secs(3_600));
    spec.lease_ttl = None;
    let exact = TestLimit::new(2, &spec);
    bench.stream(&own, 9, Nanos::ZERO);
    let set = both(&own, &exact);
    let charge = || {
        let result = bench.sim.block_on(bench.lease.charge(&set));
        result.map(|o| (o.admitted, o.source, o.readings[0].figures.remaining))
    };
    let left = 100_000 - 9;
    assert_eq!(
        charge().expect("a decision"),
        (true, Source::Lease, left - 1)
    );
    assert_eq!(
        charge().expect("a decision"),
        (true, Source::Lease, left - 2)
    );
    let held = bench.lease.stats().units_outstanding;
    assert_eq!(
        charge().expect("a decision"),
        (false, Source::Exact, left - 2)
    );
    bench.store.behave(|behaviour| behaviour.fails = true);
    assert!(charge().is_err());
    assert_eq!(bench.lease.stats().units_outstanding, held);
    assert_eq!(bench.used_units(&exact), 2);
}

#[test]
fn a_request_that_cannot_be_covered_goes_to_the_store_as_a_whole() {
    let (bench, hot, cold) = (LeaseTestbed::new(), roomy(1), roomy(2));
    bench.stream(&hot, 9, Nanos::ZERO);
    let held = bench.lease.stats().units_outstanding;
    let mut set = hot.set(1);
    set.charges.push(cold.charge(1));
    let outcome = bench.sim.block_on(bench.lease.charge(&set));
    assert_eq!(outcome.expect("a decision").source, Source::Exact);
    assert_eq!(bench.lease.stats().units_outstanding, held);
    assert_eq!(
        (bench.used_units(&hot), bench.used_units(&cold)),
        (8 + 8 + 1, 1)
    );
}

#[test]
fn a_batch_asks_the_store_once_for_what_is_not_held() {
    let (bench, hot, cold) = (LeaseTestbed::new(), roomy(1), roomy(2));
    bench.stream(&hot, 8, Nanos::ZERO);
    bench.store.calls();
    let sets = [hot.set(1), cold.set(3), hot.set(2), cold.set(4)];
    let sets = sets.each_ref();
    let results = bench.sim.block_on(bench.lease.charge_each(&sets));
    let results = results.into_iter();
    let sources: Vec<Source> = results.map(|a| a.expect("a decision").source).collect();
    use Source::{Exact, Lease};
    assert_eq!(sources, [Lease, Exact, Lease, Exact]);
    assert_eq!(bench.store.calls(), [RecordedCall::Charge(2)]);
    assert_eq!(bench.used_units(&cold), 7);
}

#[test]
fn near_its_end_a_limit_is_exact() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = LeaseTestbed::new();
    let other = bench.second_node();
    let mut admitted = 0;
    for _ in 0..500 {
        admitted += bench
            .stream(&own, 1, Nanos::ZERO)
            .matches(['e', 'l'])
            .count();
        let result = bench.sim.block_on(other.charge(&own.set(1)));
        admitted += usize::from(result.expect("a decision").admitted);
        bench.pass(MS(1));
    }
    assert_eq!(admitted, 200);
    assert!(bench.lease.stats().leases_drawn > 0 && other.stats().leases_drawn > 0);
}

/// Units that nobody could use were drawn for requests that asked for more than may be held.
#[test]
fn nothing_is_drawn_for_requests_that_cost_more_than_may_be_held() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = LeaseTestbed::new();
    for _ in 0..100 {
        assert!(!bench.charge(&own, 201).admitted);
        bench.charge(&own, 21);
    }
    bench.pass(MS(1));
    assert_eq!(draws(&bench.store.calls()), []);
}

#[test]
fn another_lease_is_drawn_when_a_request_costs_more_than_is_held() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 8, Nanos::ZERO);
    assert_eq!(bench.lease.stats().units_outstanding, 8);
    assert_eq!(
        bench.charge(&own, 20).source,
        Source::Lease,
        "of two grants"
    );
    assert_eq!(bench.lease.stats().units_outstanding, 8 + 28 - 20);
}

/// Nothing else comes so near to the bound: units are drawn from a full bucket, wait until it is full again,
/// and are used together with all that is in it.
#[test]
fn what_waited_and_what_flowed_in_meanwhile_are_the_burst_as_it_was_written() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (bench, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    bench.stream(&own, 20_000, Nanos::ZERO); // so that much is thought to be needed
    bench.pass(MS(300));
    assert_eq!(bench.stream(&own, 1, MS(45)), "l", "it was waited for");
    assert_eq!(bench.lease.stats().units_outstanding, 99);
    bench.store.behave(|behaviour| behaviour.epoch = None); // no more are drawn
    assert_eq!(bench.stream(&own, 1, MS(45)), "l");
    assert_eq!(bench.stream(&own, 1, MS(9)), "l");
    let at_once: u64 = [97, 199, 4]
        .into_iter()
        .filter(|cost| bench.charge(&own, *cost).admitted)
        .sum();
    assert_eq!(at_once, 97 + 199);
}

/// A refusal by what the store said when it was asked for more: its source and the wait that is told.
#[test]
fn a_denied_draw_denies_without_store_calls_for_a_moment() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (bench, own) = (LeaseTestbed::new(), TestLimit::new(1, &spec));
    let decided = bench.stream(&own, 1_000, Nanos::ZERO);
    assert_eq!(decided.matches(['e', 'l']).count(), 200);
    bench.store.calls();
    let denied = bench.charge(&own, 1);
    assert_eq!((denied.admitted, denied.source), (false, Source::DenyCache));
    let wait = denied.readings[0].figures.more_after;
    assert_eq!(wait, MS(20));
    bench.pass(MS(19));
    assert!(!bench.charge(&own, 1).admitted);
    assert_eq!(bench.store.calls(), [], "it was not asked");
    assert!(
        bench.charge(&own, 2).admitted,
        "more is for the store to say"
    );
    // Beside a limit that must be asked about anyway, the store decides.
    let exact = TestLimit::new(
        2,
        &Spec {
            lease_ttl: None,
            ..spec
        },
    );
    let outcome = bench.sim.block_on(bench.lease.charge(&both(&own, &exact)));
    assert!(outcome.expect("a decision").admitted);
    bench.pass(MS(1));
    assert!(bench.charge(&own, 1).admitted);
}

#[test]
fn what_is_given_back_can_be_had_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = LeaseTestbed::new();
    let first = bench.charge(&own, 1);
    bench.stream(&own, 300, Nanos::ZERO);
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    let refund = Refund {
        id: 1,
        charged_at: first.at,
        expires_at: first.at.plus(MS(1_000)),
        set: own.set(1),
    };
    let refunded = bench.sim.block_on(bench.lease.refund(&refund));
    assert_eq!(refunded.expect("memory answers"), Refunded::Done);
    assert!(bench.charge(&own, 1).admitted);
}

fn reserve(bench: &LeaseTestbed, own: &TestLimit, id: u128, units: u64) -> Outcome {
    let reserve = Reserve {
        id,
        ttl: MS(1),
        set: own.set(units),
    };
    let outcome = bench.sim.block_on(bench.lease.reserve(&reserve));
    outcome.expect("memory answers")
}

#[test]
fn what_is_settled_can_be_had_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = LeaseTestbed::new();
    let reserved = reserve(&bench, &own, 1, 10);
    bench.stream(&own, 300, Nanos::ZERO);
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    let settle = Settle {
        id: 1,
        charged_at: reserved.at,
        expires_at: reserved.at.plus(MS(1)),
        set: own.set(10),
        used: Used::Known([9].into_iter().collect()),
    };
    let settled = bench.sim.block_on(bench.lease.settle(&settle));
    assert_eq!(settled.expect("memory answers"), Settled::Done);
    assert!(bench.charge(&own, 1).admitted);
}

#[test]
fn what_a_reservation_brings_back_can_be_had_at_once() {
    let own = TestLimit::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = LeaseTestbed::new();
    assert!(reserve(&bench, &own, 1, 10).admitted);
    bench.stream(&own, 300, Nanos::ZERO);
    bench.pass(MS(1));
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    assert!(reserve(&bench, &own, 2, 9).admitted);
    assert!(bench.charge(&own, 1).admitted);
}

#[test]
fn a_counter_whose_place_is_taken_is_exact_until_it_is_free() {
    let (bench, own, other) = (LeaseTestbed::with(1, 1), roomy(1), roomy(2));
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&other, 20, Nanos::ZERO), "e".repeat(20));
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
    bench.pass(MS(60));
    assert_eq!(bench.stream(&other, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "e".repeat(9));
    bench.pass(MS(60));
    assert_eq!((bench.used_units(&own), bench.used_units(&other)), (19, 29));
}

/// Whoever came first had the place for half a lease, so new subjects without end kept every hot key from
/// drawing anything.
#[test]
fn cold_counters_give_way_to_a_hot_one_at_once() {
    let (bench, hot) = (LeaseTestbed::with(1, 1), roomy(1));
    for cold in 2..100 {
        assert_eq!(bench.stream(&roomy(cold), 1, Nanos::ZERO), "e");
    }
    assert_eq!(bench.stream(&hot, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&roomy(2), 1, Nanos::ZERO), "e");
    assert_eq!(bench.stream(&hot, 1, Nanos::ZERO), "l", "it stays");
    // One that has been asked for and not answered stays too.
    let (bench, asking) = (LeaseTestbed::with(1, 1), roomy(1));
    bench.store.behave(|behaviour| behaviour.one_way = MS(10));
    bench.flood(&asking, 8);
    bench.pass(MS(15));
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(bench.stream(&roomy(2), 1, Nanos::ZERO), "e");
    bench.pass(MS(5));
    assert_eq!(bench.stream(&asking, 1, Nanos::ZERO), "l");
}

#[test]
fn another_limit_of_the_same_counter_has_units_of_its_own() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    let smaller = leased(Algorithm::FixedWindow, 90_000, Nanos::from_secs(100));
    let reloaded = TestLimit::new(1, &smaller);
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&reloaded, 7, Nanos::ZERO), "eeeeeee");
}

#[test]
fn nothing_is_drawn_from_a_store_that_is_not_believed() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.store.behave(|behaviour| behaviour.epoch = None);
    assert_eq!(bench.stream(&own, 100, Nanos::ZERO), "e".repeat(100));
    assert_eq!(draws(&bench.store.calls()), []);
    bench
        .store
        .behave(|behaviour| behaviour.epoch = Some(Epoch(2)));
    bench.pass(MS(20));
    assert_eq!(bench.stream(&own, 2, Nanos::ZERO), "el");
}

#[test]
fn units_of_a_life_that_has_ended_are_used_but_not_given_back() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench
        .store
        .behave(|behaviour| behaviour.epoch = Some(Epoch(2)));
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
    bench.store.calls();
    bench.pass(MS(60));
    assert_eq!(bench.store.calls(), []);
    let facts = bench.lease.stats();
    assert_eq!(
        (
            facts.units_returned,
            facts.units_lapsed,
            facts.units_outstanding
        ),
        (0, 6, 0)
    );
}

#[test]
fn units_are_returned_only_if_the_store_says_so() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench
        .store
        .behave(|behaviour| behaviour.refunds_lapse = true);
    bench.pass(MS(60));
    let facts = bench.lease.stats();
    assert_eq!(
        (
            facts.units_returned,
            facts.units_lapsed,
            facts.units_outstanding
        ),
        (0, 7, 0)
    );
    assert_eq!(bench.used_units(&own), 16);
}

#[test]
fn a_reset_drops_what_is_held_and_what_is_under_way() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    let reset = bench.sim.block_on(bench.lease.reset(&own.set(1)));
    assert_eq!(reset.expect("memory answers"), 1);
    bench.store.behave(|behaviour| behaviour.epoch = None); // no more are drawn
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e");
    bench.pass(MS(60));
    assert_eq!(bench.used_units(&own), 1);

    bench
        .store
        .behave(|behaviour| (behaviour.one_way, behaviour.epoch) = (MS(10), Some(Epoch(1))));
    bench.flood(&own, 8);
    bench.pass(MS(15)); // charged, and not answered yet
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    let reset = bench.sim.block_on(bench.lease.reset(&own.set(1)));
    reset.expect("memory answers");
    bench.pass(MS(5));
    assert_eq!(bench.lease.stats().units_outstanding, 0);
    bench.pass(MS(100));
    assert_eq!(bench.used_units(&own), 0, "nothing is given back either");
}

#[test]
fn a_peek_counts_what_is_held() {
    let own = TestLimit::new(
        1,
        &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)),
    );
    let bench = LeaseTestbed::new();
    bench.stream(&own, 9, Nanos::ZERO);
    let peek = |cost| {
        let peeked = bench.sim.block_on(bench.lease.peek(&own.set(cost)));
        let peeked = peeked.expect("memory answers");
        (peeked.admitted, peeked.readings[0].figures.remaining)
    };
    assert_eq!(peek(1), (true, 991));
    let all = bench.sim.block_on(bench.store.charge(&own.set(1_000 - 16)));
    assert!(all.expect("memory answers").admitted);
    assert_eq!(peek(1), (true, 7));
    assert_eq!(peek(8), (false, 7));
    assert_eq!(bench.lease.stats().units_outstanding, 7, "it took nothing");
}

#[test]
fn reported_remaining_includes_leased_units() {
    let own = TestLimit::new(
        1,
        &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)),
    );
    let bench = LeaseTestbed::new();
    bench.stream(&own, 8, MS(1));
    bench.pass(MS(12));
    let outcome = bench.charge(&own, 1);
    assert_eq!(outcome.source, Source::Lease);
    assert_eq!(
        outcome.at,
        recording_store::DATE.plus(MS(7)),
        "when it was drawn"
    );
    let figures = outcome.readings[0].figures;
    assert_eq!((figures.remaining, figures.reset_after), (991, MS(980)));
}

#[test]
fn draining_gives_everything_back_and_draws_nothing_more() {
    let (bench, own, other) = (LeaseTestbed::new(), roomy(1), roomy(2));
    let admitted = bench.stream(&own, 30, Nanos::ZERO).len() as u64;
    bench.store.behave(|behaviour| behaviour.one_way = MS(10));
    bench.flood(&other, 8);
    bench.pass(MS(5)); // asked for and on the way
    bench.sim.block_on(bench.lease.return_all());
    assert_eq!(
        (bench.used_units(&own), bench.used_units(&other)),
        (admitted, 8)
    );
    let facts = bench.lease.stats();
    assert_eq!((facts.units_outstanding, facts.units_lapsed), (0, 0));
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 20, Nanos::ZERO), "e".repeat(20));
}

#[test]
fn draining_waits_for_draws_in_flight() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.store.behave(|behaviour| behaviour.one_way = MS(10));
    bench.flood(&own, 8);
    bench.pass(MS(5));
    bench.sim.block_on(bench.lease.return_all());
    let facts = bench.lease.stats();
    assert_eq!((facts.units_drawn, facts.units_returned), (8, 8));
    assert_eq!(bench.used_units(&own), 8);
}

/// The units of a request that was refused after everything had been given back were lost.
#[test]
fn draining_waits_for_requests_that_may_put_units_back() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    spec.lease_ttl = None;
    let exact = TestLimit::new(2, &spec);
    bench.stream(&exact, 1, Nanos::ZERO);
    bench.stream(&own, 9, Nanos::ZERO);
    let held = bench.lease.stats().units_outstanding;
    bench.store.behave(|behaviour| {
        (behaviour.one_way, behaviour.epoch) = (MS(10), None); // nothing more is drawn meanwhile
    });
    let lease = bench.lease.clone();
    let request = (own.clone(), exact.clone());
    bench.sim.spawn(None, async move {
        let (own, exact) = &request;
        let mut set = own.set(held);
        set.charges.push(exact.charge(1));
        let outcome = lease.charge(&set).await;
        assert!(!outcome.expect("a decision").admitted);
    });
    bench.pass(MS(5));
    assert_eq!(bench.lease.stats().units_outstanding, 0, "all is taken");
    bench
        .store
        .behave(|behaviour| behaviour.epoch = Some(Epoch(1)));
    bench.sim.block_on(bench.lease.return_all());
    let facts = bench.lease.stats();
    assert_eq!((facts.units_returned, facts.units_lapsed), (held, 0));
    assert_eq!(bench.used_units(&own), 9);
}

#[test]
fn draining_does_not_wait_for_a_store_that_does_not_answer() {
    let (bench, own) = (LeaseTestbed::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench
        .store
        .behave(|behaviour| behaviour.one_way = Nanos::from_secs(60));
    let began = bench.sim.now();
    bench.sim.block_on(bench.lease.return_all());
    assert_eq!(bench.sim.now().since(began), Nanos::from_secs(3));
}
