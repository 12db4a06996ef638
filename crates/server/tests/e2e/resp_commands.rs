//! The commands that Redis clients send, one by one.

use crate::resp::{RespClient, RespReply};
use crate::server::TestServer;
use crate::window::unit;

const NONE: &str = "version: 1\nrules: []\n";

fn ok() -> RespReply {
    RespReply::Simple("OK".to_owned())
}

fn bulk(text: &str) -> RespReply {
    RespReply::Bulk(text.to_owned())
}

#[test]
fn handshake_commands_get_the_replies_of_redis() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let hello = redis.send_line("HELLO 3 SETNAME me");
    assert!(matches!(hello, RespReply::Map(_)), "{hello:?}");
    assert_eq!(hello.field("proto"), &RespReply::Integer(3));
    assert_eq!(hello.field("role"), &bulk("master"));
    assert_eq!(redis.send_line("client getname"), bulk("me"));
    assert_eq!(redis.send_line("CLIENT SETINFO LIB-NAME x"), ok());
    assert_eq!(redis.send_line("CLIENT SETNAME you"), ok());
    assert_eq!(redis.send_line("CLIENT ID"), *hello.field("id"));
    assert_eq!(redis.send_line("Ping"), RespReply::Simple("PONG".to_owned()));
    assert_eq!(redis.send_line("PING a"), bulk("a"));
    assert_eq!(redis.send_words(&["ECHO", ""]), bulk(""));
    assert_eq!(redis.send_line("SELECT 0"), ok());
    let RespReply::Array(commands) = redis.send_line("COMMAND") else { panic!("COMMAND is a list") };
    assert_eq!(commands.len(), 18);
    assert_eq!(redis.send_line("COMMAND DOCS"), RespReply::Map(vec![]));
    assert_eq!(redis.send_line("COMMAND COUNT"), RespReply::Integer(18));
    let RespReply::Array(command_info) = redis.send_line("COMMAND INFO a cl.throttle") else {
        panic!("COMMAND INFO is a list")
    };
    assert_eq!(command_info, [RespReply::Null, commands[0].clone()]);
    let RespReply::Array(throttle) = &command_info[1] else { panic!("a command is a list") };
    let keys = [1, 1, 1].map(RespReply::Integer);
    assert_eq!(throttle[..2], [bulk("cl.throttle"), RespReply::Integer(-5)]);
    assert_eq!(throttle[3..6], keys, "so that clients know the key");
    let RespReply::Bulk(info) = redis.send_line("info") else { panic!("INFO is text") };
    for line in ["redis_version:", "loading:0\r\n", "role:master\r\n"] {
        assert!(info.contains(line), "{info}");
    }
    let RespReply::Bulk(section) = redis.send_line("INFO REPLICATION") else { panic!("INFO is text") };
    assert!(section.starts_with("# Replication\r\nrole:master"), "{section}");
    assert!(!section.contains("loading"), "{section}");
    assert_eq!(redis.send_line("RESET"), RespReply::Simple("RESET".to_owned()));
    assert!(matches!(redis.send_line("HELLO"), RespReply::Array(pairs) if pairs.len() == 14));
    assert_eq!(redis.send_line("CLIENT GETNAME"), RespReply::Null);
    assert_eq!(redis.send_line("QUIT"), ok());
    assert_eq!(redis.until_closed(), "");
}

