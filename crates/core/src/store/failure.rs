//! Causes of store failures: a short kind for a metric label and a text for operators.

use std::fmt;
use std::sync::Arc;

use super::StoreError;

crate::named_enum! {
    /// The kind of a store failure. Its name is stable and fit for a metric label.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
    pub enum FailureKind {
        /// The connection is refused, closed or reset.
        Refused = "refused",
        /// Requests are in flight and no reply of any kind arrives.
        Silent = "silent",
        /// A reply did not arrive before the client library stopped waiting for it.
        Timeout = "timeout",
        /// The user or the password is wrong or missing.
        Auth = "auth",
        /// The user lacks a permission.
        Permission = "permission",
        /// The server does not write because it cannot save its data.
        Misconf = "misconf",
        /// The server is a replica.
        Readonly = "readonly",
        /// The server has no memory left.
        Oom = "oom",
        /// The server is reading its data.
        Loading = "loading",
        /// The cluster is incomplete.
        Clusterdown = "clusterdown",
        /// TLS could not be agreed on.
        Tls = "tls",
        /// The host name has no address.
        Dns = "dns",
        /// The reply is not one that the protocol allows.
        Protocol = "protocol",
        /// A record of the store cannot be used: another program or a newer version wrote it, or it is damaged. The
        /// store itself serves.
        Record = "record",
        /// Anything else.
        Other = "other",
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why a store does not serve. Names no address, user or secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureCause {
    /// The kind.
    pub kind: FailureKind,
    /// What happened, and the remedy if one is known, in one line.
    pub text: Arc<str>,
}

impl FailureCause {
    /// A cause of `kind`. The error of a parser may have several lines; the text of a cause is one.
    pub fn new(kind: FailureKind, text: impl Into<Arc<str>>) -> Self {
        let text: Arc<str> = text.into();
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let text = if lines.len() > 1 { lines.join(", ").into() } else { text };
        FailureCause { kind, text }
    }

    /// The cause of an error whose store does not classify its errors.
    pub fn of(error: &StoreError) -> Self {
        match error {
            StoreError::Unavailable { source, .. } => FailureCause::new(FailureKind::Other, source.to_string()),
            StoreError::Rejected { source, .. } => FailureCause::new(FailureKind::Protocol, source.to_string()),
        }
    }
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser of replies reports where it stopped on a line of its own, and a log line was several.
    #[test]
    fn a_cause_is_one_line() {
        let cause = |text: &str| FailureCause::new(FailureKind::Protocol, text).text;
        assert_eq!(
            &*cause("Parse error at 3\nUnexpected `x`\n\n  Expected `+`\n"),
            "Parse error at 3, Unexpected `x`, Expected `+`"
        );
        assert_eq!(&*cause("connection refused"), "connection refused");
    }
}
