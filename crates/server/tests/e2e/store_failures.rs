//! Why the store fails: in the first line of the log, on the ready page and in the metrics, and never with an
//! address, a user or a secret.

use std::io::Write;
use std::net::TcpStream;

use tidegate_testkit::{RedisProgram, TestRedis as Redis};

use crate::http::check_body;
use crate::server::{TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 9/hour }\n";
/// Text that no output may contain: the user and the password of the store.
const CANARY: &str = "planted";

/// A store with one user, and a node that logs in as that user. The node waits as long as it takes, so that no
/// failure is caused by this machine.
fn start_joined(program: RedisProgram, options: &[&str]) -> (Redis, TestServer) {
    let redis = Redis::start(program, options);
    let user = "ACL SETUSER planted-user on >planted-password ~* &* +@all";
    let words: Vec<&str> = user.split(' ').collect();
    assert_eq!(redis.run_command(&words), "OK");
    let url = format!("redis://planted-user:planted-password@127.0.0.1:{}", redis.port());
    let node = TestServer::with(RULES, &["--store", &url, "--store-budget", "30000"]);
    wait_for("an exact node", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    (redis, node)
}

/// After `act` the store fails with `kind`, and the log names `cause` and `cure`.
#[track_caller]
fn check(program: RedisProgram, kind: &str, cause: &str, cure: &str, act: impl FnOnce(&mut Redis)) {
    let (redis, node) = start_joined(program, &[]);
    fails(redis, &node, (kind, cause, cure), act);
}

#[track_caller]
fn fails(mut redis: Redis, node: &TestServer, (kind, cause, cure): (&str, &str, &str), act: impl FnOnce(&mut Redis)) {
    let ready = node.admin_get("/readyz?verbose").json();
    assert_eq!(ready["store"]["exact"], true, "{ready}");
    assert!(ready["store"]["outage"].is_null(), "{ready}");
    act(&mut redis);

    let line = node.wait_log(|line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("the store fails: ")
    });
    let message = line["message"].as_str().unwrap();
    assert_eq!(line["kind"], kind, "{line}");
    assert!(message.contains(cause) && message.contains(cure), "{line}");

    let ready = node.admin_get("/readyz?verbose");
    assert_eq!(ready.status, 200, "a node without its store is ready");
    let page = ready.json();
    assert_eq!(page["store"]["exact"], false, "{page}");
    assert_eq!(node.metric("tidegate_store_exact"), 0);
    assert_eq!(page["store"]["outage"]["kind"], kind, "{page}");
    let counted = node.metric(&format!(r#"tidegate_store_errors_total{{kind="{kind}"}}"#));
    assert!(counted > 0, "{kind}");

    let metrics = node.admin_get("/metrics").body;
    let port = format!(":{}", redis.port());
    let log: Vec<String> = node.lines().iter().map(|(_, l)| l.to_string()).collect();
    for text in log.iter().chain([&ready.body, &metrics]) {
        assert!(!text.contains(CANARY), "{text}");
    }
    assert!(!ready.body.contains(&port), "{}", ready.body);
}

/// Every start counted an error: the first heartbeat came before this node knew the secret of the others, and
/// counted as one without a connection.
#[test]
fn joining_a_healthy_store_is_no_error() {
    for _ in 0..5 {
        let (_redis, node) = start_joined(RedisProgram::Redis7, &[]);
        let page = node.admin_get("/readyz?verbose").json();
        assert_eq!(page["store"]["errors"], serde_json::json!({}), "{page}");
    }
}

/// Such a store replies to pings, so the breaker stays closed. The page had no outage and the metrics no error.
#[test]
fn a_store_that_was_never_joined_is_an_outage() {
    for (scheme, cause, cure) in [
        ("redis", "CLUSTERDOWN", "bring the missing shard"),
        ("redis+cluster", "no hash slot of the cluster is served", "see whether the cluster was created"),
    ] {
        let redis = Redis::start(RedisProgram::Redis7, &["--cluster-enabled", "yes"]);
        let url = format!("{scheme}://127.0.0.1:{}", redis.port());
        let node = TestServer::with(RULES, &["--store", &url]);
        let line = node.wait_log(|line| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("the store fails: ")
        });
        let message = line["message"].as_str().unwrap();
        assert!(message.contains(cause) && message.contains(cure), "{line}");
        let page = node.admin_get("/readyz?verbose").json();
        assert_eq!(page["store"]["outage"]["kind"], "clusterdown", "{page}");
        assert!(page["store"]["errors"]["clusterdown"].as_u64() > Some(0), "{page}");
        let slots = ["CLUSTER", "ADDSLOTSRANGE", "0", "16383"];
        assert_eq!(redis.run_command(&slots), "OK");
        node.wait_log(|line| line["message"] == "the store replies again");
        let page = node.admin_get("/readyz?verbose").json();
        assert!(page["store"]["outage"].is_null(), "{page}");
    }
}

/// Pings of a node that may not join fail too, and their cause must not hide this one.
#[test]
fn a_store_that_a_node_may_not_join_is_an_outage_with_its_cause() {
    let redis = Redis::redis7();
    redis.run_command(&["SET", "tg:ctl:secret", "check:of-others"]);
    let node = TestServer::with(RULES, &["--store", &redis.url()]);
    for (cause, next) in [
        ("have their secret from a file", "of another program"),
        ("another program wrote it", "check:of-others"),
        ("have their secret from a file", "check:of-others"),
    ] {
        wait_for(cause, || {
            let page = node.admin_get("/readyz?verbose").json();
            let shown = page["store"]["outage"]["cause"].as_str()?;
            shown.contains(cause).then_some(())
        });
        redis.run_command(&["SET", "tg:ctl:secret", next]);
    }
    node.wait_log(|line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("the store fails for another reason: ") && message.contains("from a file")
    });
    redis.run_command(&["DEL", "tg:ctl:secret"]);
    node.wait_log(|line| line["message"] == "the store replies again");
}

