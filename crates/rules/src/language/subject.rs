//! The subject of a request under a rule, as text.
//!
//! An absent attribute never means unlimited: the address replaces it, and all requests without an address share one
//! counter. How the text becomes a fingerprint is not known here.

use std::borrow::Cow;
use std::net::IpAddr;

use super::rule::{Alternatives, By, IfMissing, Rule};
use crate::request::{PRIORITY, Request};

/// The value for one place of a rule's `by`.
pub(crate) enum SubjectValue<'r> {
    Text(&'r str, &'r str),
    Ip(IpAddr),
    Key([u8; 32]),
    Anonymous,
}

/// The subject as an operator writes it in `overrides`: values joined by commas as [`push_value`] does, a key by the
/// name it is listed under. `None` where the address replaces an absent attribute, and `None` for a text that reads
/// as an address or a digest: an override is for what a client is, not for what it claims.
pub(crate) fn subject_text(rule: &Rule, request: &Request<'_>) -> Option<String> {
    let By::All(parts) = rule.by() else { return None };
    let mut out = String::new();
    for (index, alternatives) in parts.iter().enumerate() {
        let value = match subject_value(alternatives, IfMissing::Skip, request)? {
            SubjectValue::Text(_, value) if looks_like_other_kind(value) => return None,
            SubjectValue::Text(_, value) => Cow::Borrowed(value),
            SubjectValue::Ip(ip) => Cow::Owned(ip.to_string()),
            SubjectValue::Key(digest) => match request.api_key.and_then(|key| key.name) {
                Some(name) => Cow::Borrowed(name),
                None => Cow::Owned(digest_text(&digest)),
            },
            SubjectValue::Anonymous => return None,
        };
        push_value(&mut out, &value, index, parts.len());
    }
    Some(out)
}

/// Appends the value of place `index` of `count`. A single value is written as it is. With several values, a comma or
/// backslash inside a value gets a backslash before it, because a client chooses values: otherwise `a,b` and `c`
/// would read as `a` and `b,c`, and one subject would have the rates of another.
pub(super) fn push_value(out: &mut String, value: &str, index: usize, count: usize) {
    if count == 1 {
        return out.push_str(value);
    }
    if index > 0 {
        out.push(',');
    }
    for char in value.chars() {
        if matches!(char, ',' | '\\') {
            out.push('\\');
        }
        out.push(char);
    }
}

/// The values in the text of a subject that has these parts.
pub(super) fn split_subject(text: &str, parts: &[Alternatives]) -> Vec<String> {
    match parts.len() {
        1 => vec![text.to_owned()],
        _ => split_values(text),
    }
}

/// Splits a text of several values and trims the blanks around them. A backslash stands for itself unless a comma or
/// another backslash follows.
fn split_values(text: &str) -> Vec<String> {
    let mut values = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(char) = chars.next() {
        let escaped = chars.next_if(|next| char == '\\' && matches!(next, ',' | '\\'));
        match (escaped, values.last_mut()) {
            (None, _) if char == ',' => values.push(String::new()),
            (found, Some(last)) => last.push(found.unwrap_or(char)),
            (_, None) => {}
        }
    }
    values.iter().map(|value| value.trim().to_owned()).collect()
}

fn looks_like_other_kind(value: &str) -> bool {
    value.starts_with("sha256:") || value.parse::<IpAddr>().is_ok()
}

/// The digest of a key as an operator writes it.
pub(super) fn digest_text(digest: &[u8; 32]) -> String {
    let digits = digest.iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", digits.collect::<String>())
}

/// The value for one place of a `by`; `None` if it is absent and the rule has `if_missing: skip`.
pub(crate) fn subject_value<'r>(
    alternatives: &'r [Box<str>],
    if_missing: IfMissing,
    request: &'r Request<'_>,
) -> Option<SubjectValue<'r>> {
    let present = alternatives.iter().find_map(|name| match &**name {
        "ip" => request.ip.map(SubjectValue::Ip),
        "api_key" => request.api_key.map(|key| SubjectValue::Key(key.digest)),
        // Every request has a priority, and no client can invent another one to have a counter of its own.
        PRIORITY => Some(SubjectValue::Text(PRIORITY, request.priority().name())),
        name => request.text(name).map(|value| SubjectValue::Text(name, value)),
    });
    match (present, if_missing) {
        (Some(value), _) => Some(value),
        (None, IfMissing::Skip) => None,
        (None, IfMissing::Substitute) => Some(request.ip.map_or(SubjectValue::Anonymous, SubjectValue::Ip)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::language::{SourceFile, parse};

    fn joined(values: &[&str]) -> String {
        let mut out = String::new();
        for (index, value) in values.iter().enumerate() {
            push_value(&mut out, value, index, values.len());
        }
        out
    }

    #[test]
    fn different_values_never_read_the_same() {
        assert_eq!(joined(&["acme", "GET"]), "acme,GET");
        assert_eq!(joined(&["a,b", "c"]), r"a\,b,c");
        assert_eq!(joined(&["a", "b,c"]), r"a,b\,c");
        assert_eq!(joined(&[r"a\", "b"]), r"a\\,b");
        assert_eq!(joined(&["a,b"]), "a,b", "one value is written as it is");
    }

    /// An override for `normal` did not hold for requests without a priority, and an invented priority had a counter
    /// of its own.
    #[test]
    fn a_request_without_a_known_priority_counts_as_normal() {
        let text = "version: 1\nrules: [{ name: r, by: priority, if_missing: skip, rate: 9/s, \
                    overrides: { normal: 1/s } }]\n";
        let file = SourceFile { name: "rules.yaml", text };
        let set = parse(&[file]).unwrap();
        let rule = &set.rules()[0];
        let subject_of = |priority: Option<&'static str>| {
            let request = Request { ip: Some([192, 0, 2, 1].into()), ..Request::default() };
            let request = match priority {
                Some(priority) => request.with(PRIORITY, priority),
                None => request,
            };
            assert!(rule.applies(&request), "{priority:?}");
            subject_text(rule, &request)
        };
        for priority in [None, Some(""), Some("urgent"), Some("Normal"), Some("normal")] {
            assert_eq!(subject_of(priority).as_deref(), Some("normal"), "{priority:?}");
        }
        assert_eq!(subject_of(Some("critical")).as_deref(), Some("critical"));
        assert_eq!(rule.limits(None, "normal")[0].count(), 1);
    }

    #[test]
    fn splitting_undoes_joining() {
        let values = ["", "a", ",", r"\", r"\,", r",\", r"\\,", "a,b", r"a\b", "é,"];
        for first in values {
            for second in values {
                let text = joined(&[first, second, "x"]);
                assert_eq!(split_values(&text), [first, second, "x"], "{text}");
            }
        }
        assert_eq!(split_values(r"C:\x, GET"), [r"C:\x", "GET"]);
    }
}
