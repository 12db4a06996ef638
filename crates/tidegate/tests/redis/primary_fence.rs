//! Connections of one store that met two servers: only the one that was met last counts.

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Heartbeat, NodeId, Probe, Store};
use tidegate_core::subject::RuleName;
use tidegate_parts::{FaultProxy, TestRedis};

use crate::{charge, eventually, limit, on_runtime, script_calls, set, store};

/// A life was told by whichever connection stood first, not by the one that had answered: a node took
/// the answer of a server that had lost its counts for one of the server before it.
#[test]
fn an_epoch_is_that_of_the_connection_that_replies() {
    let (old, new) = (TestRedis::redis7(), TestRedis::redis7());
    on_runtime(async {
        let proxy = FaultProxy::new(old.address()).await.expect("a port");
        let store = store(&format!("redis://{}", proxy.address())).await;
        let heartbeat = Heartbeat {
            node: NodeId(1),
            restored: None,
        };
        let (rule, limit) = (RuleName::new("api"), limit(Algorithm::TokenBucket, 1_000));
        let one = set([charge(1, &rule, 0, &limit)]);
        eventually("both connections stand", async || {
            format!("{store:?}").contains("standing: 2")
        })
        .await;
        let first = store.heartbeat(heartbeat).await.expect("vitals").epoch;
        store.charge(&one).await.expect("an answer");

        // One of the two connections is lost, and finds the other server in its place.
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
            store.charge(&one).await.expect("an answer");
            assert_ne!(store.epoch(), Some(first));
        }
        assert_eq!(
            script_calls(&old),
            counted,
            "the old server is asked no more"
        );
    });
}
