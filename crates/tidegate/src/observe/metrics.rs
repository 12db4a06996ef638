//! All series of the process, and the page they are shown on.
//!
//! The series of a rule are made when rules load and found again by name, so a reload loses no
//! count. Kept true: no more than [`Metrics::RULES`] rules have series of their own; the rest count
//! together as `other`, and how many did not fit is itself a metric.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_core::event::ReservationStep;
use tidegate_core::request::Edge;
use tidegate_core::store::Source;

use super::counting::Loaded;
use super::exposition::{Exposition, Kind};
use super::histogram::Histogram;
use super::process;
use super::series::{Counter, Gauge, Outcome, RuleSeries};
use super::store::StoreFacts;
use crate::limiter::OpenRequests;

/// The statuses answers are counted by; anything else is `other`.
const STATUSES: [u16; 15] = [
    200, 400, 401, 403, 404, 405, 408, 410, 413, 421, 422, 429, 431, 500, 503,
];

/// Every series.
#[derive(Debug)]
pub struct Metrics {
    rules: Mutex<BTreeMap<Box<str>, Arc<RuleSeries>>>,
    /// Requests that no rule applies to.
    none: Arc<RuleSeries>,
    /// Rules beyond the cap.
    other: Arc<RuleSeries>,
    /// Charges without a rule, by family. There are as many as the program has names for.
    families: ArcSwap<Vec<Arc<RuleSeries>>>,
    rules_dropped: Gauge,
    /// The series of the rules in force, by position.
    pub(super) loaded: ArcSwapOption<Loaded>,
    durations: [CachePadded<Histogram>; Edge::ALL.len()],
    answers: [[Counter; STATUSES.len() + 1]; Edge::ALL.len()],
    /// What became of reservations.
    pub(super) reservations: [Counter; ReservationStep::ALL.len()],
    /// Connections open now.
    pub connections: Gauge,
    /// Connections taken so far.
    pub connections_accepted: Counter,
    /// Connections that could not be taken.
    pub accept_errors: Counter,
    /// Connections closed because nothing came for too long.
    pub connections_timed_out: Counter,
    /// Requests whose handling panicked.
    pub panics: Counter,
    /// Denials left out of the log, and told as counts.
    pub lines_skipped: Counter,
    /// Log lines that could not be written.
    pub lines_dropped: Gauge,
    /// How the rules were last loaded.
    pub reload: Reload,
    /// What is open under each rule that limits it.
    open: Mutex<Vec<OpenRequests>>,
}

/// How loading the rules went.
#[derive(Debug, Default)]
pub struct Reload {
    /// 1 if the last attempt succeeded.
    pub successful: Gauge,
    /// When one last succeeded.
    pub success_epoch_secs: Gauge,
    /// Attempts that were refused.
    pub rejected: Counter,
    /// The digest of the rules in force.
    pub hash: Mutex<String>,
}

impl Default for Metrics {
    fn default() -> Self {
        Metrics {
            rules: Mutex::default(),
            none: Arc::new(RuleSeries::new("none")),
            other: Arc::new(RuleSeries::new("other")),
            families: ArcSwap::default(),
            rules_dropped: Gauge::default(),
            loaded: ArcSwapOption::empty(),
            durations: Default::default(),
            answers: Default::default(),
            reservations: Default::default(),
            connections: Gauge::default(),
            connections_accepted: Counter::default(),
            accept_errors: Counter::default(),
            connections_timed_out: Counter::default(),
            panics: Counter::default(),
            lines_skipped: Counter::default(),
            lines_dropped: Gauge::default(),
            reload: Reload::default(),
            open: Mutex::default(),
        }
    }
}

impl Metrics {
    /// Rules with series of their own. Each has a few dozen; a server of metrics takes a million.
    pub const RULES: usize = 10_000;

