//! A deployment of the reference service in which only the program was replaced.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tidegate_testkit::{RedisProgram, TestRedis as Redis, free_port};

use crate::http::{HttpClient, HttpReply};
use crate::server::{BINARY, TestServer, wait_for};

pub(crate) const CONFIG: &str = "domain: shop
descriptors:
  - key: one
    rate_limit: { unit: year, requests_per_unit: 1 }
  - key: four
    rate_limit: { unit: year, requests_per_unit: 4 }
";

/// A folder as the reference has it, and the environment that names it.
pub(crate) fn deployment(config: &str) -> (tempfile::TempDir, Command) {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("ratelimit/config");
    std::fs::create_dir_all(&folder).unwrap();
    // Any file name is read.
    std::fs::write(folder.join("limits"), config).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--envoy-compat"]).env("RUNTIME_ROOT", dir.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    (dir, command)
}

/// Replaces its file as a whole. The temporary file has a name that is never read.
pub(crate) fn replace_limits(server: &TestServer, text: &str) {
    let folder = server.dir.path().join("ratelimit/config");
    std::fs::write(folder.join("..next"), text).unwrap();
    std::fs::rename(folder.join("..next"), folder.join("limits")).unwrap();
}

/// One request with an entry for each of these keys, each in its own descriptor.
pub(crate) fn check(server: &TestServer, keys: &[&str]) -> HttpReply {
    let descriptors: Vec<String> =
        keys.iter().map(|key| format!(r#"{{"entries": [{{"key": "{key}", "value": "x"}}]}}"#)).collect();
    let body = format!(r#"{{"domain": "shop", "descriptors": [{}]}}"#, descriptors.join(","));
    server.post("/json", &body)
}

pub(crate) fn check_each<const N: usize>(server: &TestServer, keys: [&[&str]; N]) -> [u16; N] {
    keys.map(|keys| check(server, keys).status)
}

#[test]
fn the_server_listens_and_responds_as_the_reference_does() {
    let (dir, mut command) = deployment(CONFIG);
    let [http, grpc, debug] = [(); 3].map(|()| free_port());
    command
        .env("HOST", "127.0.0.1")
        .env("PORT", http.to_string())
        .env("GRPC_HOST", "127.0.0.1")
        .env("GRPC_PORT", grpc.to_string())
        .env("DEBUG_PORT", debug.to_string())
        .env("LOG_FORMAT", "json")
        .env("LIMIT_RESPONSE_HEADERS_ENABLED", "true")
        .env("LIMIT_REMAINING_HEADER", "X-Left")
        .env("USE_STATSD", "false")
        .env("REDIS_POOL_SIZE", "5");
    let server = TestServer::spawn_as_is(command, dir);
    assert_eq!(server.http.port(), http);
    assert_eq!(server.grpc, format!("127.0.0.1:{grpc}"));
    assert_eq!((server.admin.ip().to_string(), server.admin.port()), ("127.0.0.1".to_owned(), debug));
    let logged = server.wait_log(|line| line["variables"].is_string());
    let variables = logged["variables"].as_str().unwrap();
    assert!(variables.contains("USE_STATSD") && variables.contains("REDIS_POOL_SIZE"), "{variables}");

    let listing = server.admin_get("/rlconfig").body;
    assert!(listing.contains("shop.four"), "{listing}");
    let first = check(&server, &["four"]);
    assert_eq!(first.status, 200);
    let headers = first.json()["responseHeadersToAdd"].to_string();
    assert!(headers.contains("X-Left") && headers.contains("RateLimit-Limit"), "{headers}");
}

#[test]
fn a_shadow_mode_for_all_is_named_in_the_log() {
    let (dir, mut command) = deployment(CONFIG);
    let [http, grpc, debug] = [(); 3].map(|()| free_port());
    command
        .env("HOST", "127.0.0.1")
        .env("PORT", http.to_string())
        .env("GRPC_HOST", "127.0.0.1")
        .env("GRPC_PORT", grpc.to_string())
        .env("DEBUG_PORT", debug.to_string())
        .env("LOG_FORMAT", "json")
        .env("SHADOW_MODE", "true");
    let server = TestServer::spawn_as_is(command, dir);
    let line = server.wait_log(|line| {
        let message = line["message"].as_str();
        message.is_some_and(|message| message.contains("because SHADOW_MODE is set"))
    });
    assert_eq!(line["level"], "WARN");
    assert_eq!(check_each(&server, [&["one"], &["one"]]), [200, 200]);
}

/// The page that dashboards of the reference read, at the same address, and nothing else there.
#[test]
fn metrics_are_at_the_address_of_the_reference() {
    let (dir, mut command) = deployment(CONFIG);
    command.env("USE_PROMETHEUS", "true").env("PROMETHEUS_ADDR", "127.0.0.1:0").env("PROMETHEUS_PATH", "/stats");
    let server = TestServer::spawn(command, dir);
    let line = server.wait_log(|line| line["edge"] == "metrics");
    let place: SocketAddr = line["address"].as_str().unwrap().parse().unwrap();
    assert_eq!(check_each(&server, [&["one"], &["one"]]), [200, 429]);
    let get = |path| HttpClient::connect(place).request("GET", path, &[], "");
    let page = get("/stats").body;
    let sample = r#"ratelimit_service_rate_limit_over_limit{domain="shop",key1="one"} 1"#;
    assert!(page.contains(sample), "{page}");
    assert_eq!((get("/metrics").status, get("/v1/rules").status), (404, 404));
    let posted = HttpClient::connect(place).request("POST", "/stats", &[], "");
    assert_eq!(posted.status, 405);
}

/// The reference charges every limit of a request, even if the request is denied.
#[test]
fn a_denied_request_is_charged_as_in_the_reference() {
    let (dir, command) = deployment(CONFIG);
    let server = TestServer::spawn(command, dir);
    let both: &[&str] = &["one", "four"];
    assert_eq!(check_each(&server, [both, both, both]), [200, 429, 429]);
    assert_eq!(check_each(&server, [&["four"], &["four"]]), [200, 429], "three were paid");

    let (dir, mut command) = deployment(CONFIG);
    command.env("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "true");
    let server = TestServer::spawn(command, dir);
    assert_eq!(check_each(&server, [both, both, both]), [200, 429, 429]);
    let four: &[&str] = &["four"];
    assert_eq!(check_each(&server, [four, four, four, four]), [200, 200, 200, 429], "one was paid");
}

#[test]
fn deployments_in_one_redis_are_separated_by_their_prefix() {
    let redis = Redis::start(RedisProgram::Redis7, &[]);
    let url = redis.url().replace("redis://", "");
    let start = |prefix: &str| {
        let (dir, mut command) = deployment(CONFIG);
        command
            .env("REDIS_URL", &url)
            // Longer than a busy machine takes: a fallback decision would let the second pass.
            .env("REDIS_TIMEOUT", "30s")
            .env("CACHE_KEY_PREFIX", prefix);
        TestServer::spawn(command, dir)
    };
    for prefix in ["", "blue:", "green:"] {
        let [first, second] = [(); 2].map(|()| start(prefix));
        assert_eq!(check_each(&first, [&["one"]]), [200], "{prefix}");
        assert_eq!(check_each(&second, [&["one"]]), [429], "{prefix}");
    }
}

#[test]
fn shadow_mode_denies_nothing_and_still_reports() {
    let (dir, mut command) = deployment(CONFIG);
    command.env("SHADOW_MODE", "true");
    let server = TestServer::spawn(command, dir);
    assert_eq!(check_each(&server, [&["one"]]), [200]);
    let reply = check(&server, &["one"]);
    assert_eq!((reply.status, &reply.json()["statuses"][0]["code"]), (200, &"OVER_LIMIT".into()));
}

/// A request whose client is unclear was denied although SHADOW_MODE is set.
#[test]
fn shadow_mode_denies_no_unclear_client() {
    let (dir, mut command) = deployment(CONFIG);
    let native = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100/hour }\n";
    std::fs::write(dir.path().join("ratelimit/config/native"), native).unwrap();
    let body = r#"{"domain": "shop", "descriptors": [{"entries": [{"key": "remote_address", "value": "unknown"}]}]}"#;
    command.env("SHADOW_MODE", "true");
    let server = TestServer::spawn(command, dir);
    assert_eq!(server.post("/json", body).status, 200);
}

#[test]
fn with_a_bad_first_configuration_the_server_listens_and_every_call_fails() {
    let (dir, command) = deployment("domain: shop\ndescriptors: [{ key: '' }]\n");
    let server = TestServer::spawn(command, dir);
    assert_eq!(check_each(&server, [&["one"], &["other"]]), [400, 400]);
    assert_eq!(health(&server), 200, "it listens, and reports healthy");
    replace_limits(&server, CONFIG);
    wait_for("a good configuration", || (check(&server, &["one"]).status == 200).then_some(()));
    assert_eq!(check_each(&server, [&["one"]]), [429]);
    // From then on a bad one changes nothing.
    replace_limits(&server, "domain: shop\ndescriptors: [{ key: '' }]\n");
    server.signal("HUP");
    wait_for("the rejection", || server.admin_get("/v1/rules").json()["stale"].is_string().then_some(()));
    assert_eq!(check_each(&server, [&["one"]]), [429]);
}

fn health(server: &TestServer) -> u16 {
    server.client().request("GET", "/healthcheck", &[], "").status
}

#[test]
fn health_can_wait_for_a_configuration() {
    let (dir, mut command) = deployment("not: limits\n");
    command.env("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let server = TestServer::spawn(command, dir);
    assert_eq!(health(&server), 500);
    replace_limits(&server, CONFIG);
    wait_for("health", || (health(&server) == 200).then_some(()));
}

#[test]
fn files_share_a_domain_only_with_merge_domains() {
    let more = "domain: shop\ndescriptors: [{ key: two, rate_limit: { unit: year, requests_per_unit: 0 } }]\n";
    for (merge, want) in [("true", [200, 429]), ("false", [400, 400])] {
        let (dir, mut command) = deployment(CONFIG);
        std::fs::write(dir.path().join("ratelimit/config/more.yaml"), more).unwrap();
        command.env("MERGE_DOMAIN_CONFIG", merge);
        let server = TestServer::spawn(command, dir);
        assert_eq!(check_each(&server, [&["one"], &["two"]]), want, "merge {merge}");
    }
}

/// As Kubernetes mounts a ConfigMap: a hidden copy, a link to it, and links through that.
#[cfg(unix)]
#[test]
fn a_mounted_config_map_is_read_once_and_followed() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("config");
    let copy = |version: &str, text: &str| {
        std::fs::create_dir_all(folder.join(version)).unwrap();
        std::fs::write(folder.join(version).join("limits.yaml"), text).unwrap();
        turn(&folder.join("..data"), version);
    };
    copy("..v1", CONFIG);
    std::os::unix::fs::symlink("..data/limits.yaml", folder.join("limits.yaml")).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--envoy-compat"]).env("RUNTIME_ROOT", dir.path());
    let server = TestServer::spawn(command, dir);
    assert_eq!(check_each(&server, [&["one"], &["one"]]), [200, 429]);
    let folder = server.dir.path().join("config");
    std::fs::create_dir(folder.join("..v2")).unwrap();
    let more = CONFIG.replace("requests_per_unit: 1", "requests_per_unit: 100");
    std::fs::write(folder.join("..v2/limits.yaml"), more).unwrap();
    turn(&folder.join("..data"), "..v2");
    std::fs::remove_dir_all(folder.join("..v1")).unwrap();
    wait_for("the new limits", || (check(&server, &["one"]).status == 200).then_some(()));
}

/// The other way to change everything at once: a link above the folder.
#[cfg(unix)]
#[test]
fn a_runtime_root_whose_link_changes_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    for (version, text) in [("v1", CONFIG.to_owned()), ("v2", CONFIG.replace(": 1 ", ": 100 "))] {
        std::fs::create_dir_all(dir.path().join(version).join("config")).unwrap();
        std::fs::write(dir.path().join(version).join("config/limits"), text).unwrap();
    }
    turn(&dir.path().join("current"), "v1");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--envoy-compat"]).env("RUNTIME_ROOT", dir.path().join("current"));
    let server = TestServer::spawn(command, dir);
    assert_eq!(check_each(&server, [&["one"], &["one"]]), [200, 429]);
    turn(&server.dir.path().join("current"), "v2");
    wait_for("the new limits", || (check(&server, &["one"]).status == 200).then_some(()));
}

/// Changes the target of a link atomically.
fn turn(link: &Path, to: &str) {
    let next = link.with_file_name("..next");
    std::os::unix::fs::symlink(to, &next).unwrap();
    std::fs::rename(&next, link).unwrap();
}

#[test]
fn an_unsupported_variable_that_would_change_limits_stops_the_start() {
    let (_dir, mut command) = deployment(CONFIG);
    let output = command.env("BACKEND_TYPE", "memcache").env("PORT", "http").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("BACKEND_TYPE") && stderr.contains("PORT is `http`"), "{stderr}");
}

#[test]
fn without_the_flag_the_reference_environment_is_ignored() {
    let (dir, mut command) = deployment(CONFIG);
    command.env("BACKEND_TYPE", "memcache").env("TIDEGATE_ENVOY_COMPAT", "false");
    let mut plain = Command::new(BINARY);
    plain.arg("serve");
    for (name, value) in command.get_envs() {
        plain.env(name, value.unwrap());
    }
    let server = TestServer::spawn(plain, dir);
    let names = server.admin_get("/v1/rules").json()["rules"].to_string();
    assert!(!names.contains("shop"), "{names}");
}
