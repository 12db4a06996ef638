//! Errors of a server and of the connection to it, each with the action to take.
//!
//! `table` maps the errors of a server to actions. An error that it does not list counts as an outage: the fallback
//! decides, and the message is reported. No error contains a password.

mod cause;
mod table;

use std::borrow::Cow;
use std::error::Error;
use std::fmt;

use redis::{ErrorKind, RedisError};
use tidegate_core::store::{FailureKind, NotJoinedError, StoreError};
use tidegate_core::units::Nanos;

use self::table::{ErrorRow, NEEDED, NO_TLS, TABLE, TLS_TABLE};
use super::liveness::Evidence;
use super::redirect::Redirect;

/// The action to take on an error.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Action {
    /// The server does not have the script and ran nothing: send the script's text.
    SendText,
    /// The server is not a primary, or not any more: reconnect and find the primary.
    FindPrimary,
    /// The connection is of no more use: reconnect. The call may have been charged.
    Reconnect,
    /// The server cannot count at present: fall back, and retry later.
    FallBack,
    /// Another server of the cluster serves the keys: send the call there.
    Redirect,
    /// The server rejects this node until an operator changes something.
    NeedsOperator,
    /// The call was invalid, or a key with our prefix holds foreign data.
    Report,
}

/// The permission that the user of the server lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MissingPermission {
    /// To run a command.
    Command,
    /// To access a key.
    Key,
}

const TIMEOUT: &str = "no reply in time";
/// The server sent something else than replies of Redis.
const INVALID_REPLY: &str = "invalid reply";
const NO_TOPOLOGY: &str = "no hash slot map:";
/// Part of every error raised inside a script. Our scripts raise one on a record that they cannot read.
const IN_SCRIPT: &str = "user_script";
/// Maximum of keys of a call that an error lists.
const MAX_KEYS: usize = 4;

/// An error of a server or of the connection to it. Never contains a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RedisStoreError {
    action: Action,
    code: Cow<'static, str>,
    detail: Cow<'static, str>,
    cure: &'static str,
    redirect: Option<Redirect>,
}

impl RedisStoreError {
    /// The action to take.
    pub fn action(&self) -> Action {
        self.action
    }

    /// The first word of the server's error reply, or what happened to the connection.
    pub fn code(&self) -> &str {
        &self.code
    }

    /// Whether there was no reply, as opposed to an error reply.
    pub fn is_silence(&self) -> bool {
        // A timeout of a sentinel has a prefix.
        self.action == Action::Reconnect || self.code.ends_with(TIMEOUT)
    }

    /// Whether no process listens at the address.
    pub(super) fn is_connection_refused(&self) -> bool {
        self.detail.contains("refused")
    }

    /// The problem, without the cure.
    pub fn problem(&self) -> String {
        match &*self.detail {
            "" => self.code.to_string(),
            detail => format!("{} {detail}", self.code),
        }
    }

