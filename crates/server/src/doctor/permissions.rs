//! Whether the user has every permission that counting needs. Each command is tried, on the doctor's own keys.

use tidegate::stores::redis::{AdminConnection, MissingPermission, RedisStoreError};

use super::finding::DoctorFinding;
use super::probe::{SilentServer, unless_silent};

/// A script that does nothing, and its hash.
const NOOP_SCRIPT: &[u8] = b"return 1";
const NOOP_SCRIPT_HASH: &[u8] = b"e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
/// A subject that no rule uses, in the form that counters have.
const SUBJECT: &str = "doctor";
/// Keys that are left over expire.
const TTL_SECS: &[u8] = b"60";
const TTL_MILLIS: &[u8] = b"60000";
/// A time in the past: a key with this expiry is deleted at once.
const PAST_MILLIS: &[u8] = b"1";

/// One command that was tried.
#[derive(Clone, Debug)]
pub(super) struct CommandTrial {
    /// As `ACL SETUSER` writes it, without the plus.
    command: &'static str,
    error: Option<RedisStoreError>,
}

/// Tries every command of the recipe in docs/redis.md that this kind of store needs, on keys that begin with
/// `prefix`, and removes the keys.
pub(super) async fn try_commands(
    connection: &AdminConnection,
    prefix: &str,
) -> Result<Vec<CommandTrial>, SilentServer> {
    let [text, hash, scores] = ["text", "hash", "scores"].map(|kind| format!("{prefix}:{kind}"));
    let [text, hash, scores] = [&text, &hash, &scores].map(|key| key.as_bytes());
    let counter = format!("tg:{{{}}}:doctor", connection.tag().unwrap_or(SUBJECT));
    let in_cluster: [(&'static str, &[&[u8]]); 3] = [
        ("cluster|slots", &[b"CLUSTER", b"SLOTS"]),
        ("cluster|info", &[b"CLUSTER", b"INFO"]),
        ("pexpire", &[b"PEXPIRE", hash, TTL_MILLIS]),
    ];
    let commands: [(&'static str, &[&[u8]]); 26] = [
        ("ping", &[b"PING"]),
        ("info", &[b"INFO", b"server"]),
        ("time", &[b"TIME"]),
        ("script|load", &[b"SCRIPT", b"LOAD", NOOP_SCRIPT]),
        ("eval", &[b"EVAL", NOOP_SCRIPT, b"0"]),
        ("evalsha", &[b"EVALSHA", NOOP_SCRIPT_HASH, b"0"]),
        ("eval_ro", &[b"EVAL_RO", NOOP_SCRIPT, b"0"]),
        ("evalsha_ro", &[b"EVALSHA_RO", NOOP_SCRIPT_HASH, b"0"]),
        ("set", &[b"SET", text, b"1", b"EX", TTL_SECS]),
        ("get", &[b"GET", counter.as_bytes()]),
        ("get", &[b"GET", text]),
        // Earlier than the current expiry, so that nothing changes.
        ("expireat", &[b"EXPIREAT", text, b"1", b"GT"]),
        ("hset", &[b"HSET", hash, b"a", b"1"]),
        ("hsetnx", &[b"HSETNX", hash, b"b", b"1"]),
        ("hgetall", &[b"HGETALL", hash]),
        ("hdel", &[b"HDEL", hash, b"a", b"b"]),
        ("zadd", &[b"ZADD", scores, b"1", b"a"]),
        ("pexpireat", &[b"PEXPIREAT", scores, PAST_MILLIS]),
        ("zscore", &[b"ZSCORE", scores, b"a"]),
        ("zcount", &[b"ZCOUNT", scores, b"0", b"1"]),
        ("zrangebyscore", &[b"ZRANGEBYSCORE", scores, b"0", b"1"]),
        ("zrange", &[b"ZRANGE", scores, b"-1", b"-1"]),
        ("zremrangebyscore", &[b"ZREMRANGEBYSCORE", scores, b"2", b"3"]),
        ("zrem", &[b"ZREM", scores, b"a"]),
        ("unlink", &[b"UNLINK", scores]),
        ("del", &[b"DEL", text, hash, scores]),
    ];
    let mut trials = Vec::with_capacity(commands.len());
    let in_cluster = match connection.tag() {
        Some(_) => &in_cluster[..],
        None => &[],
    };
    for (command, words) in in_cluster.iter().chain(&commands) {
        let error = unless_silent(connection.query(words).await)?.err();
        trials.push(CommandTrial { command, error });
    }
    Ok(trials)
}

pub(super) fn permissions(trials: &[CommandTrial]) -> DoctorFinding {
    let check = "permissions";
    let errors = || {
        let all = trials.iter();
        all.filter_map(|trial| Some((trial.command, trial.error.as_ref()?)))
            // There was no script to run: the command itself is permitted.
            .filter(|(_, error)| error.code() != "NOSCRIPT")
    };
    let denied_commands = |what| {
        let of_kind = errors().filter(move |(_, error)| error.missing_permission() == Some(what));
        of_kind.map(|(command, _)| command).collect::<Vec<_>>()
    };
    let (commands, keys) = (denied_commands(MissingPermission::Command), denied_commands(MissingPermission::Key));
    if !commands.is_empty() {
        return missing_commands(check, &commands);
    }
    if let Some(command) = keys.first() {
        let found = format!("the user may run {command}, but not on keys that begin with tg:");
        return DoctorFinding::fail(check, found, "ACL SETUSER USER ~tg:*");
    }
    let (read_only, other): (Vec<_>, Vec<_>) = errors().partition(|(_, error)| error.code() == "READONLY");
    match (other.first(), read_only.is_empty()) {
        (Some((command, error)), _) => {
            DoctorFinding::fail(check, format!("{command} is rejected: {}", error.problem()), error.cure())
        }
        (None, false) => {
            let found = "commands that write cannot be tried on a replica";
            DoctorFinding::warn(check, found, "connect to the primary")
        }
        (None, true) => DoctorFinding::ok(check, "every command that counting takes, on keys tg:*"),
    }
}

/// Read-only scripts are run with `_ro` commands where these are permitted, and otherwise like all others.
fn missing_commands(check: &'static str, commands: &[&str]) -> DoctorFinding {
    let permissions: Vec<String> = commands.iter().map(|name| format!("+{name}")).collect();
    let found = format!("the user may not run {}", commands.join(", "));
    let cure = format!("ACL SETUSER USER {}", permissions.join(" "));
    let is_optional = commands.contains(&"eval_ro") && commands.iter().all(|name| name.ends_with("_ro"));
    if is_optional { DoctorFinding::warn(check, found, cure) } else { DoctorFinding::fail(check, found, cure) }
}
