//! The finding of a check: its grade, the observation, and the cure. Plain data, and how it is printed.

use serde_json::{Value, json};
use tidegate::stores::redis::RedisStoreError;

use super::probe::ProbeResult;
use crate::logging::init::is_unsafe;

/// The grade of a finding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Grade {
    /// As it should be.
    Ok,
    /// It works, but the operator should know.
    Warn,
    /// It does not work.
    Fail,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DoctorFinding {
    check: &'static str,
    grade: Grade,
    found: String,
    cure: Option<String>,
    /// The servers of a cluster that the finding is about. Empty: the store as a whole, or its only server.
    servers: Vec<String>,
    /// Whether these are all servers of the cluster.
    is_about_all: bool,
}

impl DoctorFinding {
    pub(super) fn ok(check: &'static str, found: impl Into<String>) -> Self {
        DoctorFinding {
            check,
            grade: Grade::Ok,
            found: found.into(),
            cure: None,
            servers: Vec::new(),
            is_about_all: false,
        }
    }

    pub(super) fn warn(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        DoctorFinding { grade: Grade::Warn, cure: Some(cure.into()), ..DoctorFinding::ok(check, found) }
    }

    pub(super) fn fail(check: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        DoctorFinding { grade: Grade::Fail, ..DoctorFinding::warn(check, found, cure) }
    }

    /// The finding of `judge` about the reply to a probe. An error reply is a finding that `what` cannot be seen, and
    /// how to see it. Not a failure: counting does not need the permission.
    pub(super) fn of_probe<T>(
        check: &'static str,
        probe: &ProbeResult<T>,
        (what, permission): (&str, &str),
        judge: impl FnOnce(&T) -> DoctorFinding,
    ) -> Self {
        match probe {
            Ok(reply) => judge(reply),
            Err(error) => DoctorFinding::hidden(check, what, error, permission),
        }
    }

    /// Something that the user has no permission to see.
    pub(super) fn hidden(check: &'static str, what: &str, error: &RedisStoreError, permission: &str) -> Self {
        let cure = match error.missing_permission() {
            Some(_) => format!("grant {permission} to see it"),
            None => "see the server's log".to_owned(),
        };
        DoctorFinding::warn(check, format!("{what} cannot be seen: {}", error.code()), cure)
    }

    /// The same finding, about these servers.
    pub(super) fn at(self, servers: Vec<String>) -> Self {
        DoctorFinding { servers, ..self }
    }

    /// The same finding, about these servers, which are all servers.
    pub(super) fn at_each(self, servers: Vec<String>) -> Self {
        DoctorFinding { servers, is_about_all: true, ..self }
    }

    /// Whether both belong to one check.
    pub(super) fn is_same_check(&self, other: &DoctorFinding) -> bool {
        self.check == other.check
    }

    pub(crate) fn is_failure(&self) -> bool {
        self.grade == Grade::Fail
    }

    /// The line for people. Text from a server cannot break the line.
    pub(crate) fn line(&self) -> String {
        let grade = match self.grade {
            Grade::Fail => "FAIL",
            grade => grade.name(),
        };
        let at = match &self.servers[..] {
            [] => String::new(),
            _ if self.is_about_all => "each: ".to_owned(),
            servers => format!("{}: ", servers.join(", ")),
        };
        let mut line = format!("{grade:<4}  {:<11}  {at}{}", self.check, self.found);
        if let Some(cure) = &self.cure {
            line += &format!("; {cure}");
        }
        let escaped = |c: char| {
            if is_unsafe(c) { c.escape_unicode().to_string() } else { c.to_string() }
        };
        line.chars().map(escaped).collect()
    }

    /// The object for programs.
    pub(crate) fn json(&self) -> Value {
        let DoctorFinding { check, grade, found, cure, servers, .. } = self;
        json!({"check": check, "grade": grade.name(), "at": servers, "found": found, "cure": cure})
    }
}

impl Grade {
    fn name(self) -> &'static str {
        match self {
            Grade::Ok => "ok",
            Grade::Warn => "warn",
            Grade::Fail => "fail",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_one_line_whatever_text_a_server_sent() {
        let finding = DoctorFinding::warn("version", "Redis 6\r\nok    secret", "use another");
        assert_eq!(finding.line(), r"warn  version      Redis 6\u{d}\u{a}ok    secret; use another");
        let plain = DoctorFinding::ok("nodes", "none");
        assert_eq!(plain.line(), "ok    nodes        none");
        assert_eq!(plain.json()["cure"], Value::Null);
    }
}
