//! Counts decisions as they are made.
//!
//! The series of a rule set are looked up when it loads, by position. A decision refers to the rule set it was made
//! under. If that is not the one last loaded (a reload is in progress), its rule is looked up by name instead, so that
//! no decision is lost or counted under another rule.

use std::sync::Arc;

use tidegate_core::algorithms::Verdict;
use tidegate_core::store::{Role, SingleOutcome};
use tidegate_core::units::Nanos;
use tidegate_rules::RuleSet;
use tidegate_rules::engine::{Decision, DecisionKind};
use tidegate_rules::event::{Event, Observer};
use tidegate_rules::request::Edge;

use super::metrics::Metrics;
use super::series::{OutcomeLabel, RuleSeries};
use super::unmatched::LoadBaseline;

/// A rule set and its series.
#[derive(Debug)]
pub(super) struct LoadedSeries {
    pub(super) rules: Arc<RuleSet>,
    pub(super) series: Box<[Arc<RuleSeries>]>,
    pub(super) baseline: LoadBaseline,
}

impl Metrics {
    /// Looks up the series of `rules`. Call it whenever rules come into force.
    pub fn load(&self, rules: &Arc<RuleSet>) {
        let names = rules.rules().iter().map(|rule| rule.name().as_str());
        let series = self.find(names);
        let loaded =
            LoadedSeries { baseline: LoadBaseline::of(&series, self.none()), rules: Arc::clone(rules), series };
        self.loaded.store(Some(Arc::new(loaded)));
    }

    /// Calls `with` on the series of the rule that binds a decision.
    pub fn with_binding<T>(&self, decision: &Decision, with: impl FnOnce(&RuleSeries) -> T) -> T {
        let position = decision.binding().map(|limit| limit.position);
        self.with_rule(decision, position, with)
    }

    /// Calls `with` on the series of a rule.
    pub fn with_named<T>(&self, rule: &str, with: impl FnOnce(&RuleSeries) -> T) -> T {
        with(&self.find_one(Some(rule)))
    }

    /// Calls `with` on the series of the rule at `position`, or of `none`.
    fn with_rule<T>(&self, decision: &Decision, position: Option<usize>, with: impl FnOnce(&RuleSeries) -> T) -> T {
        let loaded = self.loaded.load();
        let known = loaded.as_ref().filter(|loaded| Arc::ptr_eq(&loaded.rules, decision.rules()));
        match known.zip(position) {
            Some((loaded, position)) => with(&loaded.series[position]),
            None => {
                let rules = decision.rules().rules();
                with(&self.find_one(position.map(|at| rules[at].name().as_str())))
            }
        }
    }

    fn count(&self, edge: Edge, decision: &Decision) {
        let outcome = match decision.kind() {
            DecisionKind::Allow => OutcomeLabel::Allow,
            DecisionKind::Delay(_) => OutcomeLabel::Delay,
            DecisionKind::Deny(_) | DecisionKind::Unavailable | DecisionKind::Block { .. } => OutcomeLabel::Deny,
        };
        let source = decision.source();
        self.with_binding(decision, |series| series.decisions(edge, outcome, source).inc());
        for limit in decision.shadows() {
            if !limit.reading.verdict.allows() {
                self.with_rule(decision, Some(limit.position), |series| {
                    series.decisions(edge, OutcomeLabel::ShadowDeny, source).inc();
                });
            }
        }
        if decision.has_other_matched_rules() {
            for position in decision.other_matched_rules() {
                let matched = |series: &RuleSeries| series.matched_beside.inc();
                self.with_rule(decision, Some(position), matched);
            }
        }
    }
}

/// Counts a charge without a rule as a decision of one limit. An admitted charge with a denial is in shadow mode.
fn count_single(series: &RuleSeries, edge: Edge, reply: &SingleOutcome) {
    let outcome = match (reply.admitted, reply.reading.verdict) {
        (false, _) => OutcomeLabel::Deny,
        (true, Verdict::Allow { delay }) if delay > Nanos::ZERO => OutcomeLabel::Delay,
        (true, Verdict::Allow { .. }) => OutcomeLabel::Allow,
        (true, Verdict::Deny { .. }) => {
            let shadow = series.decisions(edge, OutcomeLabel::ShadowDeny, reply.source);
            shadow.inc();
            OutcomeLabel::Allow
        }
    };
    series.decisions(edge, outcome, reply.source).inc();
}

impl Observer for Metrics {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::Decided { request, decision } => self.count(request.edge, decision),
            Event::Charged { edge, family, outcome } => {
                self.with_family(family, |series| count_single(series, *edge, outcome))
            }
            Event::PermitDenied { edge, limit, source } => {
                let outcome = match limit.role {
                    Role::Shadow => OutcomeLabel::ShadowDeny,
                    Role::Enforce | Role::Quota => OutcomeLabel::Deny,
                };
                self.with_named(limit.rule.name().as_str(), |series| {
                    series.decisions(*edge, outcome, *source).inc();
                });
            }
            Event::Reservation(step) => self.reservations[*step as usize].inc(),
        }
    }
}
