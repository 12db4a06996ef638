//! One request through every edge: the same decision, and the same counter.

use crate::grpc::{GrpcClient, OK, OVER, request};
use crate::http::HttpClient;
use crate::resp::{RespClient, RespReply};
use crate::server::TestServer;
use crate::window::unit;

/// A client of every edge.
struct EdgeClients {
    http: HttpClient,
    auth: HttpClient,
    envoy: GrpcClient,
    resp: RespClient,
}

/// The decision as a client of any edge sees it.
#[derive(PartialEq, Eq, Debug)]
struct EdgeReply {
    passed: bool,
    remaining: u64,
    /// Whether the reply has a retry time.
    has_retry_after: bool,
}

/// The client address and the path of a request.
#[derive(Clone, Copy)]
struct EdgeRequest<'a> {
    ip: &'a str,
    path: &'a str,
}

const EDGES: [&str; 4] = ["http", "auth", "envoy", "resp"];

impl EdgeClients {
    async fn of(server: &TestServer) -> Self {
        EdgeClients {
            http: server.client(),
            auth: server.client(),
            envoy: GrpcClient::connect(server).await,
            resp: server.redis(),
        }
    }

    async fn check(&mut self, edge: &str, request: EdgeRequest<'_>) -> EdgeReply {
        match edge {
            "http" => self.by_http(request),
            "auth" => self.by_auth(request),
            "envoy" => self.by_envoy(request).await,
            _ => self.by_resp(request),
        }
    }

