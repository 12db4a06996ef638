//! Priorities and soft limits through every edge.

use serde_json::{Value, json};

use crate::grpc::{GrpcClient, OK, request};
use crate::resp;
use crate::server::TestServer;
use crate::window::unit;

/// One counter for all clients, of which each priority may use a part.
fn shared() -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: api, by: global, rate: 10/{}, algorithm: fixed-window, \
         priority: true, soft: {{ from: 0.5, max_delay: 4s }} }}\n",
        unit()
    )
}

fn check(server: &TestServer, priority: &str, cost: u64) -> Value {
    let request = json!({"attributes": {"priority": priority}, "cost": cost});
    server.post("/v1/check", &request.to_string()).json()
}

#[test]
fn a_reply_carries_the_part_and_the_delay() {
    let server = TestServer::start(&shared());
    let part_and_delay =
        |decision: &Value| ["allowed", "limit", "remaining", "delay_ms"].map(|field| decision[field].clone());
    // The part of 8 is used up evenly: half of it at once, then with increasing delays.
    let first = check(&server, "sheddable", 4);
    assert_eq!(part_and_delay(&first), [json!(true), json!(8), json!(4), Value::Null]);
    let next = check(&server, "sheddable", 2);
    assert_eq!(part_and_delay(&next), [json!(true), json!(8), json!(2), json!(2_000)]);
    let last = check(&server, "sheddable", 2);
    assert_eq!(part_and_delay(&last), [json!(true), json!(8), json!(0), json!(4_000)]);
    assert_eq!(check(&server, "sheddable", 1)["allowed"], false);
    let normal = check(&server, "unheard-of", 1);
    assert_eq!(part_and_delay(&normal)[..3], [json!(true), json!(9), json!(0)]);
    let critical = check(&server, "critical", 1);
    assert_eq!(part_and_delay(&critical)[..3], [json!(true), json!(10), json!(0)]);
    assert_eq!(check(&server, "critical", 1)["allowed"], false);
}

#[test]
fn a_proxy_sets_the_priority_in_the_query_which_clients_cannot_write() {
    let server = TestServer::start(&shared());
    let mut client = server.client();
    let claims = [("x-original-uri", "/"), ("x-forwarded-for", "192.0.2.7"), ("priority", "critical")];
    let mut request = |query: &str| {
        let reply = client.request("GET", &format!("/v1/auth{query}"), &claims, "");
        let limit = reply.header("x-ratelimit-limit").map(str::to_owned);
        (reply.status, limit)
    };
    let limit_header = |limit: &str| Some(limit.to_owned());
    for _ in 0..8 {
        assert_eq!(request("?priority=sheddable"), (200, limit_header("8")));
    }
    assert_eq!(request("?priority=sheddable").0, 429);
    assert_eq!(request(""), (200, limit_header("9")));
    assert_eq!(request("").0, 429);
    assert_eq!(request("?priority=critical"), (200, limit_header("10")));
    assert_eq!(request("?priority=high").0, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_and_redis_clients_set_the_priority_and_are_never_delayed() {
    let server = TestServer::with_resp(&shared(), &[]);
    let (envoy, mut redis) = (GrpcClient::connect(&server).await, server.redis());
    let sheddable = request("any", &[&[("priority", "sheddable")]]);
    for left in (4..8).rev() {
        let response = envoy.check(&sheddable).await;
        assert_eq!((response.overall_code, response.left()), (OK, Some(left)));
    }
    for left in (0..4).rev() {
        let reply = redis.send_line("TG.CHECK priority sheddable");
        let of = |field| reply.field(field).clone();
        assert_eq!(of("allowed"), resp::RespReply::Integer(1));
        assert_eq!(of("limit"), resp::RespReply::Integer(8));
        assert_eq!(of("remaining"), resp::RespReply::Integer(left));
        assert_eq!(of("delay_ms"), resp::RespReply::Integer(0));
    }
    assert_ne!(envoy.check(&sheddable).await.overall_code, OK);
    let denied = redis.send_line("TG.CHECK priority sheddable");
    assert_eq!(*denied.field("allowed"), resp::RespReply::Integer(0));
    let critical = request("any", &[&[("priority", "critical")]]);
    for _ in 0..2 {
        assert_eq!(envoy.check(&critical).await.overall_code, OK);
    }
    assert_ne!(envoy.check(&critical).await.overall_code, OK);
}

#[test]
fn an_explanation_lists_the_other_options_of_a_rule() {
    let server = TestServer::start(
        "version: 1\nrules:\n  \
         - { name: api, by: global, rate: [10/second, 100/minute], priority: true, \
             soft: { max_delay: 1s }, concurrent: 5 }\n  \
         - { name: plain, by: global, rate: 10/second }\n  \
         - { name: open, by: global, concurrent: adaptive }\n",
    );
    let request = r#"{"attributes": {"priority": "sheddable"}}"#;
    let explanation = server.post("/v1/explain", request).json();
    let of = |rule: usize| {
        let rule = &explanation["rules"][rule];
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
    let plain = [json!(["10/second"]), json!("exact"), nothing(), nothing(), nothing()];
    assert_eq!(of(1), plain);
    let open = [json!([]), json!("exact"), nothing(), nothing(), json!("adaptive")];
    assert_eq!(of(2), open);
}
