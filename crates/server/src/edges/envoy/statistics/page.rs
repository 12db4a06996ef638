//! The metrics page of the statistics, with the names and labels of the reference service's usual mapper.

use std::collections::BTreeMap;

use tidegate::observe::{Exposition, MetricKind};
use tidegate_rules::stat_name;

use super::{EnvoyStatistics, LimitHits};

/// The only method.
const METHOD: (&str, &str) = ("grpc_method", "ShouldRateLimit");

impl EnvoyStatistics {
    /// Renders the page. `load_errors` is the number of configurations that failed to load.
    pub(in crate::edges::envoy) fn expose(&self, loads: u64, load_errors: u64) -> String {
        let mut page = Exposition::default();
        self.expose_hits(&mut page);
        self.expose_unknown_domains(&mut page);
        page.family(
            "ratelimit_service_rate_limit_other",
            MetricKind::Counter,
            "Descriptors of unknown domains, and hits on limits without a series of their own.",
        )
        .sample(&[("what", "domain_not_found")], self.domain_not_found.get())
        .sample(&[("what", "without_series")], self.without_series.get());
        page.family(
            "ratelimit_service_should_rate_limit_error",
            MetricKind::Counter,
            "Calls that were decided without the store, and calls that got no decision.",
        )
        .sample(&[("err_type", "redis_error")], self.store_errors.get())
        .sample(&[("err_type", "service_error")], self.service_errors.get());
        page.family("ratelimit_service_total_requests", MetricKind::Counter, "Calls.")
            .sample(&[METHOD], self.calls.get());
        page.family("ratelimit_service_response_time_seconds", MetricKind::Histogram, "Time a decision took.")
            .histogram(&[METHOD], &self.durations);
        let mut single = |name, help, count: u64| page.counter(name, help, count);
        single(
            "ratelimit_service_global_shadow_mode",
            "Calls allowed because nothing is enforced.",
            self.global_shadow_mode.get(),
        );
        single("ratelimit_service_config_load_success", "Configurations that were loaded.", loads);
        single("ratelimit_service_config_load_error", "Configurations that failed to load.", load_errors);
        page.finish()
    }

    fn expose_hits(&self, page: &mut Exposition) {
        type ReadCounter = fn(&LimitHits) -> u64;
        let families: [(&'static str, &str, ReadCounter); 5] = [
            ("ratelimit_service_rate_limit_total_hits", "Hits.", |hit| hit.total.get()),
            ("ratelimit_service_rate_limit_over_limit", "Hits over a limit.", |hit| hit.over.get()),
            ("ratelimit_service_rate_limit_near_limit", "Hits near a limit.", |hit| hit.near.get()),
            ("ratelimit_service_rate_limit_within_limit", "Hits within a limit.", |hit| hit.within.get()),
            ("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit in shadow mode.", |hit| hit.shadow.get()),
        ];
        let domains = self.domains.read();
        let mut series: BTreeMap<Labels, Vec<&LimitHits>> = BTreeMap::new();
        for (path, hit) in domains.values().flatten() {
            series.entry(Labels::of(path)).or_default().push(hit);
        }
        for (family, help, read) in families {
            page.family(family, MetricKind::Counter, help);
            for (labels, hits) in &series {
                labels.sample(page, hits.iter().copied().map(read).sum());
            }
        }
    }

    /// One metric family for each: the usual mapper has no labels for them.
    fn expose_unknown_domains(&self, page: &mut Exposition) {
        let mut families: BTreeMap<String, u64> = BTreeMap::new();
        for (domain, count) in &*self.unknown_domains.read() {
            let domain = to_metric_name(&stat_name(domain));
            let name = format!("ratelimit_service_rate_limit_{domain}_domain_not_found");
            *families.entry(name).or_default() += count.get();
        }
        let help = "Descriptors of an unknown domain.";
        for (name, count) in families {
            page.family(name, MetricKind::Counter, help).sample(&[], count);
        }
    }
}

/// The labels of a limit: its domain and its first two levels. Deeper limits are counted together with their siblings.
/// A dot in a domain or a value reads as the end of a level.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Labels {
    domain: String,
    key1: String,
    key2: Option<String>,
}

