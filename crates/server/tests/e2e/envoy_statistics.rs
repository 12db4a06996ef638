//! The statistics of the reference service, as its dashboards read them: hits of calls over the port.

use std::net::SocketAddr;

use tidegate_testkit::free_port;

use crate::envoy_compat::{deployment, replace_limits};
use crate::http::HttpClient;
use crate::server::{TestServer, wait_for};

const CONFIG: &str = "domain: shop
descriptors:
  - key: ten
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: outer
    value: o
    descriptors:
      - key: detailed
        detailed_metric: true
        rate_limit: { unit: year, requests_per_unit: 10 }
      - key: plain
        rate_limit: { unit: year, requests_per_unit: 10 }
        descriptors:
          - key: deep
            rate_limit: { unit: year, requests_per_unit: 10 }
  - key: listed
    value: 'a*'
    value_to_metric: true
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: hidden
    value: 'a*'
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: shared
    value: 'a*'
    value_to_metric: true
    share_threshold: true
    rate_limit: { unit: year, requests_per_unit: 10 }
  - key: free
    rate_limit: { unlimited: true }
";

/// A deployment, and the address of its metrics page.
struct ScrapedDeployment {
    server: TestServer,
    page: SocketAddr,
}

impl ScrapedDeployment {
    fn with(variables: &[(&str, &str)]) -> Self {
        let (dir, mut command) = deployment(CONFIG);
        command.env("USE_PROMETHEUS", "true").env("PROMETHEUS_ADDR", "127.0.0.1:0").envs(variables.iter().copied());
        let server = TestServer::spawn(command, dir);
        let line = server.wait_log(|line| line["edge"] == "metrics");
        let page = line["address"].as_str().unwrap().parse().unwrap();
        ScrapedDeployment { server, page }
    }

