//! Rules and keys that change under load.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::http::check_body;
use crate::server::{TestServer, metric, wait_for};

/// Both rules of a set carry its letter, so a decision that mixes two sets shows.
fn rules(letter: char) -> String {
    format!(
        "version: 1\nrules:\n  - {{ name: {letter}1, by: ip, rate: 1000000/hour }}\n  \
         - {{ name: {letter}2, by: global, rate: 1000000/hour }}\n"
    )
}

#[test]
fn a_thousand_reloads_half_of_them_broken_disturb_no_decision() {
    let server = TestServer::start(&rules('a'));
    let done = AtomicBool::new(false);
    let decided = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for client in 0..4 {
            let (server, done, decided) = (&server, &done, &decided);
            scope.spawn(move || {
                let mut connection = server.client();
                while !done.load(Relaxed) {
                    let reply = connection.post("/v1/check", &check_body(&format!("192.0.2.{client}"), "/"));
                    assert_eq!(reply.status, 200, "{reply:?}");
                    let reply_body = reply.json();
                    let names: Vec<&str> =
                        reply_body["limits"].as_array().unwrap().iter().map(|l| l["rule"].as_str().unwrap()).collect();
                    assert!(
                        names == ["a1", "a2"] || names == ["b1", "b2"],
                        "a decision under two rule sets, or under a bad one: {names:?}"
                    );
                    decided.fetch_add(1, Relaxed);
                }
            });
        }
        let reload = || {
            for round in 0..500_u64 {
                let letter = if round % 2 == 0 { 'b' } else { 'a' };
                let before = server.admin_get("/v1/rules").json()["version"].as_u64().unwrap();
                server.write("rules.yaml", &rules(letter));
                server.admin_post("/v1/reload", "");
                wait_for("good rules to be taken", || {
                    let listed = server.admin_get("/v1/rules").json();
                    (listed["version"].as_u64().unwrap() > before && listed["rules"][0] == format!("{letter}1"))
                        .then_some(())
                });
                let rejected = server.metric("tidegate_config_rejected_total");
                server.write("rules.yaml", &format!("{}    rate: 0/hour # {round}\n", rules('x')));
                server.admin_post("/v1/reload", "");
                wait_for("bad rules to be rejected", || {
                    (server.metric("tidegate_config_rejected_total") > rejected).then_some(())
                });
            }
        };
        reload();
        done.store(true, Relaxed);
    });
    let page = server.admin_get("/metrics").body;
    let counted: u64 = ["a1", "a2", "b1", "b2"]
        .iter()
        .map(|rule| metric(&page, &format!(r#"tidegate_decisions_total{{rule="{rule}",edge="http",outcome="allow""#)))
        .sum();
    assert_eq!(counted, decided.load(Relaxed), "no decision is lost between two sets of counters");
    assert_eq!(metric(&page, "tidegate_config_last_reload_successful"), 0);
}

fn key_line(key: &str, tier: &str) -> String {
    let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{digest} {tier} {key}-owner\n")
}

/// Rules with a keys file, and tiers of these names, the second with 1000 an hour.
fn with_tiers(first: &str, second: &str) -> String {
    format!(
        "version: 1\ntiers: [{first}, {second}]\nkeys_file: keys.txt\nrules:\n  \
         - {{ name: r, by: api_key|ip, rate: 10/hour, tiers: {{ {second}: 1000/hour }} }}\n"
    )
}

fn start_with_keys(rules: &str, keys: &str) -> TestServer {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.yaml"), rules).unwrap();
    std::fs::write(dir.path().join("keys.txt"), keys).unwrap();
    let mut command = std::process::Command::new(crate::server::BINARY);
    command.args(["serve", "--rules"]).arg(dir.path().join("rules.yaml"));
    TestServer::spawn(command, dir)
}

fn successful(server: &TestServer) -> u64 {
    server.metric("tidegate_config_last_reload_successful")
}

/// Waits until `stale` mentions all of these, or is null if there are none.
fn wait_stale(server: &TestServer, want: &[&str]) {
    wait_for("staleness", || {
        let stale = server.admin_get("/v1/rules").json()["stale"].clone();
        let reason = stale.as_str().unwrap_or_default();
        let all = ["rules: ", "keys: "];
        all.iter().all(|what| reason.contains(what) == want.contains(what)).then_some(())
    });
}

/// The time is printed and not asserted.
#[test]
fn an_added_key_is_in_force_without_a_restart() {
    let server = start_with_keys(&with_tiers("free", "pro"), &key_line("old", "free"));
    let limit = |key: &str| -> Value {
        let body = format!(r#"{{"attributes": {{"api_key": "{key}", "ip": "192.0.2.1"}}}}"#);
        server.post("/v1/peek", &body).json()["limit"].clone()
    };
    assert_eq!(limit("new"), 10, "a key that is not listed counts as none");
    let begun = Instant::now();
    server.write("keys.txt", &(key_line("old", "free") + &key_line("new", "pro")));
    wait_for("the key", || (limit("new") == 1000).then_some(()));
    eprintln!("a new key was in force after {:?}", begun.elapsed());
    assert_eq!(limit("old"), 10);
}

#[test]
fn rules_that_vanish_or_break_leave_the_last_good_ones_and_are_reported() {
    let server = TestServer::start(&rules('a'));
    std::fs::remove_file(server.rules_path()).unwrap();
    server.signal("HUP");
    server.wait_log(|line| line["message"].as_str().is_some_and(|m| m.starts_with("rejected")));
    assert_eq!(server.post("/v1/check", &check_body("192.0.2.1", "/")).json()["limits"][0]["rule"], "a1");
    assert!(server.admin_get("/v1/rules").json()["stale"].is_string());
    server.write("rules.yaml", &rules('b'));
    server.signal("HUP");
    wait_for("the new rules", || {
        let decision = server.post("/v1/peek", &check_body("192.0.2.1", "/")).json();
        (decision["limits"][0]["rule"] == "b1").then_some(())
    });
    // Reported just after they came into force.
    wait_for("success", || (successful(&server) == 1).then_some(()));
}

/// Counts are stored by the index of a rate in its list.
#[test]
fn rates_that_a_reload_reorders_are_reported_in_the_log() {
    let rules = |rate: &str| format!("version: 1\nrules: [{{ name: q, by: ip, rate: {rate} }}]\n");
    let server = TestServer::start(&rules("[1000/hour, 20/day]"));
    server.write("rules.yaml", &rules("[1000/hour, 20/day, 900/month]"));
    let reloaded = server.admin_post("/v1/reload", "").json();
    assert_eq!(reloaded["version"], 2, "{reloaded}");
    let is_moved = |line: &Value| {
        let message = line["message"].as_str();
        message.is_some_and(|message| message.contains("changed their place"))
    };
    assert!(!server.lines().iter().any(|(_, line)| is_moved(line)));
    server.write("rules.yaml", &rules("[100/minute, 1000/hour, 20/day, 900/month]"));
    assert_eq!(server.wait_log(is_moved)["rules"], "q");
}

/// The limits of a file that is lost from a folder ended without any message.
#[test]
fn rules_that_a_reload_drops_are_reported_in_the_log() {
    let server = TestServer::start(&rules('a'));
    let kept = rules('a').replace("a2", "other");
    server.write("rules.yaml", &kept);
    let line = server.wait_log(|line| line["count"] == 1 && line["level"] == "WARN");
    assert_eq!(line["rules"], "a2");
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("no longer in force"), "{message}");
}

/// A rule that was switched off or to shadow ended its limit without any message.
#[test]
fn rules_that_a_reload_switches_off_are_reported_in_the_log() {
    let rules = |mode: &str| format!("version: 1\nrules: [{{ name: q, by: ip, rate: 5/hour, mode: {mode} }}]\n");
    for mode in ["off", "shadow"] {
        let server = TestServer::start(&rules("enforce"));
        server.write("rules.yaml", &rules(mode));
        let line = server.wait_log(|line| {
            let message = line["message"].as_str();
            message.is_some_and(|message| message.contains("no longer deny"))
        });
        assert_eq!((&line["rules"], &line["level"]), (&"q".into(), &"WARN".into()));
    }
}

fn wait_warning(server: &TestServer, part: &str) -> Value {
    server.wait_log(|line| {
        let message = line["message"].as_str();
        line["level"] == "WARN" && message.is_some_and(|message| message.contains(part))
    })
}

/// A rate that became `unlimited` ended its limit without any message.
#[test]
fn rules_that_a_reload_makes_unlimited_are_reported_in_the_log() {
    let rules = |rate: &str| format!("version: 1\nrules: [{{ name: q, by: ip, rate: {rate} }}]\n");
    let server = TestServer::start(&rules("5/hour"));
    server.write("rules.yaml", &rules("unlimited"));
    assert_eq!(wait_warning(&server, "no longer limit")["rules"], "q");
}

/// A more specific descriptor without a limit freed its value without any message.
#[test]
fn limits_that_another_descriptor_hides_are_reported_in_the_log() {
    let limited = "domain: d
descriptors:
  - { key: user, rate_limit: { unit: hour, requests_per_unit: 5 } }
";
    let server = TestServer::start(limited);
    let hidden = format!("{limited}  - {{ key: user, value: vip }}\n");
    server.write("rules.yaml", &hidden);
    let line = wait_warning(&server, "no longer hold for some values");
    assert_eq!(line["rules"], "d.user");
}

/// A stolen key was no longer blocked once a new one had its name.
#[test]
fn a_blocked_key_that_loses_its_name_is_reported_in_the_log() {
    let rules = with_tiers("free", "pro") + "block: ['key:old-owner']\n";
    let server = start_with_keys(&rules, &key_line("old", "free"));
    let rotated = key_line("new", "free").replace("new-owner", "old-owner");
    server.write("keys.txt", &rotated);
    let line = wait_warning(&server, "keys are no longer blocked");
    assert_eq!(line["count"], 1);
}

/// Blocked clients passed after a reload without any message, for example after a file was lost from a folder.
#[test]
fn blocks_that_a_reload_lifts_are_reported_in_the_log() {
    let rules = |lists: &str| format!("version: 1\nrules: [{{ name: q, by: ip, rate: 5/hour }}]\n{lists}\n");
    let server = TestServer::start(&rules("block: [192.0.2.7, 192.0.2.8, key:stolen-laptop]"));
    server.write("rules.yaml", &rules("block: [192.0.2.7]\nallow: [192.0.2.0/24]"));
    let dropped = wait_warning(&server, "entries of `block` are no longer in force");
    assert_eq!(dropped["entries"], "192.0.2.8, key:sto…");
    assert_eq!(dropped["count"], 2);
    let allowed = wait_warning(&server, "new entries of `allow` override `block`");
    assert_eq!(allowed["entries"], "192.0.2.0/24");
    wait_warning(&server, "has no effect, because `allow` wins");
}

#[test]
fn blocks_of_a_file_that_a_folder_loses_are_reported_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("rules");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("a.yaml"), rules('a')).unwrap();
    let block = "version: 1\nrules: []\nblock: [192.0.2.7]\n";
    std::fs::write(folder.join("b.yaml"), block).unwrap();
    let mut command = std::process::Command::new(crate::server::BINARY);
    command.args(["serve", "--rules"]).arg(&folder);
    let server = TestServer::spawn(command, dir);
    std::fs::remove_file(folder.join("b.yaml")).unwrap();
    let dropped = wait_warning(&server, "entries of `block` are no longer in force");
    assert_eq!(dropped["entries"], "192.0.2.7");
}

