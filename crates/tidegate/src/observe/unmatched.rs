//! Finds rules that no request matches: a name, a path or a method in them is probably misspelt.
//!
//! Deciding a request counts nothing extra for this. The counts of the rules' series at load are remembered, and
//! compared with later ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use tidegate_rules::{Mode, Rule, RuleKind, RuleSet};

use super::metrics::Metrics;
use super::series::RuleSeries;

/// Rules that have not applied to any request since they were loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnmatchedRules {
    /// Their names.
    pub rules: Vec<String>,
    /// The number of requests decided since.
    pub requests: u64,
}

/// The counts of a rule set's series when it was loaded.
#[derive(Debug)]
pub(super) struct LoadBaseline {
    matches: Box<[u64]>,
    requests: u64,
    reported: AtomicBool,
}

impl LoadBaseline {
    pub(super) fn of(series: &[Arc<RuleSeries>], none: &RuleSeries) -> Self {
        LoadBaseline {
            matches: series.iter().map(|series| series.matches()).collect(),
            requests: requests(series, none),
            reported: AtomicBool::new(false),
        }
    }
}

/// Decisions, each counted once: under the rule that binds, or under `none`.
fn requests(series: &[Arc<RuleSeries>], none: &RuleSeries) -> u64 {
    let bound = series.iter().map(|series| series.bound());
    bound.sum::<u64>() + none.bound()
}

impl Metrics {
    /// The number of requests after which rules without a match are reported.
    pub const REQUESTS_UNTIL_UNMATCHED: u64 = 10_000;

    /// The rules that none of the requests since they were loaded has matched, once there were 10,000 or more.
    /// `None` before that, if there are no such rules, or if they were taken before. Call it every few seconds: it
    /// reads every series.
    pub fn take_unmatched(&self) -> Option<UnmatchedRules> {
        let loaded = self.loaded.load_full()?;
        let at_load = &loaded.baseline;
        if at_load.reported.load(Relaxed) {
            return None;
        }
        let requests = requests(&loaded.series, self.none()).saturating_sub(at_load.requests);
        if requests < Self::REQUESTS_UNTIL_UNMATCHED || at_load.reported.swap(true, Relaxed) {
            return None;
        }
        let rules = self.unmatched(&loaded.rules, &loaded.series, &at_load.matches);
        (!rules.is_empty()).then_some(UnmatchedRules { rules, requests })
    }

    fn unmatched(&self, rules: &RuleSet, series: &[Arc<RuleSeries>], matches_at_load: &[u64]) -> Vec<String> {
        let counted = series.iter().zip(matches_at_load);
        let idle = rules.rules().iter().zip(counted).filter(|(rule, (series, at_load))| {
            // Rules beyond the cap share a series, from which nothing follows for one of them.
            is_meant_to_match(rule) && !self.is_other(series) && series.matches() == **at_load
        });
        idle.map(|(rule, _)| rule.name().as_str().to_owned()).collect()
    }
}

/// A descriptor that no client sends is not misspelt in this file, and a disabled rule applies to nothing.
fn is_meant_to_match(rule: &Rule) -> bool {
    rule.kind() == RuleKind::Match && rule.mode() != Mode::Off
}
