//! Errors and warnings about rules files, in a form that someone can act on.
//!
//! An error has a source location, the rule it concerns, and a message that says what was found, why it is wrong and
//! what to write instead. All errors of all files are collected before any is reported. Values from the file are
//! shortened and escaped, so that a hostile file cannot write into a log.

use std::fmt;
use std::sync::Arc;

pub(crate) use tidegate_core::rate::quoted;

/// Errors beyond this number are counted, not stored: nobody reads them, and they cost memory.
const MAX_REPORTED: usize = 1_000;

/// A location in the rules. Prints as `rules.yaml:14`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SourceLocation {
    /// Name of the file as passed to the parser.
    pub file: Arc<str>,
    /// Line, counted from 1; 0 for the file as a whole.
    pub line: u32,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{line}", self.file),
        }
    }
}

/// One error. Prints as
/// ``rules.yaml:14: rule `x` has burst 0, which would deny everything; write 1 or more``.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleError {
    /// Location of the error.
    pub location: SourceLocation,
    /// The rule that the error concerns, if any.
    pub rule: Option<Box<str>>,
    /// What was found, why it is wrong and what to write. Follows the name of the rule.
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, &self.location, self.rule.as_deref(), &self.message)
    }
}

/// Something that is valid and probably not meant. Prints like an error.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// Location of the warning.
    pub location: SourceLocation,
    /// The rule that the warning concerns, if any.
    pub rule: Option<Box<str>>,
    /// What was found, what it causes and what to write. Follows the name of the rule.
    pub message: String,
}

impl Warning {
    /// A warning about no rule in particular.
    pub(crate) fn new(location: &SourceLocation, message: String) -> Self {
        Warning { location: location.clone(), rule: None, message }
    }
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, &self.location, self.rule.as_deref(), &self.message)
    }
}

fn print(f: &mut fmt::Formatter<'_>, location: &SourceLocation, rule: Option<&str>, message: &str) -> fmt::Result {
    match rule {
        Some(rule) => write!(f, "{location}: rule `{rule}` {message}"),
        None => write!(f, "{location}: {message}"),
    }
}

/// All errors, in file order. Prints one error per line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleErrors {
    errors: Vec<RuleError>,
    omitted: usize,
    /// Warnings that only the source text shows.
    warnings: Vec<Warning>,
}

impl RuleErrors {
    /// The errors, at most a thousand.
    pub fn iter(&self) -> impl Iterator<Item = &RuleError> {
        self.errors.iter()
    }

    /// Number of errors, including those that were only counted.
    pub fn count(&self) -> usize {
        self.errors.len() + self.omitted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether further errors are only counted.
    pub(crate) fn is_full(&self) -> bool {
        self.errors.len() >= MAX_REPORTED
    }

    pub(crate) fn push(&mut self, error: RuleError) {
        if self.is_full() {
            self.omitted += 1;
        } else {
            self.errors.push(error);
        }
    }

    /// Takes the warnings that were found beside errors.
    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    pub(crate) fn push_warning(&mut self, warning: Warning) {
        if self.warnings.len() < MAX_REPORTED {
            self.warnings.push(warning);
        }
    }

    /// Sorts by file in the given order, then by line. Errors of one line keep their order.
    pub(crate) fn sort(&mut self, order: impl Fn(&str) -> usize) {
        self.errors.sort_by_key(|error| (order(&error.location.file), error.location.line));
    }
}

impl fmt::Display for RuleErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            let line_break = if i == 0 { "" } else { "\n" };
            write!(f, "{line_break}{error}")?;
        }
        match self.omitted {
            0 => Ok(()),
            more => write!(f, "\nand {more} more errors"),
        }
    }
}

impl std::error::Error for RuleErrors {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_write_into_a_log() {
        assert_eq!(quoted("a\nb\u{1b}[31m"), "`a\\nb\\u{1b}[31m`");
        assert_eq!(quoted(&"x".repeat(100)).len(), 65);
    }
}