#[test]
fn invalid_commands_get_the_error_texts_of_redis() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let cases = [
        ("FOO a b", "ERR unknown command 'FOO', with args beginning with: 'a' 'b'"),
        ("EVAL return 0", "ERR unknown command 'EVAL', with args beginning with: 'return' '0'"),
        ("GET k", "ERR unknown command 'GET', with args beginning with: 'k'"),
        ("CONFIG GET *", "ERR unknown command 'CONFIG', with args beginning with: 'GET' '*'"),
        ("PING a b", "ERR wrong number of arguments for 'ping' command"),
        ("ECHO", "ERR wrong number of arguments for 'echo' command"),
        ("HELLO 4", "NOPROTO unsupported protocol version"),
        ("HELLO x", "ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 FOO", "ERR Syntax error in HELLO option 'FOO'"),
        ("HELLO 3 AUTH a", "ERR Syntax error in HELLO option 'AUTH'"),
        ("SELECT 1", "ERR DB index is out of range"),
        ("SELECT x", "ERR value is not an integer or out of range"),
        ("CLIENT", "ERR wrong number of arguments for 'client' command"),
        ("CLIENT ID x", "ERR wrong number of arguments for 'client|id' command"),
        ("CLIENT MAINT_NOTIFICATIONS ON", "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."),
        ("CLIENT SETINFO x y", "ERR Unrecognized option 'x'"),
        ("COMMAND FOO", "ERR unknown subcommand 'FOO'. Try COMMAND HELP."),
        ("AUTH a b", "WRONGPASS invalid username-password pair or user is disabled."),
        ("TG.REFUND", "ERR wrong number of arguments for 'tg.refund' command"),
        ("TG.REFUND x", "ERR receipt: "),
        ("TG.CHECK ip x", "ERR attribute 'ip': "),
    ];
    for (line, want) in cases {
        let error = redis.error(line);
        assert!(error.starts_with(want), "{line} gives {error}");
    }
    let name = redis.send_words(&["CLIENT", "SETNAME", "a b"]);
    assert!(matches!(name, RespReply::Error(_)), "{name:?}");
    assert_eq!(redis.send_line("PING"), RespReply::Simple("PONG".to_owned()), "still there");
}

/// redis-py and others send every pipeline this way by default.
#[test]
fn a_transaction_is_queued_and_decided_as_one() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    let queued = RespReply::Simple("QUEUED".to_owned());
    let throttle = "CL.THROTTLE k 1 1 3600";
    assert_eq!(redis.send_line("MULTI"), ok());
    for line in [throttle, throttle, throttle, "PING", "CL.THROTTLE k 1 0 1"] {
        assert_eq!(redis.send_line(line), queued, "{line}");
    }
    let mut other = server.redis();
    assert_eq!(other.send_line(throttle).integers()[2], 1, "nothing is charged yet");
    let RespReply::Array(replies) = redis.send_line("EXEC") else { panic!("EXEC is a list") };
    let allowed: Vec<i64> = replies[..3].iter().map(|reply| reply.integers()[0]).collect();
    assert_eq!(allowed, [0, 1, 1]);
    assert_eq!(replies[3], RespReply::Simple("PONG".to_owned()));
    assert!(matches!(replies[4], RespReply::Error(_)), "{replies:?}");
    // A transaction with an unknown or incomplete command runs nothing.
    for bad in ["GET k", "CL.THROTTLE k"] {
        assert_eq!(redis.send_line("MULTI"), ok());
        assert!(redis.error(bad).starts_with("ERR "), "{bad}");
        assert_eq!(redis.send_line("CL.THROTTLE other 0 1 3600"), queued);
        assert!(redis.error("EXEC").starts_with("EXECABORT"), "{bad}");
    }
    assert_eq!(redis.send_line("MULTI"), ok());
    assert_eq!(redis.send_line("CL.THROTTLE other 0 1 3600"), queued);
    assert_eq!(redis.send_line("DISCARD"), ok());
    let first = redis.send_line("CL.THROTTLE other 0 1 3600").integers();
    assert_eq!(first[0], 0, "none of these was charged");
    assert!(redis.error("EXEC").starts_with("ERR EXEC without MULTI"));
    assert_eq!(redis.send_line("MULTI"), ok());
    assert_eq!(redis.send_line("RESET"), RespReply::Simple("RESET".to_owned()));
    assert_eq!(redis.send_line("PING"), RespReply::Simple("PONG".to_owned()));
    assert_eq!(redis.send_line("MULTI"), ok());
    assert_eq!(redis.send_line("EXEC"), RespReply::Array(vec![]));
}

#[test]
fn typed_lines_are_commands() {
    let server = TestServer::with_resp(NONE, &[]);
    let mut redis = server.redis();
    redis.send(b"\r\nPING\r\necho \"a b\\x41\"\nCL.THROTTLE 'my key' 15 30 60\r\n");
    assert_eq!(redis.receive().unwrap(), RespReply::Simple("PONG".to_owned()));
    assert_eq!(redis.receive().unwrap(), bulk("a bA"));
    assert_eq!(redis.receive().unwrap().integers(), [0, 16, 15, -1, 2]);
}

