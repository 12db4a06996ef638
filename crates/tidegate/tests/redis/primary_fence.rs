//! Connections of one store to two servers: only replies of the server connected last count.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Heartbeat, NodeId, Probe};
use tidegate_core::subject::RuleName;
use tidegate_testkit::{FaultProxy, TestRedis};

use crate::{charge, eventually, limit, on_runtime, script_calls, set, store};

/// The epoch came from the first established connection, not from the one that had replied: a node took the reply of a
/// server that had lost its counts for one of the server before it.
#[test]
fn an_epoch_is_that_of_the_connection_that_replies() {
    let (old, new) = (TestRedis::redis7(), TestRedis::redis7());
    on_runtime(async {
        let proxy = FaultProxy::new(old.address()).await.expect("a port");
        let store = store(&format!("redis://{}", proxy.address())).await;
        let heartbeat = Heartbeat { node: NodeId(1), restored: None };
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000));
        let one = set([charge(1, &rule, 0, &limit)]);
        eventually("both connections", async || format!("{store:?}").contains("connected: 2")).await;
        let first = store.heartbeat(heartbeat).await.expect("a status").epoch;
        store.charge(&one).await.expect("a reply");

        // One of the two connections is lost, and reconnects to the other server.
        proxy.set_target(new.address());
        let clients = old.run_command(&["CLIENT", "LIST", "TYPE", "normal"]);
        let id = |line: &str| Some(line.strip_prefix("id=")?.split(' ').next()?.to_owned());
        let victim = clients.lines().filter(|line| !line.contains("cmd=client"));
        let victim = victim.filter_map(id).next().expect("a connection");
        old.run_command(&["CLIENT", "KILL", "ID", &victim]);

        eventually("both connections lead to the new server", async || {
            let reply = store.charge(&one).await;
            let epoch = store.epoch();
            if reply.is_ok_and(|outcome| !outcome.snapshots[0].existed) {
                assert_ne!(epoch, Some(first), "this was the new server");
            }
            epoch != Some(first) && proxy.accepted() == 4
        })
        .await;
        let counted = script_calls(&old);
        for _ in 0..50 {
            store.charge(&one).await.expect("a reply");
            assert_ne!(store.epoch(), Some(first));
        }
        assert_eq!(script_calls(&old), counted, "the old server receives no more calls");
    });
}
