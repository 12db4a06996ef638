//! Reads a file of the reference service.
//!
//! As in the reference service, an unknown name is an error anywhere but in `metadata`, lists hold mappings only, and
//! a number with a fraction must be in quotes. Unlike there, all errors of a file are reported. A name given twice is
//! an error, and so is a known name at the wrong level: a `unit` beside `key` instead of within `rate_limit` would be
//! a limit that does not exist.

use super::entry_warnings::{domain_warning, entry_warning};
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
    let YamlValue::Map(mut pairs) = root.kind() else { return false };
    pairs.any(|(name, _)| matches!(name.text(), Some("domain" | "descriptors")))
}

/// Reads the file with this root.
pub(crate) fn read(root: YamlNode<'_>, report: &mut Reporter<'_>) -> DomainConfig {
    check_mapping(root, Section::Top, 0, report);
    let fields = MergedFields(root);
    let domain = fields.text("domain", report);
    let line = fields.find("domain").unwrap_or(root).line();
    if let Some(warning) = domain_warning(&domain) {
        report.warn(line, warning);
    }
    DomainConfig { location: report.location(line), domain, descriptors: fields.descriptors(1, report) }
}

/// Maximum depth that aliases may reach: deeper than any accepted tree.
const MAX_DEPTH: usize = 4 * MAX_LEVELS;

/// Reports the errors of a mapping and of the mappings within it. `depth` counts the mappings above it.
fn check_mapping(node: YamlNode<'_>, section: Section, depth: usize, report: &mut Reporter<'_>) {
    let YamlValue::Map(pairs) = node.kind() else { return };
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
            report.error(name.line(), format!("has `{text}` twice, the first on line {line}; keep one"));
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
                if let YamlValue::Map(_) = item.kind() {
                    check_child(item, report);
                    continue;
                }
                let write = "write fields such as `key: ...`";
                let message = format!("has something other than a mapping in the list of `{field}`; {write}");
                report.error(item.line(), message);
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
    fn find(self, field: &str) -> Option<YamlNode<'d>> {
        let YamlValue::Map(pairs) = self.0.kind() else { return None };
        let mut own = pairs.clone();
        if let Some((_, value)) = own.find(|(name, _)| name.text() == Some(field)) {
            return Some(value);
        }
        let mut merged = pairs.filter(|(name, _)| name.unquoted() == Some(MERGE));
        merged.find_map(|(_, other)| match other.kind() {
            YamlValue::Map(_) => MergedFields(other).find(field),
            YamlValue::List(mut others) => others.find_map(|other| MergedFields(other).find(field)),
            _ => None,
        })
    }

    /// As [`MergedFields::find`], if the value is not null.
    fn get(self, field: &str) -> Option<YamlNode<'d>> {
        self.find(field).filter(|node| !matches!(node.kind(), YamlValue::Null))
    }

    /// A text, or any other scalar as written; empty if absent. A node that is not a scalar is an error, and gives a
    /// text that causes no second error.
    fn text(self, field: &str, report: &mut Reporter<'_>) -> String {
        let Some(node) = self.get(field) else { return String::new() };
        if let Some(text) = node.text() {
            return text.to_owned();
        }
        report.error(node.line(), format!("has no text for `{field}`; write one"));
        match field {
            "unit" => Unit::Second.name().to_owned(),
            _ => format!("line {}", node.line()),
        }
    }

    fn flag(self, field: &str, report: &mut Reporter<'_>) -> bool {
        let flag = self.get(field).and_then(|node| {
            let flag = node.unquoted().and_then(scalar::parse_bool);
            report.check(node.line(), flag.ok_or_else(|| format!("has no bool for `{field}`; write true or false")))
        });
        flag.unwrap_or_default()
    }

    /// The mappings in a list. Other items are reported by [`check_mapping`].
    fn mappings(self, field: &str, write: &str, report: &mut Reporter<'_>) -> Vec<MergedFields<'d>> {
        match self.get(field).map(|node| (node, node.kind())) {
            None => Vec::new(),
            Some((_, YamlValue::List(items))) => {
                items.filter(|item| matches!(item.kind(), YamlValue::Map(_))).map(MergedFields).collect()
            }
            Some((node, _)) => {
                report.error(node.line(), format!("has no list for `{field}`; write {write}"));
                Vec::new()
            }
        }
    }

    fn descriptors(self, level: usize, report: &mut Reporter<'_>) -> Vec<DescriptorConfig> {
        if let Some(list) = self.find("descriptors")
            && level > MAX_LEVELS
        {
            report.error(list.line(), format!("has descriptors {level} deep; write at most {MAX_LEVELS} levels"));
            return Vec::new();
        }
        let descriptors = self.mappings("descriptors", "one", report).into_iter();
        descriptors.map(|fields| fields.descriptor(level, report)).collect()
    }

    fn descriptor(self, level: usize, report: &mut Reporter<'_>) -> DescriptorConfig {
        let (key, value) = (self.text("key", report), self.text("value", report));
        if let Some(warning) = entry_warning(&key, &value) {
            report.warn(self.0.line(), warning);
        }
        DescriptorConfig {
            line: self.0.line(),
            key,
            value,
            limit: self.limit(report),
            shadow_mode: self.flag("shadow_mode", report),
            quota_mode: self.flag("quota_mode", report),
            detailed_metric: self.flag("detailed_metric", report),
            value_to_metric: self.flag("value_to_metric", report),
            share_threshold: self.flag("share_threshold", report),
            metadata: self.metadata(report),
            descriptors: self.descriptors(level + 1, report),
        }
    }

    fn limit(self, report: &mut Reporter<'_>) -> Option<LimitConfig> {
        let node = self.find("rate_limit")?;
        match node.kind() {
            YamlValue::Null => {
                let message = "has nothing in a `rate_limit`, so that its descriptor is not limited; write `unit` and \
                               `requests_per_unit`, or remove it";
                report.warn(node.line(), message);
                return None;
            }
            YamlValue::Map(_) => {}
            YamlValue::List(_) | YamlValue::Text(_) => {
                report.error(node.line(), "has no mapping for `rate_limit`; write `unit` and `requests_per_unit`");
                return None;
            }
        }
        let fields = MergedFields(node);
        Some(LimitConfig {
            line: node.line(),
            requests_per_unit: fields.requests(report),
            unit: fields.text("unit", report),
            unlimited: fields.flag("unlimited", report),
            name: fields.text("name", report),
            replaces: {
                let names = fields.mappings("replaces", "`- name: ...`", report).into_iter();
                names.map(|fields| fields.text("name", report)).collect()
            },
        })
    }

    fn requests(self, report: &mut Reporter<'_>) -> u32 {
        let requests = self.get("requests_per_unit").and_then(|node| {
            let requests = node.unquoted().and_then(scalar::parse_integer).and_then(|whole| u32::try_from(whole).ok());
            let max = u32::MAX;
            let message = || format!("has no number of requests for `requests_per_unit`; write one from 0 to {max}");
            report.check(node.line(), requests.ok_or_else(message))
        });
        requests.unwrap_or_default()
    }

    fn metadata(self, report: &mut Reporter<'_>) -> Option<Metadata> {
        let node = self.get("metadata")?;
        let values = match node.kind() {
            YamlValue::Map(pairs) => scalar::map(pairs, MAX_DEPTH),
            _ => Err(node.line()),
        };
        if let Err(line) = values {
            report.error(line, "has metadata that responses cannot carry; write a mapping of names");
        }
        values.ok().filter(|values| !values.is_empty()).map(Metadata::Map)
    }
}
