//! Many clients on several nodes: exactly the limit is allowed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Store};
use tidegate_core::subject::RuleName;

use crate::{charge, direct, limit, on_runtime, set, store};
use tidegate_testkit::{RedisProgram, TestRedis};

const LIMIT: u64 = 500;

/// Four nodes, 64 clients, one key: each remaining unit is charged once.
#[test]
fn many_clients_get_exactly_the_limit() {
    for program in [RedisProgram::Redis7, RedisProgram::Valkey9] {
        let server = TestRedis::start(program, &[]);
        on_runtime(async {
            let (limit, rule) = (limit(Algorithm::FixedWindow, LIMIT), RuleName::new("tickets"));
            let mut clients = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let node = Arc::new(store(&server.url()).await);
                for _ in 0..16 {
                    let (node, limit, rule) = (Arc::clone(&node), limit.clone(), rule.clone());
                    clients.spawn(async move {
                        let mut left = Vec::new();
                        for _ in 0..20 {
                            let set = set([charge(7, &rule, 0, &limit)]);
                            let outcome = node.charge(&set).await.expect("a reply");
                            if outcome.admitted {
                                left.push(outcome.readings[0].figures.remaining);
                            }
                        }
                        left
                    });
                }
            }
            let mut left = clients.join_all().await.concat();
            left.sort_unstable();
            let tickets: Vec<u64> = (0..LIMIT).collect();
            assert_eq!(left, tickets, "{program:?}");
        });
    }
}

/// A server that loses its scripts again and again charges each request once, and no caller notices.
#[test]
fn lost_scripts_are_sent_again_and_charge_once() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let (limit, rule) = (limit(Algorithm::TokenBucket, 100_000), RuleName::new("api"));
        let node = Arc::new(store(&server.url()).await);
        let done = Arc::new(AtomicBool::new(false));
        let flusher = {
            let (done, url) = (Arc::clone(&done), server.url());
            std::thread::spawn(move || {
                let client = redis::Client::open(url).expect("an address");
                let mut connection = client.get_connection().expect("a server");
                let mut flushes = 0;
                while !done.load(Ordering::Relaxed) {
                    let flush = redis::cmd("SCRIPT").arg("FLUSH").to_owned();
                    let () = flush.query(&mut connection).expect("a reply");
                    flushes += 1;
                    std::thread::sleep(std::time::Duration::from_micros(500));
                }
                flushes
            })
        };
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..16 {
            let (node, limit, rule) = (Arc::clone(&node), limit.clone(), rule.clone());
            clients.spawn(async move {
                for _ in 0..200 {
                    let set = set([charge(9, &rule, 0, &limit)]);
                    assert!(node.charge(&set).await.expect("a reply").admitted);
                }
                let one = set([charge(9, &rule, 0, &limit)]);
                for outcome in node.charge_each(&[&one; 50]).await {
                    assert!(outcome.expect("a reply").admitted);
                }
            });
        }
        clients.join_all().await;
        done.store(true, Ordering::Relaxed);
        let flushes = flusher.join().expect("no panic");
        let one = set([charge(9, &rule, 0, &limit)]);
        let used = node.inspect(&one).await.expect("a reply")[0].expect("a counter").used;
        assert_eq!(used, 16 * 250, "after {flushes} flushes");
        assert!(flushes > 10);
        let resent = crate::info(&server, "commandstats", "cmdstat_eval:calls=");
        assert!(resent > 0, "no script was ever missing");
        direct(&server, &["PING"]);
    });
}
