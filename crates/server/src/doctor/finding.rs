//! What a check found: how it is, what was seen, and the cure. Data, and how it is written.

use serde_json::{Value, json};
use tidegate::stores::redis::Fault;

use crate::logs::is_unsafe;

/// How something is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Grade {
    /// As it should be.
    Ok,
    /// It works, and someone should know.
    Warn,
    /// It does not do what it is there for.
    Fail,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    check: &'static str,
    grade: Grade,
    found: String,
    cure: Option<String>,
    at: At,
}

/// Which servers of a cluster it is about.
#[derive(Clone, PartialEq, Eq, Debug)]
enum At {
    /// The store as a whole, or its only server.
    Store,
    /// Some of several.
    Some(Vec<String>),
    /// All of several.
    Each(Vec<String>),
}

impl Finding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Finding {
            check,
            grade: Grade::Ok,
            found: found.into(),
            cure: None,
            at: At::Store,
        }
    }

    pub(super) fn warn(
        check: &'static str,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Finding {
            grade: Grade::Warn,
            cure: Some(cure.into()),
            ..Finding::ok(check, found)
        }
    }

    pub(super) fn fail(
        check: &'static str,
        found: impl Into<String>,
        cure: impl Into<String>,
    ) -> Self {
        Finding {
            grade: Grade::Fail,
            ..Finding::warn(check, found, cure)
        }
    }

    /// Something that we are not let see. No failure: counting does not need it.
    pub(super) fn unseen(check: &'static str, what: &str, why: &Fault, permission: &str) -> Self {
        let cure = match why.denied() {
            Some(_) => format!("grant {permission} to see it"),
            None => "see the server's log".to_owned(),
        };
        Finding::warn(
            check,
            format!("{what} cannot be seen: {}", why.code()),
            cure,
        )
    }

    /// The same of these servers.
    pub(super) fn at(self, servers: Vec<String>) -> Self {
        let at = At::Some(servers);
        Finding { at, ..self }
    }

    /// The same of these, who are all.
    pub(super) fn at_each(self, servers: Vec<String>) -> Self {
        let at = At::Each(servers);
        Finding { at, ..self }
    }

    /// Whether both are about one check.
    pub(super) fn is_beside(&self, other: &Finding) -> bool {
        self.check == other.check
    }

    pub(crate) fn is_failure(&self) -> bool {
        self.grade == Grade::Fail
    }

    /// For people. What a server said cannot break the line.
    pub(crate) fn line(&self) -> String {
        let grade = match self.grade {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "FAIL",
        };
        let at = match &self.at {
            At::Store => String::new(),
            At::Some(servers) => format!("{}: ", servers.join(", ")),
            At::Each(_) => "each: ".to_owned(),
        };
        let mut line = format!("{grade:<4}  {:<11}  {at}{}", self.check, self.found);
        if let Some(cure) = &self.cure {
            line.push_str("; ");
            line.push_str(cure);
        }
        let escaped = |c: char| match is_unsafe(c) {
            true => c.escape_unicode().to_string(),
            false => c.to_string(),
        };
        line.chars().map(escaped).collect()
    }

    /// For programs.
    pub(crate) fn json(&self) -> Value {
        let grade = match self.grade {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        };
        let at = match &self.at {
            At::Store => &[][..],
            At::Some(servers) | At::Each(servers) => servers,
        };
        json!({
            "check": self.check,
            "grade": grade,
            "at": at,
            "found": self.found,
            "cure": self.cure,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_whatever_a_server_said() {
        let finding = Finding::warn("version", "Redis 6\r\nok    secret", "use another");
        assert_eq!(
            finding.line(),
            r"warn  version      Redis 6\u{d}\u{a}ok    secret; use another"
        );
        let plain = Finding::ok("nodes", "none");
        assert_eq!(plain.line(), "ok    nodes        none");
        assert_eq!(plain.json()["cure"], Value::Null);
    }
}
