//! What a node knows after a restart: how many share the store, and which of them it is.

use std::path::Path;

use tidegate_parts::Server as Redis;

use crate::http::ask;
use crate::server::{Server, wait_for};
use crate::window::unit;

/// A node that keeps what it knows in `data`.
fn node(store: &str, data: &Path) -> Server {
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: ip, rate: 100/{}, algorithm: fixed-window }}\n",
        unit()
    );
    let data = data.to_str().unwrap();
    let flags = ["--store", store, "--store-budget", "30000", "--data", data];
    Server::with(&rules, &flags)
}

/// Waits until so many nodes are on the list that is kept; the id of the node that keeps it.
fn kept(data: &Path, nodes: usize) -> String {
    let file = data.join("roster");
    wait_for("the list of nodes", || {
        let text = std::fs::read_to_string(&file).ok()?;
        let lines: Vec<&str> = text.lines().collect();
        let (me, count) = (lines[1], lines[2]);
        (count == nodes.to_string()).then(|| me.to_owned())
    })
}

/// How many of a hundred pass without the store.
fn share(node: &Server) -> usize {
    let mut client = node.client();
    let replies = (0..100).map(|_| client.post("/v1/check", &ask("192.0.2.1", "/x")));
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
    let mut nodes: Vec<_> = folders[1..]
        .iter()
        .map(|folder| node(&redis.url(), folder.path()))
        .collect();
    nodes.push(node(&redis.url(), &data));
    let me = kept(&data, 4);
    drop(nodes.pop());
    // Back at once: it is the node it was, not a fifth one.
    nodes.push(node(&redis.url(), &data));
    let back = nodes.last().unwrap();
    wait_for("exact decisions", || {
        (back.metric("tidegate_store_exact") == 1).then_some(())
    });
    assert_eq!(kept(&data, 4), me);
    assert!(redis.ask(&["HEXISTS", "tg:ctl:nodes", &me]) == "1");
    redis.kill();
    drop(nodes.pop());
    // 0.8 of a hundred among four; who knows of nobody would reckon with eight and take ten.
    assert_eq!(share(&node(&redis.url(), &data)), 20);
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&data).unwrap().permissions());
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
    second.wait_log(|line| {
        line["message"]
            .as_str()
            .is_some_and(|m| m.contains("another process"))
    });
    kept(folder.path(), 2);
}
