//! Clocks that are wrong or are set: the store's clock decides, and nothing gets stuck.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::{RedisProgram, ShiftedClock, TestRedis as Redis};

use crate::fleet::Fleet;
use crate::history::{RequestHistory, RequestRecord, now};
use crate::load::RequestLoad;
use crate::rates::TestRate;
use crate::server::DEADLINE;

/// Long enough for one window to settle in and a full one to judge, wherever it begins.
const PHASE: Duration = Duration::from_secs(7);
/// A whole number of windows: a window edge by the store's clock is one by the true clock.
const TWO_HOURS: Duration = Duration::from_secs(7_200);

fn wrong_clocks() -> Vec<ShiftedClock> {
    let wrong = |secs: i64| {
        let clock = ShiftedClock::new().unwrap();
        let by = Duration::from_secs(secs.unsigned_abs());
        if secs < 0 {
            clock.set_behind(by).unwrap()
        } else {
            clock.set_ahead(by).unwrap()
        }
        clock
    };
    [-30, 30, -60, 60].map(wrong).into()
}

/// The requests of a history that lie wholly between `from` and `to`.
fn part(history: &RequestHistory, from: Nanos, to: Nanos) -> RequestHistory {
    let inside = |r: &&RequestRecord| from <= r.sent && r.received <= to;
    RequestHistory::of(history.records.iter().filter(inside).cloned().collect())
}

/// The nodes' clocks are off by up to a minute all the time, and that changes nothing. The store's clock is set
/// forward two hours, back four, and forward two again. A step forward admits one limit more in the window of the
/// step, a step back nothing more, and after one window all is as before. The store always replies, so nodes may
/// wait as long as this machine takes.
#[test]
fn setting_a_clock_admits_no_more_than_one_extra_limit_and_locks_no_client_out() {
    let two_seconds = Nanos::from_secs(2);
    let rates = [TestRate::window("window", 60, two_seconds), TestRate::bucket("bucket", 60, two_seconds, 30)];
    let clock = Arc::new(ShiftedClock::new().unwrap());
    let store = Redis::start_with_clock(Arc::clone(&clock), RedisProgram::Redis7, &[]);
    let fleet = Fleet::begin(&rates, &store.url(), DEADLINE.into(), &wrong_clocks());
    let load = RequestLoad::start(&fleet, &[("window", 90), ("bucket", 70)]);
    let mut steps = vec![now()];
    let mut phase = |step: &dyn Fn()| {
        std::thread::sleep(PHASE);
        steps.push(now());
        step();
    };
    phase(&|| clock.set_ahead(TWO_HOURS).unwrap());
    phase(&|| clock.set_behind(TWO_HOURS).unwrap());
    phase(&|| clock.set_ahead(Duration::ZERO).unwrap());
    phase(&|| {});
    let history = load.stop();

    history.none_failed();
    let [begun, forward, back, again, end] = steps.as_slice() else {
        unreachable!("four phases");
    };
    for rate in &rates {
        for (from, to) in [(begun, forward), (forward, again), (again, end)] {
            part(&history, *from, *to).at_most(rate, 100, |_| true);
        }
        history.at_most(rate, 200, |_| true);
        for (from, to) in [(begun, forward), (forward, back), (back, again), (again, end)] {
            let settled = (from.plus(rate.per), *to);
            history.at_least(rate, 95, settled, |_| true);
        }
        eprintln!("{} by clocks that are set: {} % at most", rate.name, history.percent(rate));
    }
    let local = history.records.iter().filter(|r| r.local()).count();
    eprintln!("{} decisions, {local} without the store", history.records.len());
}
