//! What is wrong with a rules file, told so that someone can act on it.
//!
//! A fault has a place, the rule it is about, and a message that says what was found, why it is
//! wrong and what to write instead. All faults of all files are collected before any is told. Values
//! from the file are shortened and escaped, so that a hostile file cannot write into a log.

use std::fmt;
use std::sync::Arc;

/// More faults than this are counted, not told: nobody reads them, and they cost memory.
const MAX_REPORTED: usize = 1_000;

/// Where in the rules something stands. Prints as `rules.yaml:14`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SourceLocation {
    /// The name of the file as it was handed in.
    pub file: Arc<str>,
    /// The line, counted from 1; 0 for the file as a whole.
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

/// One thing that is wrong. Prints as
/// ``rules.yaml:14: rule `x` has burst 0, which would refuse everything; write 1 or more``.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleError {
    /// Where it stands.
    pub location: SourceLocation,
    /// The rule it is about, if it is about one.
    pub rule: Option<Box<str>>,
    /// What was found, why it is wrong, what to write. Follows the name of the rule.
    pub message: String,
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, &self.location, self.rule.as_deref(), &self.message)
    }
}

/// Something that is allowed and probably not meant. Prints like a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Warning {
    /// Where it stands.
    pub location: SourceLocation,
    /// The rule it is about, if it is about one.
    pub rule: Option<Box<str>>,
    /// What was found, what it leads to, what to write. Follows the name of the rule.
    pub message: String,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        print(f, &self.location, self.rule.as_deref(), &self.message)
    }
}

fn print(
    f: &mut fmt::Formatter<'_>,
    location: &SourceLocation,
    rule: Option<&str>,
    message: &str,
) -> fmt::Result {
    match rule {
        Some(rule) => write!(f, "{location}: rule `{rule}` {message}"),
        None => write!(f, "{location}: {message}"),
    }
}

/// Everything that is wrong, in the order of the files. Prints one fault per line.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RuleErrors {
    errors: Vec<RuleError>,
    omitted: usize,
    /// What is allowed and probably not meant, where only the text as written shows it.
    warnings: Vec<Warning>,
}

impl RuleErrors {
    /// The faults, at most a thousand.
    pub fn iter(&self) -> impl Iterator<Item = &RuleError> {
        self.errors.iter()
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.errors.len() + self.omitted
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Whether further ones are only counted.
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

    /// The warnings that were found beside faults.
    pub(crate) fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    pub(crate) fn push_warning(&mut self, warning: Warning) {
        if self.warnings.len() < MAX_REPORTED {
            self.warnings.push(warning);
        }
    }

    /// Files in the order given, lines ascending; within a line as found.
    pub(crate) fn sort(&mut self, order: impl Fn(&str) -> usize) {
        self.errors
            .sort_by_key(|error| (order(&error.location.file), error.location.line));
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
            more => write!(f, "\nand {more} faults more"),
        }
    }
}

impl std::error::Error for RuleErrors {}

/// A value from the file, fit to be printed: in backquotes, escaped, at most 60 characters.
pub(crate) fn quoted(text: &str) -> String {
    const MAX_CHARS: usize = 60;
    let mut out = String::from("`");
    for (i, c) in text.chars().enumerate() {
        if i == MAX_CHARS {
            out.push_str("...");
            break;
        }
        match c {
            '"' | '\'' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out.push('`');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_write_into_a_log() {
        assert_eq!(quoted("a\nb\u{1b}[31m"), "`a\\nb\\u{1b}[31m`");
        assert_eq!(quoted(&"x".repeat(100)).len(), 65);
    }
}
