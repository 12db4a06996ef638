//! Counting by hearsay on four nodes: over the limit by no more than is stated, and never under it.

use std::time::{Duration, Instant};

use tidegate_core::invariants::AdmissionSpan;
use tidegate_core::units::Nanos;
use tidegate_parts::TestRedis as Redis;

use crate::fleet::Fleet;
use crate::history::{CheckReply, RequestHistory, RequestRecord};
use crate::http::ask;
use crate::load::RequestLoad;
use crate::rates::TestRate;
use crate::server::{DEADLINE, wait_for};
use crate::window::window;

const RUNS: [&str; 6] = ["first", "second", "third", "fourth", "fifth", "sixth"];
const COUNT: u64 = 2_000;
/// So fast that the end is met by all nodes at once.
const OFFERED: u32 = 2_400;
const LENGTH: u32 = 8;
/// How old a word may be that decides.
const FRESH: Nanos = Nanos::from_millis(50);
/// How long it takes at most until all nodes know of a request: the word is told within the one half, and
/// heard within the other. Until then each of the others goes on without it.
const MAX_SYNC_DELAY: Nanos = Nanos::from_millis(100);

/// The most that one node can have admitted in any such time.
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

/// `(N - 1) * min(L, v)`, with what was left set to all there is.
fn stated(nodes: usize, busiest: u64) -> u64 {
    (nodes as u64 - 1) * busiest.min(COUNT)
}

fn play(fleet: &Fleet, rate: &TestRate) {
    let load = RequestLoad::of_lists(fleet, &[(rate.name, OFFERED)], LENGTH);
    let sample = format!(
        r#"tidegate_lenient_overshoot_bound_units{{rule="{}"}}"#,
        rate.name
    );
    let mut remaining = 0;
    let refused = |fleet: &Fleet| fleet.used(0, rate) == rate.count;
    wait_for("the end of the limit", || {
        let each = fleet.nodes.iter().map(|node| node.metric(&sample));
        remaining = each.max().unwrap_or(0).max(remaining);
        refused(fleet).then_some(())
    });
    // Whoever has not heard of it yet hears of it meanwhile.
    std::thread::sleep(Duration::from_millis(500));
    let history = load.stop();
    history.none_failed();
    let admitted = history.of_rule(rate.name).filter(|r| r.admitted()).count() as u64;
    let by_hearsay = history.of_rule(rate.name).filter(|r| r.lenient()).count();
    let nodes = fleet.nodes.len();
    let within = |time| stated(nodes, busiest(&history, rate.name, nodes, time));
    let bound = within(MAX_SYNC_DELAY);
    eprintln!(
        "lenient, {}: {admitted} admitted of {COUNT}, {bound} more at most, {} by what one admits while \
         its word is fresh; nodes told of {remaining} at most; {by_hearsay} decisions by hearsay",
        rate.name,
        within(FRESH),
    );
    assert!(by_hearsay > 0, "the store was asked for all");
    assert!(admitted >= COUNT, "{admitted} of {COUNT}");
    assert!(
        admitted <= COUNT + bound,
        "{admitted} of {COUNT} and {bound}"
    );
}

#[test]
fn four_lenient_nodes_exceed_their_limit_by_no_more_than_is_stated() {
    let redis = Redis::redis7();
    let per = Nanos::from_secs(window().secs);
    let rates = RUNS.map(|name| TestRate::window(name, COUNT, per).counting("lenient"));
    let fleet = Fleet::begin(&rates, &redis.url(), DEADLINE.into(), &[]);
    rates.iter().for_each(|rate| play(&fleet, rate));
}

/// How long it takes is told and decides nothing: the simulator holds it to 100 ms.
#[test]
fn what_one_lenient_node_admits_is_synced_to_every_other() {
    const UNITS: u64 = 1_000;
    const TIMES: u64 = 20;
    let redis = Redis::redis7();
    let rate = TestRate::ledger().counting("lenient");
    let fleet = Fleet::begin(
        std::slice::from_ref(&rate),
        &redis.url(),
        DEADLINE.into(),
        &[],
    );
    let load = RequestLoad::of_lists(&fleet, &[(rate.name, 400)], 4);
    let large = format!(
        r#"{{"attributes": {{"ip": "192.0.2.1", "path": "/{}"}}, "cost": {UNITS}}}"#,
        rate.name
    );
    let mut took: Vec<Duration> = Vec::new();
    for time in 0..TIMES {
        // The load is small beside it: only this takes them so far.
        let reply = fleet.nodes[0].post("/v1/check", &large);
        let (admitted, since) = (CheckReply::read(&reply.body).unwrap(), Instant::now());
        assert!(admitted.allowed, "{time}");
        let mut others: Vec<_> = fleet.nodes[1..].iter().map(|node| node.client()).collect();
        for other in &mut others {
            wait_for("the others to hear of it", || {
                let reply = other.post("/v1/peek", &ask("192.0.2.1", &format!("/{}", rate.name)));
                let left = CheckReply::read(&reply.body).unwrap().remaining;
                (left < admitted.remaining + UNITS / 2).then_some(())
            });
        }
        took.push(since.elapsed());
    }
    load.stop().none_failed();
    took.sort_unstable();
    eprintln!(
        "lenient: all nodes heard of a request {:?} later, half of {TIMES} times, and {:?} at most",
        took[took.len() / 2],
        took[took.len() - 1]
    );
}
