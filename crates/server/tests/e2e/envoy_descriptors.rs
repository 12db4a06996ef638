//! Files of the reference service, read unchanged, over the port: every rule of matching, deciding and responding
//! that shows there.

use serde_json::json;

use crate::grpc::{GrpcClient, OK, OVER, descriptor, request};
use crate::http::HttpClient;
use crate::messages::{RateLimitOverride, RateLimitRequest, RateLimitResponse};
use crate::server::{TestServer, wait_for};
use crate::window::{unit, window};

/// A file of descriptors in which `LONG` is a unit that does not end while a test runs.
fn server(file: &str, flags: &[&str]) -> TestServer {
    TestServer::with(&file.replace("LONG", unit()), flags)
}

/// Code, requests per unit and remaining of each descriptor.
type StatusFigures = (i32, Option<u32>, u32);

fn figures(response: &RateLimitResponse) -> Vec<StatusFigures> {
    let of = |status: &crate::messages::DescriptorStatus| {
        let limit = status.current_limit.as_ref();
        let limit = limit.map(|limit| limit.requests_per_unit);
        (status.code, limit, status.limit_remaining)
    };
    response.statuses.iter().map(of).collect()
}

async fn check(caller: &GrpcClient, call: &RateLimitRequest, overall: i32, want: &[StatusFigures]) {
    let response = caller.check(call).await;
    assert_eq!(figures(&response), want, "{call:?}");
    assert_eq!(response.overall_code, overall, "{call:?}");
}

const MATCHING: &str = "
domain: shop
descriptors:
  - key: path
    value: /exact
    rate_limit: { unit: LONG, requests_per_unit: 10 }
  - key: path
    value: /wild*
    rate_limit: { unit: LONG, requests_per_unit: 20 }
  - key: path
    value: '*card'
    rate_limit: { unit: LONG, requests_per_unit: 30 }
  - key: path
    rate_limit: { unit: LONG, requests_per_unit: 40 }
    descriptors:
      - key: user
        rate_limit: { unit: LONG, requests_per_unit: 50 }
  - key: free
  - key: always
    rate_limit: { unlimited: true }
  - key: a_b
    rate_limit: { unit: LONG, requests_per_unit: 60 }
  - key: shared
    value: 'u-*'
    share_threshold: true
    rate_limit: { unit: LONG, requests_per_unit: 70 }
";

