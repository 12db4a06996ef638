//! Permits that their callers do not release: some callers hang up before they get the response, some are stuck,
//! and an operator frees those.

use std::time::Duration;

use bytes::Bytes;
use tidegate_testkit::{FaultProxy, ProxyFault, TestRedis as Redis};

use crate::http2;
use crate::permits::{UPLOADS, acquire, ada, exact, is_renewed, node, permit_body};
use crate::server::{TestServer, wait_for};

/// Longer than the test takes: a permit that is free earlier has not expired by itself.
const HOUR_MS: u64 = 3_600_000;

/// A node, and a proxy to its store on which replies can be delayed.
struct PermitScenario {
    redis: Redis,
    proxy: FaultProxy,
    node: TestServer,
    runtime: tokio::runtime::Runtime,
}

impl PermitScenario {
    fn new() -> Self {
        let redis = Redis::redis7();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let proxy = runtime.block_on(FaultProxy::new(redis.address())).unwrap();
        let url = format!("redis://{}", proxy.address());
        let rules = UPLOADS.replace("concurrent: 2", "concurrent: 1");
        let node = TestServer::with(&rules, &["--store", &url, "--store-budget", "30000"]);
        exact(&node);
        proxy.set(ProxyFault::Delay(Duration::from_millis(HOUR_MS)));
        PermitScenario { redis, proxy, node, runtime }
    }

    fn is_taken(&self) -> bool {
        !self.redis.run_command(&["KEYS", "*s:uploads"]).trim().is_empty()
    }

    fn wait_taken(&self) {
        wait_for("a permit in the store", || self.is_taken().then_some(()));
    }

    /// The caller that acquired the permit has hung up. Commands that the node then sends to the store pass, like
    /// all its commands.
    fn comes_free(self) {
        wait_for("the permit to be free", || (!self.is_taken()).then_some(()));
        // Connections with late replies end, and new ones have none.
        let before = self.proxy.accepted();
        self.proxy.set(ProxyFault::Closed);
        wait_for("another connection", || (self.proxy.accepted() > before).then_some(()));
        self.proxy.set(ProxyFault::None);
        exact(&self.node);
        let next = acquire(&mut self.node.client(), HOUR_MS);
        assert_eq!(next.status, 200, "{next:?}");
        assert_eq!(acquire(&mut self.node.client(), HOUR_MS).status, 429);
    }
}

#[test]
fn a_caller_that_closes_its_connection_leaves_no_permit_taken() {
    let scene = PermitScenario::new();
    let mut client = scene.node.client();
    client.send("POST", "/v1/acquire", &[], &ada(HOUR_MS)).unwrap();
    scene.wait_taken();
    drop(client);
    scene.comes_free();
}

#[test]
fn a_caller_that_resets_its_stream_leaves_no_permit_taken() {
    let scene = PermitScenario::new();
    let (client, _reply) = scene.runtime.block_on(async {
        let client = http2::connect(&scene.node, 65_535).await;
        let mut client = client.ready().await.unwrap();
        let (reply, mut stream) = client.send_request(http2::post("/v1/acquire"), false).unwrap();
        stream.send_data(Bytes::from(ada(HOUR_MS)), true).unwrap();
        scene.wait_taken();
        stream.send_reset(h2::Reason::CANCEL);
        (client, reply)
    });
    scene.comes_free();
    drop(client);
}

/// Two nodes: the node that did not get the request learns of it when a permit is renewed there.
#[test]
fn an_operator_frees_the_permits_of_one_subject() {
    let redis = Redis::redis7();
    let nodes = [node(&redis, UPLOADS), node(&redis, UPLOADS)];
    let stuck: Vec<String> = nodes.iter().map(|node| permit_body(&acquire(&mut node.client(), HOUR_MS))).collect();
    assert_eq!(acquire(&mut nodes[0].client(), HOUR_MS).status, 429);
    let bob = ada(HOUR_MS).replace("ada", "bob");
    let bob = permit_body(&nodes[0].post("/v1/acquire", &bob));
    let reset = nodes[0].admin_post("/v1/subjects/reset", r#"{"attributes": {"user": "ada"}}"#);
    assert_eq!(reset.json()["reset"], 2, "{reset:?}");
    let open = r#"tidegate_open_requests{rule="uploads"}"#;
    assert_eq!(nodes[0].metric(open), 1, "that of bob");
    for _ in 0..2 {
        assert!(!is_renewed(&nodes[0], &stuck[0]) && !is_renewed(&nodes[1], &stuck[1]));
    }
    assert!(is_renewed(&nodes[1], &bob));
    for status in [200, 200, 429] {
        assert_eq!(acquire(&mut nodes[1].client(), HOUR_MS).status, status);
    }
}
