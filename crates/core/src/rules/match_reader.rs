//! Reads the `match` of a rule.

use std::borrow::Cow;

use super::condition::{Attribute, Condition, Match, Nets, Texts, Wanted};
use super::fault::shown;
use super::glob::Glob;
use super::methods::{self, SEPARATORS};
use super::names::{AttributeNames, meant_name};
use super::net_text::parse_client_net;
use super::slots::Report;
use super::yaml::{Kind, Node, Pairs};
use crate::request::{PRIORITY, Priority, normal_pattern, normal_value};

const MOST_PATTERN_BYTES: usize = 1_024;

/// What reading a match needs to know and keeps.
pub(crate) struct MatchReader<'s> {
    pub(crate) ipv6_prefix: u8,
    pub(crate) names: AttributeNames<'s>,
}

impl MatchReader<'_> {
    pub(crate) fn read(&mut self, node: Node<'_>, report: &mut Report<'_>) -> Match {
        let Some(pairs) = mapping("match", node, report) else {
            return Match::default();
        };
        let mut none = Vec::new();
        let mut all = Vec::new();
        let mut negated = None;
        for (key, value) in pairs {
            if key.text() == Some("not") {
                if negated.replace(()).is_some() {
                    report.fault(key.line(), "has `not` twice in its match; keep one");
                }
                if let Some(pairs) = mapping("not", value, report) {
                    self.conditions("not", pairs, &mut none, report);
                }
            } else {
                self.condition("match", key, value, &mut all, report);
            }
        }
        Match {
            all: all.into(),
            none: none.into(),
        }
    }

    fn conditions(
        &mut self,
        field: &str,
        pairs: Pairs<'_>,
        into: &mut Vec<Condition>,
        report: &mut Report<'_>,
    ) {
        for (key, value) in pairs {
            self.condition(field, key, value, into, report);
        }
    }

    fn condition(
        &mut self,
        field: &str,
        key: Node<'_>,
        value: Node<'_>,
        into: &mut Vec<Condition>,
        report: &mut Report<'_>,
    ) {
        let Some(name) = report.text(field, key, "the name of an attribute") else {
            return;
        };
        let Some(attribute) = self.attribute(name, key.line(), report) else {
            return;
        };
        if into.iter().any(|known| known.attribute == attribute) {
            let message = format!(
                "has {} twice in its {field}; write one list of values",
                shown(name)
            );
            report.fault(key.line(), message);
            return;
        }
        let texts = report.texts(name, value, "a text, a pattern or a list of them");
        let wanted = match attribute {
            Attribute::Ip => self.nets(&texts, report),
            _ => patterns(name, &texts, report),
        };
        into.push(Condition { attribute, wanted });
    }

    fn attribute(&mut self, name: &str, line: u32, report: &mut Report<'_>) -> Option<Attribute> {
        match self.names.find(name) {
            Ok(name) => Some(match &*name {
                "ip" => Attribute::Ip,
                "api_key" => Attribute::ApiKey,
                _ => Attribute::Text(name),
            }),
            Err(wrong) => {
                report.fault(line, format!("matches {wrong}"));
                None
            }
        }
    }

    fn nets(&self, texts: &[(&str, u32)], report: &mut Report<'_>) -> Wanted {
        let mut nets = Vec::with_capacity(texts.len());
        for (text, line) in texts {
            match parse_client_net(text, self.ipv6_prefix) {
                Ok(net) => nets.push(net),
                Err(wrong) => report.fault(*line, format!("matches ip {wrong}")),
            }
        }
        Wanted::Nets(Nets::new(nets))
    }
}

fn mapping<'d>(field: &str, node: Node<'d>, report: &mut Report<'_>) -> Option<Pairs<'d>> {
    match node.kind() {
        Kind::Map(pairs) => Some(pairs),
        kind => {
            let found = match kind {
                Kind::Text(text) => shown(text),
                Kind::List(_) => "a list".to_owned(),
                _ => "nothing".to_owned(),
            };
            let message = format!(
                "has {found} for `{field}`; write attributes and values, such as \
                 {{ path: /login, method: POST }}"
            );
            report.fault(node.line(), message);
            None
        }
    }
}

/// The texts and patterns of an attribute, in the normal form that requests have.
fn patterns(name: &str, texts: &[(&str, u32)], report: &mut Report<'_>) -> Wanted {
    let (mut literals, mut globs) = (Vec::new(), Vec::new());
    for (text, line) in texts {
        match pattern(name, text) {
            Ok(normal) if Glob::is_glob(text) => globs.push(Glob::new(&normal)),
            Ok(normal) => literals.push(Box::from(&*normal)),
            Err(wrong) => {
                report.fault(*line, format!("matches {name} {}, {wrong}", shown(text)));
            }
        }
    }
    Wanted::Texts(Texts::new(literals, globs))
}