#[tokio::test(flavor = "multi_thread")]
async fn the_most_specific_limit_of_the_same_depth_is_found() {
    let server = server(MATCHING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let cases: [(&[(&str, &str)], StatusFigures); 12] = [
        (&[("path", "/exact")], (OK, Some(10), 9)),
        (&[("path", "/wild/card")], (OK, Some(20), 19)),
        (&[("path", "/other-card")], (OK, Some(30), 29)),
        (&[("path", "/else")], (OK, Some(40), 39)),
        (&[("path", "/else"), ("user", "u")], (OK, Some(50), 49)),
        // Nothing deeper under the exact one, and no way back to the bare key.
        (&[("path", "/exact"), ("user", "u")], (OK, None, 0)),
        (&[("path", "/else"), ("user", "u"), ("x", "y")], (OK, None, 0)),
        (&[("user", "u")], (OK, None, 0)),
        (&[("free", "x")], (OK, None, 0)),
        (&[("always", "x")], (OK, None, u32::MAX)),
        // The reference joins key and value with an underscore before the lookup.
        (&[("a", "b")], (OK, Some(60), 59)),
        (&[], (OK, None, 0)),
    ];
    for (entries, want) in cases {
        check(&caller, &request("shop", &[entries]), OK, &[want]).await;
    }
    let elsewhere = request("market", &[&[("path", "/exact")]]);
    check(&caller, &elsewhere, OK, &[(OK, None, 0)]).await;
    for left in [69, 68] {
        let user = format!("u-{left}");
        let call = request("shop", &[&[("shared", &*user)]]);
        check(&caller, &call, OK, &[(OK, Some(70), left)]).await;
    }
}

const DECIDING: &str = "
domain: shop
descriptors:
  - key: one
    rate_limit: { unit: LONG, requests_per_unit: 1, name: first }
  - key: three
    rate_limit: { unit: LONG, requests_per_unit: 3 }
  - key: never
    rate_limit: { unit: LONG }
  - key: watched
    shadow_mode: true
    rate_limit: { unit: LONG, requests_per_unit: 1 }
  - key: budget
    quota_mode: true
    rate_limit: { unit: LONG, requests_per_unit: 1 }
  - key: purse
    quota_mode: true
    rate_limit: { unit: LONG, requests_per_unit: 2 }
  - key: special
    rate_limit: { unit: LONG, requests_per_unit: 9, name: special, replaces: [{ name: first }] }
";

#[tokio::test(flavor = "multi_thread")]
async fn a_request_passes_all_its_limits_or_is_denied_and_charged_to_none() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let both = request("shop", &[&[("one", "x")], &[("three", "x")]]);
    check(&caller, &both, OK, &[(OK, Some(1), 0), (OK, Some(3), 2)]).await;
    for _ in 0..3 {
        check(&caller, &both, OVER, &[(OVER, Some(1), 0), (OK, Some(3), 2)]).await;
    }
    let never = request("shop", &[&[("never", "x")]]);
    check(&caller, &never, OVER, &[(OVER, Some(0), 0)]).await;
    let mut heavy = request("shop", &[&[("three", "y")]]);
    heavy.hits_addend = 3;
    check(&caller, &heavy, OK, &[(OK, Some(3), 0)]).await;
    check(&caller, &heavy, OVER, &[(OVER, Some(3), 0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_carries_its_limit_its_name_and_the_end_of_its_window() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let response = caller.check(&request("shop", &[&[("one", "x")]])).await;
    let status = &response.statuses[0];
    let limit = status.current_limit.as_ref().unwrap();
    assert_eq!((limit.unit, &*limit.name), (window().number, "first"));
    let reset = status.duration_until_reset.as_ref().unwrap();
    let length = i64::try_from(window().secs).unwrap();
    assert!((1..=length).contains(&reset.seconds) && reset.nanos == 0, "{reset:?}");
    assert!(status.quota.is_none());
    let response = caller.check(&request("shop", &[&[("none", "x")]])).await;
    assert!(response.statuses[0].duration_until_reset.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn shadow_limits_never_deny_and_one_budget_with_room_is_enough() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let watched = request("shop", &[&[("watched", "x")]]);
    check(&caller, &watched, OK, &[(OK, Some(1), 0)]).await;
    check(&caller, &watched, OK, &[(OK, Some(1), 0)]).await;
    let budgets = request("shop", &[&[("budget", "x")], &[("purse", "x")]]);
    check(&caller, &budgets, OK, &[(OK, Some(1), 0), (OK, Some(2), 1)]).await;
    check(&caller, &budgets, OK, &[(OVER, Some(1), 0), (OK, Some(2), 0)]).await;
    check(&caller, &budgets, OVER, &[(OVER, Some(1), 0), (OVER, Some(2), 0)]).await;
    let mixed = request("shop", &[&[("budget", "x")], &[("three", "x")]]);
    check(&caller, &mixed, OVER, &[(OVER, Some(1), 0), (OK, Some(3), 3)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_replaced_is_neither_checked_nor_charged() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let both = request("shop", &[&[("one", "x")], &[("special", "x")]]);
    for left in [8, 7] {
        check(&caller, &both, OK, &[(OK, None, 0), (OK, Some(9), left)]).await;
    }
    let alone = request("shop", &[&[("one", "x")]]);
    check(&caller, &alone, OK, &[(OK, Some(1), 0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_in_the_request_counts_beside_the_configured_limit() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let with = |requests: u32, domain: &str| {
        let mut call = request(domain, &[&[("three", "x")]]);
        call.descriptors[0].limit = Some(RateLimitOverride { requests_per_unit: requests, unit: window().number });
        call
    };
    check(&caller, &with(5, "shop"), OK, &[(OK, Some(5), 4)]).await;
    let plain = request("shop", &[&[("three", "x")]]);
    check(&caller, &plain, OK, &[(OK, Some(3), 1)]).await;
    check(&caller, &with(2, "shop"), OVER, &[(OVER, Some(2), 0)]).await;
    check(&caller, &with(0, "shop"), OVER, &[(OVER, Some(0), 0)]).await;
    check(&caller, &with(5, "market"), OK, &[(OK, None, 0)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_peeks_charges_and_refunds_by_its_own_hits() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let with = |hits: u64, is_negative_hits: bool| RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![crate::messages::RateLimitDescriptor {
            hits_addend: Some(hits),
            is_negative_hits,
            ..descriptor(&[("three", "x")])
        }],
        hits_addend: 7,
    };
    for _ in 0..5 {
        check(&caller, &with(0, false), OK, &[(OK, Some(3), 3)]).await;
    }
    check(&caller, &with(2, false), OK, &[(OK, Some(3), 1)]).await;
    check(&caller, &with(1, true), OK, &[(OK, Some(3), 2)]).await;
    // Reported usage is counted whether it fits or not.
    check(&caller, &with(5, false), OVER, &[(OVER, Some(3), 0)]).await;
    check(&caller, &with(0, false), OVER, &[(OVER, Some(3), 0)]).await;
    check(&caller, &with(100, true), OK, &[(OK, Some(3), 3)]).await;
    check(&caller, &with(0, false), OK, &[(OK, Some(3), 3)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_three_headers_of_the_reference_are_sent_if_wanted() {
    let server = server(DECIDING, &["--envoy-headers", "reference"]);
    let caller = GrpcClient::connect(&server).await;
    let both = request("shop", &[&[("three", "x")], &[("one", "x")]]);
    let response = caller.check(&both).await;
    let three = |response: &RateLimitResponse| {
        let headers = response.response_headers_to_add.iter();
        let headers: Vec<_> = headers.map(|h| (h.key.clone(), h.value.clone())).collect();
        assert_eq!(headers.len(), 3, "{headers:?}");
        assert_eq!(headers[2].0, "RateLimit-Reset");
        let reset = response.statuses[0].duration_until_reset.as_ref().unwrap();
        let reset_header: i64 = headers[2].1.parse().unwrap();
        assert_eq!(reset_header, reset.seconds);
        [headers[0].clone(), headers[1].clone()].map(|(name, value)| format!("{name}: {value}"))
    };
    assert_eq!(three(&response), ["RateLimit-Limit: 1", "RateLimit-Remaining: 0"]);
    let denied = caller.check(&both).await;
    assert_eq!(denied.overall_code, OVER);
    assert_eq!(three(&denied), ["RateLimit-Limit: 1", "RateLimit-Remaining: 0"]);
    let free = caller.check(&request("shop", &[&[("none", "x")]])).await;
    assert!(free.response_headers_to_add.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn our_headers_name_the_limit_of_a_descriptor() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let call = request("shop", &[&[("one", "x")]]);
    let response = caller.check(&call).await;
    let policy = response.header("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"shop.one\";q=1"), "{policy}");
    assert_eq!(response.left(), Some(0));
    assert_eq!(response.header("retry-after"), None);
    let response = caller.check(&call).await;
    assert!(response.header("retry-after").is_some());
    let free = caller.check(&request("shop", &[&[("none", "x")]])).await;
    assert_eq!(free.header("ratelimit-policy"), None);
}

const WITH_METADATA: &str = "
domain: shop
descriptors:
  - key: one
    metadata: { plan: basic, deep: { a: 1, b: true } }
    rate_limit: { unit: LONG, requests_per_unit: 1 }
  - key: two
    metadata: { plan: other, deep: { a: 2, c: [x, null] } }
    rate_limit: { unit: LONG, requests_per_unit: 2 }
";

#[tokio::test(flavor = "multi_thread")]
async fn metadata_of_allowed_descriptors_is_merged_and_the_first_value_wins() {
    let server = server(WITH_METADATA, &["--envoy-metadata"]);
    let caller = GrpcClient::connect(&server).await;
    let call = request("shop", &[&[("one", "x")], &[("two", "x")]]);
    let metadata = async || {
        let response = caller.check(&call).await;
        response.dynamic_metadata.unwrap().json()["metadata"].clone()
    };
    let both = json!({"plan": "basic", "deep": {"a": 1.0, "b": true, "c": ["x", null]}});
    assert_eq!(metadata().await, both);
    let second = json!({"plan": "other", "deep": {"a": 2.0, "c": ["x", null]}});
    assert_eq!(metadata().await, second, "the first did not pass");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_descriptor_limit_is_shown_as_json_and_listed() {
    let server = server(DECIDING, &[]);
    let call = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "one", "value": "x"}]}]}"#;
    let reply = server.post("/json", call);
    let status = &reply.json()["statuses"][0];
    let unit = unit().to_uppercase();
    let limit = json!({"requestsPerUnit": 1, "unit": unit, "name": "first"});
    assert_eq!((reply.status, &status["currentLimit"]), (200, &limit));
    assert!(status.get("limitRemaining").is_none(), "0 is the default");
    let reset = status["durationUntilReset"].as_str().unwrap();
    assert!(reset.ends_with('s') && !reset.contains('.'), "{reset}");
    assert_eq!(server.post("/json", call).status, 429);
    let listing = server.admin_get("/rlconfig");
    assert_eq!(listing.status, 200);
    let line = format!("shop.one: unit={unit} requests_per_unit=1, shadow_mode: false, quota_mode: false");
    assert!(listing.body.lines().any(|found| found == line), "{}", listing.body);
    let posted = HttpClient::connect(server.admin).request("POST", "/rlconfig", &[], "");
    assert_eq!(posted.status, 405);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_is_rejected_with_its_cause_and_the_old_limits_stay() {
    let server = server(DECIDING, &[]);
    let caller = GrpcClient::connect(&server).await;
    let good = DECIDING.replace("LONG", unit());
    server.write("rules.yaml", &good.replace("key: one", "kee: one"));
    let line = server.wait_log(|line| line.to_string().contains("kee"));
    assert!(line.to_string().contains("rules.yaml:4"), "{line}");
    let call = request("shop", &[&[("one", "x")]]);
    check(&caller, &call, OK, &[(OK, Some(1), 0)]).await;
    server.write("rules.yaml", &good.replace("requests_per_unit: 1,", "requests_per_unit: 4,"));
    wait_for("the new limits", || server.admin_get("/rlconfig").body.contains("requests_per_unit=4").then_some(()));
    check(&caller, &call, OK, &[(OK, Some(4), 2)]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_of_both_kinds_decide_together() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("rules");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("envoy.yaml"), DECIDING.replace("LONG", unit())).unwrap();
    let native = format!(
        "version: 1\nrules:\n  - {{ name: per-client, by: ip, rate: 2/{}, algorithm: fixed-window }}\n",
        unit()
    );
    std::fs::write(folder.join("native.yaml"), native).unwrap();
    let mut command = std::process::Command::new(crate::server::BINARY);
    command.args(["serve", "--rules"]).arg(&folder);
    let server = TestServer::spawn(command, dir);
    let caller = GrpcClient::connect(&server).await;
    let call = request("shop", &[&[("three", "x")], &[("remote_address", "203.0.113.9")]]);
    check(&caller, &call, OK, &[(OK, Some(3), 2), (OK, Some(2), 1)]).await;
    // A peek or a refund does not charge the rules either.
    let mut looks = call.clone();
    for descriptor in &mut looks.descriptors {
        descriptor.hits_addend = Some(0);
    }
    for _ in 0..3 {
        check(&caller, &looks, OK, &[(OK, Some(3), 2), (OK, Some(2), 1)]).await;
    }
    check(&caller, &call, OK, &[(OK, Some(3), 1), (OK, Some(2), 0)]).await;
    check(&caller, &call, OVER, &[(OK, Some(3), 1), (OVER, Some(2), 0)]).await;
    check(&caller, &looks, OVER, &[(OK, Some(3), 1), (OVER, Some(2), 0)]).await;
}
