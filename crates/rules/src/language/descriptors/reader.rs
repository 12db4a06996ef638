//! Reads a file of the reference service.
//!
//! As in the reference service, an unknown name is an error anywhere but in `metadata`, lists hold mappings only, and
//! a number with a fraction must be in quotes. Unlike there, all errors of a file are reported. A name given twice is
//! an error, and so is a known name at the wrong level: a `unit` beside `key` instead of within `rate_limit` would be
//! a limit that does not exist.

use super::{DescriptorConfig, DomainConfig, LimitConfig, MAX_LEVELS, scalar};
use crate::envoy::{Metadata, Unit};
use crate::language::diagnostics::quoted;
use crate::language::fields::{Reporter, closest_name, what_to_write};
use crate::language::yaml::{YamlNode, YamlValue};

/// A kind of mapping, which is also a level of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Section {
    Top,
    Descriptor,
    RateLimit,
    Replaced,
}

impl Section {
    const ALL: [Section; 4] = [Section::Top, Section::Descriptor, Section::RateLimit, Section::Replaced];

    /// Fields of this level. The fields of all levels are the names that the reference service knows.
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

    /// Kind of the mappings that `field` holds, if it holds any.
    fn child(self, field: &str) -> Option<Section> {
        match field {
            "descriptors" => Some(Section::Descriptor),
            "rate_limit" => Some(Section::RateLimit),
            "replaces" => Some(Section::Replaced),
            MERGE => Some(self),
            _ => None,
        }
    }

    /// The error for a field that does not belong to this level.
    fn misplaced(self, field: &str) -> String {
        let here = match self {
            Section::Top => "at the top",
            Section::Descriptor => "beside `key`",
            Section::RateLimit => "in `rate_limit`",
            Section::Replaced => "in `replaces`",
        };
        // If two levels have the field, the inner one is meant: `descriptors` in a limit belongs to its descriptor.
        let levels = [Section::Top, Section::Descriptor, Section::RateLimit];
        let Some(owner) = levels.into_iter().rfind(|level| level.has(field)) else {
            return self.unknown(field);
        };
        let there = match owner {
            Section::Top => "at the top of the file, not indented",
            Section::Descriptor => "beside the `key` of a descriptor, indented as far",
            Section::RateLimit | Section::Replaced => "below the `rate_limit:` of a descriptor, indented further",
        };
        format!("has `{field}` {here}, where it would have no effect; write it {there}")
    }

    fn unknown(self, name: &str) -> String {
        let others = Section::ALL.map(Section::fields).concat();
        let near = closest_name(name, self.fields()).or_else(|| closest_name(name, &others));
        format!("has the unknown field {}; {}", quoted(name), what_to_write(near, self.fields()))
    }
}

/// Whether the file with this root is a file of the reference service and not a native rules file.
pub(crate) fn is_descriptor_file(root: YamlNode<'_>) -> bool {
    let YamlValue::Map(mut pairs) = root.kind() else {
        return false;
    };
    pairs.any(|(name, _)| matches!(name.text(), Some("domain" | "descriptors")))
}

/// Reads the file with this root.
pub(crate) fn read(root: YamlNode<'_>, report: &mut Reporter<'_>) -> DomainConfig {
    check_mapping(root, Section::Top, 0, report);
    let fields = MergedFields::of(root);
    let mut location = report.location(root.line());
    let domain = fields.get("domain");
    location.line = domain.map_or(location.line, YamlNode::line);
    DomainConfig {
        location,
        domain: read_text(domain, "domain", report),
        descriptors: read_descriptors(fields, 1, report),
    }
}

/// Maximum depth that aliases may reach: deeper than any accepted tree.
const MAX_DEPTH: usize = 4 * MAX_LEVELS;

/// Reports the errors of a mapping and of the mappings within it. `depth` counts the mappings above it.
fn check_mapping(node: YamlNode<'_>, section: Section, depth: usize, report: &mut Reporter<'_>) {
    let YamlValue::Map(pairs) = node.kind() else {
        return;
    };
    if depth > MAX_DEPTH {
        return; // reported when the nodes are read
    }
    let mut seen: Vec<(&str, u32)> = Vec::new();
    for (name, value) in pairs {
        let Some(text) = name.text() else {
            report.error(name.line(), "has a field whose name is not a text; write a name");
            continue;
        };
        if let Some((_, line)) = seen.iter().find(|(known, _)| *known == text) {
            let message = format!("has `{text}` twice, the first on line {line}; keep one");
            report.error(name.line(), message);
        }
        if section.has(text) {
            seen.push((text, name.line()));
        } else if text != MERGE {
            report.error(name.line(), section.misplaced(text));
        }
        if text != "metadata" {
            check_value(section, (text, value), depth + 1, report);
        }
    }
}