/// The page showed what this node alone had counted: a client that had used everything seemed to have used nothing.
#[test]
fn the_usage_of_a_client_is_not_shown_without_the_store() {
    let (mut redis, node) = start_joined(RedisProgram::Redis7, &[]);
    let client = check_body("192.0.2.1", "/x");
    for _ in 0..9 {
        assert_eq!(node.post("/v1/check", &client).status, 200);
    }
    let page = node.admin_post("/v1/subjects", &client).json();
    assert_eq!(page["limits"][0]["used"], 9, "{page}");
    redis.kill();
    for path in ["/v1/subjects", "/v1/subjects/reset"] {
        let reply = node.admin_post(path, &client);
        assert_eq!(reply.status, 503, "{reply:?}");
        assert!(reply.body.contains("store_unavailable"), "{reply:?}");
    }
}

#[test]
fn a_store_that_is_gone_fails_with_connection_refused() {
    let cure = "see whether the server runs";
    check(RedisProgram::Redis7, "refused", "refused", cure, |redis| {
        redis.kill();
    });
}

/// The server sends the cause and closes. The cause was lost, and the log had `Connection reset by peer`.
#[test]
fn a_store_with_too_many_clients_is_reported_as_such() {
    let mut operator = None;
    let cure = "raise `maxclients`";
    let cause = "max number of clients reached";
    check(RedisProgram::Redis7, "other", cause, cure, |redis| {
        let mut stream = TcpStream::connect(("127.0.0.1", redis.port())).unwrap();
        let commands = "CONFIG SET maxclients 1\r\nCLIENT KILL TYPE normal SKIPME yes\r\n";
        stream.write_all(commands.as_bytes()).unwrap();
        operator = Some(stream); // the only client that the store has room for
    });
}