    /// The advice for an operator.
    pub fn cure(&self) -> &'static str {
        self.cure
    }

    /// What this error of a connection attempt shows about an older connection that has gone silent.
    pub(super) fn evidence(&self) -> Evidence {
        if self.is_silence() && !self.is_connection_refused() { Evidence::Silence } else { Evidence::Reply }
    }

    /// The missing permission, if that is the problem.
    pub fn missing_permission(&self) -> Option<MissingPermission> {
        let by_script = self.code == "ERR" && self.cure == NEEDED;
        if self.code != "NOPERM" && !by_script {
            None
        } else if self.detail.contains(" key") {
            Some(MissingPermission::Key)
        } else {
            Some(MissingPermission::Command)
        }
    }

    /// Whether the connection is of no more use after this error.
    pub(super) fn ends_connection(&self) -> bool {
        let elsewhere = matches!(self.action, Action::Reconnect | Action::FindPrimary);
        elsewhere || self.code == "NOAUTH"
    }

    const fn new(action: Action, code: &'static str, detail: &'static str, cure: &'static str) -> RedisStoreError {
        RedisStoreError { action, code: Cow::Borrowed(code), detail: Cow::Borrowed(detail), cure, redirect: None }
    }

    /// A server of the cluster returned no valid hash slot map.
    pub(super) fn no_topology(detail: String) -> RedisStoreError {
        let cure = "see whether the cluster was created and its hash slots are served";
        RedisStoreError { detail: Cow::Owned(detail), ..RedisStoreError::new(Action::FallBack, NO_TOPOLOGY, "", cure) }
    }

    /// The configuration is invalid. `detail` must not contain anything that may be a secret.
    pub(super) fn needs_operator(code: &'static str, detail: &str, cure: &'static str) -> RedisStoreError {
        let error = RedisStoreError::new(Action::NeedsOperator, code, "", cure);
        RedisStoreError { detail: Cow::Owned(detail.to_owned()), ..error }
    }

    /// Adjusts the cure for an encrypted connection: a server without TLS waits for more bytes and looks silent.
    pub(super) fn with_tls_cure(self) -> RedisStoreError {
        if self.code != TIMEOUT {
            return self;
        }
        let cure = "see whether the server is overloaded or paused, and speaks TLS on this port";
        RedisStoreError { cure, ..self }
    }

    /// The same error from a sentinel, which has a login of its own.
    pub(super) fn from_sentinel(error: &RedisStoreError) -> RedisStoreError {
        RedisStoreError {
            action: error.action,
            code: format!("sentinel: {}", error.code).into(),
            detail: error.detail.clone(),
            cure: match (error.action, &*error.code) {
                (_, "NOAUTH" | "WRONGPASS" | "NOPERM" | "authentication failed") => {
                    "give the login of the sentinels with `?sentinel_user=` and `sentinel_pass=`"
                }
                (Action::NeedsOperator, _) => error.cure,
                _ => "see whether the sentinels run and can be reached",
            },
            redirect: None,
        }
    }

    /// Converts the error of a call. `secret` is removed from the server's text.
    pub(super) fn from_redis(error: &RedisError, secret: Option<&str>) -> RedisStoreError {
        if let Some(code) = error.code() {
            let store_error = RedisStoreError::from_reply(code, error.detail().unwrap_or_default(), secret);
            let redirect = Redirect::of(error);
            return RedisStoreError { redirect, ..store_error };
        }
        let tls_text = error.to_string();
        let row = TLS_TABLE.iter().find(|row| tls_text.contains(row.0));
        match row.filter(|_| error.is_io_error()) {
            Some((_, NO_TLS)) => return RedisStoreError::NO_TLS,
            Some((mark, cure)) => {
                let detail = without_host(&tls_text, mark);
                return RedisStoreError::needs_operator("no TLS", detail, cure);
            }
            None => {}
        }
        let (action, code, cure) = if error.is_timeout() {
            (Action::FallBack, TIMEOUT, "see whether the server is overloaded or paused; CLIENT UNPAUSE ends a pause")
        } else if error.kind() == ErrorKind::AuthenticationFailed {
            let cure = "correct the user or password of the store";
            (Action::NeedsOperator, "authentication failed", cure)
        } else if error.kind() == ErrorKind::InvalidClientConfig {
            (Action::NeedsOperator, "bad address", "write redis://HOST:PORT or unix:PATH")
        } else if error.kind() == ErrorKind::Parse {
            (
                Action::Reconnect,
                INVALID_REPLY,
                "see whether the address of the store is that of a Redis or Valkey server",
            )
        } else {
            let cure = "see whether the server runs and can be reached";
            (Action::Reconnect, error.category(), cure)
        };
        let system = error.source().filter(|_| error.is_io_error());
        let system = system.map(|system| system.to_string());
        let detail = error.detail().map(str::to_owned).or(system);
        RedisStoreError {
            action,
            code: code.to_owned().into(),
            detail: sanitized(&detail.unwrap_or_default(), secret).into(),
            cure,
            redirect: None,
        }
    }

    /// Converts an error reply of the server that begins with `code`.
    pub(super) fn from_reply(code: &str, detail: &str, secret: Option<&str>) -> RedisStoreError {
        let fits = |row: &&ErrorRow| row.code == code && detail.contains(row.text);
        let row = TABLE.iter().find(fits);
        RedisStoreError {
            action: row.map_or(Action::FallBack, |row| row.action),
            code: code.to_owned().into(),
            detail: sanitized(detail, secret).into(),
            cure: row.map_or("see the server's log", |row| row.cure),
            redirect: None,
        }
    }

    /// The redirect to the server that has the keys, if it is one.
    pub(super) fn redirect(&self) -> Option<&Redirect> {
        self.redirect.as_ref()
    }

    /// Whether the topology of the cluster may have changed.
    pub(super) fn suggests_topology_change(&self) -> bool {
        let elsewhere = matches!(self.action, Action::Redirect | Action::FindPrimary | Action::Reconnect);
        elsewhere || self.is_silence() || self.code == "CLUSTERDOWN"
    }

    /// Adjusts the cure of a redirect from a store that is configured as a cluster: hash slots are moving.
    pub(super) fn while_resharding(self) -> RedisStoreError {
        match self.action {
            Action::Redirect => RedisStoreError { cure: "hash slots are moving; this ends by itself", ..self },
            _ => self,
        }
    }

    /// Adds the keys of the call, if one of their records cannot be read. A key names a rule and no identity.
    pub(super) fn with_keys(mut self, keys: &[Vec<u8>]) -> RedisStoreError {
        if self.kind() == FailureKind::Record {
            let keys = keys.iter().take(MAX_KEYS).map(|key| key.escape_ascii().to_string());
            *self.detail.to_mut() += &format!(" (key {})", keys.collect::<Vec<_>>().join(" or "));
        }
        self
    }

    /// The error of the port: an outage, or a bug.
    pub(super) fn into_store_error(self, command: &'static str, waited: Nanos) -> StoreError {
        if self.code == RedisStoreError::NOT_JOINED.code {
            let source = Box::new(NotJoinedError);
            return StoreError::Unavailable { waited, source };
        }
        let source = Box::new(self);
        match source.action {
            Action::Report => StoreError::Rejected { command, source },
            _ => StoreError::Unavailable { waited, source },
        }
    }
}

