//! The kind of an error, for metrics and logs.

use tidegate_core::store::{FailureCause, FailureKind};

use super::{Action, IN_SCRIPT, INVALID_REPLY, NO_TOPOLOGY, RedisStoreError, TIMEOUT};

impl RedisStoreError {
    /// The cause of an outage: the kind and the text of this error.
    pub fn cause(&self) -> FailureCause {
        // A redirect contains the address of a server.
        let text =
            if self.action == Action::Redirect { format!("{}: {}", self.code, self.cure) } else { self.to_string() };
        FailureCause::new(self.kind(), text)
    }

    pub(super) fn kind(&self) -> FailureKind {
        if self.missing_permission().is_some() {
            return FailureKind::Permission;
        }
        match self.code.trim_start_matches("sentinel: ") {
            TIMEOUT => FailureKind::Timeout,
            "reply mismatch" | INVALID_REPLY => FailureKind::Protocol,
            "NOAUTH" | "WRONGPASS" | "DENIED" | "authentication failed" => FailureKind::Auth,
            "MISCONF" => FailureKind::Misconf,
            "READONLY" | "MASTERDOWN" | "no primary" => FailureKind::Readonly,
            "OOM" => FailureKind::Oom,
            "LOADING" => FailureKind::Loading,
            "CLUSTERDOWN" | "no server" | NO_TOPOLOGY => FailureKind::Clusterdown,
            "no TLS" | "bad certificate" => FailureKind::Tls,
            "WRONGTYPE" => FailureKind::Record,
            "ERR" if self.action == Action::Report && self.detail.contains(IN_SCRIPT) => FailureKind::Record,
            "ERR" if self.detail.contains("AUTH") || self.detail.contains("password") => FailureKind::Auth,
            _ if self.detail.contains("failed to lookup address") => FailureKind::Dns,
            _ if self.is_silence() => FailureKind::Refused,
            _ => FailureKind::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::*;
    use super::*;

    #[test]
    fn a_reply_of_the_server_has_its_kind() {
        for (code, detail, want) in [
            ("WRONGPASS", "invalid username-password pair", "auth"),
            ("NOAUTH", "Authentication required.", "auth"),
            ("NOPERM", "No permissions to access a key", "permission"),
            ("MISCONF", "Redis is configured to save RDB", "misconf"),
            ("READONLY", "You can't write", "readonly"),
            ("OOM", "command not allowed", "oom"),
            ("LOADING", "Redis is loading the dataset", "loading"),
            ("CLUSTERDOWN", "The cluster is down", "clusterdown"),
            ("NOVELTY", "unknown", "other"),
        ] {
            let kind = RedisStoreError::from_reply(code, detail, None).cause().kind;
            assert_eq!(kind.name(), want, "{code}");
        }
    }

    #[test]
    fn a_broken_connection_has_its_kind() {
        let io = |kind| RedisStoreError::from_redis(&RedisError::from(std::io::Error::from(kind)), None);
        let refused = io(std::io::ErrorKind::ConnectionRefused).cause();
        assert_eq!(refused.kind, FailureKind::Refused);
        assert!(refused.text.contains("connection refused"), "{refused}");
        let timeout = io(std::io::ErrorKind::TimedOut).cause();
        assert_eq!(timeout.kind, FailureKind::Timeout);
        let unknown = std::io::Error::other("failed to lookup address information: Name or service");
        let unknown = RedisStoreError::from_redis(&RedisError::from(unknown), None).cause();
        assert_eq!(unknown.kind, FailureKind::Dns);
    }

    /// Logs and pages must not contain configuration values or names of machines.
    #[test]
    fn a_cause_names_no_user_address_or_secret() {
        let named = "User planted-user has no permissions to run the 'evalsha' command";
        let denied = RedisStoreError::from_reply("NOPERM", named, None).cause();
        assert_eq!(denied.kind, FailureKind::Permission);
        let moved = RedisStoreError::from_reply("MOVED", "3999 planted-host:6381", None).cause();
        let repeated = "something about planted-password";
        let repeated = RedisStoreError::from_reply("ERR", repeated, Some("planted-password")).cause();
        let other_name = "invalid peer certificate: certificate not valid for name \"planted-host\"; \
                          certificate is only valid for DnsName(\"planted-other\")";
        let other_name = std::io::Error::new(std::io::ErrorKind::InvalidData, other_name);
        let other_name = RedisStoreError::from_redis(&RedisError::from(other_name), None).cause();
        assert_eq!(other_name.kind, FailureKind::Tls);
        for cause in [denied, moved, repeated, other_name] {
            assert!(!cause.text.contains("planted"), "{cause}");
        }
    }
}