impl Labels {
    /// From the path of a limit: its domain and its levels, separated by dots.
    fn of(path: &str) -> Self {
        let name = stat_name(path);
        let mut levels = name.split('.').map(str::to_owned);
        Labels {
            domain: levels.next().unwrap_or_default(),
            key1: levels.next().unwrap_or_default(),
            key2: levels.next(),
        }
    }

    fn sample(&self, page: &mut Exposition, count: u64) {
        let first = [("domain", &*self.domain), ("key1", &*self.key1)];
        match &self.key2 {
            None => page.sample(&first, count),
            Some(key2) => page.sample(&[first[0], first[1], ("key2", key2)], count),
        };
    }
}

/// A text as a part of a metric name: invalid characters become `_`.
fn to_metric_name(text: &str) -> String {
    let plain = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => c,
        _ => '_',
    };
    text.chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{HitDelta, SeriesNaming};
    use super::*;

    #[track_caller]
    fn check_lines(page: &str, lines: &[&str]) {
        for line in lines {
            assert!(page.lines().any(|found| found == *line), "{line}\n{page}");
        }
    }

    fn with_hits(paths: &[&str]) -> EnvoyStatistics {
        let statistics = EnvoyStatistics::new(0.8);
        for path in paths {
            let hit = statistics.series("d", path, SeriesNaming::ByPath).unwrap();
            hit.add(HitDelta { total: 3, within: 2, ..HitDelta::default() });
        }
        statistics
    }

    /// Limits of three levels, and values with two dots in them, had no series at all.
    #[test]
    fn every_limit_has_the_series_of_its_first_two_levels() {
        let paths = ["d.ip_10.0.0.1", "d.a_b.c", "d.x.y.one", "d.x.y.two_2.deep", "d.host_api.example.com"];
        let page = with_hits(&paths).expose(0, 0);
        check_lines(
            &page,
            &[
                r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="ip_10_0_0_1"} 3"#,
                r#"ratelimit_service_rate_limit_within_limit{domain="d",key1="a_b",key2="c"} 2"#,
                r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="x",key2="y"} 6"#,
                r#"ratelimit_service_rate_limit_total_hits{domain="d",key1="host_api",key2="example"} 3"#,
            ],
        );
        assert_eq!(page.matches("_total_hits{").count(), 4, "{page}");
    }

    #[test]
    fn a_dot_in_a_domain_reads_as_the_end_of_a_level() {
        let statistics = EnvoyStatistics::new(0.8);
        let hit = statistics.series("shop.eu", "shop.eu.user", SeriesNaming::ByPath);
        hit.unwrap().total.add(1);
        let line = r#"ratelimit_service_rate_limit_total_hits{domain="shop",key1="eu",key2="user"} 1"#;
        check_lines(&statistics.expose(0, 0), &[line]);
    }

    #[test]
    fn unknown_domains_are_counted_by_name() {
        let statistics = EnvoyStatistics::new(0.8);
        for (domain, descriptors) in [("market", 2), ("a.b", 1), ("a-b", 3)] {
            statistics.record_unknown_domain(domain, descriptors);
        }
        check_lines(
            &statistics.expose(0, 0),
            &[
                "ratelimit_service_rate_limit_market_domain_not_found 2",
                "ratelimit_service_rate_limit_a_b_domain_not_found 4",
                r#"ratelimit_service_rate_limit_other{what="domain_not_found"} 6"#,
            ],
        );
    }

    #[test]
    fn other_metrics_have_the_names_of_the_reference() {
        let statistics = with_hits(&[]);
        statistics.durations.record(Duration::from_secs(1));
        check_lines(
            &statistics.expose(2, 1),
            &[
                r#"ratelimit_service_response_time_seconds_sum{grpc_method="ShouldRateLimit"} 1"#,
                "ratelimit_service_config_load_success 2",
                "ratelimit_service_config_load_error 1",
                r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
            ],
        );
    }
}
