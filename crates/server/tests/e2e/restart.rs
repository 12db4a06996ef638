//! What a node knows after a restart: the number of nodes that share the store, and its own id.

use std::path::Path;

use tidegate_testkit::{RedisProgram, TestRedis as Redis};

use crate::http::check_body;
use crate::server::{TestServer, wait_for};
use crate::window::unit;
use crate::xds;

/// A node that saves its state in `data`.
fn node(store: &str, data: &Path) -> TestServer {
    let rules =
        format!("version: 1\nrules:\n  - {{ name: r, by: ip, rate: 100/{}, algorithm: fixed-window }}\n", unit());
    let data = data.to_str().unwrap();
    let flags = ["--store", store, "--store-budget", "30000", "--data-dir", data];
    TestServer::with(&rules, &flags)
}

/// Waits until `nodes` nodes are on the saved list. Returns the id of the node that saved it.
fn wait_membership(data: &Path, nodes: usize) -> String {
    let file = data.join("roster");
    wait_for("the list of nodes", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        let (me, count) = (lines[1], lines[2]);
        (count == nodes.to_string()).then(|| me.to_owned())
    })
}

/// How many of a hundred pass without the store.
fn share(node: &TestServer) -> usize {
    let mut client = node.client();
    let replies = (0..100).map(|_| client.post("/v1/check", &check_body("192.0.2.1", "/x")));
    let replies: Vec<_> = replies.collect();
    for reply in &replies {
        assert_eq!(reply.json()["source"], "fallback", "{reply:?}");
    }
    replies.iter().filter(|reply| reply.status == 200).count()
}

#[test]
fn a_node_that_starts_while_the_store_is_away_has_the_share_it_had() {
    let mut redis = Redis::redis7();
    let folders: Vec<_> = (0..4).map(|_| tempfile::tempdir().unwrap()).collect();
    let data = folders[0].path().join("made/if/missing");
    let mut nodes: Vec<_> = folders[1..].iter().map(|folder| node(&redis.url(), folder.path())).collect();
    nodes.push(node(&redis.url(), &data));
    let me = wait_membership(&data, 4);
    drop(nodes.pop());
    // Back at once: it is the same node, not a fifth one.
    nodes.push(node(&redis.url(), &data));
    let back = nodes.last().unwrap();
    wait_for("exact decisions", || (back.metric("tidegate_store_exact") == 1).then_some(()));
    assert_eq!(wait_membership(&data, 4), me);
    assert!(redis.run_command(&["HEXISTS", "tg:ctl:nodes", &me]) == "1");
    redis.kill();
    drop(nodes.pop());
    // 0.8 of a hundred among four; a node that knows no other would assume eight and admit ten.
    assert_eq!(share(&node(&redis.url(), &data)), 20);
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&data).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn a_list_that_cannot_be_read_is_a_warning_and_counts_as_none() {
    let mut redis = Redis::redis7();
    redis.kill();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("roster"), "tidegate roster 1\nhalf").unwrap();
    let node = node(&redis.url(), folder.path());
    node.wait_log(|line| line["message"] == "the list of nodes from before cannot be read");
    assert_eq!(share(&node), 10);
}

/// Two processes of one id would be one node with two shares.
#[test]
fn a_second_process_does_not_take_the_list_of_the_first() {
    let redis = Redis::redis7();
    let folder = tempfile::tempdir().unwrap();
    let _first = node(&redis.url(), folder.path());
    let second = node(&redis.url(), folder.path());
    second.wait_log(|line| line["message"].as_str().is_some_and(|m| m.contains("another process")));
    wait_membership(folder.path(), 2);
}

/// The number of pending charges in a folder.
fn pending(data: &Path) -> usize {
    let text = std::fs::read_to_string(data.join("pending")).unwrap_or_default();
    let counters = text.lines().nth(1).and_then(|counts| counts.split(' ').next()?.parse().ok()).unwrap_or(0);
    let units = text.lines().skip(2).take(counters).filter_map(|line| line.split(' ').nth(3));
    units.map(|units| units.parse::<usize>().unwrap()).sum()
}

