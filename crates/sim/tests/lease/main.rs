//! Leases: when units are drawn in advance, how many, until when they are used, and how they come back.

mod overload;
mod random;
mod stack;
mod till;
mod waiting;

use tidegate_core::algorithms::{Algorithm, Spec};
use tidegate_core::store::{
    ChargeSet, Life, Outcome, Refund, Refunded, Reserve, Settle, Settled, Source, Store, Used,
};
use tidegate_core::units::Nanos;

use self::till::{Bench, Call, MS, Own, leased};

/// A thousand in a second, counted in windows of a hundred seconds: a hundred flow in during a lease.
fn roomy(subject: u128) -> Own {
    Own::new(
        subject,
        &leased(Algorithm::FixedWindow, 100_000, Nanos::from_secs(100)),
    )
}

fn grants(calls: &[Call]) -> Vec<(u64, u64)> {
    let grants = calls.iter().filter_map(|call| match call {
        Call::Grant(asked, given) => Some((*asked, *given)),
        _ => None,
    });
    grants.collect()
}

#[test]
fn units_are_drawn_from_the_eighth_request_on_that_comes_within_half_a_lease() {
    let (bench, own) = (Bench::new(), roomy(1));
    assert_eq!(bench.stream(&own, 7, Nanos::ZERO), "eeeeeee");
    assert_eq!(bench.till.calls(), [Call::Charge(1); 7]);
    assert_eq!(bench.stream(&own, 2, Nanos::ZERO), "el");
    assert_eq!(bench.till.calls(), [Call::Charge(1), Call::Grant(8, 8)]);
}

#[test]
fn cold_keys_cost_as_many_calls_as_if_they_were_exact() {
    let bench = Bench::new();
    let keys: Vec<Own> = (0..200).map(roomy).collect();
    for _ in 0..50 {
        for own in &keys {
            assert_eq!(bench.stream(own, 1, Nanos::ZERO), "e");
        }
        bench.pass(MS(10));
    }
    assert_eq!(bench.till.calls(), vec![Call::Charge(1); 50 * 200]);
}

#[test]
fn more_is_asked_for_when_half_is_used_and_once_at_a_time() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 8, Nanos::ZERO);
    assert_eq!(bench.stream(&own, 3, Nanos::ZERO), "lll");
    assert_eq!(grants(&bench.till.calls()), [(8, 8)]);
    bench.till.behave(|manner| manner.way = MS(5));
    assert_eq!(bench.stream(&own, 5, Nanos::ZERO), "lllll");
    bench.flood(&own, 4);
    bench.pass(MS(20));
    assert_eq!(grants(&bench.till.calls()), [(12, 12)]);
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
}

#[test]
fn no_more_is_held_than_flows_in_during_one_lease() {
    let (bench, own) = (Bench::new(), roomy(1));
    let held = (0..2_000).map(|_| {
        bench.stream(&own, 1, Nanos::new(100_000));
        bench.lease.facts().held
    });
    assert_eq!(held.max(), Some(100));
}

/// The source of a request so many milliseconds after the start of a window of a second, when units were
/// drawn 60 ms before its end.
#[track_caller]
fn check_edge(guard_ms: u64, at_ms: u64, want: &str) {
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = MS(guard_ms);
    let (bench, own) = (Bench::new(), Own::new(1, &spec));
    bench.pass(MS(940));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.pass(MS(at_ms - 940));
    bench.till.behave(|manner| manner.life = None); // no more are drawn
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), want, "at {at_ms} ms");
}

#[test]
fn a_lease_ends_with_its_window_and_before_the_margin_of_its_end() {
    check_edge(0, 985, "l");
    check_edge(20, 979, "l");
    check_edge(20, 980, "e");
    let mut spec = leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1));
    spec.guard = Nanos::ZERO;
    let (bench, own) = (Bench::new(), Own::new(1, &spec));
    bench.pass(MS(940));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.pass(MS(40));
    bench.till.behave(|manner| manner.life = None);
    assert_eq!(bench.stream(&own, 1, MS(19)), "l");
    assert_eq!(bench.stream(&own, 1, MS(1)), "l", "at 999 ms");
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e", "at 1000 ms");
}

#[test]
fn a_lease_is_reckoned_from_when_it_was_asked_for() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.till.behave(|manner| manner.way = MS(30));
    bench.flood(&own, 8); // charged at 30 ms, answered at 60 ms
    bench.pass(MS(60));
    assert_eq!(bench.stream(&own, 1, MS(39)), "l");
    assert_eq!(bench.stream(&own, 1, MS(1)), "l", "at 99 ms");
    bench.till.behave(|manner| manner.way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e", "at 100 ms");
}

