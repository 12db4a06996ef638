//! `tidegate doctor` on real servers: each problem has its line, and nothing is left behind.

mod several;

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tidegate_testkit::{RedisProgram, ShiftedClock, TestRedis as Redis, free_port};

use crate::http::check_body;
use crate::server::{BINARY, TestServer, wait_for};

/// The permissions that the documentation recommends.
fn recipe() -> Vec<String> {
    let docs = include_str!("../../../../docs/redis.md");
    let line = docs.lines().find(|line| line.contains("ACL SETUSER"));
    let words = line.unwrap().trim().replace("PASSWORD", "planted-password");
    words.split(' ').map(str::to_owned).collect()
}

struct DoctorReport {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the doctor with a budget that this machine always keeps: no test depends on its speed.
fn doctor(store: &str, flags: &[&str]) -> DoctorReport {
    let output = Command::new(BINARY)
        .args(["doctor", "--store", store, "--store-budget", "30000"])
        .args(flags)
        .output()
        .unwrap();
    DoctorReport {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

impl DoctorReport {
    /// The line of a check.
    #[track_caller]
    fn line(&self, check: &str) -> &str {
        let mut lines = self.out.lines();
        let found = lines.find(|line| line.get(6..).is_some_and(|rest| rest.starts_with(check)));
        found.unwrap_or_else(|| panic!("no {check} in\n{}{}", self.out, self.err))
    }

    #[track_caller]
    fn check_line(&self, check: &str, grade: &str, text: &str) {
        let line = self.line(check);
        assert!(line.starts_with(grade) && line.contains(text), "{line}");
    }

    /// Asserts a line of a check that may have several.
    #[track_caller]
    fn has(&self, check: &str, grade: &str, text: &str) {
        let begins = format!("{grade:<4}  {check}");
        let fits = |line: &str| line.starts_with(&begins) && line.contains(text);
        let found = self.out.lines().any(fits);
        assert!(found, "no {begins}.. {text} in\n{}{}", self.out, self.err);
    }

    #[track_caller]
    fn ends(&self, code: i32) {
        assert_eq!(self.code, Some(code), "{}{}", self.out, self.err);
    }
}

#[test]
fn a_healthy_store_has_no_failure_and_nothing_is_left_in_it() {
    for program in RedisProgram::ALL {
        let redis = Redis::start(program, &[]);
        let report = doctor(&redis.url(), &[]);
        report.ends(0);
        for check in [
            "reach",
            "version",
            "round trip",
            "clock",
            "eviction",
            "permissions",
            "scripts",
            "persistence",
            "replication",
            "expiry",
            "memory",
            "nodes",
            "secret",
        ] {
            report.check_line(check, "ok ", "");
        }
        assert_eq!(redis.run_command(&["DBSIZE"]), "0", "{program:?}");
    }
}

#[test]
fn a_store_in_use_is_described() {
    let redis = Redis::redis7();
    let rules = "version: 1\nrules:\n  - { name: r, by: ip, rate: 9/hour }\n";
    let node = TestServer::with(rules, &["--store", &redis.url(), "--store-budget", "30000"]);
    wait_for("an exact decision", || {
        let decision = node.post("/v1/check", &check_body("192.0.2.1", "/x")).json();
        (decision["source"] == "exact").then_some(())
    });
    let rules = node.rules_path();
    let report = doctor(&redis.url(), &["--rules", rules.to_str().unwrap()]);
    report.ends(0);
    report.check_line("nodes", "ok ", "1 is registered");
    report.check_line("secret", "warn", "--secret-file");
    report.check_line("expiry", "ok ", "1 counters, each will expire");
    report.check_line("memory", "ok ", "3 keys tg:*, 0 others");
    report.check_line("scripts", "ok ", "the server had 10 of 10");
    report.check_line("rules", "ok ", "1 rules");
    let secret = redis.run_command(&["GET", "tg:ctl:secret"]);
    let secret = secret.strip_prefix("secret:").unwrap();
    assert!(!report.out.contains(secret));

    std::fs::write(&rules, "version: 1\nrules:\n  - { name: r, rat: 1/hour }\n").unwrap();
    let own = node.dir.path().join("secret");
    std::fs::write(&own, "sixteen bytes or more").unwrap();
    let flags = ["--rules", rules.to_str().unwrap(), "--secret-file", own.to_str().unwrap()];
    let report = doctor(&redis.url(), &flags);
    report.ends(1);
    report.check_line("rules", "FAIL", "rules.yaml:3");
    report.check_line("secret", "FAIL", "another than in --secret-file");
}

#[test]
fn an_unreachable_store_is_69_and_a_silent_server_is_not_waited_for_for_long() {
    let report = doctor(&format!("redis://:planted-password@127.0.0.1:{}", free_port()), &[]);
    report.ends(69);
    report.check_line("reach", "FAIL", "see whether the server runs");
    assert!(!report.out.contains("planted-password") && !report.err.contains("planted-password"));

    let report = doctor("redis://:planted-password@localhost:no-port", &[]);
    report.ends(1);
    report.check_line("reach", "FAIL", "HOST[:PORT] after `//`");
    assert!(!report.out.contains("planted-password") && !report.err.contains("planted-password"));

    let redis = Redis::redis7();
    redis.freeze();
    let report = doctor(&redis.url(), &["--json"]);
    redis.thaw();
    report.ends(69);
    assert!(report.err.contains("still looking at the store"), "{}", report.err);
    let report_json: Value = serde_json::from_str(&report.out).unwrap();
    assert_eq!(report_json["exit"], 69);
    assert_eq!(report_json["findings"][0]["grade"], "fail", "{report_json}");
}

/// `found` contained the cure, and `cure` that nothing else could be seen.
#[test]
fn the_json_output_separates_the_problem_from_its_cure() {
    let report = doctor(&format!("redis://127.0.0.1:{}", free_port()), &["--json"]);
    report.ends(69);
    let document: Value = serde_json::from_str(&report.out).unwrap();
    let finding = &document["findings"][0];
    let cure = "see whether the server runs and can be reached";
    assert_eq!(finding["cure"], cure, "{document}");
    let found = finding["found"].as_str().unwrap();
    assert!(found.contains("refused") && !found.contains(cure), "{document}");
}

/// The server was reached, so `reach` must not fail as well.
#[test]
fn a_paused_server_is_reached_and_then_silent() {
    let redis = Redis::redis7();
    redis.run_command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    let report = doctor(&redis.url(), &[]);
    report.ends(69);
    let of = |check: &str| {
        let begins = |line: &&str| line.get(6..).is_some_and(|rest| rest.starts_with(check));
        report.out.lines().filter(begins).collect::<Vec<_>>()
    };
    assert_eq!(of("reach").len(), 1, "{}", report.out);
    report.check_line("reach", "ok ", "replies");
    report.check_line("silence", "FAIL", "CLIENT UNPAUSE");
}

/// A server without TLS waits for the rest of the supposed command, and looked overloaded.
#[test]
fn tls_to_a_plain_port_is_reported_as_the_cause() {
    let redis = Redis::redis7();
    let report = doctor(&redis.url().replace("redis://", "rediss://"), &[]);
    report.ends(1);
    report.check_line("reach", "FAIL", "speaks no TLS on this port");
    report.check_line("reach", "FAIL", "write redis:// instead of rediss://");
    assert!(!report.out.contains("overloaded"), "{}", report.out);
}

#[test]
fn an_eviction_policy_that_deletes_counters_is_a_warning() {
    let options = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = Redis::start(RedisProgram::Redis7, &options);
    let report = doctor(&redis.url(), &[]);
    report.ends(0);
    report.check_line("eviction", "warn", "CONFIG SET maxmemory-policy noeviction");
    redis.run_command(&["CONFIG", "SET", "maxmemory", "0"]);
    doctor(&redis.url(), &[]).check_line("eviction", "ok ", "nothing is evicted");
}

#[test]
fn a_missing_permission_is_named_and_the_password_never() {
    let redis = Redis::redis7();
    let recipe = recipe();
    let words: Vec<&str> = recipe.iter().map(String::as_str).collect();
    assert_eq!(redis.run_command(&words), "OK");
    let url = format!("redis://tidegate:planted-password@127.0.0.1:{}", redis.port());
    let mut printed = String::new();
    let mut look = || {
        let report = doctor(&url, &[]);
        printed += &(report.out.clone() + &report.err);
        report
    };

    // The recommended permissions are enough, and findings say what they do not show.
    let report = look();
    report.ends(0);
    report.check_line("permissions", "ok ", "every command");
    report.check_line("scripts", "ok ", "+script|exists");
    report.check_line("persistence", "warn", "grant +config|get");
    report.check_line("expiry", "warn", "grant +scan");

    for command in ["hset", "del", "time", "evalsha", "script|load", "info"] {
        redis.run_command(&["ACL", "SETUSER", "tidegate", &format!("-{command}")]);
        let report = look();
        report.ends(1);
        let cure = format!("ACL SETUSER USER +{command}");
        report.check_line("permissions", "FAIL", &cure);
        assert!(report.line("permissions").ends_with(&cure));
        redis.run_command(&["ACL", "SETUSER", "tidegate", &format!("+{command}")]);
    }
    redis.run_command(&["ACL", "SETUSER", "tidegate", "-eval_ro", "-evalsha_ro"]);
    look().check_line("permissions", "warn", "eval_ro, evalsha_ro");
    redis.run_command(&["ACL", "SETUSER", "tidegate", "resetkeys", "~other:*", "+eval_ro", "+evalsha_ro"]);
    look().check_line("permissions", "FAIL", "ACL SETUSER USER ~tg:*");
    redis.run_command(&["ACL", "SETUSER", "tidegate", "resetpass", ">another"]);
    let report = look();
    report.ends(1);
    report.check_line("reach", "FAIL", "user or password");
    assert!(!printed.contains("planted-password"), "{printed}");
}

#[test]
fn a_counter_without_expiry_is_found() {
    let redis = Redis::redis7();
    redis.run_command(&["SET", "tg:{planted}:rule", "x"]);
    redis.run_command(&["SET", "tg:{fine}:rule", "x", "EX", "600"]);
    redis.run_command(&["SET", "tg:ctl:whatever", "x"]);
    redis.run_command(&["SET", "other", "x"]);
    let report = doctor(&redis.url(), &[]);
    report.ends(0);
    let want = "2 counters, 1 never expire, such as tg:{planted}:rule";
    report.check_line("expiry", "warn", want);
    report.check_line("memory", "ok ", "3 keys tg:*, 1 others");
}

#[test]
fn a_replica_is_a_failure_and_a_primary_lists_its_replica() {
    let primary = Redis::redis7();
    let replica = Redis::redis7();
    let port = primary.port().to_string();
    replica.run_command(&["REPLICAOF", "127.0.0.1", &port]);
    let report = doctor(&replica.url(), &[]);
    report.ends(1);
    report.check_line("replication", "FAIL", &format!("a replica of 127.0.0.1:{port}"));
    report.check_line("permissions", "warn", "replica");
    wait_for("a replica that follows", || {
        let report = doctor(&primary.url(), &[]);
        let line = report.line("replication");
        (line.starts_with("ok ") && line.contains("primary of 1")).then_some(())
    });
}

#[test]
fn a_clock_that_is_half_a_minute_off_is_a_failure_unless_that_is_tolerated() {
    let clock = Arc::new(ShiftedClock::new().unwrap());
    clock.set_behind(Duration::from_secs(30)).unwrap();
    let redis = Redis::start_with_clock(clock, RedisProgram::Redis7, &[]);
    let report = doctor(&redis.url(), &[]);
    report.ends(1);
    report.check_line("clock", "FAIL", " ms behind this machine");
    let report = doctor(&redis.url(), &["--clock-warn", "100000"]);
    report.ends(0);
    report.check_line("clock", "ok ", " ms behind this machine");
}

#[test]
fn settings_come_from_the_same_places_as_for_the_service() {
    let redis = Redis::redis7();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("tidegate.yaml");
    std::fs::write(&config, format!("store: {}\nstore_budget: 30000\n", redis.url())).unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("doctor").args(args).output().unwrap()
    };
    let output = run(&["--config", config.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(run(&[]).status.code(), Some(2));
}
