//! A store that lost its counts is noticed, and nodes know of each other.

use tidegate_core::store::{Epoch, Heartbeat, NodeId, Probe};

use super::{on_runtime, store};
use tidegate_testkit::{RedisProgram, TestRedis};

fn heartbeat(node: u64, restored: Option<Epoch>) -> Heartbeat {
    Heartbeat { node: NodeId(node), restored }
}

#[test]
fn nodes_see_each_other_and_what_each_has_restored() {
    on_runtime(async {
        let server = TestRedis::redis7();
        let (one, two) = (store(&server.url()).await, store(&server.url()).await);
        let first = one.heartbeat(heartbeat(1, None)).await.expect("a status");
        assert_eq!(first.heartbeats, [heartbeat(1, None)]);
        let mut both = two.heartbeat(heartbeat(2, Some(first.epoch))).await.expect("a status");
        both.heartbeats.sort_by_key(|heartbeat| heartbeat.node);
        assert_eq!(both.heartbeats, [heartbeat(1, None), heartbeat(2, Some(first.epoch))]);
        assert_eq!(both.epoch, first.epoch);
        assert_eq!((one.epoch(), two.epoch()), (Some(first.epoch), Some(first.epoch)));
    });
}

#[test]
fn lost_data_and_a_new_run_each_begin_a_new_epoch() {
    on_runtime(async {
        let mut server = TestRedis::redis7();
        let (port, store) = (server.port(), store(&server.url()).await);
        let first = store.heartbeat(heartbeat(1, None)).await.expect("a status").epoch;
        assert_eq!(store.heartbeat(heartbeat(1, None)).await.expect("a status").epoch, first);
        let mut client = redis::Client::open(server.url()).expect("an address");
        redis::cmd("FLUSHALL").exec(&mut client).expect("a reply");
        let second = store.heartbeat(heartbeat(1, None)).await.expect("a status").epoch;
        assert_ne!(second, first);
        assert_eq!(store.epoch(), Some(second));
        server.kill();
        let _server = TestRedis::start_on(port, RedisProgram::Redis7, &[]);
        let third = loop {
            if let Ok(status) = store.heartbeat(heartbeat(1, None)).await {
                break status.epoch;
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        };
        assert!(third != first && third != second);
    });
}