#[test]
fn a_grant_that_is_answered_after_its_end_is_given_back() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.till.behave(|manner| manner.way = MS(60));
    bench.flood(&own, 8);
    bench.pass(MS(120));
    bench.till.behave(|manner| manner.way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 1, MS(5)), "e");
    let calls = bench.till.calls();
    assert!(calls.contains(&Call::Grant(8, 8)) && calls.contains(&Call::Refund(8)));
    assert_eq!(bench.booked(&own), 9);
}

#[test]
fn what_nobody_asks_for_comes_back_and_what_is_asked_for_stays() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 10, Nanos::ZERO);
    bench.pass(MS(45));
    assert_eq!(bench.lease.facts().held, 6);
    assert_eq!(bench.booked(&own), 16);
    bench.pass(MS(10));
    assert_eq!(bench.booked(&own), 10);
    let facts = bench.lease.facts();
    assert_eq!((facts.grants, facts.granted), (1, 8));
    assert_eq!((facts.returned, facts.lapsed, facts.held), (6, 0, 0));
}

#[test]
fn what_is_left_at_the_end_of_a_lease_comes_back_while_others_are_asked_for() {
    let (bench, own) = (Bench::new(), roomy(1));
    let mut admitted = bench.stream(&own, 60, Nanos::ZERO).len() as u64;
    // Few enough not to use them up, and often enough not to be idle.
    admitted += bench.stream(&own, 10, MS(20)).len() as u64;
    assert!(bench.lease.facts().returned > 0);
    bench.pass(MS(200));
    assert_eq!(bench.booked(&own), admitted);
}

/// One request of a leased limit and of one that is exact.
fn both<'a>(leased: &'a Own, exact: &'a Own) -> ChargeSet<'a> {
    let mut set = leased.set(1);
    set.charges.push(exact.charge(1));
    set
}

#[test]
fn the_rest_of_a_request_is_decided_by_the_store_and_its_refusal_puts_units_back() {
    let (bench, own) = (Bench::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 2, Nanos::from_secs(3_600));
    spec.leased = None;
    let exact = Own::new(2, &spec);
    bench.stream(&own, 9, Nanos::ZERO);
    let set = both(&own, &exact);
    let charge = || {
        let answer = bench.sim.block_on(bench.lease.charge(&set));
        answer.map(|o| (o.admitted, o.source, o.readings[0].figures.remaining))
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
    let held = bench.lease.facts().held;
    assert_eq!(
        charge().expect("a decision"),
        (false, Source::Exact, left - 2)
    );
    bench.till.behave(|manner| manner.fails = true);
    assert!(charge().is_err());
    assert_eq!(bench.lease.facts().held, held);
    assert_eq!(bench.booked(&exact), 2);
}

#[test]
fn a_request_that_cannot_be_covered_goes_to_the_store_as_a_whole() {
    let (bench, hot, cold) = (Bench::new(), roomy(1), roomy(2));
    bench.stream(&hot, 9, Nanos::ZERO);
    let held = bench.lease.facts().held;
    let mut set = hot.set(1);
    set.charges.push(cold.charge(1));
    let outcome = bench.sim.block_on(bench.lease.charge(&set));
    assert_eq!(outcome.expect("a decision").source, Source::Exact);
    assert_eq!(bench.lease.facts().held, held);
    assert_eq!((bench.booked(&hot), bench.booked(&cold)), (8 + 8 + 1, 1));
}

#[test]
fn a_batch_asks_the_store_once_for_what_is_not_held() {
    let (bench, hot, cold) = (Bench::new(), roomy(1), roomy(2));
    bench.stream(&hot, 8, Nanos::ZERO);
    bench.till.calls();
    let sets = [hot.set(1), cold.set(3), hot.set(2), cold.set(4)];
    let sets = sets.each_ref();
    let answers = bench.sim.block_on(bench.lease.charge_each(&sets));
    let answers = answers.into_iter();
    let sources: Vec<Source> = answers.map(|a| a.expect("a decision").source).collect();
    use Source::{Exact, Lease};
    assert_eq!(sources, [Lease, Exact, Lease, Exact]);
    assert_eq!(bench.till.calls(), [Call::Charge(2)]);
    assert_eq!(bench.booked(&cold), 7);
}

#[test]
fn near_its_end_a_limit_is_exact() {
    let own = Own::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = Bench::new();
    let other = bench.neighbour();
    let mut admitted = 0;
    for _ in 0..500 {
        admitted += bench
            .stream(&own, 1, Nanos::ZERO)
            .matches(['e', 'l'])
            .count();
        let answer = bench.sim.block_on(other.charge(&own.set(1)));
        admitted += usize::from(answer.expect("a decision").admitted);
        bench.pass(MS(1));
    }
    assert_eq!(admitted, 200);
    assert!(bench.lease.facts().grants > 0 && other.facts().grants > 0);
}

/// Units that nobody could use were drawn for requests that asked for more than may be held.
#[test]
fn nothing_is_drawn_for_requests_that_cost_more_than_may_be_held() {
    let own = Own::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = Bench::new();
    for _ in 0..100 {
        assert!(!bench.charge(&own, 201).admitted);
        bench.charge(&own, 21);
    }
    bench.pass(MS(1));
    assert_eq!(grants(&bench.till.calls()), []);
}

#[test]
fn more_is_asked_for_when_a_request_costs_more_than_is_held() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 8, Nanos::ZERO);
    assert_eq!(bench.lease.facts().held, 8);
    assert_eq!(
        bench.charge(&own, 20).source,
        Source::Lease,
        "of two grants"
    );
    assert_eq!(bench.lease.facts().held, 8 + 28 - 20);
}

