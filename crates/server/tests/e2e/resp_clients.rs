//! Popular client libraries, unmodified: each connects, throttles, and is denied at the limit.

use std::process::Command;

use crate::server::TestServer;

const RULES: &str = "version: 1\nrules: [{ name: r, by: user, rate: 10/hour }]\n";
const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/clients");
const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools");

#[track_caller]
fn run(program: &str, arguments: &[&str]) -> String {
    let ran = Command::new(program)
        .args(arguments)
        .env("NODE_PATH", format!("{TOOLS}/node/node_modules"))
        .output()
        .unwrap_or_else(|error| panic!("no {program} ({error}): run scripts/tools"));
    let stdout = String::from_utf8_lossy(&ran.stdout).trim().to_owned();
    let complaint = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{program} {arguments:?}: {stdout} {complaint}");
    stdout
}

#[track_caller]
fn throttles(program: &str, script: &str, module: Option<&str>) {
    let server = TestServer::with_resp(RULES, &[]);
    let (at, script) = (server.resp(), format!("{SCRIPTS}/{script}"));
    let (host, port) = (at.ip().to_string(), at.port().to_string());
    let mut arguments = vec![script.as_str()];
    arguments.extend(module);
    arguments.extend([host.as_str(), port.as_str()]);
    assert_eq!(run(program, &arguments), "throttled");
}

#[test]
fn redis_cli() {
    let server = TestServer::with_resp(RULES, &[]);
    let port = server.resp().port().to_string();
    let send = |words: &str| {
        let mut arguments = vec!["-p", &port];
        arguments.extend(words.split(' '));
        run("redis-cli", &arguments)
    };
    assert_eq!(send("CL.THROTTLE k 0 1 3600"), "0\n1\n0\n-1\n3600");
    assert!(send("-3 CL.THROTTLE k 0 1 3600").starts_with("1\n1\n0\n"));
    let checked = send("-3 TG.CHECK user ada");
    assert!(checked.contains("allowed 1\nlimit 10\nremaining 9"), "{checked}");
}

#[test]
fn redis_py() {
    throttles(&format!("{TOOLS}/python/bin/python"), "redis_py.py", Some("redis"));
}

#[test]
fn valkey_py() {
    throttles(&format!("{TOOLS}/python/bin/python"), "redis_py.py", Some("valkey"));
}

#[test]
fn valkey_glide() {
    throttles(&format!("{TOOLS}/python/bin/python"), "glide.py", None);
}

#[test]
fn ioredis() {
    throttles("node", "ioredis.cjs", Some("ioredis"));
}

#[test]
fn iovalkey() {
    throttles("node", "ioredis.cjs", Some("iovalkey"));
}

#[test]
fn node_redis() {
    throttles("node", "node_redis.cjs", None);
}
