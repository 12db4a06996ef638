//! Stores of several servers: the sentinels are queried, and every primary of a cluster is examined.

use tidegate_testkit::{PRIMARY_NAME, RedisProgram, SentinelGroup, TestCluster, TestRedis as Redis, TestSentinel};

use super::{doctor, recipe};
use crate::http::check_body;
use crate::server::{TestServer, wait_for};

/// The addresses of these servers, as the URL of a cluster.
fn cluster_at(login: &str, servers: &[Redis]) -> String {
    let hosts: Vec<String> = servers.iter().map(|s| s.address().to_string()).collect();
    format!("redis+cluster://{login}{}", hosts.join(","))
}

fn set_everywhere(servers: &[Redis], setting: &str, value: &str) {
    for server in servers {
        assert_eq!(server.run_command(&["CONFIG", "SET", setting, value]), "OK");
    }
}

#[test]
fn sentinels_that_are_silent_or_disagree_are_reported() {
    let mut sentinels = SentinelGroup::start(0);
    let primary = format!("127.0.0.1:{}", sentinels.primary());
    let report = doctor(&sentinels.url(), &[]);
    report.ends(0);
    report.check_line("sentinels", "ok ", &format!("{primary} is what all 3 name"));
    report.check_line("reach", "ok ", &format!("{primary} replies"));
    report.check_line("permissions", "ok ", "");
    report.check_line("secret", "ok ", "");

    let other = Redis::redis7();
    let stray = TestSentinel::with(RedisProgram::Redis7, other.port(), 2, &[]);
    let hosts = sentinels.url().replace(&format!("/{PRIMARY_NAME}"), "");
    let url = format!("{hosts},127.0.0.1:{}/{PRIMARY_NAME}", stray.port);
    let report = doctor(&url, &[]);
    report.ends(0);
    let want = format!("{primary} is what 3 of 4 name; 127.0.0.1:{} names {}", stray.port, other.address());
    report.check_line("sentinels", "warn", &want);

    let silent = sentinels.ports()[2];
    sentinels.kill(2);
    let report = doctor(&sentinels.url(), &[]);
    report.ends(0);
    let want = format!("{primary} is what 2 of 3 name; 127.0.0.1:{silent} does not reply");
    report.check_line("sentinels", "warn", &want);

    sentinels.kill(0);
    sentinels.kill(1);
    let report = doctor(&sentinels.url(), &[]);
    report.ends(69);
    report.check_line("sentinels", "FAIL", "most of 3 name no primary");
    report.check_line("reach", "FAIL", "see whether the sentinels run");
}

#[test]
fn every_primary_of_a_cluster_is_examined() {
    let cluster = TestCluster::start();
    let url = cluster_at("", &cluster.servers[..1]);
    let rules = "version: 1\nrules:\n  - { name: r, by: ip, rate: 9/hour }\n";
    let node = TestServer::with(rules, &["--store", &url, "--store-budget", "30000"]);
    wait_for("an exact decision", || {
        let decision = node.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
        (decision["source"] == "exact").then_some(())
    });
    let report = wait_for("a node that is registered everywhere", || {
        let report = doctor(&url, &[]);
        let registered = report.line("nodes").contains("each: 1 is registered");
        registered.then_some(report)
    });
    report.ends(0);
    for (_, port) in cluster.primaries() {
        let address = format!("127.0.0.1:{port}");
        report.check_line("reach", "ok ", &address);
        report.has("memory", "ok", &address);
    }
    report.check_line("slots", "ok ", "all 16384 are served");
    report.check_line("version", "ok ", "each: Redis 7.0");
    report.check_line("permissions", "ok ", "each: every command");
    report.check_line("coverage", "warn", "each: while one primary is missing");
    report.check_line("secret", "warn", "in the store itself");
    assert_eq!(report.out.matches(" secret ").count(), 1, "{}", report.out);
    report.has("scripts", "ok", "the server had 10 of 10");
    for server in &cluster.servers {
        assert_eq!(server.run_command(&["KEYS", "tg:ctl:doctor*"]), "");
    }

    set_everywhere(&cluster.servers, "cluster-require-full-coverage", "no");
    doctor(&url, &[]).check_line("coverage", "ok ", "each: ");

    // The recommended permissions are enough; a missing permission of one server is reported for that server.
    let recipe = recipe();
    let words: Vec<&str> = recipe.iter().map(String::as_str).collect();
    for server in &cluster.servers {
        assert_eq!(server.run_command(&words), "OK");
    }
    let url = cluster_at("tidegate:planted-password@", &cluster.servers[..1]);
    let report = doctor(&url, &[]);
    report.ends(0);
    report.check_line("permissions", "ok ", "each: every command");
    let poor = &cluster.servers[1];
    poor.run_command(&["ACL", "SETUSER", "tidegate", "-pexpire", "-cluster|slots"]);
    let report = doctor(&url, &[]);
    report.ends(1);
    let want = format!("{}: the user may not run cluster|slots, pexpire", poor.address());
    report.has("permissions", "FAIL", &want);
    assert!(!report.out.contains("planted-password"), "{}", report.out);
}

#[test]
fn a_missing_primary_is_reported_and_the_others_are_examined() {
    let mut cluster = TestCluster::start();
    set_everywhere(&cluster.servers, "cluster-replica-no-failover", "yes");
    set_everywhere(&cluster.servers, "cluster-require-full-coverage", "no");
    cluster.servers[0].kill();
    let gone = cluster.servers[0].address();
    let report = doctor(&cluster_at("", &cluster.servers[..2]), &[]);
    report.ends(1);
    report.has("reach", "FAIL", &format!("{gone}: "));
    report.has("reach", "ok", &cluster.servers[1].address().to_string());
    let want = format!("5461 of 16384 are not served: 5461 of {gone}");
    report.check_line("slots", "FAIL", &want);
    report.check_line("permissions", "ok ", "each: every command");

    for server in &mut cluster.servers[1..3] {
        server.kill();
    }
    let report = doctor(&cluster_at("", &cluster.servers[3..4]), &[]);
    report.ends(69);
    report.check_line("slots", "FAIL", "16384 of 16384 are not served");
    report.check_line("secret", "warn", "cannot be read");
    doctor(&cluster_at("", &cluster.servers[..3]), &[]).ends(69);
}

#[test]
fn a_url_of_the_wrong_kind_of_store_is_a_failure_that_names_the_right_kind() {
    let server = Redis::start(RedisProgram::Redis7, &["--cluster-enabled", "yes"]);
    let servers = [server];
    let report = doctor(&servers[0].url(), &[]);
    report.ends(1);
    report.check_line("replication", "FAIL", "write redis+cluster://HOST:PORT");

    let url = cluster_at("", &servers);
    let report = doctor(&url, &[]);
    report.ends(1);
    report.check_line("reach", "FAIL", "no hash slot of the cluster is served");

    servers[0].run_command(&["CLUSTER", "ADDSLOTSRANGE", "0", "9999"]);
    let report = doctor(&url, &[]);
    report.ends(1);
    let want = "6384 of 16384 are not served: 6384 without an owner";
    report.check_line("slots", "FAIL", want);
    report.check_line("replication", "warn", "primary without a replica");

    let plain = [Redis::redis7()];
    let report = doctor(&cluster_at("", &plain), &[]);
    report.ends(1);
    report.check_line("reach", "FAIL", "write redis://HOST:PORT");
}
