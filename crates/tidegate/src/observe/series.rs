//! The counters of one rule, and their labels.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;
use tidegate_core::store::Source;
use tidegate_rules::request::Edge;

use super::log_throttle::LogThrottle;

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds one.
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds `more`.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that grows and falls. It never falls below zero.
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// Adds one.
    pub fn inc(&self) {
        self.0.fetch_add(1, Relaxed);
    }

    /// Subtracts one.
    pub fn dec(&self) {
        let less = |now: u64| Some(now.saturating_sub(1));
        // The closure never returns `None`, so this always stores.
        let _ = self.0.fetch_update(Relaxed, Relaxed, less);
    }

    /// One of its summands changed from `before` to `now`.
    pub fn change(&self, before: u64, now: u64) {
        self.0.fetch_add(now.wrapping_sub(before), Relaxed);
    }

    /// Sets the value.
    pub fn set(&self, now: u64) {
        self.0.store(now, Relaxed);
    }

    /// The current value.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// The outcome of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OutcomeLabel {
    /// Allowed at once.
    Allow,
    /// Allowed after a delay.
    Delay,
    /// Denied.
    Deny,
    /// Could not be decided.
    Error,
    /// Would have been denied by a rule in shadow mode. Counted in addition to the decision itself.
    ShadowDeny,
}

impl OutcomeLabel {
    /// Every outcome.
    pub const ALL: [OutcomeLabel; 5] =
        [OutcomeLabel::Allow, OutcomeLabel::Delay, OutcomeLabel::Deny, OutcomeLabel::Error, OutcomeLabel::ShadowDeny];

    /// The value of the label.
    pub const fn name(self) -> &'static str {
        match self {
            OutcomeLabel::Allow => "allow",
            OutcomeLabel::Delay => "delay",
            OutcomeLabel::Deny => "deny",
            OutcomeLabel::Error => "error",
            OutcomeLabel::ShadowDeny => "shadow_deny",
        }
    }
}

const CELLS: usize = OutcomeLabel::ALL.len() * Source::ALL.len();

/// The decisions of one rule through one edge, on cache lines of their own.
type EdgeCounters = CachePadded<[Counter; CELLS]>;

/// All counters of one rule.
#[derive(Debug)]
pub struct RuleSeries {
    name: Box<str>,
    edges: [EdgeCounters; Edge::ALL.len()],
    /// Decisions that the rule applied to and another rule bound. Those that it bound itself are counted above, so
    /// that a request under one rule costs one addition.
    pub(super) matched_beside: CachePadded<Counter>,
    /// Throttles the log lines of its denials.
    pub log_throttle: LogThrottle,
}

impl RuleSeries {
    pub(super) fn new(name: &str) -> Self {
        RuleSeries {
            name: name.into(),
            edges: std::array::from_fn(|_| CachePadded::new(std::array::from_fn(|_| Counter::default()))),
            matched_beside: CachePadded::default(),
            log_throttle: LogThrottle::default(),
        }
    }

    /// Decisions that the rule bound.
    pub(super) fn bound(&self) -> u64 {
        let shadow = OutcomeLabel::ShadowDeny as usize * Source::ALL.len();
        let cells = self.edges.iter().flat_map(|edge| &edge[..shadow]);
        cells.map(Counter::get).sum()
    }

    /// Decisions that the rule bound and that were made by `source`.
    pub(super) fn decided_by(&self, source: Source) -> u64 {
        let outcomes = [OutcomeLabel::Allow, OutcomeLabel::Delay, OutcomeLabel::Deny];
        let of_edge = |edge| outcomes.map(|outcome| self.decisions(edge, outcome, source).get());
        Edge::ALL.into_iter().flat_map(of_edge).sum()
    }

    /// Decisions that the rule applied to.
    pub fn matches(&self) -> u64 {
        self.bound() + self.matched_beside.get()
    }

    /// The rule's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The counter of decisions through `edge` with `outcome` and `source`.
    pub fn decisions(&self, edge: Edge, outcome: OutcomeLabel, source: Source) -> &Counter {
        &self.edges[edge as usize][outcome as usize * Source::ALL.len() + source as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_has_a_counter_of_its_own() {
        let series = RuleSeries::new("r");
        for edge in Edge::ALL {
            for outcome in OutcomeLabel::ALL {
                for source in Source::ALL {
                    let counter = series.decisions(edge, outcome, source);
                    assert_eq!(counter.get(), 0, "{edge:?} {outcome:?} {source:?}");
                    counter.inc();
                }
            }
        }
        let each = Edge::ALL.len() * Source::ALL.len();
        let outcomes = OutcomeLabel::ALL.len() - 1; // a shadow denial is counted in addition to an outcome
        assert_eq!(series.matches(), (outcomes * each) as u64);
    }

    #[test]
    fn a_gauge_stops_at_zero() {
        let gauge = Gauge::default();
        gauge.dec();
        gauge.inc();
        assert_eq!(gauge.get(), 1);
    }
}
