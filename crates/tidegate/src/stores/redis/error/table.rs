//! The known errors of servers and TLS, each with an action and a cure.
//!
//! The first word of a server's error is its code. Inside a script some errors lose it and arrive as `ERR`; rows
//! for those match the text.

use super::{Action, IN_SCRIPT};

/// One row: the code of an error, the text it must contain, the action, and the cure.
pub(super) struct ErrorRow {
    pub(super) code: &'static str,
    pub(super) text: &'static str,
    pub(super) action: Action,
    pub(super) cure: &'static str,
}

const fn row(code: &'static str, text: &'static str, action: Action, cure: &'static str) -> ErrorRow {
    ErrorRow { code, text, action, cure }
}

/// The first row that matches applies.
pub(super) const TABLE: &[ErrorRow] = &[
    row("NOSCRIPT", "", Action::SendText, "the script is sent again automatically"),
    row("NOAUTH", "", Action::NeedsOperator, "give a password in the address of the store"),
    row("WRONGPASS", "", Action::NeedsOperator, "correct the user or password of the store"),
    row("NOPERM", "", Action::NeedsOperator, "grant the user the commands and keys it needs"),
    row("DENIED", "", Action::NeedsOperator, "set a password, or `protected-mode no`, in the server"),
    row("READONLY", "", Action::FindPrimary, "this is a replica; this node searches for the primary"),
    row("MASTERDOWN", "", Action::FindPrimary, "this replica has lost its primary"),
    row("MOVED", "", Action::Redirect, CLUSTER),
    row("ASK", "", Action::Redirect, CLUSTER),
    row("CROSSSLOT", "", Action::Redirect, CLUSTER),
    row("CLUSTERDOWN", "", Action::FallBack, "bring the missing shard of the cluster back"),
    row("TRYAGAIN", "", Action::FallBack, "hash slots are moving; this ends by itself"),
    row("LOADING", "", Action::FallBack, "the server is loading its data; this ends by itself"),
    row("BUSY", "", Action::FallBack, "another client's script blocks the server; SCRIPT KILL ends it"),
    row("UNKILLABLE", "", Action::FallBack, "another client's script blocks the server"),
    row("OOM", "", Action::FallBack, "raise `maxmemory` of the server"),
    row("MISCONF", "", Action::FallBack, "the server cannot save its data; see its log"),
    row("NOREPLICAS", "", Action::FallBack, "too few replicas for `min-replicas-to-write`"),
    row("WRONGTYPE", "", Action::Report, "another program uses keys that begin with `tg:`; delete the key"),
    row("EXECABORT", "", Action::Report, "please report this"),
    row("ERR", "max number of clients", Action::FallBack, "raise `maxclients` of the server"),
    row("ERR", "can't run this command", Action::NeedsOperator, NEEDED),
    row("ERR", "No permissions", Action::NeedsOperator, NEEDED),
    row("ERR", "no permissions", Action::NeedsOperator, NEEDED),
    row("ERR", "can't access at least one of the keys", Action::NeedsOperator, NEEDED),
    row("ERR", "unknown command", Action::NeedsOperator, "the server lacks a command that tidegate needs"),
    row("ERR", "invalid password", Action::NeedsOperator, "correct the user or password of the store"),
    row("ERR", "AUTH", Action::NeedsOperator, "correct the user or password of the store"),
    row("ERR", "DB index is out of range", Action::NeedsOperator, "write a database the server has"),
    row(
        "ERR",
        "cluster support disabled",
        Action::NeedsOperator,
        "this server is not a cluster; write redis://HOST:PORT",
    ),
    row("ERR", "written by a newer version", Action::Report, "upgrade this node, or delete the key"),
    row("ERR", IN_SCRIPT, Action::Report, "delete the key"),
    row("ERR", "", Action::Report, "please report this"),
];

/// TLS errors, by a part of their text, and the cure.
pub(super) const TLS_TABLE: &[(&str, &str)] = &[
    ("UnknownIssuer", AUTHORITY),
    // An authority of the same name, but with another key.
    ("BadSignature", AUTHORITY),
    ("not valid for name", "write the host by a name that its certificate has"),
    ("expired", "give the server a certificate that is valid now"),
    ("invalid peer certificate", "give the server a certificate that is valid for it"),
    ("CertificateRequired", "give a client certificate with `?cert=FILE&key=FILE`"),
    // A server without TLS read the handshake as a command and replied to it.
    ("received corrupt message", NO_TLS),
    ("received fatal alert", "give a client certificate that the server trusts with `?cert=FILE&key=FILE`"),
];

const AUTHORITY: &str = "give the certificate of the server's authority with `?ca=FILE`";
pub(super) const NO_TLS: &str = "write redis:// instead of rediss://, or the port that has TLS";
const CLUSTER: &str = "this is a cluster; write redis+cluster://HOST:PORT";
pub(super) const NEEDED: &str = "grant the user the commands and keys it needs";
