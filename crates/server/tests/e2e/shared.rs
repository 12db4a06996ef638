//! Several nodes on one real Redis: one count, which survives its loss, and nodes that start without it.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tidegate_testkit::{RedisProgram, SentinelGroup, TestAuthority, TestCluster, TestRedis as Redis, free_port};

use crate::http::{HttpClient, check_body};
use crate::server::{BINARY, DEADLINE, TestServer};
use crate::window::unit;

fn node(store: &str) -> TestServer {
    with_rules(store, &[("r", "ip", 100)])
}

/// A node that waits for its store as long as it takes: exactness must not depend on this machine.
fn with_rules(store: &str, rules: &[(&str, &str, u32)]) -> TestServer {
    let mut text = "version: 1\nrules:\n".to_owned();
    for (name, by, count) in rules {
        let rate = format!("{count}/{}", unit());
        text += &format!("  - {{ name: {name}, by: {by}, rate: {rate}, algorithm: fixed-window }}\n");
    }
    TestServer::with(&text, &["--store", store, "--store-budget", "30000"])
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn exact(node: &TestServer) {
    until("an exact node", || node.metric("tidegate_store_exact") == 1);
}

/// The remaining units after each allowed request.
fn passed(client: &mut HttpClient, requests: usize) -> Vec<u64> {
    let replies = (0..requests).map(|_| client.post("/v1/check", &check_body("192.0.2.1", "/x")));
    let passed = replies.filter_map(|reply| {
        assert!(matches!(reply.status, 200 | 429), "{reply:?}");
        let decision = reply.json();
        assert_ne!(decision["source"], "fallback", "{decision}");
        (reply.status == 200).then(|| decision["remaining"].as_u64().unwrap())
    });
    passed.collect()
}

#[test]
fn four_nodes_pass_exactly_the_limit_and_return_each_remaining_count_once() {
    let redis = Redis::redis7();
    let nodes: Vec<_> = (0..4).map(|_| node(&redis.url())).collect();
    nodes.iter().for_each(exact);
    let tickets: Vec<u64> = std::thread::scope(|scope| {
        let clients = (0..16).map(|i| {
            let mut client = nodes[i % nodes.len()].client();
            scope.spawn(move || passed(&mut client, 125))
        });
        let clients: Vec<_> = clients.collect();
        let each = clients.into_iter().map(|client| client.join().unwrap());
        each.flatten().collect()
    });
    assert_eq!(tickets.len(), 100);
    assert_eq!(BTreeSet::from_iter(tickets), (0..100).collect());
}

#[test]
fn counts_that_a_store_lost_are_restored() {
    let mut redis = Redis::redis7();
    let nodes = [node(&redis.url()), node(&redis.url())];
    nodes.iter().for_each(exact);
    let mut clients = nodes.each_ref().map(TestServer::client);
    let before: usize = clients.iter_mut().map(|c| passed(c, 30).len()).sum();
    assert_eq!(before, 60);
    redis.kill();
    redis.restart();
    for node in &nodes {
        until("a loss", || node.metric("tidegate_store_epoch_changes_total") == 1);
        exact(node);
    }
    let after: usize = clients.iter_mut().map(|c| passed(c, 100).len()).sum();
    assert_eq!(after, 40);
    // A new node reads the secret that the others have restored, and counts the same client.
    let new_node = node(&redis.url());
    exact(&new_node);
    assert!(passed(&mut new_node.client(), 10).is_empty());
}

/// The counts are restored and the marks of refunds are not: a receipt was refunded a second time after each loss.
#[test]
fn a_receipt_is_worth_nothing_after_the_store_lost_its_data() {
    let redis = Redis::redis7();
    let node = node(&redis.url());
    exact(&node);
    let refund = |receipt: &str| {
        let body = serde_json::json!({ "receipt": receipt }).to_string();
        let result = node.post("/v1/refund", &body).json()["result"].clone();
        result.as_str().unwrap_or_default().to_owned()
    };
    let receipts = |count: usize| -> Vec<String> {
        let body = r#"{"attributes": {"ip": "192.0.2.1"}, "receipt": true}"#;
        let charged = (0..count).map(|_| node.post("/v1/check", body).json()["receipt"].clone());
        charged.filter_map(|receipt| receipt.as_str().map(str::to_owned)).collect()
    };
    let old = receipts(20);
    assert!(old.iter().all(|receipt| refund(receipt) == "done"));
    assert!(old.iter().all(|receipt| refund(receipt) == "already"));
    let losses = node.metric("tidegate_store_epoch_changes_total");
    redis.run_command(&["FLUSHALL"]);
    until("a loss", || node.metric("tidegate_store_epoch_changes_total") > losses);
    exact(&node);
    assert!(old.iter().all(|receipt| refund(receipt) == "lapsed"));
    let new = receipts(1);
    assert_eq!(new.len(), 1);
    assert!(new.iter().all(|receipt| refund(receipt) == "done"));
}

/// A new node wrote its own secret where the key had been deleted, all others adopted it, and every count started
/// from zero.
#[test]
fn a_deleted_secret_is_restored_and_a_new_node_waits_for_it() {
    let redis = Redis::redis7();
    let first = node(&redis.url());
    exact(&first);
    assert_eq!(passed(&mut first.client(), 60).len(), 60);
    let before = redis.run_command(&["GET", "tg:ctl:secret"]);
    redis.run_command(&["DEL", "tg:ctl:secret"]);
    let new_node = node(&redis.url());
    exact(&new_node);
    assert_eq!(redis.run_command(&["GET", "tg:ctl:secret"]), before);
    assert_eq!(passed(&mut new_node.client(), 100).len(), 40);
    assert!(passed(&mut first.client(), 10).is_empty());
}

#[test]
fn a_node_starts_without_its_store_and_joins_it_later() {
    let port = free_port();
    let node = node(&format!("redis://:planted-secret@127.0.0.1:{port}"));
    let first = node.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
    assert_eq!(first["allowed"], true);
    assert_eq!(first["source"], "fallback");
    let options = ["--requirepass", "planted-secret"];
    let _redis = Redis::start_on(port, RedisProgram::Redis7, &options);
    exact(&node);
    until("an exact decision", || {
        let decision = node.post("/v1/check", &check_body("192.0.2.2", "/x")).json();
        decision["source"] == "exact"
    });
    node.signal("TERM");
    let (_, log) = node.wait_end();
    assert!(log.iter().any(|line| line["message"] == "decisions are exact"));
    assert!(!log.iter().any(|line| line.to_string().contains("planted-secret")));
}

/// The whole service over TLS: the store's TLS support needs no code in the binary.
#[test]
fn a_node_counts_in_a_store_over_tls() {
    let (authority, port) = (TestAuthority::new(), free_port());
    let shown = authority.sign(&["localhost"]);
    let own = authority.sign(&["client.example"]);
    let options = shown.options(port, &authority);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let _redis = Redis::start(RedisProgram::Redis7, &options);
    let node = node(&format!(
        "rediss://localhost:{port}?ca={}&cert={}&key={}",
        authority.file().display(),
        own.certificate.display(),
        own.key.display()
    ));
    exact(&node);
    assert_eq!(passed(&mut node.client(), 3), [99, 98, 97]);
}

/// Two nodes through a failover: no count is lost, no node needs a restart.
#[test]
fn nodes_follow_a_failover() {
    let mut sentinels = SentinelGroup::start(1);
    let nodes = [node(&sentinels.url()), node(&sentinels.url())];
    nodes.iter().for_each(exact);
    let mut clients = nodes.each_ref().map(TestServer::client);
    let before: usize = clients.iter_mut().map(|c| passed(c, 30).len()).sum();
    assert_eq!(before, 60);
    sentinels.servers[0].kill();
    for node in &nodes {
        until("a loss", || node.metric("tidegate_store_epoch_changes_total") >= 1);
        exact(node);
    }
    let after: usize = clients.iter_mut().map(|c| passed(c, 100).len()).sum();
    assert_eq!(after, 40);
}

/// The exit code and output of a service that does not start.
fn ends(flags: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(BINARY)
        .args(["serve", "--http", "127.0.0.1:0"])
        .args(["--grpc", "off", "--admin", "off"])
        .args(flags)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + DEADLINE;
    while child.try_wait().unwrap().is_none() && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(10));
    }
    let _ended_or_ends_now = child.kill();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_node_that_must_not_start_without_its_store_ends_with_69_and_the_reason() {
    let url = format!("redis://:planted-secret@127.0.0.1:{}", free_port());
    let (code, printed) = ends(&["--store", &url, "--require-store"]);
    assert_eq!(code, Some(69), "{printed}");
    assert!(printed.contains("see whether the server runs"), "{printed}");
    assert!(!printed.contains("planted-secret"), "{printed}");

    let redis = Redis::redis7();
    redis.run_command(&["SET", "tg:ctl:secret", "check:of-others"]);
    let (code, printed) = ends(&["--store", &redis.url(), "--require-store"]);
    assert_eq!(code, Some(69), "{printed}");
    assert!(printed.contains("--secret-file"), "{printed}");
}