    /// A call of one descriptor with these entries, and its status.
    fn call(&self, domain: &str, entries: &[(&str, &str)], hits: u32) -> u16 {
        let entry = |(key, value): &(&str, &str)| format!(r#"{{"key": "{key}", "value": "{value}"}}"#);
        let entries: Vec<String> = entries.iter().map(entry).collect();
        let body = format!(
            r#"{{"domain": "{domain}", "descriptors": [{{"entries": [{}]}}], "hitsAddend": {hits}}}"#,
            entries.join(",")
        );
        self.server.post("/json", &body).status
    }

    /// The value of one sample, named without the common prefix.
    fn figure(&self, sample: &str) -> Option<u64> {
        let page = HttpClient::connect(self.page).request("GET", "/metrics", &[], "").body;
        let sample = format!("ratelimit_service_{sample} ");
        let found = page.lines().find_map(|line| line.strip_prefix(&*sample));
        found.map(|count| count.parse().unwrap())
    }

    /// Total, over, near, within and shadow hits of one limit.
    fn hits(&self, keys: &str) -> [Option<u64>; 5] {
        ["total_hits", "over_limit", "near_limit", "within_limit", "shadow_mode"]
            .map(|name| self.figure(&format!("rate_limit_{name}{{domain=\"shop\",{keys}}}")))
    }
}

#[test]
fn the_hits_of_one_call_are_split_where_they_cross_the_limit_or_come_near() {
    let scraped = ScrapedDeployment::with(&[]);
    let call = |value, hits| scraped.call("shop", &[("ten", value)], hits);
    let hits = || scraped.hits(r#"key1="ten""#);
    assert_eq!(call("x", 7), 200);
    assert_eq!(hits(), [7, 0, 0, 7, 0].map(Some));
    // From 7 to 12: two of them lie between 8, which is near, and the limit; two are over.
    assert_eq!(call("x", 5), 429);
    assert_eq!(hits(), [12, 2, 2, 7, 0].map(Some));
    assert_eq!(call("x", 3), 429);
    assert_eq!(hits(), [15, 5, 2, 7, 0].map(Some));
    // Another counter of the same limit, which is near after one of nine.
    assert_eq!(call("y", 9), 200);
    assert_eq!(hits(), [24, 5, 3, 16, 0].map(Some));
}

#[test]
fn where_near_begins_can_be_chosen() {
    let scraped = ScrapedDeployment::with(&[("NEAR_LIMIT_RATIO", "0.5")]);
    assert_eq!(scraped.call("shop", &[("ten", "x")], 7), 200);
    assert_eq!(scraped.hits(r#"key1="ten""#), [7, 0, 2, 7, 0].map(Some));
}

#[test]
fn hits_of_a_shadow_limit_count_as_over_and_as_shadow() {
    let scraped = ScrapedDeployment::with(&[]);
    for _ in 0..3 {
        assert_eq!(scraped.call("shop", &[("watched", "x")], 0), 200);
    }
    assert_eq!(scraped.hits(r#"key1="watched""#), [3, 2, 1, 1, 2].map(Some));
    // Of a call with more hits, only those over the limit.
    assert_eq!(scraped.call("shop", &[("watched", "y")], 3), 200);
    assert_eq!(scraped.hits(r#"key1="watched""#), [6, 4, 2, 1, 4].map(Some));
}

/// The reference responds with an error when its store is gone, and its operators watch for that. Here such calls
/// are decided, and still counted.
#[test]
fn calls_that_are_decided_without_the_store_are_counted_as_its_errors() {
    let nowhere = format!("127.0.0.1:{}", free_port());
    let scraped = ScrapedDeployment::with(&[("REDIS_URL", &nowhere), ("REDIS_SOCKET_TYPE", "tcp")]);
    let errors = || scraped.figure(r#"should_rate_limit_error{err_type="redis_error"}"#);
    for calls in 1..=3 {
        assert!(matches!(scraped.call("shop", &[("ten", "x")], 1), 200 | 429));
        assert_eq!(errors(), Some(calls));
    }
    assert_eq!(scraped.call("shop", &[("unlimited", "x")], 1), 200);
    assert_eq!(errors(), Some(3), "it needed no store");
}

#[test]
fn a_limit_is_named_by_its_nodes_or_by_the_request() {
    let scraped = ScrapedDeployment::with(&[]);
    let cases: [(&[(&str, &str)], &str); 5] = [
        (&[("outer", "o"), ("plain", "p")], r#"key1="outer_o",key2="plain""#),
        (&[("outer", "o"), ("detailed", "d")], r#"key1="outer_o",key2="detailed_d""#),
        (&[("listed", "ab")], r#"key1="listed_ab""#),
        (&[("hidden", "ab")], r#"key1="hidden_a*""#),
        (&[("shared", "ab")], r#"key1="shared_a*""#),
    ];
    for (entries, keys) in cases {
        assert_eq!(scraped.call("shop", entries, 2), 200, "{keys}");
        assert_eq!(scraped.hits(keys), [2, 0, 0, 2, 0].map(Some), "{keys}");
    }
    let deep = [("outer", "o"), ("plain", "p"), ("deep", "d")];
    assert_eq!(scraped.call("shop", &deep, 3), 200);
    let together = scraped.hits(r#"key1="outer_o",key2="plain""#);
    assert_eq!(together, [5, 0, 0, 5, 0].map(Some), "limits below are counted along");
    assert_eq!(scraped.call("shop", &[("free", "x")], 2), 200);
    assert_eq!(scraped.hits(r#"key1="free""#), [None; 5], "nothing is counted");
}

#[test]
fn calls_without_a_limit_or_without_descriptors_are_counted() {
    let scraped = ScrapedDeployment::with(&[]);
    assert_eq!(scraped.call("market", &[("ten", "x")], 1), 200);
    assert_eq!(scraped.call("", &[("ten", "x")], 1), 400);
    assert_eq!(scraped.call("shop", &[("ten", "x")], 1), 200);
    let figures = [
        (r#"rate_limit_other{what="domain_not_found"}"#, 1),
        ("rate_limit_market_domain_not_found", 1),
        (r#"should_rate_limit_error{err_type="service_error"}"#, 1),
        (r#"should_rate_limit_error{err_type="redis_error"}"#, 0),
        ("global_shadow_mode", 0),
    ];
    for (sample, want) in figures {
        assert_eq!(scraped.figure(sample), Some(want), "{sample}");
    }
}

#[test]
fn calls_that_pass_because_nothing_is_denied_are_counted() {
    let scraped = ScrapedDeployment::with(&[("SHADOW_MODE", "true")]);
    for hits in [10, 1, 1] {
        assert_eq!(scraped.call("shop", &[("ten", "x")], hits), 200);
    }
    assert_eq!(scraped.figure("global_shadow_mode"), Some(2));
    assert_eq!(scraped.hits(r#"key1="ten""#), [12, 2, 2, 10, 0].map(Some));
}

#[test]
fn loaded_and_rejected_configurations_are_counted() {
    let scraped = ScrapedDeployment::with(&[]);
    let loads = || ["config_load_success", "config_load_error"].map(|name| scraped.figure(name).unwrap());
    wait_for("the first one", || (loads() == [1, 0]).then_some(()));
    replace_limits(&scraped.server, "domain: ''\n");
    // A change may be seen more than once.
    wait_for("the rejection", || (loads()[1] >= 1).then_some(()));
    assert_eq!(loads()[0], 1, "what was in force still is");
    replace_limits(&scraped.server, &CONFIG.replace("ten", "eleven"));
    wait_for("the new one", || (loads()[0] >= 2).then_some(()));
}