    /// Finds or makes the series of a rule set's rules, given in order.
    pub(super) fn find<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> Box<[Arc<RuleSeries>]> {
        let names: Vec<&str> = names.into_iter().collect();
        let mut known = self.rules.lock();
        let fresh = names.iter().filter(|name| !known.contains_key(**name));
        if known.len() + fresh.count() > Self::RULES {
            let wanted: HashSet<&str> = names.iter().copied().collect();
            known.retain(|name, _| wanted.contains(&**name));
        }
        let mut dropped = 0;
        let found = names.into_iter().map(|name| {
            self.one(&mut known, name).unwrap_or_else(|| {
                dropped += 1;
                Arc::clone(&self.other)
            })
        });
        let found = found.collect();
        self.rules_dropped.set(dropped);
        found
    }

    /// The series of one rule, made if there is room; of `none` without a rule.
    pub(super) fn find_one(&self, name: Option<&str>) -> Arc<RuleSeries> {
        let Some(name) = name else {
            return Arc::clone(&self.none);
        };
        let found = self.one(&mut self.rules.lock(), name);
        found.unwrap_or_else(|| Arc::clone(&self.other))
    }

    /// Calls `with` on the series of a family of charges without a rule.
    pub fn with_family<T>(&self, name: &str, with: impl FnOnce(&RuleSeries) -> T) -> T {
        let families = self.families.load();
        match families.iter().find(|series| series.name() == name) {
            Some(series) => with(series),
            None => with(&self.new_family(name)),
        }
    }

    #[cold]
    fn new_family(&self, name: &str) -> Arc<RuleSeries> {
        let mut rules = self.rules.lock();
        let families = self.families.load();
        if let Some(series) = families.iter().find(|series| series.name() == name) {
            return Arc::clone(series);
        }
        // A rule of this name shares the series from now on.
        let series = rules
            .remove(name)
            .unwrap_or_else(|| Arc::new(RuleSeries::new(name)));
        let more = families.iter().chain([&series]).cloned().collect();
        self.families.store(Arc::new(more));
        series
    }

    fn one(
        &self,
        known: &mut BTreeMap<Box<str>, Arc<RuleSeries>>,
        name: &str,
    ) -> Option<Arc<RuleSeries>> {
        // A rule of this name shares the series: the same labels twice would void the page.
        let families = self.families.load();
        let reserved = [&self.none, &self.other].into_iter().chain(families.iter());
        if let Some(reserved) = reserved.into_iter().find(|r| r.name() == name) {
            return Some(Arc::clone(reserved));
        }
        if let Some(series) = known.get(name) {
            return Some(Arc::clone(series));
        }
        if known.len() >= Self::RULES {
            return None;
        }
        let series = Arc::new(RuleSeries::new(name));
        known.insert(name.into(), Arc::clone(&series));
        Some(series)
    }

    /// Adds how long one call took to be decided.
    pub fn took(&self, edge: Edge, duration: Duration) {
        self.durations[edge as usize].record(duration);
    }

    /// Counts one answer.
    pub fn answered(&self, edge: Edge, status: u16) {
        let at = STATUSES.iter().position(|&known| known == status);
        self.answers[edge as usize][at.unwrap_or(STATUSES.len())].inc();
    }

    /// Calls `tell` with each rule that left denials out of the log before `second`, and how many.
    pub fn settle_lines(&self, second: u32, mut tell: impl FnMut(&str, u64)) {
        for series in self.all() {
            let missed = series.lines.settle(second);
            if missed > 0 {
                tell(series.name(), missed);
            }
        }
    }

    /// Takes note of what is open, for the page.
    pub fn note_open(&self, open: Vec<OpenRequests>) {
        *self.open.lock() = open;
    }

    /// Writes the page.
    pub fn expose(&self, version: &str, store: &StoreFacts) -> String {
        let mut page = Exposition::default();
        self.expose_decisions(&mut page);
        self.expose_open(&mut page);
        self.expose_reservations(&mut page);
        self.expose_answers(&mut page);
        self.expose_log(&mut page);
        self.expose_reload(&mut page);
        store.expose(&mut page);
        page.family("tidegate_build_info", Kind::Gauge, "The version that runs.")
            .sample(&[("version", version)], 1);
        process::expose(&mut page);
        page.finish()
    }

