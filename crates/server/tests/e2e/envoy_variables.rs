//! Variables of the reference that change a response, or the address of a listener.

use serde_json::json;

use crate::envoy_compat::{CONFIG, check, check_each, deployment};
use crate::grpc::{GrpcClient, OK, OVER, request};
use crate::server::TestServer;

#[test]
fn quota_mode_makes_every_descriptor_a_budget() {
    let (dir, mut command) = deployment(CONFIG);
    command.env("QUOTA_MODE", "true");
    let server = TestServer::spawn(command, dir);
    let both: &[&str] = &["one", "four"];
    assert_eq!(
        check_each(&server, [both, both, both, both, both]),
        [200, 200, 200, 200, 429],
        "until both are used up"
    );
    let codes = |keys: &[&str]| {
        let reply = check(&server, keys);
        let statuses = reply.json()["statuses"].clone();
        let codes = statuses.as_array().unwrap().iter();
        let codes: Vec<_> = codes.map(|status| status["code"].clone()).collect();
        (reply.status, json!(codes))
    };
    // A descriptor without a limit always has room.
    assert_eq!(codes(&["one", "none"]), (200, json!(["OVER_LIMIT", "OK"])));
    assert_eq!(codes(&["one"]), (429, json!(["OVER_LIMIT"])));
}

#[test]
fn the_request_is_returned_as_metadata_if_wanted() {
    let config = CONFIG.replace("  - key: four", "  - key: four\n    metadata: { plan: basic }");
    let (dir, mut command) = deployment(&config);
    command.env("RESPONSE_DYNAMIC_METADATA", "true");
    let server = TestServer::spawn(command, dir);
    let metadata = |keys: &[&str]| check(&server, keys).json()["dynamicMetadata"].clone();
    let descriptors = json!([{"entries": ["four=x"]}, {"entries": ["none=x"]}]);
    let wanted = json!({"domain": "shop", "descriptors": descriptors, "metadata": {"plan": "basic"}});
    assert_eq!(metadata(&["four", "none"]), wanted);
    let hits = r#"{"domain": "shop", "hitsAddend": 2, "descriptors": [
        {"entries": [{"key": "four", "value": "x"}], "hitsAddend": 3,
         "limit": {"requestsPerUnit": 9, "unit": "YEAR"}}]}"#;
    let hits_metadata = server.post("/json", hits).json()["dynamicMetadata"].clone();
    assert_eq!(hits_metadata["hitsAddend"], 2.0, "{hits_metadata}");
    assert_eq!(hits_metadata["descriptors"][0]["hitsAddend"], 3.0, "{hits_metadata}");
    assert!(hits_metadata["descriptors"][0]["limit"].is_string(), "{hits_metadata}");

    let (dir, command) = deployment(&config);
    let server = TestServer::spawn(command, dir);
    let reply = check(&server, &["four"]).json();
    assert!(reply.get("dynamicMetadata").is_none(), "{reply}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_unix_socket_replaces_the_port() {
    let (dir, mut command) = deployment(CONFIG);
    let socket = dir.path().join("limits.sock");
    command
        .env("GRPC_UDS", &socket)
        .env("PORT", "0")
        .env("HOST", "127.0.0.1")
        .env("DEBUG_PORT", "0")
        .env("LOG_FORMAT", "json");
    let server = TestServer::spawn_as_is(command, dir);
    assert_eq!(server.grpc, format!("unix:{}", socket.display()));
    let caller = GrpcClient::connect(&server).await;
    let call = request("shop", &[&[("one", "x")]]);
    for code in [OK, OVER] {
        assert_eq!(caller.check(&call).await.overall_code, code);
    }
}