    fn by_http(&mut self, EdgeRequest { ip, path }: EdgeRequest<'_>) -> EdgeReply {
        let body = format!(r#"{{"attributes": {{"ip": "{ip}", "path": "{path}"}}}}"#);
        let reply = self.http.post("/v1/check", &body);
        EdgeReply {
            passed: reply.status == 200,
            remaining: reply.json()["remaining"].as_u64().unwrap(),
            has_retry_after: reply.header("retry-after").is_some(),
        }
    }

    fn by_auth(&mut self, EdgeRequest { ip, path }: EdgeRequest<'_>) -> EdgeReply {
        let headers = [("x-original-uri", path), ("x-original-method", "GET"), ("x-forwarded-for", ip)];
        let reply = self.auth.request("GET", "/v1/auth", &headers, "");
        EdgeReply {
            passed: reply.status == 200,
            remaining: number(reply.header("x-ratelimit-remaining")),
            has_retry_after: reply.header("retry-after").is_some(),
        }
    }

    async fn by_envoy(&mut self, EdgeRequest { ip, path }: EdgeRequest<'_>) -> EdgeReply {
        let described = request("any", &[&[("remote_address", ip)], &[("path", path)]]);
        let response = self.envoy.check(&described).await;
        EdgeReply {
            passed: response.overall_code == OK,
            remaining: response.left().unwrap(),
            has_retry_after: response.header("retry-after").is_some(),
        }
    }

    fn by_resp(&mut self, EdgeRequest { ip, path }: EdgeRequest<'_>) -> EdgeReply {
        let response = self.resp.send_line(&format!("TG.CHECK ip {ip} path {path}"));
        let RespReply::Integer(remaining) = response.field("remaining") else {
            panic!("no number in {response:?}");
        };
        EdgeReply {
            passed: *response.field("allowed") == RespReply::Integer(1),
            remaining: u64::try_from(*remaining).unwrap(),
            has_retry_after: matches!(response.field("retry_after_ms"), RespReply::Integer(wait) if *wait > 0),
        }
    }
}

fn number(text: Option<&str>) -> u64 {
    text.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_edge_decides_alike_and_charges_one_counter() {
    let rules = format!(
        "version: 1\nrules:\n  \
         - {{ name: search, match: {{ path: /search/** }}, by: ip, rate: 8/{unit}, algorithm: fixed-window }}\n  \
         - {{ name: ceiling, by: global, rate: 1000/{unit}, algorithm: fixed-window }}\n",
        unit = unit()
    );
    let server = TestServer::with_resp(&rules, &[]);
    let mut clients = EdgeClients::of(&server).await;
    let request = EdgeRequest { ip: "203.0.113.9", path: "/search/cats" };
    let passed = |remaining| EdgeReply { passed: true, remaining, has_retry_after: false };
    let denied = EdgeReply { passed: false, remaining: 0, has_retry_after: true };
    // Twice around: eight pass, whichever edge they use.
    for (left, edge) in (0..8).rev().zip(EDGES.into_iter().cycle()) {
        assert_eq!(clients.check(edge, request).await, passed(left), "{edge}");
    }
    for edge in EDGES {
        assert_eq!(clients.check(edge, request).await, denied, "{edge}");
    }
    // The global ceiling was charged for allowed requests only.
    let elsewhere = EdgeRequest { path: "/elsewhere", ..request };
    for (left, edge) in (988..992).rev().zip(EDGES) {
        assert_eq!(clients.check(edge, elsewhere).await, passed(left), "{edge}");
    }
    let other = EdgeRequest { ip: "203.0.113.10", ..request };
    for (left, edge) in (4..8).rev().zip(EDGES) {
        assert_eq!(clients.check(edge, other).await, passed(left), "{edge}");
    }
}

/// A key with its scheme, as Envoy passes it, or with a line end was an unknown key, and its block did not hold.
#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_key_is_blocked_in_every_form_at_every_edge() {
    let rules = "
version: 1
block: ['sha256:d7cb5ea3f967f6e0715b176b561bc607d6d9c55ca6eeefcb22072158b34d8886']
rules: [{ name: r, by: api_key, rate: 9/hour }]
";
    let server = TestServer::with_resp(rules, &[]);
    let envoy = GrpcClient::connect(&server).await;
    for key in
        ["k-of-a-stolen-laptop", "k-of-a-stolen-laptop\n", " k-of-a-stolen-laptop", "Bearer k-of-a-stolen-laptop"]
    {
        let body = serde_json::json!({"attributes": {"api_key": key}});
        assert_eq!(server.post("/v1/check", &body.to_string()).status, 403, "http {key:?}");
        let reply = server.redis().send_words(&["TG.CHECK", "api_key", key]);
        assert_eq!(*reply.field("allowed"), RespReply::Integer(0), "resp {key:?}");
        let described = request("any", &[&[("api_key", key)]]);
        assert_eq!(envoy.check(&described).await.overall_code, OVER, "envoy {key:?}");
        let lines = [("x-original-uri", "/"), ("x-forwarded-for", "192.0.2.7"), ("x-api-key", key.trim_end())];
        assert_eq!(server.client().request("GET", "/v1/auth", &lines, "").status, 403, "auth {key:?}");
    }
}

/// Only a client of the HTTP check can wait by itself; the other edges would hold up the request of another client, so
/// they wait no longer than a rule allows.
#[tokio::test(flavor = "multi_thread")]
async fn clients_that_can_wait_get_a_delay_and_the_others_are_denied() {
    let server = TestServer::with_resp(
        "version: 1\nrules:\n  \
         - { name: strict, match: { path: /strict }, by: ip, rate: 60/hour burst 10, algorithm: leaky-queue }\n  \
         - { name: patient, match: { path: /patient }, by: ip, rate: 60/hour burst 10, \
             algorithm: leaky-queue, max_delay: 1h }\n",
        &[],
    );
    let mut clients = EdgeClients::of(&server).await;
    for (i, edge) in EDGES.into_iter().enumerate() {
        let ip = format!("203.0.113.{i}");
        let strict = EdgeRequest { ip: &ip, path: "/strict" };
        assert!(clients.check(edge, strict).await.passed, "{edge}: no wait yet");
        let reply = clients.check(edge, strict).await;
        assert_eq!(reply.passed, edge == "http", "{edge}");
        assert_eq!(reply.has_retry_after, edge != "http", "{edge}");
        let patient = EdgeRequest { path: "/patient", ..strict };
        for _ in 0..2 {
            assert!(clients.check(edge, patient).await.passed, "{edge}");
        }
    }
    let body = r#"{"attributes": {"ip": "203.0.113.0", "path": "/strict"}}"#;
    let waits = server.post("/v1/check", body).json()["delay_ms"].as_u64();
    assert!(waits > Some(60_000), "{waits:?}");
    let reply = clients.resp.send_line("TG.CHECK ip 203.0.113.3 path /patient");
    let RespReply::Integer(waits) = reply.field("delay_ms") else {
        panic!("no number in {reply:?}");
    };
    assert!(*waits > 60_000, "{waits}");
}
