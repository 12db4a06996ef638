//! One request, by every door: the same decision, and the same counter.

use crate::grpc::{Caller, OK, request};
use crate::http::Client;
use crate::resp::{Redis, Value};
use crate::server::Server;
use crate::window::unit;

/// Every way in, open.
struct Doors {
    http: Client,
    auth: Client,
    envoy: Caller,
    resp: Redis,
}

/// What a client learns of a decision at any door.
#[derive(PartialEq, Eq, Debug)]
struct Told {
    passed: bool,
    remaining: u64,
    /// Whether it was told when to come back.
    come_back: bool,
}

/// Who asks for what.
#[derive(Clone, Copy)]
struct Ask<'a> {
    ip: &'a str,
    path: &'a str,
}

const DOORS: [&str; 4] = ["http", "auth", "envoy", "resp"];

impl Doors {
    async fn of(server: &Server) -> Self {
        Doors {
            http: server.client(),
            auth: server.client(),
            envoy: Caller::connect(server).await,
            resp: server.redis(),
        }
    }

    async fn ask(&mut self, door: &str, ask: Ask<'_>) -> Told {
        match door {
            "http" => self.by_http(ask),
            "auth" => self.by_auth(ask),
            "envoy" => self.by_envoy(ask).await,
            _ => self.by_resp(ask),
        }
    }

    fn by_http(&mut self, Ask { ip, path }: Ask<'_>) -> Told {
        let body = format!(r#"{{"attributes": {{"ip": "{ip}", "path": "{path}"}}}}"#);
        let reply = self.http.post("/v1/check", &body);
        Told {
            passed: reply.status == 200,
            remaining: reply.json()["remaining"].as_u64().unwrap(),
            come_back: reply.header("retry-after").is_some(),
        }
    }

    fn by_auth(&mut self, Ask { ip, path }: Ask<'_>) -> Told {
        let headers = [
            ("x-original-uri", path),
            ("x-original-method", "GET"),
            ("x-forwarded-for", ip),
        ];
        let reply = self.auth.request("GET", "/v1/auth", &headers, "");
        Told {
            passed: reply.status == 200,
            remaining: number(reply.header("x-ratelimit-remaining")),
            come_back: reply.header("retry-after").is_some(),
        }
    }

    async fn by_envoy(&mut self, Ask { ip, path }: Ask<'_>) -> Told {
        let described = request("any", &[&[("remote_address", ip)], &[("path", path)]]);
        let told = self.envoy.ask(&described).await;
        Told {
            passed: told.overall_code == OK,
            remaining: told.left().unwrap(),
            come_back: told.header("retry-after").is_some(),
        }
    }

    fn by_resp(&mut self, Ask { ip, path }: Ask<'_>) -> Told {
        let told = self.resp.ask(&format!("TG.CHECK ip {ip} path {path}"));
        let Value::Integer(remaining) = told.field("remaining") else {
            panic!("no number in {told:?}");
        };
        Told {
            passed: *told.field("allowed") == Value::Integer(1),
            remaining: u64::try_from(*remaining).unwrap(),
            come_back: matches!(told.field("retry_after_ms"), Value::Integer(wait) if *wait > 0),
        }
    }
}

fn number(text: Option<&str>) -> u64 {
    text.unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_door_decides_alike_and_charges_one_counter() {
    let rules = format!(
        "version: 1\nrules:\n  \
         - {{ name: search, match: {{ path: /search/** }}, by: ip, rate: 8/{unit}, algorithm: fixed-window }}\n  \
         - {{ name: ceiling, by: global, rate: 1000/{unit}, algorithm: fixed-window }}\n",
        unit = unit()
    );
    let server = Server::with_resp(&rules, &[]);
    let mut doors = Doors::of(&server).await;
    let ask = Ask {
        ip: "203.0.113.9",
        path: "/search/cats",
    };
    let passed = |remaining| Told {
        passed: true,
        remaining,
        come_back: false,
    };
    let refused = Told {
        passed: false,
        remaining: 0,
        come_back: true,
    };
    // Twice around: eight pass, whichever door they take.
    for (left, door) in (0..8).rev().zip(DOORS.into_iter().cycle()) {
        assert_eq!(doors.ask(door, ask).await, passed(left), "{door}");
    }
    for door in DOORS {
        assert_eq!(doors.ask(door, ask).await, refused, "{door}");
    }
    // The ceiling was charged for what passed, and for nothing else.
    let elsewhere = Ask {
        path: "/elsewhere",
        ..ask
    };
    for (left, door) in (988..992).rev().zip(DOORS) {
        assert_eq!(doors.ask(door, elsewhere).await, passed(left), "{door}");
    }
    let other = Ask {
        ip: "203.0.113.10",
        ..ask
    };
    for (left, door) in (4..8).rev().zip(DOORS) {
        assert_eq!(doors.ask(door, other).await, passed(left), "{door}");
    }
}

/// Only a caller of the HTTP check can be asked to wait by itself; the others would hold up somebody's
/// request, so they wait no longer than a rule says.
#[tokio::test(flavor = "multi_thread")]
async fn a_delay_is_told_to_those_who_can_wait_and_refused_to_the_others() {
    let server = Server::with_resp(
        "version: 1\nrules:\n  \
         - { name: strict, match: { path: /strict }, by: ip, rate: 60/hour burst 10, algorithm: leaky-queue }\n  \
         - { name: patient, match: { path: /patient }, by: ip, rate: 60/hour burst 10, \
             algorithm: leaky-queue, max_delay: 1h }\n",
        &[],
    );
    let mut doors = Doors::of(&server).await;
    for (i, door) in DOORS.into_iter().enumerate() {
        let ip = format!("203.0.113.{i}");
        let strict = Ask {
            ip: &ip,
            path: "/strict",
        };
        assert!(doors.ask(door, strict).await.passed, "{door}: no wait yet");
        let told = doors.ask(door, strict).await;
        assert_eq!(told.passed, door == "http", "{door}");
        assert_eq!(told.come_back, door != "http", "{door}");
        let patient = Ask {
            path: "/patient",
            ..strict
        };
        for _ in 0..2 {
            assert!(doors.ask(door, patient).await.passed, "{door}");
        }
    }
    let body = r#"{"attributes": {"ip": "203.0.113.0", "path": "/strict"}}"#;
    let waits = server.post("/v1/check", body).json()["delay_ms"].as_u64();
    assert!(waits > Some(60_000), "{waits:?}");
    let told = doors.resp.ask("TG.CHECK ip 203.0.113.3 path /patient");
    let Value::Integer(waits) = told.field("delay_ms") else {
        panic!("no number in {told:?}");
    };
    assert!(*waits > 60_000, "{waits}");
}
