//! The known errors of servers, of TLS and of this node, each with an action and a cure.
//!
//! The first word of a server's error is its code. Inside a script some errors lose it and arrive as `ERR`; rows
//! for those match the text.

use super::Action::{self, FallBack, FindPrimary, NeedsOperator, Reconnect, Report, SendText};
use super::{IN_SCRIPT, RedisStoreError, TIMEOUT};

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
    row("NOSCRIPT", "", SendText, "the script is sent again automatically"),
    row("NOAUTH", "", NeedsOperator, "give a password in the address of the store"),
    row("WRONGPASS", "", NeedsOperator, "correct the user or password of the store"),
    row("NOPERM", "", NeedsOperator, "grant the user the commands and keys it needs"),
    row("DENIED", "", NeedsOperator, "set a password, or `protected-mode no`, in the server"),
    row(
        "READONLY",
        "",
        FindPrimary,
        "this is a replica; this node searches for the primary, which it can with Sentinel and clusters; write the primary \
         in the address of a single server",
    ),
    row("MASTERDOWN", "", FindPrimary, "this replica has lost its primary"),
    row("MOVED", "", Action::Redirect, CLUSTER),
    row("ASK", "", Action::Redirect, CLUSTER),
    row("CROSSSLOT", "", Action::Redirect, CLUSTER),
    row("CLUSTERDOWN", "", FallBack, "bring the missing shard of the cluster back"),
    row("TRYAGAIN", "", FallBack, "hash slots are moving; this ends by itself"),
    row("LOADING", "", FallBack, "the server is loading its data; this ends by itself"),
    row("BUSY", "", FallBack, "another client's script blocks the server; SCRIPT KILL ends it"),
    row("UNKILLABLE", "", FallBack, "another client's script blocks the server"),
    row("OOM", "", FallBack, "raise `maxmemory` of the server"),
    row("MISCONF", "", FallBack, "the server cannot save its data; see its log"),
    row("NOREPLICAS", "", FallBack, "too few replicas for `min-replicas-to-write`"),
    row("WRONGTYPE", "", Report, "another program uses keys that begin with `tg:`; delete the key"),
    row("EXECABORT", "", Report, "please report this"),
    row("ERR", "max number of clients", FallBack, "raise `maxclients` of the server"),
    row("ERR", "can't run this command", NeedsOperator, NEEDED),
    row("ERR", "No permissions", NeedsOperator, NEEDED),
    row("ERR", "no permissions", NeedsOperator, NEEDED),
    row("ERR", "can't access at least one of the keys", NeedsOperator, NEEDED),
    row("ERR", "unknown command", NeedsOperator, "the server lacks a command that tidegate needs"),
    row("ERR", "invalid password", NeedsOperator, "correct the user or password of the store"),
    row("ERR", "AUTH", NeedsOperator, "correct the user or password of the store"),
    row("ERR", "DB index is out of range", NeedsOperator, "write a database the server has"),
    row("ERR", "cluster support disabled", NeedsOperator, "this server is not a cluster; write redis://HOST:PORT"),
    row("ERR", "written by a newer version", Report, "upgrade this node, or delete the key"),
    row("ERR", IN_SCRIPT, Report, "delete the key"),
    row("ERR", "", Report, "please report this"),
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
const CLUSTER: &str = "write redis+cluster://HOST:PORT if the address has another scheme; with it, hash slots are moving, and this ends by \
                     itself";
pub(super) const NEEDED: &str = "grant the user the commands and keys it needs";

/// Errors that this node finds itself.
impl RedisStoreError {
    /// There is no connection, and calls do not wait for one.
    pub(in crate::stores::redis) const NOT_CONNECTED: RedisStoreError =
        RedisStoreError::new(Reconnect, "not connected", "", "this node reconnects automatically");
    /// This node has not joined the store yet, and no error is known.
    pub(in crate::stores::redis) const NOT_JOINED: RedisStoreError =
        RedisStoreError::new(Reconnect, "not joined", "", "this node joins automatically");
    /// The server, or a replica that took over, has replied to no heartbeat yet.
    pub(in crate::stores::redis) const HEARTBEAT_PENDING: RedisStoreError = RedisStoreError::new(
        FallBack,
        "heartbeat pending",
        "(no heartbeat was acknowledged since the connection was made)",
        "the next one is sent within a second",
    );
    /// A reply belongs to another call, or to none. No further reply of this connection is used.
    pub(in crate::stores::redis) const REPLY_MISMATCH: RedisStoreError = RedisStoreError::new(
        Reconnect,
        "reply mismatch",
        "(a reply belongs to another call)",
        "the connection is replaced automatically; check the proxies between this node and the server",
    );
    /// No server of the cluster serves the hash slot of the keys.
    pub(in crate::stores::redis) const NOT_SERVED: RedisStoreError = RedisStoreError::new(
        FallBack,
        "no server",
        "serves the hash slot of these keys",
        "see whether every hash slot of the cluster is served",
    );
    /// A server of the cluster did not reply when it was queried for the hash slot map.
    pub(in crate::stores::redis) const NO_TOPOLOGY_REPLY: RedisStoreError = RedisStoreError::new(
        FallBack,
        TIMEOUT,
        "(the servers were queried for the hash slots of the cluster)",
        "see whether they hang or the network drops packets",
    );
    /// One call has keys of several hash slots. Nothing was sent.
    pub(in crate::stores::redis) const ACROSS_HASH_SLOTS: RedisStoreError = RedisStoreError::new(
        Report,
        "CROSSSLOT",
        "one call has keys of several hash slots of a cluster",
        "please report this",
    );
    /// The server does not speak TLS on a port where TLS was expected.
    pub(in crate::stores::redis) const NO_TLS: RedisStoreError =
        RedisStoreError::new(NeedsOperator, "no TLS", "(the server speaks no TLS on this port)", NO_TLS);
    /// The sentinels name several primaries.
    pub(in crate::stores::redis) const SENTINELS_DISAGREE: RedisStoreError =
        RedisStoreError::new(FindPrimary, "sentinels disagree", "", "the sentinels are queried again automatically");
    /// The server is not a primary, or not any more.
    pub(in crate::stores::redis) const NO_PRIMARY: RedisStoreError = RedisStoreError::new(
        FindPrimary,
        "no primary",
        "(READONLY, or another server took over)",
        "this node searches for the primary",
    );
}
