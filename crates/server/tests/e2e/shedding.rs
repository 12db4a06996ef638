//! Priorities and soft limits by every door.

use serde_json::{Value, json};

use crate::grpc::{Caller, OK, request};
use crate::resp;
use crate::server::Server;
use crate::window::unit;

/// One counter for everybody, of which each priority may use a part.
fn shared() -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: api, by: global, rate: 10/{}, algorithm: fixed-window, \
         priority: true, soft: {{ from: 0.5, max_delay: 4s }} }}\n",
        unit()
    )
}

fn check(server: &Server, priority: &str, cost: u64) -> Value {
    let ask = json!({"attributes": {"priority": priority}, "cost": cost});
    server.post("/v1/check", &ask.to_string()).json()
}

#[test]
fn an_answer_tells_the_part_and_the_delay() {
    let server = Server::start(&shared());
    let told = |answer: &Value| {
        ["allowed", "limit", "remaining", "delay_ms"].map(|field| answer[field].clone())
    };
    // The part of 8 is used up evenly: half of it at once, then later and later.
    let first = check(&server, "sheddable", 4);
    assert_eq!(told(&first), [json!(true), json!(8), json!(4), Value::Null]);
    let next = check(&server, "sheddable", 2);
    assert_eq!(told(&next), [json!(true), json!(8), json!(2), json!(2_000)]);
    let last = check(&server, "sheddable", 2);
    assert_eq!(told(&last), [json!(true), json!(8), json!(0), json!(4_000)]);
    assert_eq!(check(&server, "sheddable", 1)["allowed"], false);
    let normal = check(&server, "unheard-of", 1);
    assert_eq!(told(&normal)[..3], [json!(true), json!(9), json!(0)]);
    let critical = check(&server, "critical", 1);
    assert_eq!(told(&critical)[..3], [json!(true), json!(10), json!(0)]);
    assert_eq!(check(&server, "critical", 1)["allowed"], false);
}

#[test]
fn a_proxy_says_it_where_no_client_writes() {
    let server = Server::start(&shared());
    let mut client = server.client();
    let claims = [("x-original-uri", "/"), ("priority", "critical")];
    let mut ask = |query: &str| {
        let reply = client.request("GET", &format!("/v1/auth{query}"), &claims, "");
        let limit = reply.header("x-ratelimit-limit").map(str::to_owned);
        (reply.status, limit)
    };
    let says = |limit: &str| Some(limit.to_owned());
    for _ in 0..8 {
        assert_eq!(ask("?priority=sheddable"), (200, says("8")));
    }
    assert_eq!(ask("?priority=sheddable").0, 429);
    assert_eq!(ask(""), (200, says("9")));
    assert_eq!(ask("").0, 429);
    assert_eq!(ask("?priority=critical"), (200, says("10")));
    assert_eq!(ask("?priority=high").0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_and_redis_clients_say_it_and_are_never_delayed() {
    let server = Server::with_resp(&shared(), &[]);
    let (envoy, mut redis) = (Caller::connect(&server).await, server.redis());
    let sheddable = request("any", &[&[("priority", "sheddable")]]);
    for left in (4..8).rev() {
        let told = envoy.ask(&sheddable).await;
        assert_eq!((told.overall_code, told.left()), (OK, Some(left)));
    }
    for left in (0..4).rev() {
        let told = redis.ask("TG.CHECK priority sheddable");
        let of = |field| told.field(field).clone();
        assert_eq!(of("allowed"), resp::Value::Integer(1));
        assert_eq!(of("limit"), resp::Value::Integer(8));
        assert_eq!(of("remaining"), resp::Value::Integer(left));
        assert_eq!(of("delay_ms"), resp::Value::Integer(0));
    }
    assert_ne!(envoy.ask(&sheddable).await.overall_code, OK);
    let refused = redis.ask("TG.CHECK priority sheddable");
    assert_eq!(*refused.field("allowed"), resp::Value::Integer(0));
    let critical = request("any", &[&[("priority", "critical")]]);
    for _ in 0..2 {
        assert_eq!(envoy.ask(&critical).await.overall_code, OK);
    }
    assert_ne!(envoy.ask(&critical).await.overall_code, OK);
}

#[test]
fn an_explanation_tells_what_else_a_rule_does() {
    let server = Server::start(
        "version: 1\nrules:\n  \
         - { name: api, by: global, rate: [10/second, 100/minute], priority: true, \
             soft: { max_delay: 1s }, concurrent: 5 }\n  \
         - { name: plain, by: global, rate: 10/second }\n  \
         - { name: open, by: global, concurrent: adaptive }\n",
    );
    let ask = r#"{"attributes": {"priority": "sheddable"}}"#;
    let told = server.post("/v1/explain", ask).json();
    let of = |rule: usize| {
        let rule = &told["rules"][rule];
        ["rates", "counting", "priority", "soft", "concurrent"].map(|field| rule[field].clone())
    };
    let limits = json!([{"usable": 8, "whole": 10}, {"usable": 80, "whole": 100}]);
    assert_eq!(
        of(0),
        [
            json!(["10/second", "100/minute"]),
            json!("exact"),
            json!({"priority": "sheddable", "part": "0.8", "limits": limits}),
            json!({"from": "0.8", "max_delay_ms": 1_000}),
            json!("5"),
        ]
    );
    let nothing = || Value::Null;
    let plain = [
        json!(["10/second"]),
        json!("exact"),
        nothing(),
        nothing(),
        nothing(),
    ];
    assert_eq!(of(1), plain);
    let open = [
        json!([]),
        json!("exact"),
        nothing(),
        nothing(),
        json!("adaptive"),
    ];
    assert_eq!(of(2), open);
}
