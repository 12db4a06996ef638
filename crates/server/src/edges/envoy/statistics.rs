//! The statistics of the reference service, under the names that its dashboards use.
//!
//! They exist only for deployments that migrate from it. They count hits, not calls. Invariant: values that callers
//! choose never create more than [`MAX_CALLER_SERIES`] series, and unknown domains no more than
//! [`MAX_UNKNOWN_DOMAINS`]. Hits beyond these are counted together. Limits that are counted under their own path always
//! have a series: the operator determines their number. `page` writes them.

mod page;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tidegate::Source;
use tidegate::observe::{Counter, Histogram};
use tidegate_rules::engine::DescriptorResponse;
use tidegate_rules::envoy::{Descriptor, Hits, Status};

use super::error::EnvoyError;
use super::wire::EnvoyRequest;

/// Maximum series under names with values of callers in them.
const MAX_CALLER_SERIES: usize = 10_000;

/// Maximum series of domains that no file names.
const MAX_UNKNOWN_DOMAINS: usize = 100;

#[derive(Default, Debug)]
pub(crate) struct EnvoyStatistics {
    near_ratio: f64,
    domains: RwLock<HashMap<Box<str>, PathSeries>>,
    /// The number of paths with values of callers in them.
    caller_series: AtomicUsize,
    without_series: Counter,
    calls: Counter,
    durations: Histogram,
    domain_not_found: Counter,
    unknown_domains: RwLock<HashMap<Box<str>, Arc<Counter>>>,
    global_shadow_mode: Counter,
    store_errors: Counter,
    service_errors: Counter,
}

type PathSeries = HashMap<Box<str>, Arc<LimitHits>>;

/// How the name of a series is chosen.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SeriesNaming {
    /// The path of a limit, as configured.
    ByPath,
    /// A text with values of callers in it.
    WithCallerValues,
}

/// The hits on one limit.
#[derive(Debug, Default)]
struct LimitHits {
    total: Counter,
    over: Counter,
    near: Counter,
    within: Counter,
    shadow: Counter,
}

/// The hits that one descriptor adds to its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct HitDelta {
    total: u64,
    over: u64,
    near: u64,
    within: u64,
    shadow: u64,
}

impl EnvoyStatistics {
    /// Hits above `near_ratio` of a limit count as near it.
    pub(crate) fn new(near_ratio: f64) -> Self {
        EnvoyStatistics { near_ratio, ..EnvoyStatistics::default() }
    }

    /// Counts a call, and why it got no decision.
    pub(super) fn record_call(&self, error: Option<&EnvoyError>) {
        self.calls.inc();
        match error {
            None => {}
            Some(EnvoyError::Store(_)) => self.store_errors.inc(),
            Some(_) => self.service_errors.inc(),
        }
    }

    /// Records the duration of a decision, and counts the result of each descriptor.
    pub(super) fn record_decision(&self, request: &EnvoyRequest<'_>, judged: &DescriptorResponse<'_>, took: Duration) {
        self.durations.record(took);
        if !judged.domain_known {
            self.record_unknown_domain(request.described.domain, request.described.descriptors.len());
        }
        if judged.shadow_denied {
            self.global_shadow_mode.inc();
        }
        if judged.decision.source() == Source::Fallback {
            self.store_errors.inc();
        }
        let descriptors = request.described.descriptors.iter();
        for (descriptor, status) in descriptors.zip(&judged.statuses) {
            let (Some(stats), Some(limit)) = (&status.stats, &status.limit) else {
                continue;
            };
            let near = (f64::from(limit.requests) * self.near_ratio).floor() as u64;
            let added = HitDelta::of(descriptor, status, limit.requests.into(), near);
            let naming = match stats {
                Cow::Borrowed(_) => SeriesNaming::ByPath,
                Cow::Owned(_) => SeriesNaming::WithCallerValues,
            };
            match self.series(request.described.domain, stats, naming) {
                Some(hit) => hit.add(added),
                None => self.without_series.inc(),
            }
        }
    }

    /// Counts the descriptors of a request for a domain that no file names.
    fn record_unknown_domain(&self, domain: &str, descriptors: usize) {
        let descriptors = descriptors as u64;
        self.domain_not_found.add(descriptors);
        let known = |domains: &HashMap<Box<str>, Arc<Counter>>| domains.get(domain).cloned();
        let found = known(&self.unknown_domains.read());
        let counter = found.or_else(|| {
            let mut domains = self.unknown_domains.write();
            if domains.len() >= MAX_UNKNOWN_DOMAINS {
                return known(&domains);
            }
            Some(Arc::clone(domains.entry(domain.into()).or_default()))
        });
        if let Some(counter) = counter {
            counter.add(descriptors);
        }
    }

    fn series(&self, domain: &str, path: &str, naming: SeriesNaming) -> Option<Arc<LimitHits>> {
        let known = |domains: &HashMap<Box<str>, PathSeries>| domains.get(domain)?.get(path).cloned();
        if let Some(hit) = known(&self.domains.read()) {
            return Some(hit);
        }
        let mut domains = self.domains.write();
        let has_values = naming == SeriesNaming::WithCallerValues;
        if has_values && self.caller_series.load(Relaxed) >= MAX_CALLER_SERIES {
            return known(&domains);
        }
        let paths = domains.entry(domain.into()).or_default();
        let hit = paths.entry(path.into()).or_insert_with(|| {
            self.caller_series.fetch_add(has_values.into(), Relaxed);
            Arc::default()
        });
        Some(Arc::clone(hit))
    }
}

