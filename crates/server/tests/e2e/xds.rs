//! Limits from a control plane.

use std::process::Command;

use tidegate_testkit::TestAuthority;

use crate::control_plane::{KIND, TestControlPlane, XdsConfig, XdsRequest, XdsStream, yearly};
use crate::server::{BINARY, TestServer, wait_for};

/// A node that follows the control plane at `url`.
fn command(url: &str) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["serve", "--xds", url]);
    command
}

/// Starts while the control plane sends its first message, for which the listeners wait.
async fn start(command: Command) -> TestServer {
    let starting = tokio::task::spawn_blocking(move || TestServer::spawn(command, tempfile::tempdir().unwrap()));
    starting.await.unwrap()
}

/// A node that got `configs` as version 1, and the stream to it.
async fn start_with_configs(plane: &TestControlPlane, configs: &[XdsConfig]) -> (TestServer, XdsStream) {
    let server = start(command(&format!("xds://{}?node=gate", plane.address())));
    let first = async {
        let mut stream = plane.accept_stream().await;
        let hello = stream.receive().await;
        assert_eq!((hello.version_info.as_str(), hello.response_nonce.as_str()), ("", ""));
        assert_eq!((hello.type_url.as_str(), hello.node.unwrap().id.as_str()), (KIND, "gate"));
        let reply = stream.send_and_receive("1", configs).await;
        assert_eq!((reply.version_info.as_str(), &reply.error_detail), ("1", &None));
        stream
    };
    tokio::join!(server, first)
}

