//! The limits under test: as rules, and as the bounds they promise.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::units::Nanos;

use crate::window::window;

/// The percentage of a limit that all nodes together admit without the store.
pub(crate) const SHARE: u64 = 80;

/// One rule with one rate. Its name is the path of its requests.
#[derive(Clone, Debug)]
pub(crate) struct TestRate {
    pub(crate) name: &'static str,
    pub(crate) algorithm: Algorithm,
    pub(crate) count: u64,
    pub(crate) per: Nanos,
    pub(crate) burst: Option<u64>,
    /// As in a rule: `exact`, `leased`, `lenient`.
    pub(crate) counting: &'static str,
}

impl TestRate {
    /// `count` in each aligned window.
    pub(crate) fn window(name: &'static str, count: u64, per: Nanos) -> TestRate {
        TestRate { name, algorithm: Algorithm::FixedWindow, count, per, burst: None, counting: "exact" }
    }

    /// `count` on average, and no more than `burst` at once.
    pub(crate) fn bucket(name: &'static str, count: u64, per: Nanos, burst: u64) -> TestRate {
        TestRate { name, algorithm: Algorithm::TokenBucket, count, per, burst: Some(burst), counting: "exact" }
    }

    /// The same with another way of counting.
    pub(crate) fn counting(mut self, counting: &'static str) -> TestRate {
        self.counting = counting;
        self
    }

    /// Never used up and never forgotten: every admission can be found in the store afterwards.
    pub(crate) fn ledger() -> TestRate {
        TestRate::window("ledger", 1_000_000, Nanos::from_secs(window().secs))
    }

    /// The bound that it promises, at `percent` of it.
    pub(crate) fn limit(&self, percent: u64) -> Limit {
        let part = |units: u64| units * percent / 100;
        let mut spec = Spec::new(self.algorithm, part(self.count), self.per);
        spec.burst = self.burst.map(part);
        Limit::compile(&spec, Precision::Double).unwrap()
    }

    fn rule(&self) -> String {
        let TestRate { name, algorithm, count, per, burst, counting } = self;
        let burst = burst.map_or(String::new(), |burst| format!(" burst {burst}"));
        let secs = per.secs_up();
        format!(
            "  - {{ name: {name}, match: {{ path: /{name} }}, by: ip, \
             rate: {count}/{secs}s{burst}, algorithm: {algorithm}, counting: {counting} }}\n"
        )
    }
}

/// A rules file.
pub(crate) fn rules(rates: &[TestRate]) -> String {
    let rules: String = rates.iter().map(TestRate::rule).collect();
    format!("version: 1\nrules:\n{rules}")
}