#[test]
fn a_wrong_password_is_an_authentication_failure() {
    let cure = "correct the user or password";
    check(RedisProgram::Redis7, "auth", "authentication failed", cure, |redis| {
        let words = ["ACL", "SETUSER", "planted-user", "resetpass", ">other"];
        assert_eq!(redis.run_command(&words), "OK");
        let user = ["CLIENT", "KILL", "USER", "planted-user"];
        redis.run_command(&user);
    });
}

/// Newer servers name the user in this error.
#[test]
fn a_missing_permission_is_named_without_the_user() {
    for program in RedisProgram::ALL {
        let cure = "grant the user the commands";
        check(program, "permission", "NOPERM", cure, |redis| {
            let words = ["ACL", "SETUSER", "planted-user", "-evalsha", "-eval"];
            assert_eq!(redis.run_command(&words), "OK");
        });
    }
}

#[test]
fn a_full_store_is_out_of_memory() {
    check(RedisProgram::Redis7, "oom", "OOM", "raise `maxmemory`", |redis| {
        redis.run_command(&["CONFIG", "SET", "maxmemory", "1"]);
    });
}

#[test]
fn a_replica_is_read_only() {
    check(RedisProgram::Redis7, "readonly", "READONLY", "searches for the primary", |redis| {
        redis.run_command(&["REPLICAOF", "127.0.0.1", "1"]);
    });
}

#[test]
fn a_store_that_cannot_save_is_misconfigured() {
    let folder = tempfile::tempdir().unwrap();
    let options = ["--dir", folder.path().to_str().unwrap()];
    let (redis, node) = start_joined(RedisProgram::Redis7, &options);
    let want = ("misconf", "MISCONF", "see its log");
    fails(redis, &node, want, |redis| {
        folder.close().unwrap();
        redis.run_command(&["CONFIG", "SET", "save", "3600 1"]);
        redis.run_command(&["BGSAVE"]);
    });
}