impl LimitHits {
    fn add(&self, added: HitDelta) {
        self.total.add(added.total);
        self.over.add(added.over);
        self.near.add(added.near);
        self.within.add(added.within);
        self.shadow.add(added.shadow);
    }
}

impl HitDelta {
    /// Splits the hits of one call where they cross the limit, or the mark near it.
    fn of(descriptor: &Descriptor<'_>, status: &Status<'_>, limit: u64, near: u64) -> Self {
        let hits = match descriptor.hits {
            Hits::Charge(cost) | Hits::Used(cost) => cost.get(),
            Hits::Check | Hits::Refund(_) => 0,
        };
        let before = u64::from(status.used_before);
        let after = before.saturating_add(hits);
        let mut added = HitDelta { total: hits, ..HitDelta::default() };
        if !(status.over_limit || status.shadow_over_limit) {
            added.within = hits;
            added.near = after.saturating_sub(near.max(before));
        } else if before >= limit {
            added.over = hits;
        } else {
            added.over = after.saturating_sub(limit);
            added.near = limit.saturating_sub(near.max(before));
        }
        if status.shadow_over_limit {
            added.shadow = added.over;
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Cost;

    fn added(before: u32, hits: u64, over: bool) -> HitDelta {
        let descriptor = Descriptor {
            entries: Default::default(),
            limit_override: None,
            hits: Cost::new(hits).map_or(Hits::Check, Hits::Charge),
        };
        let status = Status { over_limit: over, used_before: before, ..Status::NO_LIMIT };
        HitDelta::of(&descriptor, &status, 10, 8)
    }

    fn parts(added: HitDelta) -> [u64; 4] {
        [added.total, added.over, added.near, added.within]
    }

    #[test]
    fn hits_are_split_where_they_cross_a_mark() {
        assert_eq!(parts(added(0, 3, false)), [3, 0, 0, 3]);
        assert_eq!(parts(added(7, 2, false)), [2, 0, 1, 2]);
        assert_eq!(parts(added(8, 2, false)), [2, 0, 2, 2]);
        assert_eq!(parts(added(7, 5, true)), [5, 2, 2, 0]);
        assert_eq!(parts(added(9, 5, true)), [5, 4, 1, 0]);
        assert_eq!(parts(added(10, 5, true)), [5, 5, 0, 0]);
        assert_eq!(parts(added(10, 0, true)), [0, 0, 0, 0]);
    }

    /// Only the hits that a limit in shadow mode would have denied.
    #[test]
    fn shadow_hits_are_the_hits_over_the_limit() {
        let shadow_hits = |before, hits| {
            let descriptor = Descriptor {
                entries: Default::default(),
                limit_override: None,
                hits: Hits::Charge(Cost::new(hits).unwrap()),
            };
            let status = Status { shadow_over_limit: true, used_before: before, ..Status::NO_LIMIT };
            HitDelta::of(&descriptor, &status, 10, 8).shadow
        };
        assert_eq!([shadow_hits(7, 5), shadow_hits(10, 5), shadow_hits(9, 1)], [2, 5, 0]);
    }

    #[test]
    fn the_series_of_unknown_domains_are_bounded() {
        let statistics = EnvoyStatistics::new(0.8);
        for number in 0..MAX_UNKNOWN_DOMAINS + 5 {
            statistics.record_unknown_domain(&format!("d{number}"), 2);
        }
        statistics.record_unknown_domain("d7", 3);
        let domains = statistics.unknown_domains.read();
        assert_eq!(domains.len(), MAX_UNKNOWN_DOMAINS);
        assert_eq!(domains["d7"].get(), 5, "existing series continue");
        let all = 2 * (MAX_UNKNOWN_DOMAINS as u64 + 5) + 3;
        assert_eq!(statistics.domain_not_found.get(), all);
    }

    #[test]
    fn the_series_with_values_of_callers_are_bounded() {
        let statistics = EnvoyStatistics::new(0.8);
        for path in 0..MAX_CALLER_SERIES + 5 {
            let hit = statistics.series("d", &format!("d.key_{path}"), SeriesNaming::WithCallerValues);
            assert_eq!(hit.is_some(), path < MAX_CALLER_SERIES);
        }
        let stays = statistics.series("d", "d.key_7", SeriesNaming::WithCallerValues);
        assert!(stays.is_some(), "existing series stay");
        let configured = statistics.series("d", "d.configured", SeriesNaming::ByPath);
        assert!(configured.is_some(), "configured limits always fit");
    }

    #[test]
    fn configured_limits_do_not_count_against_values_of_callers() {
        let statistics = EnvoyStatistics::new(0.8);
        for path in 0..=MAX_CALLER_SERIES {
            let hit = statistics.series("d", &format!("d.{path}"), SeriesNaming::ByPath);
            assert!(hit.is_some());
        }
        let of_caller = statistics.series("d", "d.user_ada", SeriesNaming::WithCallerValues);
        assert!(of_caller.is_some());
    }
}