fn check_value(section: Section, (field, value): (&str, YamlNode<'_>), depth: usize, report: &mut Reporter<'_>) {
    let check_child = |node, report: &mut Reporter<'_>| {
        if let Some(child) = section.child(field) {
            check_mapping(node, child, depth, report);
        }
    };
    match value.kind() {
        YamlValue::Null => {}
        YamlValue::Map(_) => check_child(value, report),
        YamlValue::List(items) => {
            for item in items {
                match item.kind() {
                    YamlValue::Map(_) => check_child(item, report),
                    _ => {
                        let message = format!(
                            "has something other than a mapping in the list of `{field}`; write \
                             fields such as `key: ...`"
                        );
                        report.error(item.line(), message);
                    }
                }
            }
        }
        YamlValue::Text(text) => {
            let plain = value.unquoted();
            let whole = plain.and_then(scalar::parse_integer);
            let fits = whole.is_some_and(|whole| i64::try_from(whole).is_ok());
            if !fits && (whole.is_some() || plain.and_then(scalar::parse_float).is_some()) {
                let message = format!(
                    "has the number {} for `{field}`, which is not whole or too large; put it in \
                     quotes if it is a text",
                    quoted(text)
                );
                report.error(value.line(), message);
            }
        }
    }
}

/// Key by which a mapping takes the fields of another that it does not have itself.
const MERGE: &str = "<<";

/// Fields of a mapping, merged ones included. A node that is not a mapping has none.
#[derive(Clone, Copy)]
struct MergedFields<'d>(YamlNode<'d>);

impl<'d> MergedFields<'d> {
    fn of(node: YamlNode<'d>) -> Self {
        MergedFields(node)
    }

    fn get(self, field: &str) -> Option<YamlNode<'d>> {
        let YamlValue::Map(pairs) = self.0.kind() else {
            return None;
        };
        let mut own = pairs.clone();
        if let Some((_, value)) = own.find(|(name, _)| name.text() == Some(field)) {
            return Some(value);
        }
        let mut merged = pairs.filter(|(name, _)| name.unquoted() == Some(MERGE));
        merged.find_map(|(_, other)| match other.kind() {
            YamlValue::Map(_) => MergedFields(other).get(field),
            YamlValue::List(mut others) => others.find_map(|other| MergedFields(other).get(field)),
            _ => None,
        })
    }
}

fn read_descriptors(fields: MergedFields<'_>, level: usize, report: &mut Reporter<'_>) -> Vec<DescriptorConfig> {
    let Some(list) = fields.get("descriptors") else {
        return Vec::new();
    };
    if level > MAX_LEVELS {
        let message = format!("has descriptors {level} deep; write at most {MAX_LEVELS} levels");
        report.error(list.line(), message);
        return Vec::new();
    }
    let items = match list.kind() {
        YamlValue::List(items) => items,
        YamlValue::Null => return Vec::new(),
        YamlValue::Map(_) | YamlValue::Text(_) => {
            report.error(list.line(), "has no list for `descriptors`; write one");
            return Vec::new();
        }
    };
    let maps = items.filter(|item| matches!(item.kind(), YamlValue::Map(_)));
    maps.map(|item| read_descriptor(item, level, report)).collect()
}

fn read_descriptor(item: YamlNode<'_>, level: usize, report: &mut Reporter<'_>) -> DescriptorConfig {
    let fields = MergedFields::of(item);
    DescriptorConfig {
        line: item.line(),
        key: read_text(fields.get("key"), "key", report),
        value: read_text(fields.get("value"), "value", report),
        limit: read_limit(fields.get("rate_limit"), report),
        shadow_mode: read_flag(fields, "shadow_mode", report),
        quota_mode: read_flag(fields, "quota_mode", report),
        detailed_metric: read_flag(fields, "detailed_metric", report),
        value_to_metric: read_flag(fields, "value_to_metric", report),
        share_threshold: read_flag(fields, "share_threshold", report),
        metadata: read_metadata(fields.get("metadata"), report),
        descriptors: read_descriptors(fields, level + 1, report),
    }
}

