//! Lenient counting on four nodes: over the limit by no more than is stated, and never under it.

use std::time::{Duration, Instant};

use tidegate_core::invariants::AdmissionSpan;
use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::Fleet;
use crate::history::{CheckReply, RequestHistory, RequestRecord};
use crate::http::check_body;
use crate::load::RequestLoad;
use crate::rates::TestRate;
use crate::server::{DEADLINE, wait_for};
use crate::window::window;

const RUNS: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];
const COUNT: u64 = 2_000;
/// So fast that all nodes reach the end of the limit at once.
const OFFERED: u32 = 2_400;
const LENGTH: u32 = 8;
/// How old a known count may be that decides.
const FRESH: Nanos = Nanos::from_millis(50);
/// The maximum time until all nodes know of a request: it is published within one half and received within the
/// other. Until then each of the others decides without it.
const MAX_SYNC_DELAY: Nanos = Nanos::from_millis(100);

/// The maximum that one node can have admitted in any such time.
fn busiest(history: &RequestHistory, rule: &str, nodes: usize, within: Nanos) -> u64 {
    let of_node = |node: usize| {
        let spans = history.spans(rule, |record: &RequestRecord| record.node == node);
        let around = |one: &AdmissionSpan| {
            let near = spans.iter();
            let near = near.filter(|s| s.to >= one.from && s.from <= one.to.plus(within));
            near.map(|span| span.units).sum::<u64>()
        };
        spans.iter().map(around).max().unwrap_or(0)
    };
    (0..nodes).map(of_node).max().unwrap_or(0)
}

/// `(N - 1) * min(L, v)`, with all of the limit left.
fn stated(nodes: usize, busiest: u64) -> u64 {
    (nodes as u64 - 1) * busiest.min(COUNT)
}

fn play(fleet: &Fleet, rate: &TestRate) {
    let load = RequestLoad::of_lists(fleet, &[(rate.name, OFFERED)], LENGTH);
    let sample = format!(r#"tidegate_lenient_overshoot_bound_units{{rule="{}"}}"#, rate.name);
    let mut reported_bound = 0;
    let used_up = |fleet: &Fleet| fleet.used(0, rate) == rate.count;
    wait_for("the end of the limit", || {
        let each = fleet.nodes.iter().map(|node| node.metric(&sample));
        reported_bound = each.max().unwrap_or(0).max(reported_bound);
        used_up(fleet).then_some(())
    });
    // Nodes that do not know of it yet receive it meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    let history = load.stop();
    history.none_failed();
    let admitted = history.of_rule(rate.name).filter(|r| r.admitted()).count() as u64;
    let lenient = history.of_rule(rate.name).filter(|r| r.lenient()).count();
    let nodes = fleet.nodes.len();
    let within = |time| stated(nodes, busiest(&history, rate.name, nodes, time));
    let bound = within(MAX_SYNC_DELAY);
    eprintln!(
        "lenient, {}: {admitted} admitted of {COUNT}, {bound} more at most, {} by what one admits while \
         its counts are fresh; nodes reported a bound of {reported_bound} at most; {lenient} lenient decisions",
        rate.name,
        within(FRESH),
    );
    assert!(lenient > 0, "no decision was lenient");
    assert!(admitted >= COUNT, "{admitted} of {COUNT}");
    assert!(admitted <= COUNT + bound, "{admitted} of {COUNT} and {bound}");
}

#[test]
fn four_lenient_nodes_exceed_their_limit_by_no_more_than_is_stated() {
    let redis = Redis::redis7();
    let per = Nanos::from_secs(window().secs);
    let rates = RUNS.map(|name| TestRate::window(name, COUNT, per).counting("lenient"));
    let fleet = Fleet::begin(&rates, &redis.url(), DEADLINE.into(), &[]);
    rates.iter().for_each(|rate| play(&fleet, rate));
}

/// How long it takes is printed and not asserted: the simulator asserts 100 ms.
#[test]
fn admissions_of_one_lenient_node_are_synced_to_every_other() {
    const UNITS: u64 = 1_000;
    const TIMES: u64 = 20;
    let redis = Redis::redis7();
    let rate = TestRate::ledger().counting("lenient");
    let fleet = Fleet::begin(std::slice::from_ref(&rate), &redis.url(), DEADLINE.into(), &[]);
    let load = RequestLoad::of_lists(&fleet, &[(rate.name, 400)], 4);
    let large = format!(r#"{{"attributes": {{"ip": "192.0.2.1", "path": "/{}"}}, "cost": {UNITS}}}"#, rate.name);
    let mut took: Vec<Duration> = Vec::new();
    for time in 0..TIMES {
        // The load is small in comparison: only this request takes the others so far.
        let reply = fleet.nodes[0].post("/v1/check", &large);
        let (admitted, since) = (CheckReply::read(&reply.body).unwrap(), Instant::now());
        assert!(admitted.allowed, "{time}");
        let mut others: Vec<_> = fleet.nodes[1..].iter().map(|node| node.client()).collect();
        for other in &mut others {
            wait_for("a sync to the others", || {
                let reply = other.post("/v1/peek", &check_body("192.0.2.1", &format!("/{}", rate.name)));
                let left = CheckReply::read(&reply.body).unwrap().remaining;
                (left < admitted.remaining + UNITS / 2).then_some(())
            });
        }
        took.push(since.elapsed());
    }
    load.stop().none_failed();
    took.sort_unstable();
    eprintln!(
        "lenient: all nodes knew of a request after {:?} (median of {TIMES}), {:?} at most",
        took[took.len() / 2],
        took[took.len() - 1]
    );
}