    fn all(&self) -> Vec<Arc<RuleSeries>> {
        let known = self.rules.lock();
        let families = self.families.load();
        [&self.none, &self.other]
            .into_iter()
            .chain(families.iter())
            .chain(known.values())
            .cloned()
            .collect()
    }

    fn expose_decisions(&self, page: &mut Exposition) {
        page.family(
            "tidegate_decisions_total",
            Kind::Counter,
            "Decisions, each once under the rule that binds; shadow_deny beside them.",
        );
        for series in self.all() {
            for edge in Edge::ALL {
                for outcome in Outcome::ALL {
                    for source in Source::ALL {
                        let count = series.decisions(edge, outcome, source).get();
                        if count == 0 && !shown_at_zero(&series, outcome, source) {
                            continue;
                        }
                        let labels = [
                            ("rule", series.name()),
                            ("edge", edge.name()),
                            ("outcome", outcome.name()),
                            ("source", source.name()),
                        ];
                        page.sample(&labels, count);
                    }
                }
            }
        }
        page.single(
            "tidegate_rules_without_series",
            Kind::Gauge,
            "Rules counted together as `other` because there are too many.",
            self.rules_dropped.get(),
        );
    }

    fn expose_open(&self, page: &mut Exposition) {
        let open = self.open.lock();
        page.family(
            "tidegate_open_requests",
            Kind::Gauge,
            "Slots taken or renewed at this node, and neither given back there nor ended.",
        );
        for of in open.iter() {
            page.sample(&[("rule", of.rule.as_str())], of.open);
        }
        page.family(
            "tidegate_adaptive_limit",
            Kind::Gauge,
            "The lowest limit on open requests that this node has found for a subject of the rule.",
        );
        for of in open.iter() {
            if let Some(limit) = of.adaptive {
                page.sample(&[("rule", of.rule.as_str())], limit);
            }
        }
    }

    fn expose_reservations(&self, page: &mut Exposition) {
        page.family(
            "tidegate_reservations_total",
            Kind::Counter,
            "What became of estimates; each is first reserved.",
        );
        for step in ReservationStep::ALL {
            let count = self.reservations[step as usize].get();
            page.sample(&[("outcome", step.name())], count);
        }
    }

    fn expose_answers(&self, page: &mut Exposition) {
        page.family(
            "tidegate_decision_duration_seconds",
            Kind::Histogram,
            "From a request understood to its decision; a list counts once.",
        );
        for edge in Edge::ALL {
            page.histogram(&[("edge", edge.name())], &self.durations[edge as usize]);
        }
        page.family(
            "tidegate_http_answers_total",
            Kind::Counter,
            "Answers by status.",
        );
        for edge in Edge::ALL {
            let statuses = STATUSES.iter().map(u16::to_string).chain(["other".into()]);
            for (status, counter) in statuses.zip(&self.answers[edge as usize]) {
                if counter.get() > 0 || status == "200" {
                    let labels = [("edge", edge.name()), ("status", &*status)];
                    page.sample(&labels, counter.get());
                }
            }
        }
        let gauge = |page: &mut Exposition, name, help, gauge: &Gauge| {
            page.single(name, Kind::Gauge, help, gauge.get());
        };
        let counter = |page: &mut Exposition, name, help, counter: &Counter| {
            page.single(name, Kind::Counter, help, counter.get());
        };
        gauge(
            page,
            "tidegate_connections",
            "Connections open now.",
            &self.connections,
        );
        counter(
            page,
            "tidegate_connections_accepted_total",
            "Connections taken.",
            &self.connections_accepted,
        );
        counter(
            page,
            "tidegate_accept_errors_total",
            "Connections that could not be taken.",
            &self.accept_errors,
        );
        counter(
            page,
            "tidegate_connections_timed_out_total",
            "Connections closed because nothing came for too long.",
            &self.connections_timed_out,
        );
        counter(
            page,
            "tidegate_panics_total",
            "Requests whose handling panicked.",
            &self.panics,
        );
        counter(
            page,
            "tidegate_denied_lines_skipped_total",
            "Denials told in the log as counts instead of lines.",
            &self.lines_skipped,
        );
    }