#[test]
fn a_node_that_must_not_start_without_its_store_starts_with_it() {
    let redis = Redis::redis7();
    let node = TestServer::with(
        "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour }\n",
        &["--store", &redis.url(), "--store-budget", "30000", "--require-store"],
    );
    assert_eq!(node.post("/v1/check", &check_body("192.0.2.1", "/x")).status, 200);
}

#[test]
fn no_password_of_a_store_reaches_the_log() {
    let redis = Redis::start(RedisProgram::Redis7, &["--requirepass", "another"]);
    let (port, unused_port) = (redis.port(), free_port());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "planted-secret").unwrap();
    let stores = [
        format!("redis://:planted-secret@127.0.0.1:{port}"),
        format!("redis://127.0.0.1:{port}?password_file={}", file.display()),
        format!("rediss://:planted-secret@127.0.0.1:{unused_port}"),
        format!("redis+sentinel://:planted-secret@127.0.0.1:{unused_port}/n?sentinel_pass=planted-secret"),
        format!("redis+sentinel://127.0.0.1:{port}/n?sentinel_pass=planted-secret"),
    ];
    let nodes = stores.each_ref().map(|store| node(store));
    for node in nodes {
        let first = node.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
        assert_eq!(first["source"], "fallback");
        node.signal("TERM");
        let (_, log) = node.wait_end();
        let log: Vec<String> = log.iter().map(ToString::to_string).collect();
        let names_store = log.iter().any(|line| line.contains("store"));
        assert!(names_store, "{log:?}");
        assert!(!log.concat().contains("planted-secret"), "{log:?}");
    }
}

