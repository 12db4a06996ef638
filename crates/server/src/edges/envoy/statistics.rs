//! The statistics of the reference service, under the names its dashboards ask for.
//!
//! Kept only for deployments that come from it. They count hits, not calls. Kept true: values that
//! callers choose never make more than [`MOST`] series; what does not fit is counted as such. Limits
//! that are counted under their own path always have theirs: their number is the operator's.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::RwLock;
use tidegate::observe::{Counter, Exposition, Histogram, Kind};
use tidegate_core::described::{Descriptor, Hits, Status};
use tidegate_core::engine::Judged;
use tidegate_core::rules::stat_name;

use super::error::Fault;
use super::wire::Asked;

/// The most series under names with values of callers in them.
const MOST: usize = 10_000;

/// All of them.
#[derive(Debug)]
pub(crate) struct Statistics {
    near_ratio: f64,
    domains: RwLock<HashMap<Box<str>, Paths>>,
    /// How many of the paths have values of callers in them.
    with_values: AtomicUsize,
    without_series: Counter,
    loads: Counter,
    calls: Counter,
    took: Histogram,
    domain_not_found: Counter,
    global_shadow_mode: Counter,
    store_errors: Counter,
    service_errors: Counter,
}

/// The only method there is.
const METHOD: (&str, &str) = ("grpc_method", "ShouldRateLimit");

type Paths = HashMap<Box<str>, Arc<Hit>>;

/// What series are named by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// The path of a limit, as configured.
    ByItsPath,
    /// A text with values of callers in it.
    WithValues,
}

/// The hits on one limit.
#[derive(Debug, Default)]
struct Hit {
    total: Counter,
    over: Counter,
    near: Counter,
    within: Counter,
    shadow: Counter,
}

/// What one descriptor adds to the hits on its limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Added {
    total: u64,
    over: u64,
    near: u64,
    within: u64,
    shadow: u64,
}

impl Statistics {
    /// With hits above this part of a limit counted as near it.
    pub(crate) fn new(near_ratio: f64) -> Self {
        Statistics {
            near_ratio,
            domains: RwLock::default(),
            with_values: AtomicUsize::new(0),
            without_series: Counter::default(),
            loads: Counter::default(),
            calls: Counter::default(),
            took: Histogram::default(),
            domain_not_found: Counter::default(),
            global_shadow_mode: Counter::default(),
            store_errors: Counter::default(),
            service_errors: Counter::default(),
        }
    }

    /// Counts a configuration that came into force.
    pub(crate) fn loaded(&self) {
        self.loads.inc();
    }

    /// Counts a call.
    pub(super) fn called(&self) {
        self.calls.inc();
    }

    /// Counts how long a decision took.
    pub(super) fn took(&self, time: Duration) {
        self.took.record(time);
    }

    /// Counts a call that got no verdict.
    pub(super) fn failed(&self, fault: &Fault) {
        match fault {
            Fault::Store(_) => self.store_errors.inc(),
            _ => self.service_errors.inc(),
        }
    }

    /// Counts what became of each descriptor.
    pub(super) fn judged(&self, asked: &Asked<'_>, judged: &Judged<'_>) {
        if !judged.domain_known {
            self.domain_not_found.inc();
        }
        if !judged.over && judged.statuses.iter().any(|s| s.over && !s.quota) {
            self.global_shadow_mode.inc();
        }
        let descriptors = asked.described.descriptors.iter();
        for (descriptor, status) in descriptors.zip(&judged.statuses) {
            let (Some(stats), Some(limit)) = (&status.stats, &status.limit) else {
                continue;
            };
            let near = (f64::from(limit.requests) * self.near_ratio).floor() as u64;
            let added = Added::of(descriptor, status, limit.requests.into(), near);
            let named = match stats {
                Cow::Borrowed(_) => Named::ByItsPath,
                Cow::Owned(_) => Named::WithValues,
            };
            match self.hit(asked.described.domain, stats, named) {
                Some(hit) => hit.add(added),
                None => self.without_series.inc(),
            }
        }
    }

