//! One request, by every door: the same decision, and the same counter.

use crate::grpc::{GrpcClient, OK, request};
use crate::http::Client;
use crate::resp::{RespClient, RespReply};
use crate::server::Server;
use crate::window::unit;

/// Every way in, open.
struct EdgeClients {
    http: Client,
    auth: Client,
    envoy: GrpcClient,
    resp: RespClient,
}

/// What a client learns of a decision at any door.
#[derive(PartialEq, Eq, Debug)]
struct EdgeReply {
    passed: bool,
    remaining: u64,
    /// Whether it was told when to come back.
    has_retry_after: bool,
}

/// Who asks for what.
#[derive(Clone, Copy)]
struct EdgeRequest<'a> {
    ip: &'a str,
    path: &'a str,
}

const EDGES: [&str; 4] = ["http", "auth", "envoy", "resp"];

impl EdgeClients {
    async fn of(server: &Server) -> Self {
        EdgeClients {
            http: server.client(),
            auth: server.client(),
            envoy: GrpcClient::connect(server).await,
            resp: server.redis(),
        }
    }

    async fn check(&mut self, edge: &str, ask: EdgeRequest<'_>) -> EdgeReply {
        match edge {
            "http" => self.by_http(ask),
            "auth" => self.by_auth(ask),
            "envoy" => self.by_envoy(ask).await,
            _ => self.by_resp(ask),
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
        let headers = [
            ("x-original-uri", path),
            ("x-original-method", "GET"),
            ("x-forwarded-for", ip),
        ];
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
        let response = self
            .resp
            .send_line(&format!("TG.CHECK ip {ip} path {path}"));
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
    let server = Server::with_resp(&rules, &[]);
    let mut doors = EdgeClients::of(&server).await;
    let ask = EdgeRequest {
        ip: "203.0.113.9",
        path: "/search/cats",
    };
    let passed = |remaining| EdgeReply {
        passed: true,
        remaining,
        has_retry_after: false,
    };
    let refused = EdgeReply {
        passed: false,
        remaining: 0,
        has_retry_after: true,
    };
    // Twice around: eight pass, whichever door they take.
    for (left, door) in (0..8).rev().zip(EDGES.into_iter().cycle()) {
        assert_eq!(doors.check(door, ask).await, passed(left), "{door}");
    }
    for door in EDGES {
        assert_eq!(doors.check(door, ask).await, refused, "{door}");
    }
    // The ceiling was charged for what passed, and for nothing else.
    let elsewhere = EdgeRequest {
        path: "/elsewhere",
        ..ask
    };
    for (left, door) in (988..992).rev().zip(EDGES) {
        assert_eq!(doors.check(door, elsewhere).await, passed(left), "{door}");
    }
    let other = EdgeRequest {
        ip: "203.0.113.10",
        ..ask
    };
    for (left, door) in (4..8).rev().zip(EDGES) {
        assert_eq!(doors.check(door, other).await, passed(left), "{door}");
    }
}

/// Only a caller of the HTTP check can be asked to wait by itself; the others would hold up somebody's
/// request, so they wait no longer than a rule says.
#[tokio::test(flavor = "multi_thread")]
async fn a_delay_reaches_clients_that_can_wait_and_is_denied_to_the_others() {
    let server = Server::with_resp(
        "version: 1\nrules:\n  \
         - { name: strict, match: { path: /strict }, by: ip, rate: 60/hour burst 10, algorithm: leaky-queue }\n  \
         - { name: patient, match: { path: /patient }, by: ip, rate: 60/hour burst 10, \
             algorithm: leaky-queue, max_delay: 1h }\n",
        &[],
    );
    let mut doors = EdgeClients::of(&server).await;
    for (i, door) in EDGES.into_iter().enumerate() {
        let ip = format!("203.0.113.{i}");
        let strict = EdgeRequest {
            ip: &ip,
            path: "/strict",
        };
        assert!(
            doors.check(door, strict).await.passed,
            "{door}: no wait yet"
        );
        let reply = doors.check(door, strict).await;
        assert_eq!(reply.passed, door == "http", "{door}");
        assert_eq!(reply.has_retry_after, door != "http", "{door}");
        let patient = EdgeRequest {
            path: "/patient",
            ..strict
        };
        for _ in 0..2 {
            assert!(doors.check(door, patient).await.passed, "{door}");
        }
    }
    let body = r#"{"attributes": {"ip": "203.0.113.0", "path": "/strict"}}"#;
    let waits = server.post("/v1/check", body).json()["delay_ms"].as_u64();
    assert!(waits > Some(60_000), "{waits:?}");
    let reply = doors
        .resp
        .send_line("TG.CHECK ip 203.0.113.3 path /patient");
    let RespReply::Integer(waits) = reply.field("delay_ms") else {
        panic!("no number in {reply:?}");
    };
    assert!(*waits > 60_000, "{waits}");
}