#[test]
fn no_command_runs_before_authentication() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("password");
    std::fs::write(&file, "correct horse battery\n").unwrap();
    let file = file.to_str().unwrap();
    let server = TestServer::with_resp(NONE, &["--resp-password-file", file]);
    let mut redis = server.redis();
    for line in ["PING", "CL.THROTTLE k 1 1 1", "TG.CHECK a b", "INFO", "FOO", "CLIENT ID"] {
        assert_eq!(redis.error(line), "NOAUTH Authentication required.");
    }
    assert!(redis.error("HELLO 3").starts_with("NOAUTH HELLO must be called"));
    let wrong = "WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(redis.error("AUTH correct"), wrong);
    assert_eq!(redis.error("HELLO 3 AUTH default nonsense"), wrong);
    let auth = |redis: &mut RespClient, user| redis.send_words(&["AUTH", user, "correct horse battery"]);
    assert_eq!(auth(&mut redis, "root"), RespReply::Error(wrong.to_owned()));
    assert_eq!(redis.error("PING"), "NOAUTH Authentication required.");
    assert_eq!(auth(&mut redis, "default"), ok());
    assert_eq!(redis.send_line("PING"), RespReply::Simple("PONG".to_owned()));
    assert_eq!(redis.send_line("RESET"), RespReply::Simple("RESET".to_owned()));
    assert_eq!(redis.error("PING"), "NOAUTH Authentication required.");
    let hello = ["HELLO", "3", "AUTH", "default", "correct horse battery"];
    assert_eq!(redis.send_words(&hello).field("proto"), &RespReply::Integer(3));
    assert_eq!(redis.send_words(&["AUTH", "correct horse battery"]), ok());
}

#[test]
fn a_listener_without_a_password_is_warned_of() {
    let warned = |line: &serde_json::Value| {
        let message = line["message"].as_str().unwrap_or_default();
        line["level"] == "WARN" && message.contains("--resp-password-file")
    };
    let server = TestServer::with(NONE, &["--resp", "0.0.0.0:0"]);
    server.wait_log(warned);
    let server = TestServer::with_resp(NONE, &[]);
    server.resp();
    assert!(!server.lines().iter().any(|(_, line)| warned(line)));
}

#[test]
fn an_empty_or_missing_password_file_is_a_configuration_error() {
    let dir = tempfile::tempdir().unwrap();
    let empty = dir.path().join("empty");
    std::fs::write(&empty, "\n").unwrap();
    for file in [empty.as_path(), &dir.path().join("none")] {
        let ran = std::process::Command::new(crate::server::BINARY)
            .args(["serve", "--http", "127.0.0.1:0", "--admin", "off", "--resp", "127.0.0.1:0"])
            .arg("--resp-password-file")
            .arg(file)
            .output()
            .unwrap();
        assert_eq!(ran.status.code(), Some(78));
        let stderr = String::from_utf8_lossy(&ran.stderr);
        assert!(stderr.contains("--resp-password-file"), "{stderr}");
    }
}

