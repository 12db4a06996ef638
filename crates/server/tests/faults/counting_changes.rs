//! Rules that change from exact to leased and back under load, on one node after the other. For a while nodes count
//! differently, and the limit still holds.

use std::time::{Duration, Instant};

use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis as Redis;

use crate::fleet::Fleet;
use crate::history::now;
use crate::http::check_body;
use crate::load::RequestLoad;
use crate::rates::{TestRate, rules};
use crate::server::{DEADLINE, wait_for};

const LASTS: Duration = Duration::from_secs(15);
/// Three times what each limit allows.
const OFFERED: u32 = 3_000;
const LENGTH: u32 = 20;
/// The percentage of each limit that must pass. How little leases waste is measured elsewhere; here a busy machine
/// must not fail the test.
const LEAST: u64 = 85;
/// What clients see of the bucket: leases cost a tenth of it.
const OPTIONS: [(&str, u64); 2] = [("leased", 900), ("exact", 1_000)];

fn rates(counting: &'static str) -> [TestRate; 2] {
    [
        TestRate::bucket("bucket", 1_000, Nanos::from_secs(1), 1_000).counting(counting),
        TestRate::window("window", 2_000, Nanos::from_secs(2)).counting(counting),
    ]
}

/// The nodes wait for their store as long as it takes: it is healthy.
#[test]
fn turning_leases_on_and_off_under_load_holds_every_limit() {
    let redis = Redis::redis7();
    let exact = rates("exact");
    let fleet = Fleet::begin(&exact, &redis.url(), DEADLINE.into(), &[]);
    let per_second: Vec<_> = exact.iter().map(|rate| (rate.name, OFFERED)).collect();
    let load = RequestLoad::of_lists(&fleet, &per_second, LENGTH);
    std::thread::sleep(Duration::from_secs(1));
    let (begun, mut turns) = (now(), 0);
    let since = Instant::now();
    while since.elapsed() < LASTS {
        let (counting, expected) = OPTIONS[turns % 2];
        for node in &fleet.nodes {
            node.write("rules.yaml", &rules(&rates(counting)));
            node.admin_post("/v1/reload", "");
            wait_for("the other rules", || {
                let peek = node.post("/v1/peek", &check_body("192.0.2.1", "/bucket")).json();
                (peek["limit"] == expected).then_some(())
            });
        }
        turns += 1;
        std::thread::sleep(Duration::from_millis(300));
    }
    let ended = now();
    let history = load.stop();
    history.none_failed();
    for rate in &exact {
        let all = || history.of_rule(rate.name);
        eprintln!(
            "counting changes, {}: {turns} reloads, {} decisions, {} by leases, {} by the store; {} passed, at most \
             {} %",
            rate.name,
            all().count(),
            all().filter(|r| r.leased()).count(),
            all().filter(|r| r.exact()).count(),
            history.perhaps(rate.name, (begun, ended), |_| true),
            history.percent(rate),
        );
        assert!(all().any(|r| r.leased()), "{}: no leases", rate.name);
        history.at_most(rate, 100, |_| true);
        history.at_least(rate, LEAST, (begun, ended), |_| true);
    }
}
