//! What can go wrong with a server, and what to do about each: one table.
//!
//! A server names its errors by their first word. Inside a script some lose it and arrive as `ERR`, so
//! there the text is looked at. What is not in the table counts as an outage: the fallback decides,
//! and the message is told.

use std::error::Error;
use std::fmt;

use redis::{ErrorKind, RedisError};
use tidegate_core::store::StoreError;
use tidegate_core::units::Nanos;

/// What to do about an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The server does not have the script, and ran nothing: send its text.
    SendText,
    /// This server is no primary, or not any more: connect anew and find out which one is.
    FindPrimary,
    /// The connection is of no more use: connect anew. What was sent may have been charged.
    Reconnect,
    /// The server cannot count just now: decide without it, ask again later.
    FallBack,
    /// The keys are elsewhere: this is a cluster.
    Redirect,
    /// The server will not have us until an operator changes something.
    AskOperator,
    /// We sent something wrong, or found something under our keys that is not ours.
    Report,
}

/// One row: an error by its first word, the text it must contain, what to do, and the cure.
struct Row {
    code: &'static str,
    text: &'static str,
    action: Action,
    cure: &'static str,
}

const fn row(code: &'static str, text: &'static str, action: Action, cure: &'static str) -> Row {
    Row {
        code,
        text,
        action,
        cure,
    }
}

/// The first row that fits counts.
const TABLE: &[Row] = &[
    row(
        "NOSCRIPT",
        "",
        Action::SendText,
        "the script is sent again by itself",
    ),
    row(
        "NOAUTH",
        "",
        Action::AskOperator,
        "give a password in the address of the store",
    ),
    row(
        "WRONGPASS",
        "",
        Action::AskOperator,
        "correct the user or password of the store",
    ),
    row(
        "NOPERM",
        "",
        Action::AskOperator,
        "grant the user the commands and keys it needs",
    ),
    row(
        "DENIED",
        "",
        Action::AskOperator,
        "set a password, or `protected-mode no`, in the server",
    ),
    row(
        "READONLY",
        "",
        Action::FindPrimary,
        "this is a replica; the primary is looked for",
    ),
    row(
        "MASTERDOWN",
        "",
        Action::FindPrimary,
        "this replica has lost its primary",
    ),
    row(
        "MOVED",
        "",
        Action::Redirect,
        "this is a cluster, which cannot be used yet; give it a single server",
    ),
    row(
        "ASK",
        "",
        Action::Redirect,
        "this is a cluster, which cannot be used yet; give it a single server",
    ),
    row(
        "CROSSSLOT",
        "",
        Action::Redirect,
        "this is a cluster, which cannot be used yet; give it a single server",
    ),
    row(
        "CLUSTERDOWN",
        "",
        Action::FallBack,
        "bring the missing part of the cluster back",
    ),
    row(
        "TRYAGAIN",
        "",
        Action::FallBack,
        "slots are moving; it passes by itself",
    ),
    row(
        "LOADING",
        "",
        Action::FallBack,
        "the server is reading its data; it passes by itself",
    ),
    row(
        "BUSY",
        "",
        Action::FallBack,
        "another client's script blocks the server; SCRIPT KILL ends it",
    ),
    row(
        "UNKILLABLE",
        "",
        Action::FallBack,
        "another client's script blocks the server",
    ),
    row(
        "OOM",
        "",
        Action::FallBack,
        "raise `maxmemory` of the server",
    ),
    row(
        "MISCONF",
        "",
        Action::FallBack,
        "the server cannot save its data; see its log",
    ),
    row(
        "NOREPLICAS",
        "",
        Action::FallBack,
        "too few replicas for `min-replicas-to-write`",
    ),
    row(
        "WRONGTYPE",
        "",
        Action::Report,
        "another program uses keys that begin with `tg:`",
    ),
    row("EXECABORT", "", Action::Report, "please report this"),
    row(
        "ERR",
        "max number of clients",
        Action::FallBack,
        "raise `maxclients` of the server",
    ),
    row("ERR", "can't run this command", Action::AskOperator, NEEDED),
    row("ERR", "No permissions", Action::AskOperator, NEEDED),
    row("ERR", "no permissions", Action::AskOperator, NEEDED),
    row(
        "ERR",
        "can't access at least one of the keys",
        Action::AskOperator,
        NEEDED,
    ),
    row(
        "ERR",
        "unknown command",
        Action::AskOperator,
        "the server lacks a command we need",
    ),
    row(
        "ERR",
        "invalid password",
        Action::AskOperator,
        "correct the user or password of the store",
    ),
    row(
        "ERR",
        "AUTH",
        Action::AskOperator,
        "correct the user or password of the store",
    ),
    row(
        "ERR",
        "DB index is out of range",
        Action::AskOperator,
        "write a database the server has",
    ),
    row("ERR", "", Action::Report, "please report this"),
];

/// What happened to a call that nothing came back of.
const LATE: &str = "no answer in time";

/// What a user of the server lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Denied {
    /// The right to run a command.
    Command,
    /// The right to a key.
    Key,
}

const NEEDED: &str = "grant the user the commands and keys it needs";

/// An error of a server or of the way to it. Never tells a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    action: Action,
    code: String,
    detail: String,
    cure: &'static str,
}

