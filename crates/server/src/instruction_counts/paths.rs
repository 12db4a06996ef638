//! The counted paths. Each is a test of its own, which also checks that requests are decided as they should be.

use std::hint::black_box;

use tidegate::{Limiter, Request, Throttle};
use tokio::io::DuplexStream;

use super::counted_section;
use super::http2_client::Http2Client;
use super::pipe::{InMemoryService, exchange};

/// Requests of a path while instructions are counted.
pub(super) const REQUESTS: usize = 2_000;

/// Requests before that: what a first request allocates is not what a request costs.
const WARM_UP: usize = 200;

/// Keys that the library paths use in turn.
const KEYS: usize = 1_000;

const BATCH: usize = 16;

/// A path that is counted.
pub(super) struct Path {
    pub(super) name: &'static str,
    /// The test below that runs it.
    pub(super) test: &'static str,
}

pub(super) const ALL: &[Path] = &[
    path("http check, allowed", "http_check_allowed"),
    path("http check, denied", "http_check_denied"),
    path("http list of 100", "http_list_of_100"),
    path("grpc call", "grpc_call"),
    path("resp command", "resp_command"),
    path("resp pipeline of 16", "resp_pipeline_of_16"),
    path("throttle", "throttle"),
    path("throttle by 16", "throttle_by_16"),
    path("limiter, one rule", "limiter_with_one_rule"),
    path("limiter, three rules", "limiter_with_three_rules"),
];

const fn path(name: &'static str, test: &'static str) -> Path {
    Path { name, test }
}

const SEARCH: &str = r#"{"ip":"203.0.113.9","path":"/api/v1/search","method":"GET"}"#;

