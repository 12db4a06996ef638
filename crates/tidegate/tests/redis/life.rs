//! Whether a store that lost its counts is noticed, and nodes know of each other.

use tidegate_core::store::{Beat, Life, NodeId, Probe};

use super::{on_runtime, store};
use tidegate_parts::{Program, Server};

fn beat(node: u64, seeded: Option<Life>) -> Beat {
    Beat {
        node: NodeId(node),
        seeded,
    }
}

#[test]
fn nodes_see_each_other_and_what_each_has_seeded() {
    on_runtime(async {
        let server = Server::redis7();
        let (one, two) = (store(&server.url()).await, store(&server.url()).await);
        let first = one.beat(beat(1, None)).await.expect("vitals");
        assert_eq!(first.beats, [beat(1, None)]);
        let mut both = two.beat(beat(2, Some(first.life))).await.expect("vitals");
        both.beats.sort_by_key(|beat| beat.node);
        assert_eq!(both.beats, [beat(1, None), beat(2, Some(first.life))]);
        assert_eq!(both.life, first.life);
        assert_eq!(
            (one.life(), two.life()),
            (Some(first.life), Some(first.life))
        );
    });
}

#[test]
fn lost_data_and_a_new_run_are_each_a_new_life() {
    on_runtime(async {
        let mut server = Server::redis7();
        let (port, store) = (server.port(), store(&server.url()).await);
        let first = store.beat(beat(1, None)).await.expect("vitals").life;
        assert_eq!(store.beat(beat(1, None)).await.expect("vitals").life, first);
        let mut client = redis::Client::open(server.url()).expect("an address");
        redis::cmd("FLUSHALL").exec(&mut client).expect("an answer");
        let second = store.beat(beat(1, None)).await.expect("vitals").life;
        assert_ne!(second, first);
        assert_eq!(store.life(), Some(second));
        server.kill();
        let _server = Server::start_on(port, Program::Redis7, &[]);
        let third = loop {
            if let Ok(vitals) = store.beat(beat(1, None)).await {
                break vitals.life;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        assert!(third != first && third != second);
    });
}
