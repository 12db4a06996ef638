//! Permits of a node whose store has lost them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate::resilience::{ResilienceSettings, StoreEvent, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate_core::store::{PermitReply, PermitRequest, Permits, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

use crate::{direct, eventually, on_runtime, store};
use tidegate_testkit::TestRedis;

fn request(rule: &RuleName, subject: u128) -> PermitRequest<'_> {
    PermitRequest {
        subject: Fingerprint::new(subject),
        rule,
        holder: 7,
        max_permits: 5,
        ttl: Nanos::from_secs(3_600),
        options: &RuleOptions::DEFAULT,
        max_wait: None,
    }
}

/// While the holder of one permit renewed it, the node trusted the store no more, and decided all limits by its share.
#[test]
fn a_permit_whose_key_cannot_be_used_leaves_all_others_and_the_store_trusted() {
    on_runtime(async {
        let server = TestRedis::redis7();
        let trusted = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&trusted);
        let watcher = Arc::new(move |event| {
            count.fetch_add(u64::from(event == StoreEvent::Exact), Ordering::SeqCst);
        });
        let settings = ResilienceSettings { budget: Nanos::from_secs(20), ..ResilienceSettings::default() };
        let runtime = TokioRuntime::new().expect("randomness");
        let node = resilient(store(&server.url()).await, runtime, settings, watcher);
        eventually("a trusted store", async || trusted.load(Ordering::SeqCst) == 1).await;
        let rule = RuleName::new("uploads");
        let acquire = async |subject| -> PermitReply { node.acquire(&request(&rule, subject)).await.expect("a reply") };
        assert_eq!(acquire(1).await.source, Source::Exact);
        let key = server.run_command(&["KEYS", "tg:{*s:uploads"]);
        for subject in 2..100 {
            assert_eq!(acquire(subject).await.source, Source::Exact);
        }
        // The store loses everything, and another program writes to the key of the first permit.
        let lost = "redis.call('FLUSHALL'); redis.call('SET', KEYS[1], 'text')";
        direct(&server, &["EVAL", lost, "1", &key]);
        eventually("a store that is trusted again", async || trusted.load(Ordering::SeqCst) == 2).await;
        for subject in 2..100 {
            let reply = node.renew(&request(&rule, subject)).await.expect("a reply");
            assert_eq!((reply.granted, reply.in_use, reply.source), (true, 1, Source::Exact));
        }
    });
}
