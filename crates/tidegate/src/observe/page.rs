//! The metrics page, which shows all series. Read-only.

use tidegate_core::store::Source;
use tidegate_rules::event::ReservationStep;
use tidegate_rules::request::Edge;

use super::exposition::{Exposition, MetricKind, expose};
use super::metrics::{Metrics, STATUSES};
use super::process;
use super::series::{OutcomeLabel, RuleSeries};
use super::store::StoreFacts;

impl Metrics {
    /// Writes the page.
    pub fn expose(&self, version: &str, store: &StoreFacts) -> String {
        let mut page = Exposition::default();
        self.expose_decisions(&mut page);
        self.expose_open(&mut page);
        self.expose_reservations(&mut page);
        self.expose_responses(&mut page);
        self.network.expose(&mut page, |edge| self.is_on(edge));
        self.expose_reload(&mut page);
        store.expose(&mut page);
        page.family("tidegate_build_info", MetricKind::Gauge, "The version that runs.")
            .sample(&[("version", version)], 1);
        process::expose(&mut page);
        page.finish()
    }

    fn expose_decisions(&self, page: &mut Exposition) {
        page.family(
            "tidegate_decisions_total",
            MetricKind::Counter,
            "Decisions, each once under the rule that binds; shadow_deny is counted in addition.",
        );
        for series in self.all() {
            for edge in Edge::ALL {
                for outcome in OutcomeLabel::ALL {
                    for source in Source::ALL {
                        let count = series.decisions(edge, outcome, source).get();
                        let at_zero = self.is_on(edge) && shown_at_zero(&series, outcome, source);
                        if count == 0 && !at_zero {
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
        page.family(
            "tidegate_rule_matches_total",
            MetricKind::Counter,
            "Decisions that a rule applied to, whether or not it bound them.",
        );
        for series in self.all() {
            let (rule, matches) = (series.name(), series.matches());
            if rule != "none" && (rule != "other" || matches > 0) {
                page.sample(&[("rule", rule)], matches);
            }
        }
        expose! { page;
            gauge "tidegate_rules_without_series" = self.rules_dropped.get();
                "Rules counted together as `other` because there are too many."
        }
    }

    fn expose_open(&self, page: &mut Exposition) {
        let open = self.open.lock();
        page.family(
            "tidegate_open_requests",
            MetricKind::Gauge,
            "Permits acquired or renewed at this node that have neither been released here nor expired.",
        );
        for requests in open.iter() {
            page.sample(&[("rule", requests.rule.as_str())], requests.open);
        }
        page.family(
            "tidegate_adaptive_limit",
            MetricKind::Gauge,
            "The lowest limit on open requests that this node has found for a subject of the rule.",
        );
        for requests in open.iter() {
            if let Some(limit) = requests.adaptive {
                page.sample(&[("rule", requests.rule.as_str())], limit);
            }
        }
    }

    fn expose_reservations(&self, page: &mut Exposition) {
        page.family(
            "tidegate_reservations_total",
            MetricKind::Counter,
            "Reservations by outcome; each is first counted as reserved.",
        );
        for step in ReservationStep::ALL {
            let count = self.reservations[step as usize].get();
            page.sample(&[("outcome", step.name())], count);
        }
    }

    fn expose_responses(&self, page: &mut Exposition) {
        page.family(
            "tidegate_decision_duration_seconds",
            MetricKind::Histogram,
            "Time from a parsed request to its decision; a list counts once.",
        );
        for edge in Edge::ALL {
            let durations = &self.durations[edge as usize];
            if self.is_on(edge) || durations.cumulative().1 > 0 {
                page.histogram(&[("edge", edge.name())], durations);
            }
        }
        page.family("tidegate_http_responses_total", MetricKind::Counter, "Responses by status.");
        for edge in Edge::ALL {
            let statuses = STATUSES.iter().map(u16::to_string).chain(["other".into()]);
            for (status, counter) in statuses.zip(&self.responses[edge as usize]) {
                if counter.get() > 0 || (self.is_on(edge) && status == "200") {
                    let labels = [("edge", edge.name()), ("status", &*status)];
                    page.sample(&labels, counter.get());
                }
            }
        }
        expose! { page;
            gauge "tidegate_connections" = self.connections.get(); "Connections open now."
            counter "tidegate_connections_accepted_total" = self.connections_accepted.get(); "Connections accepted."
            counter "tidegate_accept_errors_total" = self.accept_errors.get(); "Connections that could not be accepted."
            counter "tidegate_connections_timed_out_total" = self.connections_timed_out.get();
                "Connections closed because nothing was received for too long."
            counter "tidegate_panics_total" = self.panics.get(); "Requests whose handling panicked."
            counter "tidegate_denied_lines_skipped_total" = self.lines_skipped.get();
                "Denials reported in the log as counts instead of lines."
            counter "tidegate_log_lines_dropped_total" = self.lines_dropped.get();
                "Log lines lost because the log was not read fast enough."
        }
    }

    fn expose_reload(&self, page: &mut Exposition) {
        let reload = &self.reload;
        expose! { page;
            gauge "tidegate_config_last_reload_successful" = reload.successful.get();
                "Whether the last attempt to load the rules succeeded."
            gauge "tidegate_config_last_reload_success_timestamp_seconds" = reload.success_epoch_secs.get();
                "When the rules were last loaded."
            counter "tidegate_config_rejected_total" = reload.rejected.get();
                "Rules that were rejected; the last good rules stay in force."
        }
        page.family("tidegate_config_info", MetricKind::Gauge, "The rules in force.")
            .sample(&[("hash", &**reload.hash.lock())], 1);
    }
}

/// A counter that exists before its first event makes that event visible as a rate.
fn shown_at_zero(series: &RuleSeries, outcome: OutcomeLabel, source: Source) -> bool {
    match series.name() {
        "none" => matches!((outcome, source), (OutcomeLabel::Allow, Source::None)),
        "other" => false,
        _ => matches!((outcome, source), (OutcomeLabel::Allow | OutcomeLabel::Deny, Source::Exact)),
    }
}
