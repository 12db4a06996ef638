//! Reads a file of the reference service.
//!
//! As there, an unknown name is a fault anywhere but in `metadata`, lists hold mappings only, and a number
//! with a fraction must be in quotes. Unlike there, all faults of a file are reported, a name given twice
//! is one of them, and so is a known name at the wrong level: a `unit` beside `key`, and not within
//! `rate_limit`, would be a limit that is not there.

use super::form::{DomainForm, LimitForm, NodeForm};
use super::{MOST_LEVELS, scalar};
use crate::described::{Metadata, Unit};
use crate::rules::fault::shown;
use crate::rules::slots::{Report, nearest};
use crate::rules::yaml::{Kind, Node};

/// A kind of mapping, and so a level of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Top,
    Descriptor,
    RateLimit,
    Replaced,
}

impl Section {
    const ALL: [Section; 4] = [
        Section::Top,
        Section::Descriptor,
        Section::RateLimit,
        Section::Replaced,
    ];

    /// Its fields. All together are the names that the reference service knows.
    fn fields(self) -> &'static [&'static str] {
        match self {
            Section::Top => &["domain", "descriptors"],
            Section::Descriptor => &[
                "key",
                "value",
                "rate_limit",
                "descriptors",
                "shadow_mode",
                "quota_mode",
                "detailed_metric",
                "value_to_metric",
                "share_threshold",
                "metadata",
            ],
            Section::RateLimit => &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
            Section::Replaced => &["name"],
        }
    }

    fn has(self, field: &str) -> bool {
        self.fields().contains(&field)
    }

    /// The kind of the mappings that `field` holds, if it holds any.
    fn below(self, field: &str) -> Option<Section> {
        match field {
            "descriptors" => Some(Section::Descriptor),
            "rate_limit" => Some(Section::RateLimit),
            "replaces" => Some(Section::Replaced),
            MERGE => Some(self),
            _ => None,
        }
    }

    /// What is wrong with a field that is none of this level, and what to write.
    fn misplaced(self, field: &str) -> String {
        let here = match self {
            Section::Top => "at the top",
            Section::Descriptor => "beside `key`",
            Section::RateLimit => "in `rate_limit`",
            Section::Replaced => "in `replaces`",
        };
        // Of two levels that have it the inner one: `descriptors` in a limit is meant for its descriptor.
        let levels = [Section::Top, Section::Descriptor, Section::RateLimit];
        let Some(owner) = levels.into_iter().rfind(|level| level.has(field)) else {
            return self.unknown(field);
        };
        let there = match owner {
            Section::Top => "at the top of the file, not indented",
            Section::Descriptor => "beside the `key` of a descriptor, indented as far",
            Section::RateLimit | Section::Replaced => {
                "below the `rate_limit:` of a descriptor, indented further"
            }
        };
        format!("has `{field}` {here}, where it would have no effect; write it {there}")
    }

    fn unknown(self, name: &str) -> String {
        let found = format!("has the unknown field {}", shown(name));
        let others = Section::ALL.map(Section::fields).concat();
        match nearest(name, self.fields()).or_else(|| nearest(name, &others)) {
            Some(near) => format!("{found}; write `{near}`?"),
            None => format!("{found}; write one of {}", self.fields().join(", ")),
        }
    }
}

/// Whether the file with this root is of the reference service, not one of ours.
pub(crate) fn is_of_this_kind(root: Node<'_>) -> bool {
    let Kind::Map(mut pairs) = root.kind() else {
        return false;
    };
    pairs.any(|(name, _)| matches!(name.text(), Some("domain" | "descriptors")))
}

/// Reads the file with this root.
pub(crate) fn read(root: Node<'_>, report: &mut Report<'_>) -> DomainForm {
    vet(root, Section::Top, 0, report);
    let fields = Fields::of(root);
    let mut place = report.place(root.line());
    let domain = fields.get("domain");
    place.line = domain.map_or(place.line, Node::line);
    DomainForm {
        place,
        domain: text(domain, "domain", report),
        nodes: nodes(fields, 1, report),
    }
}

/// How deep aliases may lead: deeper than any tree that is taken.
const MOST_DEPTH: usize = 4 * MOST_LEVELS;