/// The server's text without our arguments: a server repeats the arguments of an unknown command, and one of them
/// may be a password. Newer servers name the user that lacks a permission, and TLS names the host: both are
/// removed.
fn sanitized(detail: &str, secret: Option<&str>) -> String {
    let before = |mark| detail.split(mark).next().unwrap_or_default();
    let detail = without_script(before(", with args beginning with"));
    let detail = match detail.split_once(" has no permissions") {
        Some((user, rest)) if user.starts_with("User ") => {
            format!("this user has no permissions{rest}")
        }
        _ => detail.to_owned(),
    };
    match secret.filter(|secret| !secret.is_empty()) {
        Some(secret) => detail.replace(secret, "***"),
        None => detail,
    }
}

/// The text of an error inside a script, without the hash of the script.
fn without_script(detail: &str) -> &str {
    let is_hash = |word: &str| {
        let hash = word.strip_prefix("f_").unwrap_or(word);
        !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    match detail.rsplit_once(" script: ") {
        Some((error, place)) if place.split(',').next().is_some_and(is_hash) => error,
        _ => detail,
    }
}

/// The text of a TLS error, up to the name of the host.
fn without_host<'t>(text: &'t str, mark: &str) -> &'t str {
    match text.find(mark) {
        Some(at) if mark.ends_with("name") => &text[..at + mark.len()],
        _ => text,
    }
}

impl fmt::Display for RedisStoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.problem(), self.cure)
    }
}

impl Error for RedisStoreError {}

#[cfg(test)]
mod tests {
    use super::*;

    /// The texts of Redis 7.0 and 8.2 and Valkey 8.1 and 9.1, outside and inside of scripts.
    #[test]
    fn a_missing_permission_differs_from_other_rejections() {
        for (code, detail, want) in [
            ("NOPERM", "this user has no permissions to run the 'hset' command", Some(MissingPermission::Command)),
            ("NOPERM", "User x has no permissions to run the 'hset' command", Some(MissingPermission::Command)),
            ("NOPERM", "No permissions to access a key", Some(MissingPermission::Key)),
            (
                "NOPERM",
                "this user has no permissions to access one of the keys used as arguments",
                Some(MissingPermission::Key),
            ),
            (
                "ERR",
                "The user executing the script can't run this command or subcommand script: f_1",
                Some(MissingPermission::Command),
            ),
            (
                "ERR",
                "The user executing the script can't access at least one of the keys mentioned",
                Some(MissingPermission::Key),
            ),
            ("READONLY", "You can't write against a read only replica.", None),
            ("ERR", "syntax error near a key", None),
        ] {
            let error = RedisStoreError::from_reply(code, detail, None);
            assert_eq!(error.missing_permission(), want, "{detail}");
            assert!(!error.is_silence());
        }
        assert!(RedisStoreError::NOT_CONNECTED.is_silence());
    }

    #[test]
    fn only_the_hash_of_a_script_is_removed() {
        for (detail, want) in [
            ("You can't write. script: bc80826b, on @user_script:14.", "You can't write."),
            ("can't run this command or subcommand script: f_1", "can't run this command or subcommand"),
            (
                "ACL failure in script: No permissions to access a key script: d9",
                "ACL failure in script: No permissions to access a key",
            ),
            (
                "ACL failure in script: No permissions to access a key",
                "ACL failure in script: No permissions to access a key",
            ),
        ] {
            assert_eq!(sanitized(detail, None), want);
        }
    }

    #[test]
    fn the_system_error_of_a_connection_is_reported() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = RedisStoreError::from_redis(&RedisError::from(refused), None);
        assert!(error.to_string().contains("connection refused"), "{error}");
        assert!(error.is_silence());
    }
}
