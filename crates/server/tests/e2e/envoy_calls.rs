//! The Envoy protocol on its port: requests, errors, responses. Native rules decide.

use bytes::Bytes;
use http::Request;
use prost::Message;

use crate::grpc::{GrpcClient, HEALTH, OK, OVER, SHOULD_RATE_LIMIT, framed, request};
use crate::http::HttpClient;
use crate::messages::{RateLimitOverride, RateLimitRequest};
use crate::server::{TestServer, wait_for};
use crate::window::unit;

fn rules() -> String {
    let unit = unit();
    format!(
        "version: 1\nrules:\n  \
         - {{ name: per-client, match: {{ domain: shop }}, by: ip, rate: 2/{unit}, algorithm: fixed-window }}\n  \
         - {{ name: per-key, match: {{ path: /keyed }}, by: api_key, rate: 1/{unit}, algorithm: fixed-window }}\n"
    )
}

fn of_client(ip: &str) -> RateLimitRequest {
    request("shop", &[&[("remote_address", ip)]])
}

#[tokio::test(flavor = "multi_thread")]
async fn native_rules_decide_and_set_headers() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    for left in [1, 0] {
        let response = caller.check(&of_client("203.0.113.9")).await;
        assert_eq!(response.overall_code, OK);
        assert_eq!(response.statuses.len(), 1);
        assert_eq!(response.left(), Some(left));
        assert_eq!(response.header("retry-after"), None);
    }
    let response = caller.check(&of_client("203.0.113.9")).await;
    assert_eq!(response.overall_code, OVER);
    let policy = response.header("ratelimit-policy").unwrap();
    assert!(policy.starts_with("\"per-client\";q=2"), "{policy}");
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 0);
    let id = response.header("x-tidegate-id").unwrap().to_owned();
    server.wait_log(|line| line["message"] == "denied" && line["id"] == *id);
    assert!(response.raw_body.is_empty() && response.quota.is_none());
    assert!(response.request_headers_to_add.is_empty() && response.dynamic_metadata.is_none());
    let other = caller.check(&of_client("203.0.113.10")).await;
    assert_eq!(other.overall_code, OK, "another client");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_edges_share_the_same_counter() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    assert_eq!(caller.check(&of_client("203.0.113.9")).await.overall_code, OK);
    let body = r#"{"attributes": {"ip": "203.0.113.9", "domain": "shop"}}"#;
    let reply = server.post("/v1/check", body);
    assert_eq!((reply.status, &reply.json()["remaining"]), (200, &0.into()));
    assert_eq!(caller.check(&of_client("203.0.113.9")).await.overall_code, OVER);
    assert_eq!(server.post("/v1/check", body).status, 429);
    let keyed = request("x", &[&[("path", "/keyed")], &[("api_key", "k1")]]);
    assert_eq!(caller.check(&keyed).await.overall_code, OK);
    let body = r#"{"attributes": {"api_key": "k1", "path": "/keyed"}}"#;
    assert_eq!(server.post("/v1/check", body).status, 429);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hits_of_a_request_are_its_cost() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    let mut call = of_client("203.0.113.9");
    call.hits_addend = 2;
    assert_eq!(caller.check(&call).await.overall_code, OK);
    assert_eq!(caller.check(&call).await.overall_code, OVER);
}

#[tokio::test(flavor = "multi_thread")]
async fn undecided_calls_fail_with_a_reason() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    let of = |change: fn(&mut RateLimitRequest)| {
        let mut changed = of_client("203.0.113.9");
        change(&mut changed);
        changed
    };
    let cases = [
        (of(|r| r.domain.clear()), "2", "rate limit domain must not be empty"),
        (of(|r| r.descriptors.clear()), "2", "rate limit descriptor list must not be empty"),
        (of(|r| r.descriptors[0].limit = Some(RateLimitOverride::default())), "3", "the unknown unit 0"),
        (of(|r| r.descriptors = vec![r.descriptors[0].clone(); 17]), "3", "more than 16 descriptors"),
        (
            of(|r| {
                let entry = r.descriptors[0].entries[0].clone();
                r.descriptors[0].entries = vec![entry; 17];
            }),
            "3",
            "more than 16 entries",
        ),
        (of(|r| r.descriptors[0].entries[0].key = "k".repeat(257)), "3", "a key has more than 256 bytes"),
        (of(|r| r.domain = "d".repeat(1_100_000)), "8", "more than 1048581 bytes"),
    ];
    for (call, code, reason) in cases {
        let (found, text) = caller.fails(&call).await;
        assert_eq!(found, code, "{text}");
        assert!(text.contains(reason), "{text}");
    }
    let good = caller.check(&of_client("203.0.113.9")).await;
    assert_eq!(good.overall_code, OK);
    assert_eq!(good.left(), Some(1), "none of them was charged");
}

