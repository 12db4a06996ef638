//! All series of the process; `page` shows them.
//!
//! The series of a rule are created when rules load and found again by name, so a reload loses no count. Invariant: no
//! more than [`Metrics::RULES`] rules have series of their own; the rest count together as `other`, and the number of
//! those is itself a metric.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use tidegate_core::store::Source;
use tidegate_rules::event::ReservationStep;
use tidegate_rules::request::Edge;

use super::counting::LoadedSeries;
use super::histogram::Histogram;
use super::network::NetworkMetrics;
use super::series::{Counter, Gauge, RuleSeries};
use crate::limiter::OpenRequests;

/// The statuses by which responses are counted; any other is `other`.
pub(super) const STATUSES: [u16; 15] = [200, 400, 401, 403, 404, 405, 408, 410, 413, 421, 422, 429, 431, 500, 503];

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
    pub(super) rules_dropped: Gauge,
    /// The series of the rules in force, by position.
    pub(super) loaded: ArcSwapOption<LoadedSeries>,
    pub(super) durations: [CachePadded<Histogram>; Edge::ALL.len()],
    pub(super) responses: [[Counter; STATUSES.len() + 1]; Edge::ALL.len()],
    /// Reservations by step.
    pub(super) reservations: [Counter; ReservationStep::ALL.len()],
    /// Open connections.
    pub connections: Gauge,
    /// Accepted connections.
    pub connections_accepted: Counter,
    /// Connections that could not be accepted.
    pub accept_errors: Counter,
    /// Connections closed because nothing was received for too long.
    pub connections_timed_out: Counter,
    /// Rejected connections, streams and credentials.
    pub network: NetworkMetrics,
    /// Requests whose handling panicked.
    pub panics: Counter,
    /// Denials left out of the log, and reported as counts.
    pub lines_skipped: Counter,
    /// Log lines that could not be written.
    pub lines_dropped: Gauge,
    /// The last load of the rules.
    pub reload: ReloadMetrics,
    /// The open permits of each rule with `concurrent`.
    pub(super) open: Mutex<Vec<OpenRequests>>,
    /// Disabled edges, a bit for each: their series are shown only once something is counted.
    off: AtomicU8,
}

/// The result of loading the rules.
#[derive(Debug, Default)]
pub struct ReloadMetrics {
    /// 1 if the last attempt succeeded.
    pub successful: Gauge,
    /// The time of the last success.
    pub success_epoch_secs: Gauge,
    /// Rejected attempts.
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
            responses: Default::default(),
            reservations: Default::default(),
            connections: Gauge::default(),
            connections_accepted: Counter::default(),
            accept_errors: Counter::default(),
            connections_timed_out: Counter::default(),
            network: NetworkMetrics::default(),
            panics: Counter::default(),
            lines_skipped: Counter::default(),
            lines_dropped: Gauge::default(),
            reload: ReloadMetrics::default(),
            open: Mutex::default(),
            off: AtomicU8::new(0),
        }
    }
}

impl Metrics {
    /// Maximum of rules with series of their own. Each has a few dozen; a metrics server can take a million.
    pub const RULES: usize = 10_000;

    /// Sets the enabled edges. By default all are enabled.
    pub fn serve_only(&self, edges: &[Edge]) {
        let off = Edge::ALL.iter().filter(|edge| !edges.contains(edge));
        let off = off.fold(0, |off, edge| off | 1 << *edge as u8);
        self.off.store(off, Relaxed);
    }

    pub(super) fn is_on(&self, edge: Edge) -> bool {
        self.off.load(Relaxed) & 1 << edge as u8 == 0
    }

    /// Finds or creates the series of a rule set's rules, given in order.
    pub(super) fn find<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Box<[Arc<RuleSeries>]> {
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

    /// The series of one rule, created if there is room; that of `none` without a rule.
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
        let series = rules.remove(name).unwrap_or_else(|| Arc::new(RuleSeries::new(name)));
        let more = families.iter().chain([&series]).cloned().collect();
        self.families.store(Arc::new(more));
        series
    }

