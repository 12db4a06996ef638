//! Parses values like the reference service: flags, durations and numbers. All errors are collected, so that an
//! operator sees them at once. Values that may be secrets are never repeated.

use std::fmt::Display;
use std::str::FromStr;
use std::time::Duration;

use super::table;

/// The source of variables: the environment, or a test.
pub(crate) type EnvLookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads variables one by one.
pub(super) struct EnvValues<'a> {
    lookup: EnvLookup<'a>,
    /// Each a variable with an invalid or unsupported value, and what to write instead.
    pub(super) errors: Vec<String>,
    /// Warnings for the operator.
    pub(super) warnings: Vec<String>,
}

impl<'a> EnvValues<'a> {
    pub(super) fn new(lookup: EnvLookup<'a>) -> Self {
        EnvValues { lookup, errors: Vec::new(), warnings: Vec::new() }
    }

    /// A text. An empty value counts as not set.
    pub(super) fn text(&mut self, name: &'static str) -> Option<String> {
        debug_assert!(
            table::find(name).is_some_and(|known| known.support != table::VariableSupport::Ignored),
            "{name} is read, but the table does not list it as read"
        );
        (self.lookup)(name).filter(|text| !text.is_empty())
    }

    /// Whether it is set at all.
    pub(super) fn is_set(&self, name: &str) -> bool {
        (self.lookup)(name).is_some_and(|text| !text.is_empty())
    }

    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        let read = |text: &str| match text {
            "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
            "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
            _ => None,
        };
        self.read(name, "write true or false", read).unwrap_or(false)
    }

    pub(super) fn duration(&mut self, name: &'static str) -> Option<Duration> {
        self.read(name, "write a duration such as 500ms, 10s or 24h", parse_duration)
    }

    pub(super) fn number<T: FromStr>(&mut self, name: &'static str, hint: &'static str) -> Option<T> {
        self.read(name, hint, |text| text.parse().ok())
    }

    /// A text that `read` parses. A text that it cannot parse is an error.
    pub(super) fn read<T>(
        &mut self,
        name: &'static str,
        hint: &str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Option<T> {
        let text = self.text(name)?;
        let value = read(text.trim());
        if value.is_none() {
            let found = text.escape_default();
            self.reject(name, format!("is `{found}`; {hint}"));
        }
        value
    }

    pub(super) fn reject(&mut self, name: &'static str, reason: impl Display) {
        self.errors.push(format!("{name} {reason}"));
    }

    pub(super) fn warn(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }
}

/// A duration in the syntax of Go: `1h30m`, `1.5s`, `0`. Negative values are invalid.
fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text;
    let mut nanos = 0_f64;
    while !rest.is_empty() {
        let number = rest.find(|c: char| c != '.' && !c.is_ascii_digit())?;
        let unit = rest[number..].find(|c: char| c == '.' || c.is_ascii_digit());
        let end = unit.map_or(rest.len(), |unit| number + unit);
        nanos += rest[..number].parse::<f64>().ok()? * nanos_in(&rest[number..end])?;
        rest = &rest[end..];
    }
    // Centuries are beyond every clock here.
    (!text.is_empty() && nanos < 1e19).then(|| Duration::from_nanos(nanos as u64))
}

fn nanos_in(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "µs" | "μs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_in_the_syntax_of_go() {
        for (text, millis) in [
            ("0", 0),
            ("10s", 10_000),
            ("24h", 86_400_000),
            ("1h30m", 5_400_000),
            ("1.5s", 1_500),
            ("250ms", 250),
            ("1m0.5s", 60_500),
        ] {
            assert_eq!(parse_duration(text), Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "10", "-1s", "1d", "s", "1..5s", "1s ", "999999999999h"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }
}
