//! Values of attributes in rules: values that no request can have, and values that are probably not meant.
//!
//! The same functions check `match` and `overrides`. A value that can never match would be a limit that does not
//! exist.

mod free_text;
mod hosts;
pub(super) mod methods;
pub(super) mod networks;
mod paths;

use super::diagnostics::quoted;
use super::fields::what_to_write;
use super::glob::Glob;
use super::names::suggest_name;
use crate::request::{PRIORITY, Priority, normalize_method};

const MAX_PATTERN_BYTES: usize = 1_024;

const PATH_WILDCARD: &str = "where `**` is any text and not any number of segments, so that /a/** does not match /a";

/// What is wrong with `text` as a value or pattern of the attribute `name`, and what to write.
pub(super) fn check(name: &str, text: &str) -> Result<(), String> {
    if text.len() > MAX_PATTERN_BYTES {
        return Err(format!("which is longer than {MAX_PATTERN_BYTES} bytes; write less"));
    }
    if text.trim() != text {
        return Err("which has white space at an end; remove it".to_owned());
    }
    if Glob::is_path_attribute(name) && Glob::is_ambiguous(text) && !paths::has_path_parameter(text) {
        return Err(
            "in which `**` is not a whole segment; write `*` within a segment and /** for all below: [/api*, /api*/**]"
                .to_owned(),
        );
    }
    match name {
        "path" => paths::check(text),
        "raw_path" => paths::check_raw(text),
        "method" => methods::check(text),
        "host" => hosts::check(text),
        PRIORITY if !Glob::is_glob(text) => check_priority(text),
        _ => free_text::check(name, text),
    }
}

/// The warning about `text` as a value or pattern of the attribute `name`, if it is probably not meant.
pub(super) fn warning(name: &str, text: &str) -> Option<String> {
    match name {
        "path" => paths::warning(text),
        "raw_path" if !text.is_empty() => paths::raw_warning(text),
        "method" if matches_no_known_value(name, &normalize_method(text), methods::all()) => {
            Some("which no registered method of HTTP matches; correct it unless callers send such methods".to_owned())
        }
        PRIORITY if matches_no_known_value(name, text, Priority::ALL.map(Priority::name)) => {
            Some(format!("which no priority matches; write one of {}", Priority::ALL.map(Priority::name).join(", ")))
        }
        _ if text.is_empty() => Some(format!(
            "which no request has, because an empty text counts as missing; write `not: {{ {name}: \"**\" }}` for requests without it"
        )),
        _ if !Glob::is_path_attribute(name) && has_path_wildcard(text) => {
            Some(format!("{PATH_WILDCARD}; write both in a list"))
        }
        "host" | PRIORITY | "method" => None,
        _ => free_text::warning(name, text),
    }
}

/// Ends of keys under which Envoy sends paths, with a query: an operator names them after the header `:path`.
const PATH_KEY_ENDS: [&str; 3] = ["path", "uri", "url"];

/// What is wrong, without advice, with `value` for the entries of Envoy with `key`, if it is probably not meant. They
/// are compared as they are, and a `*` is any text, also in a path.
pub(super) fn entry_warning(key: &str, value: &str) -> Option<String> {
    if value.trim() != value {
        return Some("which has white space at an end".to_owned());
    }
    let key = key.trim_start_matches(':').to_ascii_lowercase();
    let found = if PATH_KEY_ENDS.iter().any(|end| key.ends_with(end)) {
        paths::raw_warning(value)
    } else if key == "method" {
        let normal = normalize_method(value);
        let is_lower_case = || (normal != value).then(|| format!("which Envoy sends as {}", quoted(&normal)));
        methods::check(value).err().or_else(is_lower_case)
    } else {
        free_text::warning(&key, value)
    };
    let found = found.or_else(|| has_path_wildcard(value).then(|| PATH_WILDCARD.to_owned()))?;
    Some(without_advice(&found).to_owned())
}

/// The part of a warning in front of its advice.
pub(super) fn without_advice(warning: &str) -> &str {
    let advice = warning.find("; write").or_else(|| warning.find("; correct"));
    &warning[..advice.unwrap_or(warning.len())]
}

/// Whether `**` is a segment of `text`, as in patterns of paths.
fn has_path_wildcard(text: &str) -> bool {
    text.contains('/') && text.split('/').any(|segment| segment == "**")
}

/// Whether `text` is a pattern that none of the known values matches.
fn matches_no_known_value(name: &str, text: &str, known: impl IntoIterator<Item = &'static str>) -> bool {
    let glob = Glob::new(name, text);
    Glob::is_glob(text) && !known.into_iter().any(|value| glob.matches(value))
}

/// Rejects any other text, because in a request it counts as `normal`.
fn check_priority(text: &str) -> Result<(), String> {
    if Priority::from_name(text).is_some() {
        return Ok(());
    }
    let known = Priority::ALL.map(Priority::name);
    Err(format!("which is no priority; {}", what_to_write(suggest_name(text, &known), &known)))
}

/// The warning about a method that is not registered for HTTP.
pub(super) fn unregistered_method(method: &str) -> String {
    format!(
        "method {}, which is no registered method of HTTP; correct it unless callers send just that",
        quoted(method)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn white_space_at_an_end_is_wrong_for_every_attribute() {
        for name in ["user", "path", "method", "host", "header.x-a", "raw_path"] {
            for text in [" /a", "/a ", "/a\n", "\t/a"] {
                assert!(check(name, text).is_err(), "{name} {text:?}");
            }
        }
        assert_eq!(check("header.authorization", "Bearer *"), Ok(()));
        assert_eq!(check("user", "Ada Lovelace"), Ok(()));
    }

    #[test]
    fn patterns_that_no_known_value_matches_cause_warnings() {
        for (name, text, is_warned) in [
            ("method", "P*", false),
            ("method", "p*", false),
            ("method", "**", false),
            ("method", "PSO*", true),
            ("priority", "*", false),
            ("priority", "s*", false),
            ("priority", "Crit*", true),
            ("user", "", true),
            ("user", "ada", false),
            ("header.x-uri", "/login/**", true),
            ("header.x-uri", "/login*", false),
            ("header.user-agent", "Mozilla/5.0**", false),
            ("raw_path", "/login/**", false),
        ] {
            assert_eq!(warning(name, text).is_some(), is_warned, "{name} {text:?}");
        }
    }
}
