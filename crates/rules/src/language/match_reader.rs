//! Reads the `match` of a rule.

use std::borrow::Cow;

use super::condition::{Attribute, AttributeMatcher, Condition, Match, NetMatcher, TextMatcher};
use super::diagnostics::quoted;
use super::fields::Reporter;
use super::glob::Glob;
use super::rule_reader::RuleReader;
use super::values::{self, networks::parse_client_net};
use super::yaml::{Pairs, YamlNode, YamlValue};
use crate::request::{PRIORITY, normalize_pattern, normalize_value};

impl RuleReader<'_, '_> {
    pub(super) fn read_match(&mut self, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Match {
        let Some(pairs) = read_mapping("match", node, report) else { return Match::default() };
        let (mut all, mut none) = (Vec::new(), Vec::new());
        let mut has_not = false;
        for (key, value) in pairs {
            if key.text() == Some("not") {
                if std::mem::replace(&mut has_not, true) {
                    report.error(key.line(), "has `not` twice in its match; keep one");
                }
                for (key, value) in read_mapping("not", value, report).into_iter().flatten() {
                    self.condition("not", key, value, &mut none, report);
                }
            } else {
                self.condition("match", key, value, &mut all, report);
            }
        }
        Match { all: all.into(), none: none.into() }
    }

    fn condition(
        &mut self,
        field: &str,
        key: YamlNode<'_>,
        value: YamlNode<'_>,
        into: &mut Vec<Condition>,
        report: &mut Reporter<'_>,
    ) {
        let Some(name) = report.text(field, key, "the name of an attribute") else { return };
        let Some(attribute) = self.attribute(name, key.line(), report) else { return };
        if into.iter().any(|known| known.attribute == attribute) {
            let message = format!("has {} twice in its {field}; write one list of values", quoted(name));
            report.error(key.line(), message);
            return;
        }
        let texts = report.texts(name, value, "a text, a pattern or a list of them");
        let matcher = match attribute {
            Attribute::Ip => self.nets(&texts, report),
            _ => patterns(attribute.name(), &texts, report),
        };
        into.push(Condition { attribute, matcher });
    }

    fn attribute(&mut self, name: &str, line: u32, report: &mut Reporter<'_>) -> Option<Attribute> {
        let name = report.check(line, self.names.attribute(name).map_err(|wrong| format!("matches {wrong}")))?;
        Some(match &*name {
            "ip" => Attribute::Ip,
            "api_key" => Attribute::ApiKey,
            PRIORITY => Attribute::Priority,
            _ => Attribute::Text(name),
        })
    }

    fn nets(&self, texts: &[(&str, u32)], report: &mut Reporter<'_>) -> AttributeMatcher {
        let net = |text: &str| parse_client_net(text, self.ipv6_prefix).map_err(|wrong| format!("matches ip {wrong}"));
        let nets = texts.iter().filter_map(|(text, line)| report.check(*line, net(text)));
        AttributeMatcher::Nets(NetMatcher::new(nets.collect()))
    }
}

fn read_mapping<'d>(field: &str, node: YamlNode<'d>, report: &mut Reporter<'_>) -> Option<Pairs<'d>> {
    if let YamlValue::Map(pairs) = node.kind() {
        return Some(pairs);
    }
    let message = format!(
        "has {} for `{field}`; write attributes and values, such as {{ path: /login, method: POST }}",
        node.describe()
    );
    report.error(node.line(), message);
    None
}

/// The texts and patterns of an attribute, in the normal form that requests have.
fn patterns(name: &str, texts: &[(&str, u32)], report: &mut Reporter<'_>) -> AttributeMatcher {
    let (mut literals, mut globs) = (Vec::new(), Vec::new());
    for (text, line) in texts {
        if let Some(warning) = values::warning(name, text) {
            report.warn(*line, format!("matches {name} {}, {warning}", quoted(text)));
        }
        match pattern(name, text) {
            Ok(normal) if Glob::is_glob(text) => globs.push(Glob::new(name, &normal)),
            Ok(normal) => literals.push(Box::from(&*normal)),
            Err(wrong) => {
                report.error(*line, format!("matches {name} {}, {wrong}", quoted(text)));
            }
        }
    }
    AttributeMatcher::Texts(TextMatcher::new(literals, globs))
}

/// A text or pattern in normal form, or the error for it.
fn pattern<'t>(name: &str, text: &'t str) -> Result<Cow<'t, str>, String> {
    values::check(name, text)?;
    if name == "path" && Glob::is_glob(text) {
        return normalize_pattern(text).map(Cow::Owned).map_err(str::to_owned);
    }
    normal_text(name, text)
}

/// A text in normal form, or the error for it.
pub(super) fn normal_text<'t>(name: &str, text: &'t str) -> Result<Cow<'t, str>, String> {
    normalize_value(name, text.into()).map_err(|ambiguous| {
        let resolved = ambiguous.resolved.escape_debug();
        format!("which servers read in different ways; write {resolved}")
    })
}