/// A record that another program wrote, that a newer version wrote, or that is damaged, affects only its client.
#[test]
fn a_record_that_cannot_be_used_leaves_all_others_exact() {
    let damages: [&[&str]; 4] = [
        &["SET", "KEY", "hello world"],
        &["EVAL", "redis.call('DEL', KEYS[1]); redis.call('LPUSH', KEYS[1], 1)", "1", "KEY"],
        &[
            "EVAL",
            "local old = redis.call('GET', KEYS[1]); redis.call('SET', KEYS[1], string.sub(old, 1, -2))",
            "1",
            "KEY",
        ],
        &["EVAL", "redis.call('SET', KEYS[1], string.rep(string.char(255), 21))", "1", "KEY"],
    ];
    for damage in damages {
        let (redis, node) = start_joined(RedisProgram::Redis7, &[]);
        let source = |ip: &str| {
            let reply = node.post("/v1/check", &check_body(ip, "/"));
            reply.json()["source"].as_str().unwrap_or_default().to_owned()
        };
        assert_eq!(source("192.0.2.1"), "exact");
        let key = redis.run_command(&["KEYS", "tg:{*"]);
        let damage: Vec<&str> = damage.iter().map(|word| if *word == "KEY" { &key } else { *word }).collect();
        redis.run_command(&damage);
        for _ in 0..8 {
            assert_eq!(source("192.0.2.1"), "fallback", "{damage:?}");
        }
        let is_named = |line: &serde_json::Value| {
            let message = line["message"].as_str().unwrap_or_default();
            message.starts_with("a record of the store cannot be used") && message.contains(&key)
        };
        node.wait_log(is_named);
        // The decision, and the charge of what it admitted, which fails too.
        wait_for("two rejected calls", || {
            (node.metric(r#"tidegate_store_errors_total{kind="record"}"#) >= 2).then_some(())
        });
        for other in 2..40 {
            assert_eq!(source(&format!("192.0.2.{other}")), "exact", "{damage:?}");
        }
        let page = node.admin_get("/readyz?verbose").json();
        assert_eq!(page["store"]["exact"], true, "{page}");
        let fails =
            |line: &serde_json::Value| line["message"].as_str().is_some_and(|m| m.starts_with("the store fails"));
        assert!(!node.lines().iter().any(|(_, line)| fails(line)), "{damage:?}");
        redis.run_command(&["DEL", &key]);
        wait_for("an exact decision", || (source("192.0.2.1") == "exact").then_some(()));
    }
}

/// The pending units of a damaged record were charged twice after it was deleted. The first node that wrote back
/// its charges found the record gone. It treated its charge as lost although the store had made it, restored what
/// it remembered, and charged all of it once more.
#[test]
fn requests_admitted_beside_a_damaged_record_are_charged_once() {
    const LIMIT: u64 = 200;
    /// The node that first finds the record gone restores what it remembers, which may lack the last charges of the
    /// other.
    const SEEN_BY_ONE: u64 = 3;
    /// So long that nothing drains meanwhile.
    const YEAR: &str = "31536000s";
    let algorithms =
        ["fixed-window", "sliding-window", "sliding-window-strict", "sliding-log", "token-bucket", "leaky-bucket"];
    let rule = |name: &&str| {
        format!("  - {{ name: {name}, match: {{ path: /{name} }}, by: ip, rate: {LIMIT}/{YEAR}, algorithm: {name} }}\n")
    };
    let rules: String = algorithms.iter().map(rule).collect();
    let rules = format!("version: 1\nrules:\n{rules}");
    let redis = Redis::start(RedisProgram::Redis7, &[]);
    let url = redis.url();
    let flags = ["--store", &url, "--store-budget", "30000", "--nodes", "2"];
    let nodes = [(); 2].map(|()| TestServer::with(&rules, &flags));
    for node in &nodes {
        wait_for("an exact node", || (node.metric("tidegate_store_exact") == 1).then_some(()));
    }
    let checks = |node: &TestServer, algorithm: &str, times: usize| {
        let allowed = |_: &usize| {
            let reply = node.post("/v1/check", &check_body("192.0.2.1", &format!("/{algorithm}")));
            reply.json()["allowed"] == true
        };
        (0..times).filter(allowed).count() as u64
    };
    let mut admitted = Vec::new();
    for algorithm in algorithms {
        let before: u64 = nodes.iter().map(|node| checks(node, algorithm, 3)).sum();
        assert_eq!(before, 6);
        let key = redis.run_command(&["KEYS", &format!("tg:{{*:{algorithm}")]);
        redis.run_command(&["SET", &key, "damaged"]);
        let without: u64 = nodes.iter().map(|node| checks(node, algorithm, 100)).sum();
        assert!(without > before, "{algorithm}: so few are hidden by the rest");
        admitted.push((algorithm, key, before + without));
    }
    for (_, key, _) in &admitted {
        redis.run_command(&["DEL", key]);
    }
    for (algorithm, _, admitted) in admitted {
        let peeks = nodes.each_ref().map(|node| {
            wait_for("an exact counter with all units", || {
                let reply = node.post("/v1/peek", &check_body("192.0.2.1", &format!("/{algorithm}")));
                let reply = reply.json();
                let used = LIMIT - reply["remaining"].as_u64().unwrap();
                (reply["source"] == "exact" && used + SEEN_BY_ONE >= admitted).then_some(used)
            })
        });
        assert!(peeks.iter().all(|used| *used <= admitted), "{algorithm}: {peeks:?} of {admitted}");
    }
}

/// The short page is for probes, which have no token. The verbose one is for operators.
#[test]
fn the_verbose_page_requires_the_token_of_the_listener() {
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "a token of the operator\n").unwrap();
    let node = TestServer::with(RULES, &["--admin-token-file", token.to_str().unwrap()]);
    assert_eq!(node.admin_get("/readyz").status, 200);
    assert_eq!(node.admin_get("/readyz?verbose").status, 401);
}