/// A reload that changed nothing logged nothing, `/v1/reload` responded before anything was read, and the first
/// rules were version 2.
#[test]
fn a_reload_reports_its_outcome() {
    let server = TestServer::start(&rules('a'));
    let reload = || {
        let reply = server.admin_post("/v1/reload", "").json();
        (reply["status"].clone(), reply["version"].clone(), reply["why"].clone())
    };
    assert_eq!(server.admin_get("/v1/rules").json()["version"], 1);
    assert_eq!(reload(), ("unchanged".into(), 1.into(), Value::Null));
    server.signal("HUP");
    let is = |line: &Value, status: &str| line["message"] == "reload" && line["status"] == status;
    let count = || server.lines().iter().filter(|line| is(&line.1, "unchanged")).count();
    wait_for("a second line", || (count() == 2).then_some(()));
    server.write("rules.yaml", &rules('b'));
    // The file watcher may have been quicker.
    let (status, version, _) = reload();
    assert!(status == "reloaded" || status == "unchanged", "{status}");
    assert_eq!(version, 2);
    server.write("rules.yaml", "version: 1\nrules: [\n");
    let (status, version, why) = reload();
    assert_eq!((status, version), ("rejected".into(), 2.into()));
    assert!(why.as_str().unwrap().contains("rules.yaml"), "{why}");
    server.wait_log(|line| is(line, "rejected") && line["level"] == "WARN");
}