/// Envoy passes requests that get no verdict, so a client could choose a header that disabled its limit.
#[tokio::test(flavor = "multi_thread")]
async fn every_value_that_a_client_sends_has_its_own_limit() {
    let server = TestServer::start(
        "{ domain: shop, descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 1 } }] }",
    );
    let caller = GrpcClient::connect(&server).await;
    let of_user = |user: Vec<u8>| {
        // As large as a header may be, and in as many descriptors as there may be.
        let entries: &[(&str, &str)] = &[("unlimited", "")];
        let mut call = request("shop", &[entries; 16]);
        for descriptor in &mut call.descriptors {
            descriptor.entries[0].value = user.clone();
        }
        call.descriptors[0].entries[0].key = "user".to_owned();
        call
    };
    let users = [
        vec![b'u'; 60_000],
        [vec![b'u'; 59_999], vec![b'v']].concat(),
        b"\xff".to_vec(),
        b"\xfe".to_vec(),
        "\u{fffd}".into(),
    ];
    for user in &users {
        let first = caller.check(&of_user(user.clone())).await;
        assert_eq!(first.overall_code, OK, "{} bytes", user.len());
    }
    for user in users {
        let second = caller.check(&of_user(user.clone())).await;
        assert_eq!(second.overall_code, OVER, "{} bytes", user.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn malformed_calls_fail_with_a_reason() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    let good = framed(&of_client("203.0.113.9"));
    let mut compressed = good.to_vec();
    compressed[0] = 1;
    let cases: [(&str, Bytes, &str, &str); 7] = [
        ("/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit", good.clone(), "12", "no such method"),
        ("/grpc.health.v1.Health/Watch", good.clone(), "12", "no such method"),
        (SHOULD_RATE_LIMIT, compressed.into(), "12", "send it as identity"),
        (SHOULD_RATE_LIMIT, Bytes::new(), "3", "ends before the message"),
        (SHOULD_RATE_LIMIT, good.slice(..good.len() - 1), "3", "truncated"),
        (SHOULD_RATE_LIMIT, [&good[..], &good[..]].concat().into(), "3", "data follows"),
        (SHOULD_RATE_LIMIT, Bytes::from_static(&[0, 0, 0, 0, 1, 0x0b]), "3", "the request is invalid"),
    ];
    for (path, body, code, reason) in cases {
        let called = caller.call(path, body).await;
        assert_eq!(called.http, 200);
        assert_eq!(called.code.as_deref(), Some(code), "{called:?}");
        assert!(called.text.contains(reason), "{called:?}");
    }
    let plain = Request::post("http://tidegate/json").header("content-type", "application/json");
    let called = caller.send(plain.body(()).unwrap(), Bytes::new()).await;
    assert_eq!(called.unwrap().http, 415);
    let got = Request::get(format!("http://tidegate{SHOULD_RATE_LIMIT}"));
    let got = got.header("content-type", "application/grpc");
    let called = caller.send(got.body(()).unwrap(), Bytes::new()).await;
    assert_eq!(called.unwrap().http, 415);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_health_service_reports_its_status() {
    let server = TestServer::with(&rules(), &["--drain-delay", "600"]);
    let caller = GrpcClient::connect(&server).await;
    let health = async |service: &str| {
        let called = caller.health(service).await;
        (called.code.unwrap(), called.body.to_vec())
    };
    let (serving, not_serving) = (vec![0, 0, 0, 0, 2, 8, 1], vec![0, 0, 0, 0, 2, 8, 2]);
    for service in ["", "ratelimit"] {
        assert_eq!(health(service).await, ("0".to_owned(), serving.clone()));
    }
    assert_eq!(health("other").await.0, "5");
    let empty = caller.call(HEALTH, Bytes::from_static(&[0; 5])).await;
    assert_eq!(empty.body, serving);
    let probe = || HttpClient::connect(server.http).request("GET", "/healthcheck", &[], "");
    let well = probe();
    assert_eq!((well.status, well.body.as_str()), (200, "OK"));
    server.signal("TERM");
    wait_for("the end to begin", || (probe().status == 500).then_some(()));
    assert_eq!(probe().body, "");
    assert_eq!(health("ratelimit").await, ("0".to_owned(), not_serving));
    assert_eq!(health("").await, ("0".to_owned(), serving));
    let response = caller.check(&of_client("203.0.113.9")).await;
    assert_eq!(response.overall_code, OK, "it still responds");
}

#[test]
fn the_json_endpoint_responds_as_the_reference_does() {
    let server = TestServer::start(&rules());
    let call =
        r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "remote_address", "value": "203.0.113.9"}]}]}"#;
    for _ in 0..2 {
        let reply = server.post("/json", call);
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        assert_eq!(reply.json()["overallCode"], "OK");
        assert_eq!(reply.json()["statuses"][0]["code"], "OK");
    }
    let reply = server.post("/json", call);
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["overallCode"], "OVER_LIMIT");
    let headers = reply.json()["responseHeadersToAdd"].clone();
    let named = |name: &str| headers.as_array().unwrap().iter().any(|h| h["key"] == name);
    assert!(named("retry-after") && named("ratelimit"), "{headers}");
    let put = HttpClient::connect(server.http).request("PUT", "/json", &[], call);
    assert_eq!(put.status, 429, "any method will do");
    for bad in ["", "{", "{}", r#"{"domain": "a"}"#, r#"{"domain": "a", "x": 1}"#] {
        let reply = server.post("/json", bad);
        assert_eq!((reply.status, reply.body.as_str()), (400, "Bad Request\n"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_can_be_returned_as_metadata() {
    let server = TestServer::with(&rules(), &["--envoy-metadata", "--envoy-headers", "off"]);
    let caller = GrpcClient::connect(&server).await;
    let mut call = request("shop", &[&[("a", "1"), ("b", "2")], &[("c", "3")]]);
    call.hits_addend = 1;
    call.descriptors[1].hits_addend = Some(1);
    call.descriptors[1].limit = Some(RateLimitOverride { requests_per_unit: 5, unit: 2 });
    let response = caller.check(&call).await;
    assert!(response.response_headers_to_add.is_empty());
    let metadata = response.dynamic_metadata.unwrap().json();
    let want = serde_json::json!({
        "domain": "shop",
        "descriptors": [
            {"entries": ["a=1", "b=2"]},
            {"entries": ["c=3"], "limit": "requests_per_unit:5 unit:MINUTE", "hitsAddend": 1.0},
        ],
        "hitsAddend": 1.0,
    });
    assert_eq!(metadata, want);
}

/// Unknown fields of a newer protocol are skipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_newer_client_is_understood() {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Newer {
        #[prost(string, tag = "1")]
        domain: String,
        #[prost(bytes = "vec", repeated, tag = "2")]
        descriptors: Vec<Vec<u8>>,
        #[prost(string, tag = "900")]
        more: String,
        #[prost(fixed64, tag = "901")]
        yet_more: u64,
    }
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    let newer = Newer {
        domain: "shop".to_owned(),
        descriptors: vec![of_client("203.0.113.9").descriptors[0].encode_to_vec()],
        more: "x".to_owned(),
        yet_more: 7,
    };
    let called = caller.call(SHOULD_RATE_LIMIT, framed(&newer)).await;
    assert_eq!(called.code.as_deref(), Some("0"), "{called:?}");
}

/// Envoy passes requests that get an error, so a request with two keys is denied.
#[tokio::test(flavor = "multi_thread")]
async fn two_different_keys_are_denied_and_an_empty_one_is_none() {
    let server = TestServer::start(&rules());
    let caller = GrpcClient::connect(&server).await;
    let keyed = |keys: [&str; 2]| {
        let [first, second] = keys;
        let first: &[_] = &[("path", "/keyed"), ("api_key", first)];
        request("other", &[first, &[("api_key", second)]])
    };
    assert_eq!(caller.check(&keyed(["a", "b"])).await.overall_code, OVER);
    assert_eq!(caller.check(&keyed(["", "b"])).await.overall_code, OK);
    assert_eq!(caller.check(&keyed(["b", "b"])).await.overall_code, OVER);
    assert_eq!(caller.check(&keyed(["a", "Bearer a"])).await.overall_code, OK);
}