impl Fault {
    /// What to do about it.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The first word of the server's answer, or what happened to the connection.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Whether nothing came back, as opposed to a refusal.
    pub fn is_silence(&self) -> bool {
        self.action == Action::Reconnect || self.code == LATE
    }

    /// Which right is missing, if that is what is wrong.
    pub fn denied(&self) -> Option<Denied> {
        let by_script = self.code == "ERR" && self.cure == NEEDED;
        match self.code == "NOPERM" || by_script {
            true if self.detail.contains(" key") => Some(Denied::Key),
            true => Some(Denied::Command),
            false => None,
        }
    }

    /// Whether the connection it came from is of no more use.
    pub(super) fn ends_connection(&self) -> bool {
        let elsewhere = matches!(self.action, Action::Reconnect | Action::FindPrimary);
        elsewhere || self.code == "NOAUTH"
    }

    /// There is no connection, and none is waited for.
    pub(super) fn not_connected(last: Option<&Fault>) -> Fault {
        match last {
            Some(fault) => fault.clone(),
            None => Fault {
                action: Action::Reconnect,
                code: "not connected".to_owned(),
                detail: String::new(),
                cure: "it is connected to by itself",
            },
        }
    }

    /// Reads the error of a call. `secret` is cut out of whatever the server says.
    pub(super) fn of(error: &RedisError, secret: Option<&str>) -> Fault {
        if let Some(code) = error.code() {
            return Fault::answered(code, error.detail().unwrap_or_default(), secret);
        }
        let (action, code, cure) = if error.is_timeout() {
            (
                Action::FallBack,
                LATE,
                "see whether the server is overloaded",
            )
        } else if error.kind() == ErrorKind::AuthenticationFailed {
            let cure = "correct the user or password of the store";
            (Action::AskOperator, "authentication failed", cure)
        } else if error.kind() == ErrorKind::InvalidClientConfig {
            (
                Action::AskOperator,
                "bad address",
                "write redis://HOST:PORT or unix:PATH",
            )
        } else {
            let cure = "see whether the server runs and can be reached";
            (Action::Reconnect, error.category(), cure)
        };
        let system = error.source().filter(|_| error.is_io_error());
        let system = system.map(|system| system.to_string());
        let detail = error.detail().map(str::to_owned).or(system);
        Fault {
            action,
            code: code.to_owned(),
            detail: said(&detail.unwrap_or_default(), secret),
            cure,
        }
    }

    /// Reads an answer of the server that begins with `code`.
    pub(super) fn answered(code: &str, detail: &str, secret: Option<&str>) -> Fault {
        let fits = |row: &&Row| row.code == code && detail.contains(row.text);
        let row = TABLE.iter().find(fits);
        Fault {
            action: row.map_or(Action::FallBack, |row| row.action),
            code: code.to_owned(),
            detail: said(detail, secret),
            cure: row.map_or("see the server's log", |row| row.cure),
        }
    }

    /// The error of the port: an outage, or our own fault.
    pub(super) fn into_store_error(self, command: &'static str, waited: Nanos) -> StoreError {
        let source = Box::new(self);
        match source.action {
            Action::Report => StoreError::Refused { command, source },
            _ => StoreError::Unavailable { waited, source },
        }
    }
}

/// What the server said, without what we sent: it repeats the arguments of a command it does not
/// know, and one of them may be a password.
fn said(detail: &str, secret: Option<&str>) -> String {
    let detail = detail.split(", with args beginning with").next();
    let detail = detail.unwrap_or_default();
    match secret.filter(|secret| !secret.is_empty()) {
        Some(secret) => detail.replace(secret, "***"),
        None => detail.to_owned(),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.detail.as_str() {
            "" => write!(f, "{}: {}", self.code, self.cure),
            detail => write!(f, "{} {detail}: {}", self.code, self.cure),
        }
    }
}

impl Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of Redis 7.0 and 8.2 and Valkey 8.1 and 9.1, outside of scripts and inside.
    #[test]
    fn a_missing_right_is_told_from_other_refusals() {
        for (code, detail, want) in [
            (
                "NOPERM",
                "this user has no permissions to run the 'hset' command",
                Some(Denied::Command),
            ),
            (
                "NOPERM",
                "User x has no permissions to run the 'hset' command",
                Some(Denied::Command),
            ),
            (
                "NOPERM",
                "No permissions to access a key",
                Some(Denied::Key),
            ),
            (
                "NOPERM",
                "this user has no permissions to access one of the keys used as arguments",
                Some(Denied::Key),
            ),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: f_1",
                Some(Denied::Command),
            ),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys mentioned",
                Some(Denied::Key),
            ),
            (
                "READONLY",
                "You can't write against a read only replica.",
                None,
            ),
            ("ERR", "syntax error near a key", None),
        ] {
            let fault = Fault::answered(code, detail, None);
            assert_eq!(fault.denied(), want, "{detail}");
            assert!(!fault.is_silence());
        }
        assert!(Fault::not_connected(None).is_silence());
    }

    #[test]
    fn what_the_system_says_of_a_connection_is_told() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let fault = Fault::of(&RedisError::from(refused), None);
        assert!(fault.to_string().contains("connection refused"), "{fault}");
        assert!(fault.is_silence());
    }
}