/// Repairing the keys reported success while the rules on disk were still rejected.
#[test]
fn a_reload_is_successful_only_if_both_rules_and_keys_are_in_force() {
    let good = (with_tiers("free", "pro"), key_line("a", "pro"));
    let server = start_with_keys(&good.0, &good.1);
    assert_eq!(successful(&server), 1);
    server.write("rules.yaml", "version: 1\nrules: [\n");
    wait_stale(&server, &["rules: "]);
    server.write("keys.txt", "not a key\n");
    wait_stale(&server, &["rules: ", "keys: "]);
    server.write("keys.txt", &(good.1.clone() + &key_line("b", "pro")));
    wait_stale(&server, &["rules: "]);
    assert_eq!(successful(&server), 0, "the rules are still rejected");
    server.write("keys.txt", "not a key\n");
    wait_stale(&server, &["rules: ", "keys: "]);
    server.write("rules.yaml", &good.0);
    wait_stale(&server, &["keys: "]);
    assert_eq!(successful(&server), 0, "the keys are still rejected");
    server.write("keys.txt", &good.1);
    wait_stale(&server, &[]);
    wait_for("success", || (successful(&server) == 1).then_some(()));
}

/// Good rules after good rules left the old hash, and rejected ones on disk could set theirs.
#[test]
fn the_hash_is_that_of_the_rules_in_force() {
    let server = TestServer::start(&rules('a'));
    let hash = || server.admin_get("/v1/rules").json()["hash"].clone();
    let first = hash();
    server.write("rules.yaml", &rules('b'));
    wait_for("another hash", || (hash() != first).then_some(()));
    let second = hash();
    let sample = format!("tidegate_config_info{{hash={second}}}");
    wait_for("the hash on the metrics page", || (server.metric(&sample) == 1).then_some(()));
    server.write("rules.yaml", "version: 1\nrules: [\n");
    wait_stale(&server, &["rules: "]);
    assert_eq!(hash(), second);
    server.write("rules.yaml", &rules('a'));
    wait_for("the first hash", || (hash() == first).then_some(()));
}

/// `/v1/reload` responded from memory, and both files stayed rejected for good.
#[test]
fn a_tier_renamed_first_in_the_rules_then_in_the_keys_comes_into_force() {
    let server = start_with_keys(&with_tiers("free", "pro"), &key_line("a", "pro"));
    server.write("rules.yaml", &with_tiers("free", "gold"));
    server.admin_post("/v1/reload", "");
    wait_stale(&server, &["rules: "]);
    server.write("keys.txt", &key_line("a", "gold"));
    server.admin_post("/v1/reload", "");
    wait_stale(&server, &[]);
    wait_for("success", || (successful(&server) == 1).then_some(()));
    let body = r#"{"attributes": {"api_key": "a", "ip": "192.0.2.1"}}"#;
    assert_eq!(server.post("/v1/peek", body).json()["limit"], 1000);
}