    fn hit(&self, domain: &str, path: &str, named: Named) -> Option<Arc<Hit>> {
        let known = |domains: &HashMap<Box<str>, Paths>| domains.get(domain)?.get(path).cloned();
        if let Some(hit) = known(&self.domains.read()) {
            return Some(hit);
        }
        let mut domains = self.domains.write();
        let has_values = named == Named::WithValues;
        if has_values && self.with_values.load(Relaxed) >= MOST {
            return known(&domains);
        }
        let paths = domains.entry(domain.into()).or_default();
        let hit = paths.entry(path.into()).or_insert_with(|| {
            self.with_values.fetch_add(has_values.into(), Relaxed);
            Arc::default()
        });
        Some(Arc::clone(hit))
    }

    /// Writes them; `load_errors` is how often a configuration was refused.
    pub(crate) fn expose(&self, load_errors: u64) -> String {
        let mut page = Exposition::default();
        self.expose_hits(&mut page);
        let counts = [
            ("domain_not_found", &self.domain_not_found),
            ("without_series", &self.without_series),
        ];
        page.family(
            "ratelimit_service_rate_limit_other",
            Kind::Counter,
            "Calls for domains nobody knows, and hits on limits beyond those that have series.",
        );
        for (what, count) in counts {
            page.sample(&[("what", what)], count.get());
        }
        page.family(
            "ratelimit_service_should_rate_limit_error",
            Kind::Counter,
            "Calls that got no verdict.",
        );
        for (kind, count) in [
            ("redis_error", &self.store_errors),
            ("service_error", &self.service_errors),
        ] {
            page.sample(&[("err_type", kind)], count.get());
        }
        page.family("ratelimit_service_total_requests", Kind::Counter, "Calls.")
            .sample(&[METHOD], self.calls.get());
        let help = "Time a decision took.";
        page.family(
            "ratelimit_service_response_time_seconds",
            Kind::Histogram,
            help,
        )
        .histogram(&[METHOD], &self.took);
        let single = |page: &mut Exposition, name, help, count| {
            page.single(name, Kind::Counter, help, count);
        };
        let shadow = self.global_shadow_mode.get();
        let help = "Calls let pass because nothing is refused.";
        single(
            &mut page,
            "ratelimit_service_global_shadow_mode",
            help,
            shadow,
        );
        let help = "Configurations that came into force.";
        single(
            &mut page,
            "ratelimit_service_config_load_success",
            help,
            self.loads.get(),
        );
        let help = "Configurations that were refused.";
        single(
            &mut page,
            "ratelimit_service_config_load_error",
            help,
            load_errors,
        );
        page.finish()
    }