/// The rules decide the same through every edge, with the same counter.
#[test]
fn rules_decide_as_they_do_over_http() {
    let rules = format!(
        "version: 1
rules:
  - {{ name: api, match: {{ path: /api/** }}, by: api_key|ip, rate: 3/{unit}, algorithm: fixed-window }}
  - {{ name: tokens, match: {{ path: /llm }}, by: ip, unit: tokens, rate: 100/{unit}, algorithm: fixed-window }}
block: [198.51.100.7]
",
        unit = unit()
    );
    let server = TestServer::with_resp(&rules, &[]);
    let mut redis = server.redis();
    let command = "TG.CHECK ip 203.0.113.9 path /api/x api_key k1";
    let first = redis.send_line(&format!("{command} WITH RECEIPT"));
    assert_eq!(first.field("allowed"), &RespReply::Integer(1));
    assert_eq!(first.field("rule"), &bulk("api"));
    assert_eq!(first.field("remaining"), &RespReply::Integer(2));
    assert_eq!(first.field("retry_after_ms"), &RespReply::Integer(0));
    let body = r#"{"attributes": {"ip": "203.0.113.9", "path": "/api/x", "api_key": "k1"}}"#;
    assert_eq!(server.post("/v1/check", body).json()["remaining"], 1);
    assert_eq!(redis.send_line(command).field("remaining"), &RespReply::Integer(0));
    let denied = redis.send_line(command);
    assert_eq!(denied.field("allowed"), &RespReply::Integer(0));
    assert!(matches!(denied.field("retry_after_ms"), RespReply::Integer(1..)));
    assert_eq!(denied.field("receipt"), &RespReply::Null);
    assert_eq!(server.post("/v1/check", body).status, 429);
    let RespReply::Bulk(receipt) = first.field("receipt") else { panic!("no receipt in {first:?}") };
    let refund = ["TG.REFUND", receipt];
    assert_eq!(redis.send_words(&refund), RespReply::Simple("done".to_owned()));
    assert_eq!(redis.send_words(&refund), RespReply::Simple("already".to_owned()));
    let peek = "TG.PEEK ip 203.0.113.9 path /api/x api_key k1";
    for line in [peek.to_owned(), format!("{command} WITH COST 0")] {
        assert_eq!(redis.send_line(&line).field("remaining"), &RespReply::Integer(1));
    }
    let spent = redis.send_line("TG.CHECK ip 203.0.113.9 path /llm/?x=1 WITH COSTS tokens 90");
    assert_eq!(spent.field("remaining"), &RespReply::Integer(10));
    let unnamed = redis.send_line("TG.CHECK ip 203.0.113.9 path /llm");
    assert_eq!(unnamed.field("remaining"), &RespReply::Integer(9));
    let zero = redis.send_line("TG.CHECK ip 203.0.113.9 path /llm WITH COST 0");
    assert_eq!(zero.field("remaining"), &RespReply::Integer(8));
    let zero = redis.send_line("TG.CHECK ip 203.0.113.9 path /llm WITH COST 0 COSTS tokens 0");
    assert_eq!(zero.field("rule"), &RespReply::Null);
    for verb in ["TG.CHECK", "TG.PEEK"] {
        let misspelt = redis.send_line(&format!("{verb} ip 203.0.113.9 path /llm WITH COSTS tokns 9"));
        let want = "ERR COSTS 'tokns': unknown unit, no rule counts it; write tokens";
        assert_eq!(misspelt, RespReply::Error(want.to_owned()));
    }
    let never = redis.send_line("TG.CHECK ip 203.0.113.9 path /llm WITH COSTS tokens 101");
    assert_eq!(never.field("allowed"), &RespReply::Integer(0));
    assert_eq!(never.field("retry_after_ms"), &RespReply::Integer(-1));
    let blocked = redis.send_line("TG.CHECK ip 198.51.100.7");
    assert_eq!(blocked.field("allowed"), &RespReply::Integer(0));
    assert_eq!(blocked.field("source"), &bulk("block-list"));
    assert_eq!(redis.send_line("TG.CHECK ip 192.0.2.1").field("rule"), &RespReply::Null);
    server.wait_log(|line| line["message"] == "denied" && line["edge"] == "resp");
}

/// A queue would make the client wait; Redis clients cannot, unless the rule sets a maximum.
#[test]
fn a_delay_beyond_the_rule_s_maximum_is_denied_with_that_wait() {
    let rules = "version: 1
rules:
  - { name: none, match: { path: /none }, by: user, rate: 1/hour burst 5, algorithm: leaky-queue }
  - { name: some, match: { path: /some }, by: user, rate: 1/hour burst 5, algorithm: leaky-queue, max_delay: 2h }
";
    let server = TestServer::with_resp(rules, &[]);
    let mut redis = server.redis();
    for (path, second) in [("/none", 0), ("/some", 1)] {
        let command = format!("TG.CHECK user ada path {path}");
        assert_eq!(redis.send_line(&command).field("allowed"), &RespReply::Integer(1));
        let reply = redis.send_line(&command);
        assert_eq!(reply.field("allowed"), &RespReply::Integer(second), "{reply:?}");
        let wait = ["retry_after_ms", "delay_ms"][second as usize];
        assert!(matches!(reply.field(wait), RespReply::Integer(3_000_000..=3_600_000)), "{reply:?}");
    }
}