/// Nothing else comes so near to the bound: units are drawn from a full bucket, wait until it is full again,
/// and are used together with all that is in it.
#[test]
fn what_waited_and_what_flowed_in_meanwhile_are_the_burst_as_it_was_written() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (bench, own) = (Bench::new(), Own::new(1, &spec));
    bench.stream(&own, 20_000, Nanos::ZERO); // so that much is thought to be needed
    bench.pass(MS(300));
    assert_eq!(bench.stream(&own, 1, MS(45)), "l", "it was waited for");
    assert_eq!(bench.lease.facts().held, 99);
    bench.till.behave(|manner| manner.life = None); // no more are drawn
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
fn what_the_store_has_said_is_over_is_refused_without_asking_for_a_moment() {
    let mut spec = leased(Algorithm::TokenBucket, 1_000, Nanos::from_secs(1));
    spec.burst = Some(300);
    let (bench, own) = (Bench::new(), Own::new(1, &spec));
    let decided = bench.stream(&own, 1_000, Nanos::ZERO);
    assert_eq!(decided.matches(['e', 'l']).count(), 200);
    bench.till.calls();
    let refused = bench.charge(&own, 1);
    assert_eq!(
        (refused.admitted, refused.source),
        (false, Source::DenyCache)
    );
    let wait = refused.readings[0].figures.more_after;
    assert_eq!(wait, MS(20));
    bench.pass(MS(19));
    assert!(!bench.charge(&own, 1).admitted);
    assert_eq!(bench.till.calls(), [], "it was not asked");
    assert!(
        bench.charge(&own, 2).admitted,
        "more is for the store to say"
    );
    // Beside a limit that must be asked about anyway, the store decides.
    let exact = Own::new(
        2,
        &Spec {
            leased: None,
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
    let own = Own::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = Bench::new();
    let first = bench.charge(&own, 1);
    bench.stream(&own, 300, Nanos::ZERO);
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    let refund = Refund {
        id: 1,
        charged: first.at,
        until: first.at.plus(MS(1_000)),
        set: own.set(1),
    };
    let refunded = bench.sim.block_on(bench.lease.refund(&refund));
    assert_eq!(refunded.expect("memory answers"), Refunded::Done);
    assert!(bench.charge(&own, 1).admitted);
}

fn reserve(bench: &Bench, own: &Own, id: u128, units: u64) -> Outcome {
    let reserve = Reserve {
        id,
        lasts: MS(1),
        set: own.set(units),
    };
    let outcome = bench.sim.block_on(bench.lease.reserve(&reserve));
    outcome.expect("memory answers")
}

#[test]
fn what_is_settled_can_be_had_at_once() {
    let own = Own::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = Bench::new();
    let reserved = reserve(&bench, &own, 1, 10);
    bench.stream(&own, 300, Nanos::ZERO);
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    let settle = Settle {
        id: 1,
        charged: reserved.at,
        until: reserved.at.plus(MS(1)),
        set: own.set(10),
        used: Used::Known([9].into_iter().collect()),
    };
    let settled = bench.sim.block_on(bench.lease.settle(&settle));
    assert_eq!(settled.expect("memory answers"), Settled::Done);
    assert!(bench.charge(&own, 1).admitted);
}

#[test]
fn what_a_reservation_brings_back_can_be_had_at_once() {
    let own = Own::new(1, &leased(Algorithm::FixedWindow, 200, Nanos::from_secs(1)));
    let bench = Bench::new();
    assert!(reserve(&bench, &own, 1, 10).admitted);
    bench.stream(&own, 300, Nanos::ZERO);
    bench.pass(MS(1));
    assert_eq!(bench.charge(&own, 1).source, Source::DenyCache);
    assert!(reserve(&bench, &own, 2, 9).admitted);
    assert!(bench.charge(&own, 1).admitted);
}

#[test]
fn a_counter_whose_place_is_taken_is_exact_until_it_is_free() {
    let (bench, own, other) = (Bench::with(1, 1), roomy(1), roomy(2));
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&other, 20, Nanos::ZERO), "e".repeat(20));
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
    bench.pass(MS(60));
    assert_eq!(bench.stream(&other, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "e".repeat(9));
    bench.pass(MS(60));
    assert_eq!((bench.booked(&own), bench.booked(&other)), (19, 29));
}

/// Whoever came first had the place for half a lease, so new subjects without end kept every hot key from
/// drawing anything.
#[test]
fn cold_counters_give_way_to_a_hot_one_at_once() {
    let (bench, hot) = (Bench::with(1, 1), roomy(1));
    for cold in 2..100 {
        assert_eq!(bench.stream(&roomy(cold), 1, Nanos::ZERO), "e");
    }
    assert_eq!(bench.stream(&hot, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&roomy(2), 1, Nanos::ZERO), "e");
    assert_eq!(bench.stream(&hot, 1, Nanos::ZERO), "l", "it stays");
    // One that has been asked for and not answered stays too.
    let (bench, asking) = (Bench::with(1, 1), roomy(1));
    bench.till.behave(|manner| manner.way = MS(10));
    bench.flood(&asking, 8);
    bench.pass(MS(15));
    bench.till.behave(|manner| manner.way = Nanos::ZERO);
    assert_eq!(bench.stream(&roomy(2), 1, Nanos::ZERO), "e");
    bench.pass(MS(5));
    assert_eq!(bench.stream(&asking, 1, Nanos::ZERO), "l");
}

#[test]
fn another_limit_of_the_same_counter_has_units_of_its_own() {
    let (bench, own) = (Bench::new(), roomy(1));
    let smaller = leased(Algorithm::FixedWindow, 90_000, Nanos::from_secs(100));
    let reloaded = Own::new(1, &smaller);
    assert_eq!(bench.stream(&own, 9, Nanos::ZERO), "eeeeeeeel");
    assert_eq!(bench.stream(&reloaded, 7, Nanos::ZERO), "eeeeeee");
}

#[test]
fn nothing_is_drawn_from_a_store_that_is_not_believed() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.till.behave(|manner| manner.life = None);
    assert_eq!(bench.stream(&own, 100, Nanos::ZERO), "e".repeat(100));
    assert_eq!(grants(&bench.till.calls()), []);
    bench.till.behave(|manner| manner.life = Some(Life(2)));
    bench.pass(MS(20));
    assert_eq!(bench.stream(&own, 2, Nanos::ZERO), "el");
}