fn read_limit(node: Option<YamlNode<'_>>, report: &mut Reporter<'_>) -> Option<LimitConfig> {
    let node = node?;
    match node.kind() {
        YamlValue::Null => {
            let message = "has nothing in a `rate_limit`, so that its descriptor is not limited; write `unit` and \
                           `requests_per_unit`, or remove it";
            report.warn(node.line(), message);
            return None;
        }
        YamlValue::Map(_) => {}
        YamlValue::List(_) | YamlValue::Text(_) => {
            let message = "has no mapping for `rate_limit`; write `unit` and `requests_per_unit`";
            report.error(node.line(), message);
            return None;
        }
    }
    let fields = MergedFields::of(node);
    Some(LimitConfig {
        line: node.line(),
        requests_per_unit: read_requests(fields.get("requests_per_unit"), report),
        unit: read_text(fields.get("unit"), "unit", report),
        unlimited: read_flag(fields, "unlimited", report),
        name: read_text(fields.get("name"), "name", report),
        replaces: read_replaces(fields.get("replaces"), report),
    })
}

fn read_replaces(node: Option<YamlNode<'_>>, report: &mut Reporter<'_>) -> Vec<String> {
    let Some(node) = node else { return Vec::new() };
    let items = match node.kind() {
        YamlValue::Null => return Vec::new(),
        YamlValue::List(items) => items,
        YamlValue::Map(_) | YamlValue::Text(_) => {
            report.error(node.line(), "has no list for `replaces`; write `- name: ...`");
            return Vec::new();
        }
    };
    let maps = items.filter(|item| matches!(item.kind(), YamlValue::Map(_)));
    let names = maps.map(|item| read_text(MergedFields::of(item).get("name"), "name", report));
    names.collect()
}

/// A text, or any other scalar as written; empty if absent. A node that is not a scalar is an error, and gives a text
/// that causes no second error.
fn read_text(node: Option<YamlNode<'_>>, field: &str, report: &mut Reporter<'_>) -> String {
    match node.map(|node| (node, node.kind())) {
        None | Some((_, YamlValue::Null)) => String::new(),
        Some((_, YamlValue::Text(text))) => text.to_owned(),
        Some((node, YamlValue::List(_) | YamlValue::Map(_))) => {
            report.error(node.line(), format!("has no text for `{field}`; write one"));
            match field {
                "unit" => Unit::Second.name().to_owned(),
                _ => format!("line {}", node.line()),
            }
        }
    }
}

fn read_flag(fields: MergedFields<'_>, field: &str, report: &mut Reporter<'_>) -> bool {
    let Some(node) = fields.get(field) else {
        return false;
    };
    if let YamlValue::Null = node.kind() {
        return false;
    }
    node.unquoted().and_then(scalar::parse_bool).unwrap_or_else(|| {
        let message = format!("has no bool for `{field}`; write true or false");
        report.error(node.line(), message);
        false
    })
}

fn read_requests(node: Option<YamlNode<'_>>, report: &mut Reporter<'_>) -> u32 {
    let Some(node) = node else { return 0 };
    if let YamlValue::Null = node.kind() {
        return 0;
    }
    let whole = node.unquoted().and_then(scalar::parse_integer);
    let requests = whole.and_then(|whole| u32::try_from(whole).ok());
    requests.unwrap_or_else(|| {
        let message = format!("has no number of requests for `requests_per_unit`; write one from 0 to {}", u32::MAX);
        report.error(node.line(), message);
        0
    })
}

fn read_metadata(node: Option<YamlNode<'_>>, report: &mut Reporter<'_>) -> Option<Metadata> {
    let node = node?;
    let values = match node.kind() {
        YamlValue::Null => return None,
        YamlValue::Map(pairs) => scalar::map(pairs, MAX_DEPTH),
        YamlValue::List(_) | YamlValue::Text(_) => Err(node.line()),
    };
    match values {
        Ok(values) => (!values.is_empty()).then_some(Metadata::Map(values)),
        Err(line) => {
            let message = "has metadata that responses cannot carry; write a mapping of names";
            report.error(line, message);
            None
        }
    }
}
