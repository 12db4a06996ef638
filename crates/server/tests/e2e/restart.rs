//! What a node knows after a restart: the number of nodes that share the store, and its own id.

use std::path::Path;

use tidegate_testkit::TestRedis as Redis;

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
    let units = text.lines().skip(2).filter_map(|line| line.split(' ').nth(3));
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
