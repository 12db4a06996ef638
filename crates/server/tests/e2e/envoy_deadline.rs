//! How long a call waits for a slow store: never longer than its caller.

use std::time::Duration;

use http::Request;
use prost::Message;
use tidegate_testkit::{FaultProxy, ProxyFault, TestRedis as Redis};

use crate::envoy_compat::deployment;
use crate::grpc::{GrpcClient, OK, OVER, SHOULD_RATE_LIMIT, framed, request};
use crate::messages::{RateLimitRequest, RateLimitResponse};
use crate::server::{TestServer, wait_for};
use crate::window::unit;

const LIMITS: &str =
    "{ domain: shop, descriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 20 } }] }";

fn of_user(name: &str) -> RateLimitRequest {
    request("shop", &[&[("user", name)]])
}

fn exact(server: &TestServer) {
    wait_for("an exact node", || (server.metric("tidegate_store_exact") == 1).then_some(()));
}

/// A reference deployment waited 5 ms for its store. With a store further away it denied calls that it should have
/// allowed.
#[tokio::test(flavor = "multi_thread")]
async fn a_reference_deployment_counts_exactly_in_a_store_far_away() {
    let redis = Redis::redis7();
    let proxy = FaultProxy::new(redis.address()).await.unwrap();
    let (dir, mut command) = deployment(LIMITS);
    command.env("REDIS_SOCKET_TYPE", "tcp").env("REDIS_URL", proxy.address().to_string());
    let server = TestServer::spawn(command, dir);
    exact(&server);
    proxy.set(ProxyFault::Delay(Duration::from_millis(8)));
    let caller = GrpcClient::connect(&server).await;
    let mut codes = Vec::new();
    for _ in 0..22 {
        codes.push(caller.check(&of_user("ada")).await.overall_code);
    }
    let want = [vec![OK; 20], vec![OVER; 2]].concat();
    assert_eq!(codes, want);
}

/// A call with a deadline, as gRPC encodes it.
async fn check_within(caller: &GrpcClient, timeout: &str, call: &RateLimitRequest) -> RateLimitResponse {
    let request = Request::post(format!("http://tidegate{SHOULD_RATE_LIMIT}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", timeout)
        .body(())
        .unwrap();
    let called = caller.send(request, framed(call)).await.unwrap();
    assert_eq!(called.code.as_deref(), Some("0"), "{called:?}");
    RateLimitResponse::decode(&called.body[5..]).unwrap()
}

/// The store swallows every reply, and the budget is longer than any test waits: only the deadlines of callers end
/// the wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_gets_its_response_before_its_deadline() {
    let redis = Redis::redis7();
    let proxy = FaultProxy::new(redis.address()).await.unwrap();
    let url = format!("redis://{}", proxy.address());
    let limits = LIMITS.replace("year", unit());
    let server = TestServer::with(&limits, &["--store", &url, "--store-budget", "600000"]);
    exact(&server);
    let caller = GrpcClient::connect(&server).await;
    assert_eq!(caller.check(&of_user("ada")).await.overall_code, OK);
    proxy.set(ProxyFault::Mute);
    for timeout in ["20m", "50000u", "3m"] {
        let response = check_within(&caller, timeout, &of_user("ada")).await;
        assert!(matches!(response.overall_code, OK | OVER), "{timeout}");
    }
}

/// Envoy's default timeout is 20 ms, and a call without a deadline may be one of Envoy's.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_without_a_deadline_waits_no_longer_than_envoy_would() {
    let redis = Redis::redis7();
    let proxy = FaultProxy::new(redis.address()).await.unwrap();
    let url = format!("redis://{}", proxy.address());
    let rules = format!(
        "version: 1\nrules:\n  - {{ name: r, by: user, rate: 20/{}, algorithm: fixed-window, budget: 600s }}\n",
        unit()
    );
    let server = TestServer::with(&rules, &["--store", &url]);
    exact(&server);
    proxy.set(ProxyFault::Mute);
    let caller = GrpcClient::connect(&server).await;
    let response = caller.check(&of_user("ada")).await;
    assert!(matches!(response.overall_code, OK | OVER));
}