/// Four restarts of two nodes once admitted 3.2 times the limit where 0.8 is stated, and nothing was charged
/// afterwards.
#[test]
fn restarts_during_an_outage_get_no_fresh_share_and_everything_is_charged_afterwards() {
    let mut redis = Redis::redis7();
    let store = redis.url();
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let folder = |i: usize| folders[i].path();
    let mut nodes: Vec<TestServer> = (0..2).map(|i| node(&store, folder(i))).collect();
    for i in 0..2 {
        wait_membership(folder(i), 2);
    }
    redis.kill();
    let mut admitted = 0;
    for round in 0..4 {
        admitted += nodes.iter().map(share).sum::<usize>();
        assert_eq!(admitted, 80, "of 100, after {round} restarts");
        let signal = if round % 2 == 0 { "KILL" } else { "TERM" };
        if signal == "KILL" {
            // The node has to write it to disk before it is killed.
            wait_for("the pending charges", || (pending(folder(0)) + pending(folder(1)) == admitted).then_some(()));
        }
        for node in nodes.drain(..) {
            node.signal(signal);
            node.wait_end();
        }
        assert_eq!(pending(folder(0)) + pending(folder(1)), admitted);
        nodes = (0..2).map(|i| node(&store, folder(i))).collect();
    }
    redis.restart();
    for node in &nodes {
        wait_for("exact decisions", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    }
    wait_for("the charges of the outage", || {
        let left = nodes[0].post("/v1/peek", &check_body("192.0.2.1", "/x")).json()["remaining"].as_u64();
        (left == Some(20)).then_some(())
    });
    wait_for("nothing pending", || (pending(folder(0)) + pending(folder(1)) == 0).then_some(()));
}

/// The store with its data on disk: an outage loses nothing.
fn durable_store() -> Redis {
    Redis::start(RedisProgram::Redis7, &["--appendonly", "yes", "--appendfsync", "always"])
}

fn wait_exact(nodes: &[TestServer]) {
    for node in nodes {
        wait_for("exact decisions", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    }
}

/// Ends all nodes with a signal and starts them again.
fn restart_all(nodes: &mut Vec<TestServer>, signal: &str, start: impl Fn(usize) -> TestServer) {
    let count = nodes.len();
    for node in nodes.drain(..) {
        node.signal(signal);
        node.wait_end();
    }
    *nodes = (0..count).map(start).collect();
}

/// A restart between two outages once brought a fresh share: two outages of one window with a restart before each
/// admitted 2.6 times the limit where 1.8 is stated. The first 100 pass exactly, before the first outage.
#[test]
fn restarts_between_outages_get_no_fresh_share() {
    let mut redis = durable_store();
    let store = redis.url();
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let start = |i: usize| node(&store, folders[i].path());
    let mut nodes: Vec<TestServer> = (0..2).map(start).collect();
    for folder in &folders {
        wait_membership(folder.path(), 2);
    }
    let mut client = nodes[0].client();
    let mut check = || client.post("/v1/check", &check_body("192.0.2.1", "/x")).status == 200;
    assert_eq!((0..110).filter(|_| check()).count(), 100);
    // No node remembers the counter.
    restart_all(&mut nodes, "TERM", start);
    let mut admitted = 100;
    for (outage, signal) in ["TERM", "KILL", "TERM", "KILL"].into_iter().enumerate() {
        wait_exact(&nodes);
        redis.kill();
        for node in &nodes {
            wait_for("the outage", || (node.metric("tidegate_store_exact") == 0).then_some(()));
        }
        admitted += nodes.iter().map(share).sum::<usize>();
        assert_eq!(admitted, 180, "of 100, in outage {outage}");
        redis.restart();
        wait_exact(&nodes);
        wait_for("nothing pending", || {
            let of = |folder: &tempfile::TempDir| pending(folder.path());
            (folders.iter().map(of).sum::<usize>() == 0).then_some(())
        });
        restart_all(&mut nodes, signal, start);
    }
}

/// Permits were not saved at all: three outages with restarts between them admitted 32 where the limit is 10.
#[test]
fn permits_granted_in_an_outage_count_in_the_next_one_after_a_restart() {
    let mut redis = durable_store();
    let store = redis.url();
    let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let rules = "version: 1\nrules: [{ name: uploads, by: user, concurrent: 10 }]\n";
    let start = |i: usize| {
        let data = folders[i].path().to_str().unwrap();
        TestServer::with(rules, &["--store", &store, "--store-budget", "30000", "--data-dir", data])
    };
    let mut nodes: Vec<TestServer> = (0..2).map(start).collect();
    for folder in &folders {
        wait_membership(folder.path(), 2);
    }
    let hour = r#"{"attributes": {"user": "ada"}, "ttl_ms": 3600000}"#;
    let acquire = |node: &TestServer| {
        let mut client = node.client();
        let replies: Vec<_> = (0..15).map(|_| client.post("/v1/acquire", hour)).collect();
        replies.into_iter().filter(|reply| reply.status == 200).collect::<Vec<_>>()
    };
    wait_exact(&nodes);
    let mut open = acquire(&nodes[0]);
    assert_eq!(open.len(), 10);
    restart_all(&mut nodes, "TERM", start);
    for (outage, signal) in ["TERM", "KILL", "TERM"].into_iter().enumerate() {
        wait_exact(&nodes);
        redis.kill();
        for node in &nodes {
            wait_for("the outage", || (node.metric("tidegate_store_exact") == 0).then_some(()));
            open.extend(acquire(node));
        }
        assert_eq!(open.len(), 18, "of 10, in outage {outage}");
        // A node that is killed has had time to save them.
        wait_for("the permits on disk", || {
            let of = |folder: &tempfile::TempDir| saved_permits(folder.path());
            (folders.iter().map(of).sum::<usize>() == 8).then_some(())
        });
        redis.restart();
        restart_all(&mut nodes, signal, start);
    }
    wait_exact(&nodes);
    // A released permit is gone, here and in the store.
    for reply in &open {
        let permit = format!(r#"{{"permit": {}}}"#, reply.json()["permit"]);
        assert_eq!(nodes[0].post("/v1/release", &permit).status, 200);
    }
    wait_for("the store to be free", || {
        let free = acquire(&nodes[1]);
        let permits = free.iter().map(|reply| format!(r#"{{"permit": {}}}"#, reply.json()["permit"]));
        permits.for_each(|permit| drop(nodes[1].post("/v1/release", &permit)));
        (free.len() == 10).then_some(())
    });
}

/// The number of saved permits in a folder.
fn saved_permits(data: &Path) -> usize {
    let text = std::fs::read_to_string(data.join("pending")).unwrap_or_default();
    let permits = text.lines().nth(1).and_then(|counts| counts.split(' ').nth(1));
    permits.map_or(0, |permits| permits.parse().unwrap())
}

/// Limits of Envoy and of Redis clients belong to no rule. Five restarts admitted 5.0 times the limit, and nothing
/// was charged afterwards.
#[test]
fn pending_charges_of_limits_without_a_rule_are_restored_too() {
    let unit = unit();
    let mut redis = Redis::redis7();
    let folder = tempfile::tempdir().unwrap();
    let rules =
        format!("domain: shop\ndescriptors:\n  - key: k\n    rate_limit: {{ unit: {unit}, requests_per_unit: 100 }}\n");
    let (url, data) = (redis.url(), folder.path().to_str().unwrap());
    let flags = ["--store", &url, "--store-budget", "30000", "--data-dir", data];
    let start = || TestServer::with_resp(&rules, &flags);
    let count = |node: &TestServer| {
        let mut client = node.redis();
        let by_client = (0..100).map(|_| client.send_line("CL.THROTTLE k 99 1 86400").integers()[0]);
        let by_client = by_client.filter(|denied| *denied == 0).count();
        let by_envoy = (0..100).map(|_| xds::check_status(node, "shop", "a"));
        (by_client, by_envoy.filter(|status| *status == 200).count())
    };
    let mut node = start();
    wait_membership(folder.path(), 1);
    redis.kill();
    assert_eq!(count(&node), (80, 80));
    for signal in ["TERM", "KILL"] {
        wait_for("the pending charges", || (pending(folder.path()) == 160).then_some(()));
        node.signal(signal);
        node.wait_end();
        node = start();
        assert_eq!(count(&node), (0, 0), "after {signal}");
    }
    redis.restart();
    wait_for("exact decisions", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    // Denials are cached for a moment.
    let mut rest = (0, 0);
    wait_for("what is left", || {
        let (by_client, by_envoy) = count(&node);
        rest = (rest.0 + by_client, rest.1 + by_envoy);
        (rest.0.min(rest.1) >= 20).then_some(())
    });
    assert_eq!(rest, (20, 20));
}

#[test]
fn pending_charges_that_cannot_be_read_are_a_warning_and_count_as_none() {
    let mut redis = Redis::redis7();
    redis.kill();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pending"), "tidegate pending 1\n7\nhalf").unwrap();
    let node = node(&redis.url(), folder.path());
    node.wait_log(|line| line["message"] == "the pending charges from before cannot be read");
    assert_eq!(share(&node), 10);
}