#[test]
fn units_of_a_life_that_has_ended_are_used_but_not_given_back() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.till.behave(|manner| manner.life = Some(Life(2)));
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "l");
    bench.till.calls();
    bench.pass(MS(60));
    assert_eq!(bench.till.calls(), []);
    let facts = bench.lease.facts();
    assert_eq!((facts.returned, facts.lapsed, facts.held), (0, 6, 0));
}

#[test]
fn units_are_returned_only_if_the_store_says_so() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench.till.behave(|manner| manner.lapses = true);
    bench.pass(MS(60));
    let facts = bench.lease.facts();
    assert_eq!((facts.returned, facts.lapsed, facts.held), (0, 7, 0));
    assert_eq!(bench.booked(&own), 16);
}

#[test]
fn a_reset_drops_what_is_held_and_what_is_under_way() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    let reset = bench.sim.block_on(bench.lease.reset(&own.set(1)));
    assert_eq!(reset.expect("memory answers"), 1);
    bench.till.behave(|manner| manner.life = None); // no more are drawn
    assert_eq!(bench.stream(&own, 1, Nanos::ZERO), "e");
    bench.pass(MS(60));
    assert_eq!(bench.booked(&own), 1);

    bench
        .till
        .behave(|manner| (manner.way, manner.life) = (MS(10), Some(Life(1))));
    bench.flood(&own, 8);
    bench.pass(MS(15)); // charged, and not answered yet
    bench.till.behave(|manner| manner.way = Nanos::ZERO);
    let reset = bench.sim.block_on(bench.lease.reset(&own.set(1)));
    reset.expect("memory answers");
    bench.pass(MS(5));
    assert_eq!(bench.lease.facts().held, 0);
    bench.pass(MS(100));
    assert_eq!(bench.booked(&own), 0, "nothing is given back either");
}