/// A global ceiling in another hash slot than most clients: each is charged in turn, and all of it passes.
#[test]
fn nodes_share_a_ceiling_in_a_cluster() {
    let cluster = TestCluster::start();
    let store = format!("redis+cluster://{}", cluster.servers[0].address());
    let rules = [("each", "ip", 3), ("all", "global", 40)];
    let nodes = [with_rules(&store, &rules), with_rules(&store, &rules)];
    nodes.iter().for_each(exact);
    let mut clients = nodes.each_ref().map(TestServer::client);
    let mut by: [Vec<u32>; 2] = [Vec::new(), Vec::new()];
    for i in 0..100 {
        let address = format!("192.0.2.{}", i % 20);
        let reply = clients[i % 3 % 2].post("/v1/check", &check_body(&address, "/x"));
        let decision = reply.json();
        assert_eq!(decision["source"], "exact", "{decision}");
        by[usize::from(reply.status == 200)].push(i.try_into().unwrap());
    }
    // Two for each of the twenty addresses, then none.
    let [denied, passed] = by;
    assert_eq!(passed, Vec::from_iter(0..40));
    assert_eq!(denied.len(), 60);
}

/// With the default budget. The first ping of a primary once took longer than that.
#[test]
fn a_node_connects_to_every_primary_of_a_cluster() {
    let cluster = TestCluster::start();
    let store = format!("redis+cluster://{}", cluster.servers[0].address());
    let rules = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour }\n";
    exact(&TestServer::with(rules, &["--store", &store]));
}

/// Clients of such hash slots were decided by the share for good, while every page said `exact` and the log was silent.
#[test]
fn hash_slots_without_a_primary_are_an_outage() {
    let cluster = TestCluster::start();
    let run_everywhere = |command: &[&str]| cluster.servers.iter().for_each(|server| drop(server.run_command(command)));
    run_everywhere(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    let store = format!("redis+cluster://{}", cluster.servers[0].address());
    let node = with_rules(&store, &[("each", "ip", 3)]);
    exact(&node);
    run_everywhere(&["CLUSTER", "DELSLOTSRANGE", "0", "2999"]);
    let line = node.wait_log(|line| {
        line["message"].as_str().unwrap_or_default().contains("3000 hash slots of the cluster have no primary")
    });
    assert!(line["message"].as_str().unwrap().contains("--cluster fix"), "{line}");
    let page = node.admin_get("/readyz?verbose").json();
    assert_eq!(
        (&page["store"]["exact"], &page["store"]["outage"]["kind"]),
        (&false.into(), &"clusterdown".into()),
        "{page}"
    );
    assert_eq!(node.metric("tidegate_store_exact"), 0);
}

/// A map that never came was no outage, and no error.
#[test]
fn a_cluster_that_hangs_at_the_start_is_an_outage() {
    let redis = Redis::start(RedisProgram::Redis7, &["--cluster-enabled", "yes"]);
    redis.freeze();
    let rules = "version: 1\nrules:\n  - { name: r, by: ip, rate: 1/hour }\n";
    let node = TestServer::with(rules, &["--store", &format!("redis+cluster://{}", redis.address())]);
    node.wait_log(|line| line["message"].as_str().unwrap_or_default().starts_with("the store fails: no reply in time"));
    let page = node.admin_get("/readyz?verbose").json();
    assert_eq!(page["store"]["outage"]["kind"], "timeout", "{page}");
    assert!(page["store"]["errors"]["timeout"].as_u64() > Some(0), "{page}");
    redis.thaw();
}