/// The status of one request of `value` under `domain`.
pub(crate) fn check_status(server: &TestServer, domain: &str, value: &str) -> u16 {
    let body =
        format!(r#"{{"domain": "{domain}", "descriptors": [{{"entries": [{{"key": "k", "value": "{value}"}}]}}]}}"#);
    server.post("/json", &body).status
}

fn rejection_message(reply: &XdsRequest) -> &str {
    &reply.error_detail.as_ref().expect("a rejection").message
}

#[tokio::test(flavor = "multi_thread")]
async fn the_configuration_of_a_control_plane_is_in_force_and_acknowledged() {
    let plane = TestControlPlane::open().await;
    let (server, mut stream) = start_with_configs(&plane, &[yearly("shop", "k", 1)]).await;
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
    assert_eq!(check_status(&server, "other", "a"), 200, "an unknown domain");

    let reply = stream.send_and_receive("2", &[yearly("shop", "k", 3), yearly("other", "k", 0)]).await;
    assert_eq!((reply.version_info.as_str(), reply.error_detail), ("2", None));
    // In force before it is acknowledged, and earlier counts still count.
    assert_eq!([1, 2, 3].map(|_| check_status(&server, "shop", "a")), [200, 200, 429]);
    assert_eq!(check_status(&server, "other", "a"), 429);

    let reply = stream.send_and_receive("3", &[]).await;
    assert_eq!((reply.version_info.as_str(), reply.error_detail), ("3", None));
    assert_eq!(check_status(&server, "shop", "a"), 200, "the state of the world is that there are no limits");
    let gone = "rules are no longer in force, their limits are gone";
    let line = server.wait_log(|line| line["level"] == "WARN" && line["message"] == gone);
    let rules = line["rules"].as_str().unwrap();
    assert!(rules.contains("shop.k") && rules.contains("other.k"), "{rules}");
}

/// A first configuration removes no limit, so no reload warning covers it.
#[tokio::test(flavor = "multi_thread")]
async fn a_domain_without_limits_is_reported_once() {
    let plane = TestControlPlane::open().await;
    let mut empty = yearly("shop", "k", 1);
    empty.descriptors[0].rate_limit = None;
    let (server, mut stream) = start_with_configs(&plane, &[empty.clone()]).await;
    let is_warning = |line: &serde_json::Value| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.contains("has no limits in the domain `shop`")
    };
    let line = server.wait_log(is_warning);
    let message = line["message"].as_str().unwrap();
    assert!(message.starts_with("xds/shop: "), "{message}");
    for version in ["2", "3"] {
        stream.send_and_receive(version, &[empty.clone(), yearly("other", "k", 1)]).await;
    }
    // The warnings of version 2 come before this line.
    server.wait_log(|line| line["version"] == "3");
    let lines = server.lines();
    let named = lines.iter().filter(|(_, line)| is_warning(line));
    assert_eq!(named.count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_resource_is_rejected_with_every_fault_and_the_old_ones_stay() {
    let plane = TestControlPlane::open().await;
    let (server, mut stream) = start_with_configs(&plane, &[yearly("shop", "k", 1)]).await;
    let mut no_unit = yearly("no-unit", "k", 9);
    no_unit.descriptors[0].rate_limit.as_mut().unwrap().unit = 0;
    let bad = [yearly("shop", "k", 9), yearly("no-key", "", 9), no_unit];
    let reply = stream.send_and_receive("2", &bad).await;
    assert_eq!(reply.version_info, "1", "what is in force");
    for part in ["xds/no-key", "xds/no-unit"] {
        assert!(rejection_message(&reply).contains(part), "{}", rejection_message(&reply));
    }
    let twice = [yearly("shop", "k", 9), yearly("shop", "j", 9)];
    let reply = stream.send_and_receive("3", &twice).await;
    assert!(rejection_message(&reply).contains("shop"), "{}", rejection_message(&reply));
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
    let stale = server.admin_get("/v1/rules").json()["stale"].to_string();
    assert!(stale.contains("xds: "), "{stale}");

    let reply = stream.send_and_receive("4", &[yearly("shop", "k", 2)]).await;
    assert_eq!((reply.version_info.as_str(), reply.error_detail), ("4", None));
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
    assert!(server.admin_get("/v1/rules").json()["stale"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_stream_leaves_limits_in_force_and_is_resumed_with_their_version() {
    let plane = TestControlPlane::open().await;
    let (server, stream) = start_with_configs(&plane, &[yearly("shop", "k", 1)]).await;
    drop(stream);
    let mut stream = plane.accept_stream().await;
    let hello = stream.receive().await;
    assert_eq!((hello.version_info.as_str(), hello.response_nonce.as_str()), ("1", ""));
    assert_eq!(hello.node.unwrap().id, "gate", "a new stream must name the node");
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);

    // After an invalid message the node reconnects.
    stream.send_bytes(b"\xff");
    let mut stream = plane.accept_stream().await;
    assert_eq!(stream.receive().await.version_info, "1");
    // The same after an oversized one: the rest of it is not awaited.
    stream.send_bytes(&vec![0; (4 << 20) + 1]);
    let mut stream = plane.accept_stream().await;
    assert_eq!(stream.receive().await.version_info, "1");
    let reply = stream.send_and_receive("2", &[yearly("shop", "k", 2)]).await;
    assert_eq!(reply.version_info, "2");
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
}

#[tokio::test(flavor = "multi_thread")]
async fn native_rules_apply_beside_a_control_plane_and_each_changes_alone() {
    let plane = TestControlPlane::open().await;
    let dir = tempfile::tempdir().unwrap();
    let rules = |count: u32| {
        format!("version: 1\nrules:\n  - {{ name: all, by: global, rate: {count}/day, algorithm: fixed-window }}\n")
    };
    std::fs::write(dir.path().join("rules.yaml"), rules(5)).unwrap();
    let mut command = command(&format!("xds://{}", plane.address()));
    command.arg("--rules").arg(dir.path().join("rules.yaml"));
    let server = tokio::task::spawn_blocking(move || TestServer::spawn(command, dir));
    let first = async {
        let mut stream = plane.accept_stream().await;
        stream.receive().await;
        stream.send_and_receive("1", &[yearly("shop", "k", 1)]).await;
        stream
    };
    let (server, mut stream) = tokio::join!(server, first);
    let server = server.unwrap();
    let names = || server.admin_get("/v1/rules").json()["rules"].to_string();
    assert!(names().contains("all") && names().contains("shop"), "{}", names());
    server.write("rules.yaml", &rules(6).replace("all", "every"));
    wait_for("the new file", || names().contains("every").then_some(()));
    assert!(names().contains("shop"), "{}", names());
    stream.send_and_receive("2", &[yearly("mall", "k", 1)]).await;
    assert!(names().contains("every") && names().contains("mall"), "{}", names());
    assert!(!names().contains("shop"), "{}", names());
    // A domain in both sources is a fault of the one that came last.
    server.write("more.yaml", "");
    let both = "domain: mall\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 9 } }]\n";
    server.write("rules.yaml", both);
    wait_for("a rejection", || {
        let stale = server.admin_get("/v1/rules").json()["stale"].to_string();
        stale.contains("mall").then_some(())
    });
    assert!(names().contains("every"), "{}", names());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_connection_to_a_control_plane_can_use_mutual_tls() {
    let authority = TestAuthority::new();
    let own = authority.sign(&["plane.example"]);
    let ours = authority.sign(&["gate.example"]);
    let plane = TestControlPlane::encrypted(&authority, &own).await;
    let url = format!(
        "xdss://{}?ca={}&cert={}&key={}&name=plane.example",
        plane.address(),
        authority.file().display(),
        ours.certificate.display(),
        ours.key.display()
    );
    let first = async {
        let mut stream = plane.accept_stream().await;
        stream.receive().await;
        stream.send_and_receive("1", &[yearly("shop", "k", 1)]).await;
        stream
    };
    let (server, _stream) = tokio::join!(start(command(&url)), first);
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
}

/// The listeners wait for the first message of the control plane. A signal ends this wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_waits_for_its_control_plane_can_be_stopped() {
    let plane = TestControlPlane::open().await;
    let mut command = command(&format!("xds://{}", plane.address()));
    command.args(["--http", "127.0.0.1:0", "--grpc", "off", "--admin", "off"]);
    let mut child = command.stderr(std::process::Stdio::null()).spawn().unwrap();
    let mut stream = plane.accept_stream().await;
    stream.receive().await;
    assert!(child.try_wait().unwrap().is_none(), "it waits");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &pid]).status().unwrap().success());
    let status = wait_for("the end", || child.try_wait().unwrap());
    assert!(status.success(), "{status}");
}

/// As the reference does with the same setting.
#[tokio::test(flavor = "multi_thread")]
async fn after_a_forced_start_every_call_gets_an_error_until_there_is_a_configuration() {
    let plane = TestControlPlane::open().await;
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--envoy-compat"])
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", plane.address())
        .env("CONFIG_GRPC_XDS_NODE_ID", "gate")
        .env("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret")
        .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms");
    let server = start(command).await;
    assert_eq!(check_status(&server, "shop", "a"), 400, "as the reference responds without a configuration");
    let mut stream = plane.accept_stream().await;
    assert_eq!(stream.headers["x-token"], "secret");
    assert_eq!(stream.receive().await.node.unwrap().id, "gate");
    let reply = stream.send_and_receive("1", &[yearly("shop", "", 1)]).await;
    assert!(reply.error_detail.is_some() && reply.version_info.is_empty());
    assert_eq!(check_status(&server, "shop", "a"), 400, "a bad one is none");
    let check = || server.post("/v1/check", r#"{"attributes": {"ip": "192.0.2.1"}}"#).status;
    let ready = || server.client().request("GET", "/readyz", &[], "").status;
    assert_eq!((check(), ready()), (503, 503), "nor does any other edge decide");
    stream.send_and_receive("2", &[yearly("shop", "k", 1)]).await;
    assert_eq!([check_status(&server, "shop", "a"), check_status(&server, "shop", "a")], [200, 429]);
    assert_eq!((check(), ready()), (200, 200));
}

/// Envoy's calls were decided by the native rules alone, and the log reported a lost control plane that had never
/// been connected.
#[tokio::test(flavor = "multi_thread")]
async fn native_rules_do_not_replace_a_control_plane_that_has_sent_nothing() {
    let plane = TestControlPlane::open().await;
    let dir = tempfile::tempdir().unwrap();
    let rules = "version: 1\nrules: [{ name: login, match: { path: /login }, by: ip, rate: 1/hour }]\n";
    std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    let mut command = Command::new(BINARY);
    command
        .args(["serve", "--envoy-compat", "--rules"])
        .arg(dir.path().join("rules.yaml"))
        .env("CONFIG_TYPE", "GRPC_XDS_SOTW")
        .env("CONFIG_GRPC_XDS_SERVER_URL", plane.address())
        .env("FORCE_START_WITHOUT_INITIAL_CONFIG", "true")
        .env("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "10ms");
    let server = tokio::task::spawn_blocking(move || TestServer::spawn(command, dir));
    let server = server.await.unwrap();
    let check = || server.post("/v1/check", r#"{"attributes": {"ip": "192.0.2.1", "path": "/login"}}"#).status;
    let ready = || server.client().request("GET", "/readyz", &[], "").json();
    assert_eq!(check_status(&server, "shop", "a"), 400);
    assert_eq!([check(), check()], [200, 429], "native rules decide what is theirs");
    let reason = ready()["reason"].to_string();
    assert!(reason.contains("the control plane has not sent a good one"), "{reason}");

    // A stream that ends before anything was sent.
    drop(plane.accept_stream().await);
    let is_of_plane = |line: &serde_json::Value| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.starts_with("the control plane")
    };
    let line = server.wait_log(is_of_plane);
    let want = "the control plane has sent no good limits yet, and calls of Envoy fail until it does";
    assert_eq!(line["message"], want);
    assert_eq!(check_status(&server, "shop", "a"), 400);

    let mut stream = plane.accept_stream().await;
    stream.receive().await;
    stream.send_and_receive("1", &[yearly("shop", "k", 1)]).await;
    assert_eq!([1, 2].map(|_| check_status(&server, "shop", "a")), [200, 429]);
    assert_eq!(ready()["status"], "ready");
    drop(stream);
    let lost = "the control plane is lost, what it sent last stays in force";
    server.wait_log(|line| line["message"] == lost);
    assert_eq!(check_status(&server, "shop", "b"), 200);
}
