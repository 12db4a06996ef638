//! While the store is healthy, exactly the limit passes in every window, and each remaining count is given once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::Fleet;
use crate::history::{CheckReply, ReplySource, now, windows};
use crate::http::check_body;
use crate::rates::TestRate;
use crate::server::DEADLINE;

const CLIENTS: usize = 256;
const LISTS: u32 = 32;
const LENGTH: usize = 125;
/// The interval between two lists of one client.
const PACE: Duration = Duration::from_millis(500);

/// The decisions on one list.
struct ListReply {
    sent: Nanos,
    received: Nanos,
    decisions: Vec<CheckReply>,
}

fn client(fleet: &Fleet, place: usize, begun: Instant) -> Vec<ListReply> {
    let mut client = fleet.nodes[place % fleet.nodes.len()].client();
    let list = format!("[{}]", vec![check_body("192.0.2.1", "/window"); LENGTH].join(","));
    let first = begun + PACE * u32::try_from(place).unwrap() / CLIENTS as u32;
    let lists = (0..LISTS).map(|i| {
        let due = first + PACE * i;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let sent = now();
        let reply = client.post("/v1/check", &list);
        let received = now();
        assert_eq!(reply.status, 200, "{}", reply.body);
        let decisions: Vec<CheckReply> = serde_json::from_str(&reply.body).unwrap();
        assert_eq!(decisions.len(), LENGTH);
        ListReply { sent, received, decisions }
    });
    lists.collect()
}

/// The remaining counts of allowed requests, list by list, by the window in which they were received.
///
/// A list may straddle a window edge. Then its allowed requests belong to the later window, because the earlier one
/// was used up before the list was sent: a request had been denied there.
fn tickets(lists: &[ListReply], per: Nanos) -> BTreeMap<u64, Vec<u64>> {
    let window = |at: Nanos| at.get() / per.get();
    let denied = |list: &&ListReply| list.decisions.iter().any(|decision| !decision.allowed);
    let inside = |list: &&ListReply| window(list.sent) == window(list.received);
    let mut used_up = BTreeMap::new();
    for list in lists.iter().filter(inside).filter(denied) {
        let first = used_up.entry(window(list.sent)).or_insert(list.received);
        *first = list.received.min(*first);
    }
    let mut tickets: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for list in lists {
        let passed = list.decisions.iter().filter(|decision| decision.allowed);
        let passed: Vec<u64> = passed.map(|decision| decision.remaining).collect();
        let sure = inside(&list) || used_up.get(&window(list.sent)).is_some_and(|at| *at <= list.sent);
        assert!(sure || passed.is_empty(), "the window of an admission is unknown");
        tickets.entry(window(list.received)).or_default().extend(passed);
    }
    tickets
}

/// The nodes wait for their store as long as it takes: exactness must not depend on this machine.
#[test]
fn a_million_decisions_of_four_nodes_pass_exactly_the_limit_in_every_window() {
    let redis = Redis::redis7();
    let rate = TestRate::window("window", 1_000, Nanos::from_secs(2));
    let fleet = Fleet::begin(std::slice::from_ref(&rate), &redis.url(), DEADLINE.into(), &[]);
    let begun = Instant::now();
    let (fleet, from) = (&fleet, now());
    let lists: Vec<ListReply> = std::thread::scope(|scope| {
        let clients = (0..CLIENTS).map(|place| scope.spawn(move || client(fleet, place, begun)));
        let clients: Vec<_> = clients.collect();
        let each = clients.into_iter().map(|client| client.join().unwrap());
        each.flatten().collect()
    });
    let to = now();
    let decisions = || lists.iter().flat_map(|list| &list.decisions);
    assert!(decisions().count() >= 1_000_000);
    let local = decisions().find(|decision| {
        decision.source == ReplySource::Fallback || (decision.allowed && decision.source != ReplySource::Exact)
    });
    assert_eq!(local, None);
    let tickets = tickets(&lists, rate.per);
    let full = windows(rate.per, from, to);
    assert!(full.len() >= 4, "{} windows", full.len());
    for (from, _) in &full {
        let mut left = tickets[&(from.get() / rate.per.get())].clone();
        left.sort_unstable();
        assert!(left.iter().copied().eq(0..rate.count), "{} passed from {from}, or a ticket twice", left.len());
    }
    eprintln!(
        "exact: {} decisions in {}, {} full windows, {} passed in each",
        decisions().count(),
        to.since(from),
        full.len(),
        rate.count
    );
}
