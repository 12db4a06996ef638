//! What can go wrong with a server, and what to do about each: one table.
//!
//! A server names its errors by their first word. Inside a script some lose it and arrive as `ERR`, so
//! there the text is looked at. What is not in the table counts as an outage: the fallback decides,
//! and the message is told.

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

/// What TLS says when it cannot be used, by a part of its text, and the cure.
const TLS_TABLE: &[(&str, &str)] = &[
    ("UnknownIssuer", AUTHORITY),
    // An authority of the same name, but not the same one.
    ("BadSignature", AUTHORITY),
    (
        "not valid for name",
        "write the host by a name that its certificate has",
    ),
    ("expired", "give the server a certificate that is valid now"),
    (
        "invalid peer certificate",
        "give the server a certificate that is valid for it",
    ),
    (
        "CertificateRequired",
        "give a certificate of our own with `?cert=FILE&key=FILE`",
    ),
    (
        "received fatal alert",
        "give a certificate that the server knows with `?cert=FILE&key=FILE`",
    ),
];

const AUTHORITY: &str = "give the certificate of the server's authority with `?ca=FILE`";
const NEEDED: &str = "grant the user the commands and keys it needs";

const TIMEOUT: &str = "no answer in time";

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

    /// What an operator wrote cannot be used. `detail` repeats nothing that may be a secret.
    pub(super) fn of_operator(code: &str, detail: &str, cure: &'static str) -> Fault {
        Fault {
            action: Action::AskOperator,
            code: code.to_owned(),
            detail: detail.to_owned(),
            cure,
        }
    }

    /// The same on an encrypted way, where a server that does not speak TLS waits for more.
    pub(super) fn encrypted(self) -> Fault {
        match self.code == TIMEOUT {
            true => Fault {
                cure: "see whether the server is overloaded; if it speaks no TLS on this port, write redis://",
                ..self
            },
            false => self,
        }
    }

    /// The same of a sentinel, which has a login of its own.
    pub(super) fn of_sentinel(fault: &Fault) -> Fault {
        Fault {
            action: fault.action,
            code: format!("sentinel: {}", fault.code),
            detail: fault.detail.clone(),
            cure: match (fault.action, fault.code.as_str()) {
                (_, "NOAUTH" | "WRONGPASS" | "NOPERM" | "authentication failed") => {
                    "give the login of the sentinels with `?sentinel_user=` and `sentinel_pass=`"
                }
                (Action::AskOperator, _) => fault.cure,
                _ => "see whether the sentinels run and can be reached",
            },
        }
    }

    /// The sentinels name several primaries.
    pub(super) fn undecided() -> Fault {
        Fault {
            action: Action::FindPrimary,
            code: "sentinels disagree".to_owned(),
            detail: String::new(),
            cure: "they are asked again by themselves",
        }
    }

    /// Where a primary was looked for is none, or none any more.
    pub(super) fn no_primary() -> Fault {
        Fault {
            action: Action::FindPrimary,
            code: "no primary".to_owned(),
            detail: String::new(),
            cure: "it is looked for by itself",
        }
    }

    /// Reads the error of a call. `secret` is cut out of whatever the server says.
    pub(super) fn of(error: &RedisError, secret: Option<&str>) -> Fault {
        if let Some(code) = error.code() {
            return Fault::answered(code, error.detail().unwrap_or_default(), secret);
        }
        let said_by_tls = error.to_string();
        let row = TLS_TABLE.iter().find(|row| said_by_tls.contains(row.0));
        if let Some((_, cure)) = row.filter(|_| error.is_io_error()) {
            return Fault::of_operator("no TLS", &said_by_tls, cure);
        }
        let (action, code, cure) = if error.is_timeout() {
            (
                Action::FallBack,
                TIMEOUT,
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
        Fault {
            action,
            code: code.to_owned(),
            detail: said(error.detail().unwrap_or_default(), secret),
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

impl std::error::Error for Fault {}