    fn one(&self, known: &mut BTreeMap<Box<str>, Arc<RuleSeries>>, name: &str) -> Option<Arc<RuleSeries>> {
        // A rule of this name shares the series: the same labels twice would invalidate the page.
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

    /// The series of requests that no rule applies to.
    pub(super) fn none(&self) -> &RuleSeries {
        &self.none
    }

    /// Whether a series is that of all rules beyond the cap.
    pub(super) fn is_other(&self, series: &Arc<RuleSeries>) -> bool {
        Arc::ptr_eq(series, &self.other)
    }

    /// Records the duration of one call's decision.
    pub fn record_duration(&self, edge: Edge, duration: Duration) {
        self.durations[edge as usize].record(duration);
    }

    /// The decisions that were made by `source` so far.
    pub fn decided_by(&self, source: Source) -> u64 {
        self.all().iter().map(|series| series.decided_by(source)).sum()
    }

    /// Counts one response.
    pub fn count_response(&self, edge: Edge, status: u16) {
        let at = STATUSES.iter().position(|&known| known == status);
        self.responses[edge as usize][at.unwrap_or(STATUSES.len())].inc();
    }

    /// Calls `report` with each rule that left denials out of the log before `second`, and their number.
    pub fn take_skipped_lines(&self, second: u32, mut report: impl FnMut(&str, u64)) {
        for series in self.all() {
            let skipped = series.log_throttle.take_skipped(second);
            if skipped > 0 {
                report(series.name(), skipped);
            }
        }
    }

    /// Sets the open permits that the page shows.
    pub fn set_open(&self, open: Vec<OpenRequests>) {
        *self.open.lock() = open;
    }

    /// All series, those of rules last.
    pub(super) fn all(&self) -> Vec<Arc<RuleSeries>> {
        let known = self.rules.lock();
        let families = self.families.load();
        [&self.none, &self.other].into_iter().chain(families.iter()).chain(known.values()).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::series::OutcomeLabel;
    use super::super::store::{MemoryFacts, StoreFacts};
    use super::*;

    fn series_of(page: &str) -> usize {
        page.lines().filter(|line| !line.starts_with('#')).count()
    }

    #[test]
    fn counts_survive_reloads_that_keep_remove_and_restore_the_rule() {
        let metrics = Metrics::default();
        for names in [&["a", "b"][..], &["b"], &["c", "a"]] {
            let found = metrics.find(names.iter().copied());
            let at = names.iter().position(|name| *name == "a");
            let Some(at) = at else { continue };
            found[at].decisions(Edge::Http, OutcomeLabel::Deny, Source::Exact).inc();
        }
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        let want = r#"tidegate_decisions_total{rule="a",edge="http",outcome="deny",source="exact"} 2"#;
        assert!(page.contains(want), "{page}");
    }

    #[test]
    fn a_disabled_edge_has_no_series_until_something_is_counted() {
        let metrics = Metrics::default();
        let found = metrics.find(["a"]);
        let shown = |edge: Edge| {
            let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
            page.matches(&format!("edge=\"{}\"", edge.name())).count()
        };
        assert!(shown(Edge::Resp) > 0);
        metrics.serve_only(&[Edge::Http, Edge::Auth]);
        assert!(shown(Edge::Http) > 0 && shown(Edge::Auth) > 0);
        assert_eq!(shown(Edge::Resp) + shown(Edge::Envoy) + shown(Edge::Library), 0);
        found[0].decisions(Edge::Resp, OutcomeLabel::Deny, Source::Exact).inc();
        assert_eq!(shown(Edge::Resp), 1);
    }

    #[test]
    fn a_rule_called_none_or_other_does_not_duplicate_a_series() {
        let metrics = Metrics::default();
        let found = metrics.find(["none", "other"]);
        found[0].decisions(Edge::Http, OutcomeLabel::Allow, Source::Exact).inc();
        metrics.find_one(None).decisions(Edge::Http, OutcomeLabel::Allow, Source::Exact).inc();
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        let labels = r#"{rule="none",edge="http",outcome="allow",source="exact"} 2"#;
        assert_eq!(page.matches(labels).count(), 1, "{page}");
    }

    #[test]
    fn series_stop_growing_at_the_cap_and_the_excess_is_a_metric() {
        let metrics = Metrics::default();
        let names: Vec<String> = (0..Metrics::RULES + 5).map(|i| format!("r{i}")).collect();
        let found = metrics.find(names.iter().map(String::as_str));
        assert_eq!(found[Metrics::RULES + 4].name(), "other");
        let page = metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        assert!(page.contains("tidegate_rules_without_series 5\n"));
        // Room is made by rules that are gone, not by existing rules: the series of the one rule and of each edge
        // are left.
        let found = metrics.find(["new"]);
        assert_eq!(found[0].name(), "new");
        assert!(series_of(&metrics.expose("0", &StoreFacts::Memory(MemoryFacts::default()))) < 200);
    }

    #[test]
    fn every_family_begins_once_with_help_and_type() {
        let page = Metrics::default().expose("0.1.0", &StoreFacts::Memory(MemoryFacts::default()));
        let mut seen = HashSet::new();
        for line in page.lines().filter(|line| line.starts_with("# TYPE ")) {
            let name = line.split(' ').nth(2).unwrap();
            assert!(seen.insert(name), "{name} twice");
            assert!(page.contains(&format!("# HELP {name} ")));
            assert_eq!(line.ends_with(" counter"), name.ends_with("_total"), "{line}");
        }
        assert!(page.contains("tidegate_decision_duration_seconds_bucket{edge=\"http\",le=\"+Inf\"} 0"));
    }
}