/// Reports the faults of a mapping and of those within it, `depth` mappings down.
fn vet(node: Node<'_>, section: Section, depth: usize, report: &mut Report<'_>) {
    let Kind::Map(pairs) = node.kind() else {
        return;
    };
    if depth > MOST_DEPTH {
        return; // reported when the nodes are read
    }
    let mut seen: Vec<(&str, u32)> = Vec::new();
    for (name, value) in pairs {
        let Some(text) = name.text() else {
            report.fault(name.line(), "has a field whose name is no text");
            continue;
        };
        if let Some((_, line)) = seen.iter().find(|(known, _)| *known == text) {
            let message = format!("has `{text}` twice, the first on line {line}; keep one");
            report.fault(name.line(), message);
        }
        if section.has(text) {
            seen.push((text, name.line()));
        } else if text != MERGE {
            report.fault(name.line(), section.misplaced(text));
        }
        if text != "metadata" {
            vet_value(section, (text, value), depth + 1, report);
        }
    }
}

fn vet_value(
    section: Section,
    (field, value): (&str, Node<'_>),
    depth: usize,
    report: &mut Report<'_>,
) {
    let vet_below = |node, report: &mut Report<'_>| {
        if let Some(below) = section.below(field) {
            vet(node, below, depth, report);
        }
    };
    match value.kind() {
        Kind::Nothing => {}
        Kind::Map(_) => vet_below(value, report),
        Kind::List(items) => {
            for item in items {
                match item.kind() {
                    Kind::Map(_) => vet_below(item, report),
                    _ => {
                        let message = format!(
                            "has something other than a mapping in the list of `{field}`; write \
                             fields such as `key: ...`"
                        );
                        report.fault(item.line(), message);
                    }
                }
            }
        }
        Kind::Text(text) => {
            let plain = value.plain();
            let whole = plain.and_then(scalar::integer);
            let fits = whole.is_some_and(|whole| i64::try_from(whole).is_ok());
            if !fits && (whole.is_some() || plain.and_then(scalar::float).is_some()) {
                let message = format!(
                    "has the number {} for `{field}`, which is not whole or too large; put it in \
                     quotes if it is a text",
                    shown(text)
                );
                report.fault(value.line(), message);
            }
        }
    }
}

/// Under this name a mapping takes the fields of another that it does not have itself.
const MERGE: &str = "<<";

/// The fields of a mapping. One that is no mapping has none.
#[derive(Clone, Copy)]
struct Fields<'d>(Node<'d>);

impl<'d> Fields<'d> {
    fn of(node: Node<'d>) -> Self {
        Fields(node)
    }

    fn get(self, field: &str) -> Option<Node<'d>> {
        let Kind::Map(pairs) = self.0.kind() else {
            return None;
        };
        let mut own = pairs.clone();
        if let Some((_, value)) = own.find(|(name, _)| name.text() == Some(field)) {
            return Some(value);
        }
        let mut merged = pairs.filter(|(name, _)| name.plain() == Some(MERGE));
        merged.find_map(|(_, other)| match other.kind() {
            Kind::Map(_) => Fields(other).get(field),
            Kind::List(mut others) => others.find_map(|other| Fields(other).get(field)),
            _ => None,
        })
    }
}

fn nodes(fields: Fields<'_>, level: usize, report: &mut Report<'_>) -> Vec<NodeForm> {
    let Some(list) = fields.get("descriptors") else {
        return Vec::new();
    };
    if level > MOST_LEVELS {
        let message = format!("has descriptors {level} deep; write at most {MOST_LEVELS} levels");
        report.fault(list.line(), message);
        return Vec::new();
    }
    let items = match list.kind() {
        Kind::List(items) => items,
        Kind::Nothing => return Vec::new(),
        Kind::Map(_) | Kind::Text(_) => {
            report.fault(list.line(), "has no list for `descriptors`; write one");
            return Vec::new();
        }
    };
    let maps = items.filter(|item| matches!(item.kind(), Kind::Map(_)));
    maps.map(|item| node(item, level, report)).collect()
}