    fn expose_log(&self, page: &mut Exposition) {
        page.single(
            "tidegate_log_lines_dropped_total",
            Kind::Counter,
            "Log lines lost because nobody reads them.",
            self.lines_dropped.get(),
        );
    }

    fn expose_reload(&self, page: &mut Exposition) {
        let reload = &self.reload;
        page.single(
            "tidegate_config_last_reload_successful",
            Kind::Gauge,
            "Whether the last attempt to load the rules succeeded.",
            reload.successful.get(),
        );
        page.single(
            "tidegate_config_last_reload_success_timestamp_seconds",
            Kind::Gauge,
            "When the rules were last loaded.",
            reload.success_epoch_secs.get(),
        );
        page.single(
            "tidegate_config_rejected_total",
            Kind::Counter,
            "Rules that were refused, the last good ones kept.",
            reload.rejected.get(),
        );
        page.family("tidegate_config_info", Kind::Gauge, "The rules in force.")
            .sample(&[("hash", &**reload.hash.lock())], 1);
    }
}

/// A counter that is there before its first event makes that event visible as a rate.
fn shown_at_zero(series: &RuleSeries, outcome: Outcome, source: Source) -> bool {
    match series.name() {
        "none" => matches!((outcome, source), (Outcome::Allow, Source::None)),
        "other" => false,
        _ => matches!(
            (outcome, source),
            (Outcome::Allow | Outcome::Deny, Source::Exact)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::store::MemoryFacts;
    use super::*;

    fn series_of(page: &str) -> usize {
        page.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn counts_survive_a_reload_that_keeps_drops_and_brings_back_the_rule() {
        let metrics = Metrics::default();
        for names in [&["a", "b"][..], &["b"], &["c", "a"]] {
            let found = metrics.find(names.iter().copied());
            let at = names.iter().position(|name| *name == "a");
            let Some(at) = at else { continue };
            found[at]
                .decisions(Edge::Http, Outcome::Deny, Source::Exact)
                .inc();
        }
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        let want =
            r#"tidegate_decisions_total{rule="a",edge="http",outcome="deny",source="exact"} 2"#;
        assert!(page.contains(want), "{page}");
    }

    #[test]
    fn a_rule_called_none_or_other_does_not_double_a_series() {
        let metrics = Metrics::default();
        let found = metrics.find(["none", "other"]);
        found[0]
            .decisions(Edge::Http, Outcome::Allow, Source::Exact)
            .inc();
        metrics
            .find_one(None)
            .decisions(Edge::Http, Outcome::Allow, Source::Exact)
            .inc();
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        let labels = r#"{rule="none",edge="http",outcome="allow",source="exact"} 2"#;
        assert_eq!(page.matches(labels).count(), 1, "{page}");
    }

    #[test]
    fn series_stop_growing_at_the_cap_and_say_so() {
        let metrics = Metrics::default();
        let names: Vec<String> = (0..Metrics::RULES + 5).map(|i| format!("r{i}")).collect();
        let found = metrics.find(names.iter().map(String::as_str));
        assert_eq!(found[Metrics::RULES + 4].name(), "other");
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        assert!(page.contains("tidegate_rules_without_series 5\n"));
        // Room is made by rules that are gone, not by rules that are there: what is left are the series
        // of the one rule and of each edge.
        let found = metrics.find(["new"]);
        assert_eq!(found[0].name(), "new");
        assert!(series_of(&metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()))) < 200);
    }

    #[test]
    fn every_family_opens_once_with_help_and_type() {
        let page = Metrics::default().expose("0.1.0", &StoreFacts::Memory(MemoryFacts::default()));
        let mut seen = HashSet::new();
        for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
            let name = line.split(' ').nth(2).unwrap();
            assert!(seen.insert(name), "{name} twice");
            assert!(page.contains(&format!("# HELP {name} ")));
            assert_eq!(
                line.ends_with(" counter"),
                name.ends_with("_total"),
                "{line}"
            );
        }
        assert!(
            page.contains("tidegate_decision_duration_seconds_bucket{edge=\"http\",le=\"+Inf\"} 0")
        );
    }
}
