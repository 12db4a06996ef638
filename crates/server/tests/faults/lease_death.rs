//! A node that dies with units in its hands: nobody gets them twice, and one lease later nobody misses
//! them.

use std::time::Duration;

use tidegate_core::invariants::{AdmissionSpan, surely_within_bound};
use tidegate_core::units::Nanos;
use tidegate_parts::TestRedis as Redis;

use crate::fleet::wait_exact;
use crate::history::{CheckReply, now};
use crate::http::{Client, ask};
use crate::rates::{TestRate, rules};
use crate::server::{Server, wait_for};

/// Long enough that units lie about to be seen.
const LEASE: Nanos = Nanos::from_secs(2);
const LEASED: &str = "leased 2s";

/// A hundred a second, a thousand at once; less what flows in during one lease.
fn rate() -> TestRate {
    TestRate::bucket("bucket", 100, Nanos::from_secs(1), 1_000).counting(LEASED)
}
const PER_SECOND: u64 = 800;
/// What flows in during one lease: the most a node may hold.
const FLOWS_IN: u64 = 200;

/// Sends a list and notes what of it was admitted.
fn send(client: &mut Client, length: usize, admitted: &mut Vec<AdmissionSpan>) -> Vec<CheckReply> {
    let list = format!("[{}]", vec![ask("192.0.2.1", "/bucket"); length].join(","));
    let from = now();
    let reply = client.post("/v1/check", &list);
    let to = now();
    let answers = CheckReply::read_all(&reply.body).unwrap();
    let units = answers.iter().filter(|answer| answer.allowed).count() as u64;
    if units > 0 {
        admitted.push(AdmissionSpan { from, to, units });
    }
    answers
}

fn units(spans: &[AdmissionSpan]) -> u64 {
    spans.iter().map(|span| span.units).sum()
}

/// What is left, as a node tells.
fn left(node: &Server) -> u64 {
    let reply = node.post("/v1/peek", &ask("192.0.2.1", "/bucket"));
    CheckReply::read(&reply.body).unwrap().remaining
}

/// The nodes wait for their store as long as it takes: it is not what breaks here.
#[test]
fn what_a_dead_node_held_is_lost_to_nobody_for_longer_than_a_lease() {
    let (redis, rate) = (Redis::redis7(), rate());
    let text = rules(std::slice::from_ref(&rate));
    let start = || {
        let node = Server::with(&text, &["--store", &redis.url(), "--store-budget", "30000"]);
        wait_exact(&node);
        node
    };
    let (dies, stays) = (start(), start());
    let (mut admitted, begun) = (Vec::new(), now());
    let mut client = dies.client();
    let held = wait_for("units in its hands", || {
        if units(&admitted) < 300 {
            send(&mut client, 20, &mut admitted);
            return None;
        }
        let held = dies.metric("tidegate_lease_held_units");
        if held == 0 {
            // Given back, because this machine took its time: some more.
            send(&mut client, 10, &mut admitted);
        }
        (held > 0).then_some(held)
    });
    assert!(held <= FLOWS_IN, "{held} held");
    dies.signal("KILL");
    let (died, before) = (now(), left(&stays));
    // Charged is what was admitted and what was held; that has flowed in meanwhile.
    let flowed = 100 * now().since(begun).secs_up();
    let all = before + units(&admitted);
    assert!(all <= PER_SECOND + flowed, "{before} left of {PER_SECOND}");

    let after = wait_for("one lease to pass", || {
        let sent = now();
        let left = left(&stays);
        std::thread::sleep(Duration::from_millis(20));
        (sent >= died.plus(LEASE)).then_some(left)
    });
    let whole = (before + held).min(PER_SECOND);
    eprintln!("a node died holding {held}: {before} left then, {after} one lease later");
    assert!(after >= whole, "{after} left, {held} of {before} missed");

    // What the other node makes of it: all that is there, and no more than ever.
    let mut client = stays.client();
    let had = units(&admitted);
    wait_for("a refusal", || {
        let answers = send(&mut client, 10, &mut admitted);
        answers.iter().any(|answer| !answer.allowed).then_some(())
    });
    let found = units(&admitted) - had;
    assert!(2 * found >= after, "only {found} of {after} admitted");
    if let Err(violation) = surely_within_bound(&rate.limit(100), &admitted) {
        panic!("{violation}");
    }
}