/// A text or pattern in normal form, or what is wrong with it.
fn pattern<'t>(name: &str, text: &'t str) -> Result<Cow<'t, str>, String> {
    check_pattern(name, text)?;
    if name == "path" && Glob::is_glob(text) {
        let normal = normal_pattern(text);
        return normal.map(Cow::Owned).map_err(str::to_owned);
    }
    normal_value(name, text.into()).map_err(|ambiguous| {
        let resolved = ambiguous.resolved.escape_debug();
        format!("which servers read in different ways; write {resolved}")
    })
}

fn check_pattern(name: &str, text: &str) -> Result<(), String> {
    if text.len() > MOST_PATTERN_BYTES {
        return Err(format!(
            "which is longer than {MOST_PATTERN_BYTES} bytes; write less"
        ));
    }
    if Glob::is_ambiguous(text) {
        return Err("in which `**` is not a whole segment; write `*` within a segment".to_owned());
    }
    match name {
        "path" if is_regular_expression(text) => Err(
            "which is a regular expression; write `*` within a segment, /** for all below, and %2E* for names that \
             begin with a dot"
                .to_owned(),
        ),
        "path" if !text.starts_with(['/', '*']) => Err(format!(
            "but every path begins with `/`; write /{}",
            text.escape_debug()
        )),
        "path" if text.contains(['?', '#']) => {
            Err("but a path has no query; write what stands before `?` or `#`".to_owned())
        }
        "path" => check_path(text),
        "method" => methods::check(text),
        "host" => check_host(text),
        PRIORITY if !Glob::is_glob(text) => check_priority(text),
        _ => Ok(()),
    }
}

/// What other programs write for several paths, or for parts of a path that may be anything.
fn check_path(text: &str) -> Result<(), String> {
    if text.contains(",/") || text.contains("|/") {
        return Err("which is several paths in one text; write a list: [/login, /signup]".into());
    }
    let is_named = |segment: &str| {
        let enclosed = |open, close| segment.starts_with(open) && segment.ends_with(close);
        let is_enclosed = enclosed('{', '}') || enclosed('<', '>') || enclosed('[', ']');
        segment.starts_with(':') || is_enclosed
    };
    if text.split('/').any(is_named) {
        return Err("in which a segment has a name; write `*` for it".into());
    }
    if text.trim() != text {
        return Err("which has white space at an end; remove it".into());
    }
    Ok(())
}

/// Parentheses and `$` alone are in paths of OData: `/orders(7)`, `/$batch`.
fn is_regular_expression(text: &str) -> bool {
    let signs = [".*", ".+", "(?", "[^", "[0-9", "[a-z", "[A-Z", r"\d", r"\w"];
    let has_alternatives = text.contains('(') && text.contains('|');
    let is_anchored = text.starts_with('^') || text.ends_with('$');
    is_anchored || has_alternatives || signs.iter().any(|sign| text.contains(sign))
}

/// Hosts are compared without scheme, path and port.
fn check_host(text: &str) -> Result<(), String> {
    if text.contains(SEPARATORS) {
        return Err(
            "which is several hosts in one text; write a list: [a.example, b.example]".into(),
        );
    }
    if let Some(domain) = text.strip_prefix('.') {
        return Err(format!(
            "but no host begins with a dot; write *.{}",
            domain.escape_debug()
        ));
    }
    if !text.is_ascii() {
        return Err("but requests have the ASCII form of such a name; write it as xn--...".into());
    }
    if !text.contains('/') {
        return Ok(());
    }
    let host = text.split_once("://").map_or(text, |(_, rest)| rest);
    let host = host.split('/').next().unwrap_or_default();
    Err(format!(
        "but a host has neither scheme nor path; write {}",
        host.escape_debug()
    ))
}

/// Any other text would match requests that count as `normal` all the same.
fn check_priority(text: &str) -> Result<(), String> {
    if Priority::from_name(text).is_some() {
        return Ok(());
    }
    let known = Priority::ALL.map(Priority::name);
    Err(match meant_name(text, &known) {
        Some(near) => format!("which is no priority; write `{near}`?"),
        None => format!("which is no priority; write one of {}", known.join(", ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_only_look_like_a_regular_expression_are_paths() {
        for path in [
            "/$batch",
            "/orders(7)/items",
            "/%2E*",
            "/a+b",
            "/v1/things:run",
            "/~ada",
        ] {
            assert_eq!(check_pattern("path", path), Ok(()), "{path}");
        }
        for path in [
            "^/api", "/api$", "/(a|b)", "/x/.*", "/x/.+", "/[0-9]*", r"/\d",
        ] {
            assert!(is_regular_expression(path), "{path}");
        }
    }
}