#[test]
fn http_check_allowed() {
    check_over_http(&format!(r#"{{"attributes":{SEARCH}}}"#), 0, "HTTP/1.1 200");
}

#[test]
fn http_check_denied() {
    // The first request charges the only unit of the limit.
    let body = r#"{"attributes":{"ip":"203.0.113.9","path":"/once","method":"GET"}}"#;
    check_over_http(body, 1, "HTTP/1.1 429");
}

#[test]
fn http_list_of_100() {
    let items = vec![format!(r#"{{"attributes":{SEARCH}}}"#); 100];
    check_over_http(&format!("[{}]", items.join(",")), 0, "HTTP/1.1 200");
}

/// Sends the same check again and again, and demands the same status each time but the `first` ones.
fn check_over_http(body: &str, first: usize, status: &str) {
    let length = body.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: 127.0.0.1:8080\r\nuser-agent: counted/1.0\r\naccept: */*\r\n\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    let service = InMemoryService::start();
    let mut pipe = service.http();
    let mut response = vec![0; 128 << 10];
    service.block_on(async {
        for _ in 0..first {
            exchange(&mut pipe, request.as_bytes(), &mut response).await;
        }
    });
    repeat(&service, &mut pipe, request.as_bytes(), &mut response, status.as_bytes());
}

#[test]
fn resp_command() {
    throttle_over_resp(1);
}

#[test]
fn resp_pipeline_of_16() {
    throttle_over_resp(BATCH);
}

fn throttle_over_resp(commands: usize) {
    let words = ["CL.THROTTLE", "user:1", "100000000", "100000000", "60"];
    let mut command = format!("*{}\r\n", words.len());
    for word in words {
        command += &format!("${}\r\n{word}\r\n", word.len());
    }
    let request = command.repeat(commands);
    let service = InMemoryService::start();
    let mut pipe = service.resp();
    let mut response = vec![0; 4 << 10];
    repeat(&service, &mut pipe, request.as_bytes(), &mut response, b"*5\r\n:0\r\n");
}

/// Sends one request again and again, and demands the same beginning of each response.
fn repeat(service: &InMemoryService, pipe: &mut DuplexStream, request: &[u8], response: &mut [u8], want: &[u8]) {
    service.block_on(async {
        for _ in 0..WARM_UP {
            let response = exchange(pipe, request, response).await;
            let shown = String::from_utf8_lossy(response);
            assert!(response.starts_with(want), "{shown}");
        }
    });
    let mut as_wanted = 0;
    service.count(async || {
        for _ in 0..REQUESTS {
            as_wanted += usize::from(exchange(pipe, request, response).await.starts_with(want));
        }
    });
    assert_eq!(as_wanted, REQUESTS);
}

#[test]
fn grpc_call() {
    let service = InMemoryService::start();
    let method = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let request = rate_limit_request(&[("remote_address", "203.0.113.9"), ("path", "/api/v1/search")]);
    let mut client = service.block_on(Http2Client::connect(service.grpc(), method, &request));
    let is_ok = |message: &[u8]| matches!(message, [0, _, _, _, _, 0x08, 1, ..]);
    service.block_on(async {
        for _ in 0..WARM_UP {
            let message = client.call().await;
            assert!(is_ok(&message), "{message:?}");
        }
    });
    let mut allowed = 0;
    service.count(async || {
        for _ in 0..REQUESTS {
            allowed += usize::from(is_ok(&client.call().await));
        }
    });
    assert_eq!(allowed, REQUESTS);
}

/// `RateLimitRequest` with one descriptor, behind its gRPC prefix.
fn rate_limit_request(entries: &[(&str, &str)]) -> Vec<u8> {
    let mut descriptor = Vec::new();
    for (key, value) in entries {
        let entry = [field(1, key.as_bytes()), field(2, value.as_bytes())].concat();
        descriptor.extend(field(1, &entry));
    }
    let message = [field(1, b"counted"), field(2, &descriptor)].concat();
    let length = u32::try_from(message.len()).expect("a short message");
    [&[0], length.to_be_bytes().as_slice(), &message].concat()
}

/// A field of protobuf that holds bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).ok().filter(|length| *length < 128);
    [&[number << 3 | 2, length.expect("a short field")], bytes].concat()
}

#[test]
fn throttle() {
    let throttle = Throttle::new("1000000/second burst 1000000").unwrap();
    let keys = keys();
    decide_in_turn(&keys, |key| throttle.check(key).allows());
}

#[test]
fn throttle_by_16() {
    let throttle = Throttle::new("1000000/second burst 1000000").unwrap();
    let keys = keys();
    assert!(keys.iter().all(|key| throttle.check(key).allows()));
    let mut allowed = 0;
    counted_section(&mut || {
        for request in 0..REQUESTS {
            let batch = (0..BATCH).map(|n| keys[(request * BATCH + n) * 331 % KEYS].as_str());
            let verdicts = throttle.check_each(batch);
            allowed += verdicts.filter(|verdict| verdict.allows()).count();
        }
    });
    assert_eq!(allowed, REQUESTS * BATCH);
}

#[test]
fn limiter_with_one_rule() {
    decide_by_rules(
        "  - { name: search, match: { path: /api/v1/search }, by: ip, rate: 1000000/second burst 1000000 }\n",
    );
}

#[test]
fn limiter_with_three_rules() {
    decide_by_rules(
        "  - { name: search, match: { path: /api/v1/search }, by: ip, rate: 1000000/second burst 1000000 }\n  \
           - { name: api, match: { path: /api/** }, by: ip, rate: 1000000/minute }\n  \
           - { name: everything, by: global, rate: 1000000/second burst 1000000 }\n",
    );
}

fn decide_by_rules(rules: &str) {
    let limiter = Limiter::from_yaml(&format!("version: 1\nrules:\n{rules}")).expect("valid rules");
    decide_in_turn(&keys(), |key| {
        let mut request = Request::default().with("path", "/api/v1/search");
        request.ip = key.parse().ok();
        limiter.check_now(request).allowed()
    });
}

/// A thousand addresses.
fn keys() -> Vec<String> {
    let key = |n: usize| format!("198.51.{}.{}", n / 250, n % 250);
    (0..KEYS).map(key).collect()
}

/// Decides for each key once, and then where callgrind counts. 331 and the number of keys have no common factor:
/// every key comes, none twice in a row.
fn decide_in_turn(keys: &[String], decide: impl Fn(&str) -> bool) {
    assert!(keys.iter().all(|key| decide(key)));
    let mut allowed = 0;
    counted_section(&mut || {
        for request in 0..REQUESTS {
            allowed += usize::from(decide(black_box(&keys[request * 331 % KEYS])));
        }
    });
    assert_eq!(allowed, REQUESTS);
}
