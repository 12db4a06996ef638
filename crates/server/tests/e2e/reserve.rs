//! Reserve and settle, over HTTP, on real nodes: the final charge is what was used.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tidegate_testkit::{FaultProxy, ProxyFault, TestRedis as Redis};

use crate::http::{HttpClient, HttpReply};
use crate::server::{DEADLINE, TestServer, wait_for};
use crate::window::unit;

fn rules(limit: u64) -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: tokens, by: user, unit: tokens, rate: {limit}/{}, \
         algorithm: fixed-window }}\n",
        unit()
    )
}

/// A node with this store budget. A large one waits for its store as long as it takes.
fn node(limit: u64, store: &str, budget_ms: &str) -> TestServer {
    let flags = ["--store", store, "--store-budget", budget_ms];
    let node = TestServer::with(&rules(limit), &flags);
    until("an exact node", || node.metric("tidegate_store_exact") == 1);
    node
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn body(user: &str, tokens: u64, expires_ms: u64) -> String {
    json!({"attributes": {"user": user}, "costs": {"tokens": tokens}, "expires_ms": expires_ms}).to_string()
}

fn reserve(client: &mut HttpClient, tokens: u64, expires_ms: u64) -> HttpReply {
    client.post("/v1/reserve", &body("ada", tokens, expires_ms))
}

/// The token of a reservation that passed.
fn token(reply: &HttpReply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["reservation"].as_str().unwrap().to_owned()
}

fn settle(client: &mut HttpClient, token: &str, used: u64) -> Value {
    let body = json!({"reservation": token, "costs": {"tokens": used}}).to_string();
    let reply = client.post("/v1/settle", &body);
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["settled"].clone()
}

/// What ada has used, as the store has it.
fn used(node: &TestServer) -> u64 {
    used_by(node, "ada")
}

/// Waits for a store that is away.
fn used_by(node: &TestServer, user: &str) -> u64 {
    let who = json!({"attributes": {"user": user}}).to_string();
    let found = wait_for("the store", || {
        let reply = node.admin_post("/v1/subjects", &who);
        (reply.status != 503).then(|| reply.json())
    });
    let limit = &found["limits"][0];
    limit["used"].as_u64().unwrap_or_else(|| panic!("{found}"))
}

#[test]
fn an_estimate_is_charged_and_corrected_to_what_was_used() {
    let server = TestServer::start(&rules(1_000));
    let mut client = server.client();
    let reserved = reserve(&mut client, 600, 60_000);
    let decision = reserved.json();
    assert_eq!(decision["remaining"], 400, "{decision}");
    assert_eq!(decision["expires_ms"], 60_000);
    assert!(decision["receipt"].is_null());
    assert_eq!(reserve(&mut client, 401, 60_000).status, 429);
    assert_eq!(reserve(&mut client, 1_001, 60_000).status, 422);
    let reserved = token(&reserved);
    assert_eq!(settle(&mut client, &reserved, 250), "done");
    assert_eq!(used(&server), 250);
    assert_eq!(settle(&mut client, &reserved, 900), "already");
    assert_eq!(used(&server), 250);
    // A unit that is not named keeps its estimate.
    let reserved = token(&reserve(&mut client, 100, 60_000));
    let rest = json!({"reservation": reserved, "cost": 5}).to_string();
    assert_eq!(client.post("/v1/settle", &rest).json()["settled"], "done");
    assert_eq!(used(&server), 350);
    let debt = token(&reserve(&mut client, 650, 60_000));
    assert_eq!(settle(&mut client, &debt, 1_000), "done");
    assert_eq!(used(&server), 1_350);
    let counted = |outcome: &str| server.metric(&format!(r#"tidegate_reservations_total{{outcome="{outcome}"}}"#));
    assert_eq!((counted("reserved"), counted("settled")), (3, 3));
    assert_eq!(counted("already"), 1);
}

#[test]
fn an_invalid_reservation_is_rejected_with_its_field() {
    let server = TestServer::start(&rules(1_000));
    let mut client = server.client();
    let request = r#"{"attributes": {"user": "ada"}, "costs": {"tokens": 1}, "receipt": true}"#;
    let checked = client.post("/v1/check", request).json();
    let receipt = checked["receipt"].as_str().unwrap();
    let forged = json!({"reservation": receipt, "cost": 0}).to_string();
    let rejected = client.post("/v1/settle", &forged);
    assert_eq!(rejected.status, 400);
    assert!(rejected.body.contains("`reservation`"), "{rejected:?}");
    let reserved = token(&reserve(&mut client, 1, 60_000));
    let misspelt = json!({"reservation": reserved, "costs": {"tokns": 9}}).to_string();
    let rejected = client.post("/v1/settle", &misspelt);
    let field = &rejected.json()["field"];
    assert_eq!((rejected.status, field), (400, &json!("costs.tokns")));
    assert!(rejected.body.contains("nothing was reserved"), "{rejected:?}");
    let swapped = json!({"receipt": reserved}).to_string();
    assert_eq!(client.post("/v1/refund", &swapped).status, 400);
    assert_eq!(client.post("/v1/reserve", request).status, 400, "no receipt");
    assert_eq!(client.request("GET", "/v1/reserve", &[], "").status, 405);
    // A unit that no rule counts is probably misspelt.
    let images = r#"{"attributes": {"user": "ada"}, "costs": {"images": 2}}"#;
    let rejected = client.post("/v1/reserve", images);
    let field = &rejected.json()["field"];
    assert_eq!((rejected.status, field), (400, &json!("costs.images")));
    // A unit that is charged without being named can be settled.
    let unnamed = token(&client.post("/v1/reserve", r#"{"attributes": {"user": "ada"}}"#));
    assert_eq!(settle(&mut client, &unnamed, 7), "done");
}

#[test]
fn an_abandoned_reservation_expires() {
    let server = TestServer::start(&rules(1_000));
    let mut client = server.client();
    let reserved = token(&reserve(&mut client, 1_000, 60));
    until("the refund of the estimate", || used(&server) == 0);
    let returned = r#"tidegate_reservations_total{outcome="returned"}"#;
    until("a metric", || server.metric(returned) == 1);
    // Long after twice its time a settlement has no effect.
    until("the end", || settle(&mut client, &reserved, 5) == "lapsed");
    assert!(used(&server) <= 5);
}

/// What the allowed calls of one thread used, and by how much their estimates were too low.
#[derive(Clone, Copy, Default)]
struct ThreadUsage {
    passed: u64,
    estimated: u64,
    used: u64,
    under: u64,
}

/// A thousand calls in flight at once: none is settled before all were reserved.
#[test]
fn a_thousand_calls_at_once_overspend_by_no_more_than_their_underestimates() {
    const CALLS: u64 = 1_000;
    const THREADS: u64 = 16;
    const LIMIT: u64 = 100_000;
    const UNDER: u64 = 90;
    let redis = Redis::redis7();
    let nodes = [(); 2].map(|()| node(LIMIT, &redis.url(), "30000"));
    let barrier = std::sync::Barrier::new(THREADS as usize);
    let (nodes, barrier) = (&nodes, &barrier);
    let spent: Vec<ThreadUsage> = std::thread::scope(|scope| {
        let threads = (0..THREADS).map(|thread| {
            scope.spawn(move || {
                let mut client = nodes[thread as usize % 2].client();
                let mut other = nodes[(thread as usize + 1) % 2].client();
                let mut open = Vec::new();
                let mut spent = ThreadUsage::default();
                for call in (thread..CALLS).step_by(THREADS as usize) {
                    let estimate = 50 + call * 37 % 200;
                    // Half of them too high, half too low.
                    let used = match call % 2 {
                        0 => estimate - call * 13 % 50,
                        _ => estimate + 1 + call * 29 % UNDER,
                    };
                    let reply = reserve(&mut client, estimate, 600_000);
                    assert!(matches!(reply.status, 200 | 429), "{reply:?}");
                    assert_ne!(reply.json()["source"], "fallback");
                    if reply.status == 200 {
                        spent.passed += 1;
                        spent.estimated += estimate;
                        spent.used += used;
                        spent.under += used.saturating_sub(estimate);
                        open.push((token(&reply), used));
                    }
                }
                barrier.wait();
                for (i, (token, used)) in open.iter().enumerate() {
                    // On any node, and some of them twice.
                    assert_eq!(settle(&mut other, token, *used), "done");
                    if i % 5 == 0 {
                        assert_eq!(settle(&mut client, token, 0), "already");
                    }
                }
                spent
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let sum = |of: fn(&ThreadUsage) -> u64| spent.iter().map(of).sum::<u64>();
    let (passed, estimated, in_use) = (sum(|s| s.passed), sum(|s| s.estimated), sum(|s| s.used));
    println!("{passed} passed, estimated {estimated}, used {in_use}");
    assert!(estimated <= LIMIT, "never more reserved than there is");
    assert!(estimated > LIMIT - 250, "and as much as fits");
    assert_eq!(used(&nodes[0]), in_use, "every unit is accounted for");
    assert!(in_use <= LIMIT + sum(|s| s.under), "the bound");
    assert!(in_use <= LIMIT + passed * UNDER, "the bound as it is documented");
}

/// The store remembers open reservations, not the node: the next reservation on another node expires them.
#[test]
fn reservations_of_a_killed_node_expire_on_another() {
    let redis = Redis::redis7();
    let [first, second] = [(); 2].map(|()| node(1_000, &redis.url(), "30000"));
    let late = token(&reserve(&mut first.client(), 600, 1_500));
    first.signal("KILL");
    let _killed = first.wait_end();
    let mut client = second.client();
    until("the estimate of a dead node", || reserve(&mut client, 900, 600_000).status == 200);
    assert_eq!(used(&second), 900, "600 were refunded");
    // The client may still settle for a while; then it is charged as a whole.
    let settled = settle(&mut client, &late, 100);
    match settled.as_str().unwrap() {
        "late" => assert_eq!(used(&second), 1_000),
        other => assert_eq!((other, used(&second)), ("lapsed", 900)),
    }
}

#[test]
fn a_settlement_below_the_estimate_clears_the_deny_cache_at_once() {
    let redis = Redis::redis7();
    let node = node(1_000, &redis.url(), "30000");
    let mut client = node.client();
    let reserved = token(&reserve(&mut client, 1_000, 600_000));
    let check = r#"{"attributes": {"user": "ada"}, "costs": {"tokens": 1}}"#;
    for source in ["exact", "deny-cache"] {
        let denied = client.post("/v1/check", check);
        let decision = denied.json();
        assert_eq!((denied.status, &decision["source"]), (429, &json!(source)));
    }
    assert_eq!(settle(&mut client, &reserved, 500), "done");
    assert_eq!(client.post("/v1/check", check).status, 200);
}

/// Neither lost nor counted twice: the store was away at the settlement, and got it afterwards.
#[test]
fn a_settlement_waits_for_a_store_that_is_away() {
    let redis = Redis::redis7();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let proxy = runtime.block_on(FaultProxy::new(redis.address())).unwrap();
    let url = format!("redis://{}", proxy.address());
    let node = node(1_000, &url, "300");
    let mut client = node.client();
    // Each try is another user: pending charges of a try without the store are written back later.
    let (mut tries, mut user, mut reserved) = (0, String::new(), String::new());
    until("a reservation in the store", || {
        tries += 1;
        user = format!("user{tries}");
        let reply = client.post("/v1/reserve", &body(&user, 100, 600_000));
        reserved = token(&reply);
        reply.json()["source"] == "exact"
    });
    assert_eq!(used_by(&node, &user), 100);
    proxy.set(ProxyFault::Closed);
    assert_eq!(settle(&mut client, &reserved, 40), "waiting");
    proxy.set(ProxyFault::None);
    until("the settlement", || used_by(&node, &user) == 40);
    assert_eq!(settle(&mut client, &reserved, 40), "already");
    assert_eq!(node.metric("tidegate_panics_total"), 0);
}

/// A store that loses its data: nothing panics, and no more is missing than the underestimates.
#[test]
fn a_store_that_lost_its_data_charges_the_estimates() {
    let mut redis = Redis::redis7();
    let node = node(1_000, &redis.url(), "2000");
    let mut client = node.client();
    let open: Vec<String> = (0..5).map(|_| token(&reserve(&mut client, 100, 600_000))).collect();
    redis.kill();
    redis.restart();
    until("a loss", || node.metric("tidegate_store_epoch_changes_total") == 1);
    until("an exact node", || node.metric("tidegate_store_exact") == 1);
    for token in &open {
        let settled = settle(&mut client, token, 130);
        assert!(settled == "already" || settled == "waiting", "{settled}");
    }
    // The estimates were restored from the node's last known state; usage beyond them is not charged.
    let left = client.post("/v1/peek", &body("ada", 1, 1).replace(r#","expires_ms":1"#, ""));
    assert_eq!(left.json()["remaining"], 500, "{left:?}");
    assert_eq!(node.metric("tidegate_panics_total"), 0);
}