    fn expose_hits(&self, page: &mut Exposition) {
        type Read = fn(&Hit) -> u64;
        let families: [(&'static str, &str, Read); 5] = [
            ("ratelimit_service_rate_limit_total_hits", "Hits.", |hit| {
                hit.total.get()
            }),
            (
                "ratelimit_service_rate_limit_over_limit",
                "Hits over a limit.",
                |hit| hit.over.get(),
            ),
            (
                "ratelimit_service_rate_limit_near_limit",
                "Hits near a limit.",
                |hit| hit.near.get(),
            ),
            (
                "ratelimit_service_rate_limit_within_limit",
                "Hits within a limit.",
                |hit| hit.within.get(),
            ),
            (
                "ratelimit_service_rate_limit_shadow_mode",
                "Hits over a limit that only watches.",
                |hit| hit.shadow.get(),
            ),
        ];
        let domains = self.domains.read();
        for (family, help, read) in families {
            page.family(family, Kind::Counter, help);
            for (domain, paths) in &*domains {
                for (path, hit) in paths {
                    sample(page, domain, path, read(hit));
                }
            }
        }
    }
}

/// One sample, if its limit lies one or two levels deep: of others the reference has none.
fn sample(page: &mut Exposition, domain: &str, path: &str, count: u64) {
    let below = path
        .strip_prefix(domain)
        .and_then(|rest| rest.strip_prefix('.'));
    let (domain, keys) = (stat_name(domain), stat_name(below.unwrap_or(path)));
    match keys.split('.').collect::<Vec<_>>()[..] {
        [key] => page.sample(&[("domain", &domain), ("key1", key)], count),
        [key, deeper] => {
            let labels = [("domain", &*domain), ("key1", key), ("key2", deeper)];
            page.sample(&labels, count)
        }
        _ => page,
    };
}

impl Hit {
    fn add(&self, added: Added) {
        self.total.add(added.total);
        self.over.add(added.over);
        self.near.add(added.near);
        self.within.add(added.within);
        self.shadow.add(added.shadow);
    }
}

impl Added {
    /// Hits of one call are split where they cross a limit, or the mark that is near it.
    fn of(descriptor: &Descriptor<'_>, status: &Status<'_>, limit: u64, near: u64) -> Self {
        let hits = match descriptor.hits {
            Hits::Asked(cost) | Hits::Used(cost) => cost.get(),
            Hits::Nothing | Hits::GivenBack(_) => 0,
        };
        let before = u64::from(status.used_before);
        let after = before.saturating_add(hits);
        let mut added = Added {
            total: hits,
            ..Added::default()
        };
        if !(status.over || status.watched_over) {
            added.within = hits;
            added.near = after.saturating_sub(near.max(before));
        } else if before >= limit {
            added.over = hits;
        } else {
            added.over = after.saturating_sub(limit);
            added.near = limit.saturating_sub(near.max(before));
        }
        if status.watched_over {
            added.shadow = hits;
        }
        added
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::units::Cost;

    fn added(before: u32, hits: u64, over: bool) -> Added {
        let descriptor = Descriptor {
            entries: Default::default(),
            own: None,
            hits: Cost::new(hits).map_or(Hits::Nothing, Hits::Asked),
        };
        let status = Status {
            over,
            used_before: before,
            ..Status::FREE
        };
        Added::of(&descriptor, &status, 10, 8)
    }

    fn parts(added: Added) -> [u64; 4] {
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

    #[test]
    fn callers_do_not_choose_how_many_series_there_are() {
        let statistics = Statistics::new(0.8);
        for path in 0..MOST + 5 {
            let hit = statistics.hit("d", &format!("d.key_{path}"), Named::WithValues);
            assert_eq!(hit.is_some(), path < MOST);
        }
        let stays = statistics.hit("d", "d.key_7", Named::WithValues);
        assert!(stays.is_some(), "those there stay");
        let configured = statistics.hit("d", "d.configured", Named::ByItsPath);
        assert!(configured.is_some(), "callers take no limit's place");
    }

    #[test]
    fn limits_of_the_operator_leave_room_for_values_of_callers() {
        let statistics = Statistics::new(0.8);
        for path in 0..=MOST {
            let hit = statistics.hit("d", &format!("d.{path}"), Named::ByItsPath);
            assert!(hit.is_some());
        }
        let of_caller = statistics.hit("d", "d.user_ada", Named::WithValues);
        assert!(of_caller.is_some());
    }

    #[test]
    fn one_and_two_levels_are_shown_as_the_reference_does() {
        let statistics = Statistics::new(0.8);
        for path in ["d.ip_10.0.0.1", "d.a_b.c", "d.a.b.c"] {
            let hit = statistics.hit("d", path, Named::ByItsPath).unwrap();
            hit.add(added(0, 3, false));
        }
        statistics.loaded();
        statistics.loaded();
        statistics.took(Duration::from_secs(1));
        let page = statistics.expose(1);
        let lines = [
            r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="ip_10_0_0_1"} 3"#,
            r#"ratelimit_service_rate_limit_within_limit{domain="d",key1="a_b",key2="c"} 3"#,
            r#"ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 1"#,
            "ratelimit_service_config_load_success 2",
            "ratelimit_service_config_load_error 1",
            r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
        ];
        for line in lines {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert_eq!(
            page.matches("_total_hits{").count(),
            2,
            "three levels have none"
        );
    }
}
