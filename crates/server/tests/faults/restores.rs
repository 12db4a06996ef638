//! A store that restarts with all its data: whatever was reset, refunded or settled stays so.

use tidegate_testkit::{RedisProgram, TestRedis as Redis};

use crate::fleet::{patient, wait_exact};
use crate::history::CheckReply;
use crate::server::{TestServer, wait_for};
use crate::window::unit;

const COUNT: u64 = 1_000;

fn request(user: &str, cost: u64) -> String {
    format!(r#"{{"attributes": {{"user": "{user}"}}, "cost": {cost}}}"#)
}

fn remaining(node: &TestServer, user: &str) -> u64 {
    let reply = node.post("/v1/peek", &request(user, 1));
    CheckReply::read(&reply.body).unwrap().remaining
}

/// The times of the nodes' last heartbeats, by the store's clock.
fn heartbeats(redis: &Redis, nodes: &[TestServer]) -> Vec<u64> {
    let register = redis.run_command(&["HVALS", "tg:ctl:nodes"]);
    let times = register.lines().filter_map(|value| value.split(' ').next());
    let times: Vec<_> = times.filter_map(|time| time.parse().ok()).collect();
    assert_eq!(times.len(), nodes.len(), "{register}");
    times
}

/// Waits until every node has sent another heartbeat.
fn wait_heartbeats(redis: &Redis, nodes: &[TestServer]) {
    let last = heartbeats(redis, nodes).into_iter().max();
    wait_for("a heartbeat of every node", || {
        let first = heartbeats(redis, nodes).into_iter().min();
        (first > last).then_some(())
    });
}

#[test]
fn a_restart_that_loses_nothing_charges_nothing_again() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = Redis::start(RedisProgram::Redis7, &options);
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: api, by: user, rate: {COUNT}/{}, algorithm: fixed-window }}\n",
        unit()
    );
    let nodes = [(); 2].map(|()| patient(&redis.url(), &rules));
    for user in ["reset", "kept"] {
        for node in &nodes {
            node.post("/v1/check", &request(user, COUNT / 4));
        }
    }
    let reserved: Vec<_> =
        (0..4).map(|turn| nodes[turn % 2].post("/v1/reserve", &request("settled", COUNT / 4)).json()).collect();
    for (turn, reserved) in reserved.iter().enumerate() {
        let settlement = format!(r#"{{"reservation": {}, "cost": 1}}"#, reserved["reservation"]);
        let settled = nodes[turn % 2].post("/v1/settle", &settlement).json();
        assert_eq!(settled["settled"], "done");
    }
    let reset = nodes[0].admin_post("/v1/subjects/reset", r#"{"attributes": {"user": "reset"}}"#);
    assert_eq!(reset.status, 200, "{}", reset.body);
    let expected = [("reset", COUNT), ("settled", COUNT - 4), ("kept", COUNT / 2)];
    for (user, expected) in expected {
        assert_eq!(remaining(&nodes[1], user), expected, "{user} before");
    }

    // With the first heartbeat the node has restored all it knew, which is nothing. The second is later than all of
    // that.
    wait_heartbeats(&redis, &nodes);
    wait_heartbeats(&redis, &nodes);
    let losses = |node: &TestServer| node.metric("tidegate_store_epoch_changes_total");
    let before = nodes.each_ref().map(losses);
    redis.kill();
    redis.restart();
    for (node, before) in nodes.iter().zip(before) {
        wait_for("another run", || (losses(node) > before).then_some(()));
        wait_exact(node);
        for (user, expected) in expected {
            assert_eq!(remaining(node, user), expected, "{user} after");
        }
    }
}
