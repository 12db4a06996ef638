//! Failovers under load, with sentinels that name the primary.

use std::time::{Duration, Instant};

use tidegate_core::units::Nanos;
use tidegate_testkit::SentinelGroup;

use crate::fleet::Fleet;
use crate::history::{RequestRecord, now};
use crate::load::RequestLoad;
use crate::rates::{SHARE, TestRate};

const FAILOVERS: usize = 10;
const CALM: Duration = Duration::from_secs(3);

/// How a primary ends.
#[derive(Clone, Copy, Debug)]
enum PrimaryExit {
    Killed,
    Frozen,
    /// By a command, while it is healthy.
    Demoted,
}

/// Ends the primary, waits until another has taken over, and restarts the old one. Returns when it took over.
fn fail_over(sentinels: &mut SentinelGroup, end: PrimaryExit) -> Nanos {
    let before = sentinels.primary();
    let servers = &mut sentinels.servers;
    let old = servers.iter().position(|s| s.port() == before).unwrap();
    match end {
        PrimaryExit::Killed => servers[old].kill(),
        PrimaryExit::Frozen => servers[old].freeze(),
        PrimaryExit::Demoted => sentinels.fail_over(),
    }
    wait_for_vote(sentinels, before, end);
    sentinels.wait_for_new_primary(before);
    let (moved, old) = (now(), &mut sentinels.servers[old]);
    match end {
        PrimaryExit::Killed => old.restart(),
        PrimaryExit::Frozen => old.thaw(),
        PrimaryExit::Demoted => {}
    }
    sentinels.wait_until_stable();
    moved
}

/// Waits until the sentinels elect another primary. A vote may fail on a machine that stalls, and sentinels that
/// saw the stall start no other vote for half a minute: then the failover is ordered.
fn wait_for_vote(sentinels: &SentinelGroup, before: u16, end: PrimaryExit) {
    for _ in 0..12 {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(12) {
            if sentinels.primary() != before {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let reply = sentinels.request_failover();
        eprintln!("failovers: no vote yet, {end:?}; ordered: {reply}");
    }
    panic!("no new primary, {end:?}");
}

#[test]
fn ten_failovers_fail_no_decision_and_lose_no_count() {
    let two_seconds = Nanos::from_secs(2);
    let rates = [
        TestRate::window("window", 60, two_seconds),
        TestRate::bucket("bucket", 60, two_seconds, 30),
        TestRate::ledger(),
    ];
    let [window, bucket, ledger] = &rates;
    let mut sentinels = SentinelGroup::start(2);
    let fleet = Fleet::start(&rates, &sentinels.url());
    let load = RequestLoad::start(&fleet, &[("window", 90), ("bucket", 70), ("ledger", 40)]);
    std::thread::sleep(CALM);
    let ends = [PrimaryExit::Killed, PrimaryExit::Frozen, PrimaryExit::Demoted].into_iter().cycle();
    let mut recoveries = Vec::new();
    for end in ends.take(FAILOVERS) {
        let moved = fail_over(&mut sentinels, end);
        fleet.wait_exact();
        recoveries.push((end, now().since(moved)));
    }
    std::thread::sleep(CALM);
    let history = load.stop();

    let admitted = history.of_rule("ledger").filter(|r| r.admitted()).count() as u64;
    eprintln!(
        "failovers: {} decisions, {} without the store; at most {} and {} %; exact after {recoveries:?}; \
         {} charged for {admitted} admissions; trusted early {} times",
        history.records.len(),
        history.records.iter().filter(|r| r.local()).count(),
        history.percent(window),
        history.percent(bucket),
        fleet.used(0, ledger),
        fleet.metrics("tidegate_store_trusted_early_total"),
    );
    history.none_failed();
    for rate in [window, bucket] {
        history.at_most(rate, SHARE, RequestRecord::local);
        history.at_most(rate, 100 + SHARE, |_| true);
    }
    fleet.accounts_for(ledger, admitted, 40);
}