fn node(item: Node<'_>, level: usize, report: &mut Report<'_>) -> NodeForm {
    let fields = Fields::of(item);
    NodeForm {
        line: item.line(),
        key: text(fields.get("key"), "key", report),
        value: text(fields.get("value"), "value", report),
        limit: limit(fields.get("rate_limit"), report),
        shadow_mode: flag(fields, "shadow_mode", report),
        quota_mode: flag(fields, "quota_mode", report),
        detailed_metric: flag(fields, "detailed_metric", report),
        value_to_metric: flag(fields, "value_to_metric", report),
        share_threshold: flag(fields, "share_threshold", report),
        metadata: metadata(fields.get("metadata"), report),
        nodes: nodes(fields, level + 1, report),
    }
}

fn limit(node: Option<Node<'_>>, report: &mut Report<'_>) -> Option<LimitForm> {
    let node = node?;
    match node.kind() {
        Kind::Nothing => {
            let message = "has nothing in a `rate_limit`, so that its descriptor is not limited; write `unit` and \
                           `requests_per_unit`, or remove it";
            report.doubt(node.line(), message);
            return None;
        }
        Kind::Map(_) => {}
        Kind::List(_) | Kind::Text(_) => {
            let message = "has no mapping for `rate_limit`; write `unit` and `requests_per_unit`";
            report.fault(node.line(), message);
            return None;
        }
    }
    let fields = Fields::of(node);
    Some(LimitForm {
        line: node.line(),
        requests_per_unit: requests(fields.get("requests_per_unit"), report),
        unit: text(fields.get("unit"), "unit", report),
        unlimited: flag(fields, "unlimited", report),
        name: text(fields.get("name"), "name", report),
        replaces: replaces(fields.get("replaces"), report),
    })
}

fn replaces(node: Option<Node<'_>>, report: &mut Report<'_>) -> Vec<String> {
    let Some(node) = node else { return Vec::new() };
    let items = match node.kind() {
        Kind::Nothing => return Vec::new(),
        Kind::List(items) => items,
        Kind::Map(_) | Kind::Text(_) => {
            report.fault(
                node.line(),
                "has no list for `replaces`; write `- name: ...`",
            );
            return Vec::new();
        }
    };
    let maps = items.filter(|item| matches!(item.kind(), Kind::Map(_)));
    let names = maps.map(|item| text(Fields::of(item).get("name"), "name", report));
    names.collect()
}

/// A text, or whatever scalar as it is written; empty if nothing is. For what is no text stands one that
/// leads to no second fault.
fn text(node: Option<Node<'_>>, field: &str, report: &mut Report<'_>) -> String {
    match node.map(|node| (node, node.kind())) {
        None | Some((_, Kind::Nothing)) => String::new(),
        Some((_, Kind::Text(text))) => text.to_owned(),
        Some((node, Kind::List(_) | Kind::Map(_))) => {
            report.fault(node.line(), format!("has no text for `{field}`; write one"));
            match field {
                "unit" => Unit::Second.name().to_owned(),
                _ => format!("line {}", node.line()),
            }
        }
    }
}

fn flag(fields: Fields<'_>, field: &str, report: &mut Report<'_>) -> bool {
    let Some(node) = fields.get(field) else {
        return false;
    };
    if let Kind::Nothing = node.kind() {
        return false;
    }
    node.plain().and_then(scalar::bool).unwrap_or_else(|| {
        let message = format!("has no bool for `{field}`; write true or false");
        report.fault(node.line(), message);
        false
    })
}

fn requests(node: Option<Node<'_>>, report: &mut Report<'_>) -> u32 {
    let Some(node) = node else { return 0 };
    if let Kind::Nothing = node.kind() {
        return 0;
    }
    let whole = node.plain().and_then(scalar::integer);
    let requests = whole.and_then(|whole| u32::try_from(whole).ok());
    requests.unwrap_or_else(|| {
        let message = format!(
            "has no number of requests for `requests_per_unit`; write one from 0 to {}",
            u32::MAX
        );
        report.fault(node.line(), message);
        0
    })
}

fn metadata(node: Option<Node<'_>>, report: &mut Report<'_>) -> Option<Metadata> {
    let node = node?;
    let values = match node.kind() {
        Kind::Nothing => return None,
        Kind::Map(pairs) => scalar::map(pairs, MOST_DEPTH),
        Kind::List(_) | Kind::Text(_) => Err(node.line()),
    };
    match values {
        Ok(values) => (!values.is_empty()).then_some(Metadata::Map(values)),
        Err(line) => {
            let message = "has metadata that callers cannot be told; write a mapping of names";
            report.fault(line, message);
            None
        }
    }
}
