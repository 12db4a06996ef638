//! Limits in different hash slots of a real cluster, while hash slots move. Each limit is charged in turn; still no
//! more requests pass than the narrowest limit allows, and the widest limit is used up.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tidegate_testkit::TestCluster;

use crate::fleet::wait_exact;
use crate::history::{CheckReply, ReplySource};
use crate::server::TestServer;
use crate::window::unit;

const USER: u64 = 10;
const TENANT: u64 = 60;
const GLOBAL: u64 = 2_000;

/// Number of tenants, users per tenant, and requests per user: less than each may send, and together more than all
/// may.
const GOOD: (usize, usize, usize) = (50, 5, 9);
/// Requests of a tenant that has used up its own limit, each by another user.
const FLOOD: usize = 6_000;

const CLIENTS: usize = 16;
const LENGTH: usize = 25;
/// The requests are sent over this time, while hash slots move.
const LASTS: Duration = Duration::from_secs(8);

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Requester {
    tenant: String,
    user: usize,
}

impl Requester {
    fn is_good(&self) -> bool {
        self.tenant != "flood"
    }

    fn body(&self) -> String {
        let Requester { tenant, user } = self;
        format!(r#"{{"attributes": {{"tenant": "{tenant}", "user": "{user}"}}}}"#)
    }
}

/// All requests, the good ones spread among the flood.
fn requests() -> Vec<Requester> {
    let (tenants, users, times) = GOOD;
    let good = (0..tenants * users * times)
        .map(|i| Requester { tenant: format!("t{}", i % tenants), user: i / tenants % users });
    let flood = (0..FLOOD).map(|user| Requester { tenant: "flood".to_owned(), user });
    let mut all: Vec<(usize, Requester)> = Vec::new();
    all.extend(good.enumerate().map(|(i, one)| (i * FLOOD, one)));
    all.extend(flood.enumerate().map(|(i, one)| (i * tenants * users * times, one)));
    all.sort();
    all.into_iter().map(|(_, requester)| requester).collect()
}

fn client(node: &TestServer, lists: Vec<Vec<Requester>>, begun: Instant) -> Vec<(Requester, CheckReply)> {
    let mut client = node.client();
    let pace = LASTS / u32::try_from(lists.len()).unwrap();
    let mut replies = Vec::new();
    for (due, list) in (0..).map(|i| begun + pace * i).zip(lists) {
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let bodies: Vec<String> = list.iter().map(Requester::body).collect();
        let reply = client.post("/v1/check", &format!("[{}]", bodies.join(",")));
        assert_eq!(reply.status, 200, "{}", reply.body);
        let decisions: Vec<CheckReply> = serde_json::from_str(&reply.body).unwrap();
        replies.extend(list.into_iter().zip(decisions));
    }
    replies
}

fn counted<K: Ord>(all: &[&Requester], key: impl Fn(&Requester) -> K) -> BTreeMap<K, u64> {
    let mut counts = BTreeMap::new();
    for requester in all {
        *counts.entry(key(requester)).or_default() += 1;
    }
    counts
}

#[test]
fn limits_in_different_hash_slots_hold_while_slots_move_and_a_flood_does_not_starve_good_clients() {
    let cluster = TestCluster::start();
    let mut rules = "version: 1\nrules:\n".to_owned();
    for (name, by, count) in [("each", "[tenant, user]", USER), ("tenant", "tenant", TENANT), ("all", "global", GLOBAL)]
    {
        let rate = format!("{count}/{}", unit());
        rules += &format!("  - {{ name: {name}, by: {by}, rate: {rate}, algorithm: fixed-window }}\n");
    }
    let store = format!("redis+cluster://{}", cluster.servers[0].address());
    let flags = ["--store", store.as_str(), "--store-budget", "30000"];
    let nodes: Vec<TestServer> = (0..4).map(|_| TestServer::with(&rules, &flags)).collect();
    nodes.iter().for_each(wait_exact);
    let mut lists: Vec<Vec<Vec<Requester>>> = vec![Vec::new(); CLIENTS];
    for (i, list) in requests().chunks(LENGTH).enumerate() {
        lists[i % CLIENTS].push(list.to_vec());
    }
    let begun = Instant::now();
    let replies: Vec<(Requester, CheckReply)> = std::thread::scope(|scope| {
        let moving = scope.spawn(|| cluster.move_hash_slots(4_096));
        let nodes = &nodes;
        let clients = lists.into_iter().enumerate();
        let clients = clients.map(|(i, lists)| scope.spawn(move || client(&nodes[i % nodes.len()], lists, begun)));
        let clients: Vec<_> = clients.collect();
        let replies = clients.into_iter().flat_map(|c| c.join().unwrap()).collect();
        moving.join().unwrap();
        replies
    });
    let passed: Vec<&Requester> = replies.iter().filter(|h| h.1.allowed).map(|h| &h.0).collect();
    let local = replies.iter().filter(|h| h.1.allowed && h.1.source == ReplySource::Fallback);
    let local = local.count() as u64;
    let good = passed.iter().filter(|requester| requester.is_good()).count() as u64;
    eprintln!(
        "cluster: {} of {} passed, {good} of them good, {local} without the store; {} sent",
        passed.len(),
        GLOBAL,
        replies.len()
    );
    // Requests that were decided without the store, while a record was split between two servers, are charged
    // later.
    assert!(local <= GLOBAL / 100, "{local} without the store");
    let all = passed.len() as u64;
    assert!((GLOBAL * 99 / 100..=GLOBAL + local).contains(&all), "{all}");
    assert!(good >= GLOBAL * 95 / 100, "{good}");
    let users = counted(&passed, Requester::clone);
    assert_eq!(users.into_iter().find(|(_, passed)| *passed > USER), None);
    let tenants = counted(&passed, |requester| requester.tenant.clone());
    let over = tenants.into_iter().find(|(_, passed)| *passed > TENANT + local);
    assert_eq!(over, None);
}
