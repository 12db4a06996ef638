//! Four nodes under load, a fault, and the guarantees that hold in spite of it.

use std::time::Duration;

use tidegate_core::units::Nanos;
use tidegate_testkit::{ProxyFault, RedisProgram, TestRedis as Redis};

use crate::fleet::{BUDGET, Fleet, StoreLink};
use crate::history::{RequestHistory, RequestRecord, now};
use crate::load::RequestLoad;
use crate::rates::{SHARE, TestRate};

/// A store, the link to it, and the nodes that share it.
pub(crate) struct FaultScenario {
    pub(crate) store: Redis,
    pub(crate) line: StoreLink,
    pub(crate) fleet: Fleet,
    /// Used up in every window.
    pub(crate) window: TestRate,
    /// The same as a bucket, drained steadily.
    pub(crate) bucket: TestRate,
    /// Never used up.
    pub(crate) ledger: TestRate,
}

/// The responses to clients, and the duration.
pub(crate) struct ScenarioResult {
    pub(crate) history: RequestHistory,
    pub(crate) ended: Nanos,
}

impl FaultScenario {
    pub(crate) fn new() -> FaultScenario {
        FaultScenario::with(&[], BUDGET)
    }

    /// With options for the store, and the store budget of the nodes.
    pub(crate) fn with(options: &[&str], budget: Nanos) -> FaultScenario {
        let store = Redis::start(RedisProgram::Redis7, options);
        let two_seconds = Nanos::from_secs(2);
        let window = TestRate::window("window", 60, two_seconds);
        let bucket = TestRate::bucket("bucket", 60, two_seconds, 30);
        let ledger = TestRate::ledger();
        let line = StoreLink::to(store.address());
        let rates = [window.clone(), bucket.clone(), ledger.clone()];
        let fleet = Fleet::begin(&rates, &line.url(), budget, &[]);
        FaultScenario { store, line, fleet, window, bucket, ledger }
    }

    /// Runs `fault` under 200 requests a second, with `calm` before it and after everything is healthy again.
    pub(crate) fn run(&mut self, calm: Duration, fault: impl FnOnce(&mut FaultScenario)) -> ScenarioResult {
        let rates = [("window", 90), ("bucket", 70), ("ledger", 40)];
        let load = RequestLoad::start(&self.fleet, &rates);
        std::thread::sleep(calm);
        fault(self);
        let ended = now();
        self.fleet.wait_exact();
        std::thread::sleep(calm);
        ScenarioResult { history: load.stop(), ended }
    }

    /// Breaks replies on the link for a while.
    pub(crate) fn lose_replies(&self, fault: ProxyFault, during: Duration) {
        self.line.set(fault);
        std::thread::sleep(during);
        self.line.set(ProxyFault::None);
    }

    /// The guarantees that hold as long as the store lost nothing for good: every request gets a response, no bound
    /// is exceeded, and every admission is charged.
    #[track_caller]
    pub(crate) fn check_guarantees(&self, played: &ScenarioResult) {
        let history = &played.history;
        history.none_failed();
        for rate in [&self.window, &self.bucket] {
            history.at_most(rate, SHARE, RequestRecord::local);
            history.at_most(rate, 100 + SHARE, |_| true);
        }
        self.fleet.accounts_for(&self.ledger, self.admitted(history), 0);
    }

    pub(crate) fn admitted(&self, history: &RequestHistory) -> u64 {
        let ledger = history.of_rule(self.ledger.name);
        ledger.filter(|record| record.admitted()).count() as u64
    }

    /// Prints one line of figures.
    pub(crate) fn report(&self, name: &str, played: &ScenarioResult) {
        let history = &played.history;
        let last = history.last_local().unwrap_or(played.ended);
        eprintln!(
            "{name}: {} decisions, {} without the store; at most {} and {} %; exact {} after; \
             {} charged for {} admissions, {} more at most; breakers opened {:?}",
            history.records.len(),
            history.records.iter().filter(|r| r.local()).count(),
            history.percent(&self.window),
            history.percent(&self.bucket),
            last.since(played.ended),
            self.fleet.used(0, &self.ledger),
            self.admitted(history),
            self.fleet.unconfirmed(),
            self.fleet.count_logged(crate::fleet::OPENED),
        );
    }
}

/// Runs several scenarios at once: most of the time is waiting.
pub(crate) fn at_once<K: Copy + Send>(kinds: &[K], play: impl Fn(K) + Sync) {
    std::thread::scope(|scope| {
        for kind in kinds {
            let (kind, play) = (*kind, &play);
            scope.spawn(move || play(kind));
        }
    });
}