#[test]
fn a_peek_counts_what_is_held() {
    let own = Own::new(
        1,
        &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)),
    );
    let bench = Bench::new();
    bench.stream(&own, 9, Nanos::ZERO);
    let peek = |cost| {
        let peeked = bench.sim.block_on(bench.lease.peek(&own.set(cost)));
        let peeked = peeked.expect("memory answers");
        (peeked.admitted, peeked.readings[0].figures.remaining)
    };
    assert_eq!(peek(1), (true, 991));
    let all = bench.sim.block_on(bench.till.charge(&own.set(1_000 - 16)));
    assert!(all.expect("memory answers").admitted);
    assert_eq!(peek(1), (true, 7));
    assert_eq!(peek(8), (false, 7));
    assert_eq!(bench.lease.facts().held, 7, "it took nothing");
}

#[test]
fn what_is_told_of_a_limit_includes_what_is_held() {
    let own = Own::new(
        1,
        &leased(Algorithm::FixedWindow, 1_000, Nanos::from_secs(1)),
    );
    let bench = Bench::new();
    bench.stream(&own, 8, MS(1));
    bench.pass(MS(12));
    let outcome = bench.charge(&own, 1);
    assert_eq!(outcome.source, Source::Lease);
    assert_eq!(outcome.at, till::DATE.plus(MS(7)), "when it was drawn");
    let figures = outcome.readings[0].figures;
    assert_eq!((figures.remaining, figures.reset_after), (991, MS(980)));
}

#[test]
fn draining_gives_everything_back_and_draws_nothing_more() {
    let (bench, own, other) = (Bench::new(), roomy(1), roomy(2));
    let admitted = bench.stream(&own, 30, Nanos::ZERO).len() as u64;
    bench.till.behave(|manner| manner.way = MS(10));
    bench.flood(&other, 8);
    bench.pass(MS(5)); // asked for and on the way
    bench.sim.block_on(bench.lease.give_back_all());
    assert_eq!((bench.booked(&own), bench.booked(&other)), (admitted, 8));
    let facts = bench.lease.facts();
    assert_eq!((facts.held, facts.lapsed), (0, 0));
    bench.till.behave(|manner| manner.way = Nanos::ZERO);
    assert_eq!(bench.stream(&own, 20, Nanos::ZERO), "e".repeat(20));
}

#[test]
fn draining_waits_for_what_has_been_asked_for() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.till.behave(|manner| manner.way = MS(10));
    bench.flood(&own, 8);
    bench.pass(MS(5));
    bench.sim.block_on(bench.lease.give_back_all());
    let facts = bench.lease.facts();
    assert_eq!((facts.granted, facts.returned), (8, 8));
    assert_eq!(bench.booked(&own), 8);
}

/// The units of a request that was refused after everything had been given back were lost.
#[test]
fn draining_waits_for_requests_that_may_put_units_back() {
    let (bench, own) = (Bench::new(), roomy(1));
    let mut spec = leased(Algorithm::FixedWindow, 1, Nanos::from_secs(3_600));
    spec.leased = None;
    let exact = Own::new(2, &spec);
    bench.stream(&exact, 1, Nanos::ZERO);
    bench.stream(&own, 9, Nanos::ZERO);
    let held = bench.lease.facts().held;
    bench.till.behave(|manner| {
        (manner.way, manner.life) = (MS(10), None); // nothing more is drawn meanwhile
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
    assert_eq!(bench.lease.facts().held, 0, "all is taken");
    bench.till.behave(|manner| manner.life = Some(Life(1)));
    bench.sim.block_on(bench.lease.give_back_all());
    let facts = bench.lease.facts();
    assert_eq!((facts.returned, facts.lapsed), (held, 0));
    assert_eq!(bench.booked(&own), 9);
}

#[test]
fn draining_does_not_wait_for_a_store_that_does_not_answer() {
    let (bench, own) = (Bench::new(), roomy(1));
    bench.stream(&own, 9, Nanos::ZERO);
    bench
        .till
        .behave(|manner| manner.way = Nanos::from_secs(60));
    let began = bench.sim.now();
    bench.sim.block_on(bench.lease.give_back_all());
    assert_eq!(bench.sim.now().since(began), Nanos::from_secs(3));
}
