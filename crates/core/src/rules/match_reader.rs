//! Reads the `match` of a rule.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::condition::{Attribute, Condition, Match, Nets, Texts, Wanted};
use super::fault::shown;
use super::glob::Glob;
use super::net_text::parse_client_net;
use super::slots::Report;
use super::yaml::{Kind, Node, Pairs};

const MOST_PATTERN_BYTES: usize = 1_024;

/// What reading a match needs to know and keeps.
pub(crate) struct MatchReader {
    pub(crate) ipv6_prefix: u8,
    /// Attribute names seen, each kept once.
    names: FxHashMap<Box<str>, Arc<str>>,
}

impl MatchReader {
    pub(crate) fn new(ipv6_prefix: u8) -> Self {
        MatchReader {
            ipv6_prefix,
            names: FxHashMap::default(),
        }
    }

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
        match attribute_name(name) {
            Ok(name) if name == "ip" => Some(Attribute::Ip),
            Ok(name) if name == "api_key" => Some(Attribute::ApiKey),
            Ok(name) => {
                let kept = match self.names.get(&*name) {
                    Some(kept) => Arc::clone(kept),
                    None => {
                        let kept: Arc<str> = (&*name).into();
                        self.names.insert((&*name).into(), Arc::clone(&kept));
                        kept
                    }
                };
                Some(Attribute::Text(kept))
            }
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

/// The name of an attribute as requests carry it: header names in lower case.
pub(crate) fn attribute_name(name: &str) -> Result<std::borrow::Cow<'_, str>, String> {
    let fits = |name: &str| {
        !name.is_empty()
            && name.len() <= 100
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.'))
    };
    let header = name.strip_prefix("header.");
    if !fits(name) || header == Some("") || matches!(name, "global" | "not") {
        return Err(format!(
            "{}, which is no name of an attribute; write ip, user, api_key, path, method, \
             header.NAME or a name of your own of letters, digits, `_`, `-` and `.`",
            shown(name)
        ));
    }
    match header {
        Some(header) if header.bytes().any(|b| b.is_ascii_uppercase()) => {
            Ok(name.to_ascii_lowercase().into())
        }
        _ => Ok(name.into()),
    }
}

fn patterns(name: &str, texts: &[(&str, u32)], report: &mut Report<'_>) -> Wanted {
    let (mut literals, mut globs) = (Vec::new(), Vec::new());
    for (text, line) in texts {
        if let Err(wrong) = check_pattern(name, text) {
            report.fault(*line, format!("matches {name} {}, {wrong}", shown(text)));
        } else if Glob::is_glob(text) {
            globs.push(Glob::new(text));
        } else {
            literals.push(Box::from(*text));
        }
    }
    Wanted::Texts(Texts::new(literals, globs))
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
        "method" if text.bytes().any(|b| b.is_ascii_lowercase()) => {
            let upper = text.to_ascii_uppercase();
            Err(format!("but methods are told apart by case; write {upper}"))
        }
        "path" if !text.starts_with(['/', '*']) => Err(format!(
            "but every path begins with `/`; write /{}",
            text.escape_debug()
        )),
        "path" if text.contains(['?', '#']) => {
            Err("but a path has no query; write what stands before `?` or `#`".to_owned())
        }
        _ => Ok(()),
    }
}
