//! A store that restarts and has all its data: what was reset, refunded or settled stays so.

use tidegate_parts::{Program, Server as Redis};

use crate::fleet::{patient, wait_exact};
use crate::history::Answer;
use crate::server::{Server, wait_for};
use crate::window::unit;

const COUNT: u64 = 1_000;

fn request(user: &str, cost: u64) -> String {
    format!(r#"{{"attributes": {{"user": "{user}"}}, "cost": {cost}}}"#)
}

fn remaining(node: &Server, user: &str) -> u64 {
    let reply = node.post("/v1/peek", &request(user, 1));
    Answer::read(&reply.body).unwrap().remaining
}

/// When the last heartbeat was, by the store's clock.
fn last_heartbeat(redis: &Redis) -> u64 {
    let run = redis.ask(&["HGET", "tg:ctl:nodes", "run"]);
    let (_, last) = run.rsplit_once(':').expect("a run and two times");
    last.parse().expect("milliseconds")
}

#[test]
fn a_restart_that_loses_nothing_charges_nothing_again() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut redis = Redis::start(Program::Redis7, &options);
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
    let reserved: Vec<_> = (0..4)
        .map(|turn| {
            nodes[turn % 2]
                .post("/v1/reserve", &request("settled", COUNT / 4))
                .json()
        })
        .collect();
    for (turn, reserved) in reserved.iter().enumerate() {
        let settlement = format!(
            r#"{{"reservation": {}, "cost": 1}}"#,
            reserved["reservation"]
        );
        let settled = nodes[turn % 2].post("/v1/settle", &settlement).json();
        assert_eq!(settled["settled"], "done");
    }
    let reset = nodes[0].admin_post("/v1/subjects/reset", r#"{"attributes": {"user": "reset"}}"#);
    assert_eq!(reset.status, 200, "{}", reset.body);
    let expected = [
        ("reset", COUNT),
        ("settled", COUNT - 4),
        ("kept", COUNT / 2),
    ];
    for (user, expected) in expected {
        assert_eq!(remaining(&nodes[1], user), expected, "{user} before");
    }

    let done = last_heartbeat(&redis) + 1;
    wait_for("a heartbeat after that", || {
        (last_heartbeat(&redis) > done).then_some(())
    });
    let losses = |node: &Server| node.metric("tidegate_store_losses_total");
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
