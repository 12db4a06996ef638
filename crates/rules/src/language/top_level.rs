//! Reads the top level of rules files apart from their rules, and combines the files of a folder.
//!
//! `defaults` applies to its own file. `identity`, `tiers`, `timezone` and `keys_file` apply to all files and may be
//! in one file only: if two files disagreed, the order of their names would matter. `attributes` and `units` apply to
//! all files and may be in several.

use rustc_hash::FxHashSet;

use super::calendar::Calendar;
use super::diagnostics::{SourceLocation, quoted};
use super::fields::{MappingFields, Reporter, mapping_fields};
use super::names::{DeclaredNames, MAX_DECLARED, attribute_name, check_unit};
use super::rule_options;
use super::rule_set::Identity;
use super::values::networks::parse_net;
use super::yaml::{YamlNode, YamlValue};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::rule_options::{Durability, OnStoreFailure, OnStoreLate};

mapping_fields!(
    /// The top level of a rules file.
    TopLevelFields {
        version, identity, defaults, attributes, units, tiers, timezone, rules, keys_file, block, allow,
    }
);

mapping_fields!(IdentityFields { trusted_proxies, ipv6_prefix });

mapping_fields!(DefaultsFields { algorithm, on_store_failure, on_store_late, durability });

/// Defaults for the rules of one file.
#[derive(Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) on_store_late: Option<OnStoreLate>,
    pub(crate) durability: Durability,
}

/// Settings for all files, each with its source location.
#[derive(Default)]
pub(crate) struct GlobalSettings {
    pub(crate) identity: Option<(Identity, SourceLocation)>,
    pub(crate) tiers: Option<(Vec<Box<str>>, SourceLocation)>,
    pub(crate) calendar: Option<(Calendar, SourceLocation)>,
    pub(crate) keys_file: Option<(Box<str>, SourceLocation)>,
    pub(crate) declared: DeclaredNames,
}

impl GlobalSettings {
    /// Adds the settings at the top of one file.
    pub(crate) fn read_top_level(&mut self, top: &TopLevelFields<'_>, report: &mut Reporter<'_>) {
        let (identity, tiers) = (&mut self.identity, &mut self.tiers);
        read_once("identity", top.identity, identity, report, |node, report| Some(read_identity(node, report)));
        read_once("tiers", top.tiers, tiers, report, |node, report| Some(read_tiers(node, report)));
        read_once("timezone", top.timezone, &mut self.calendar, report, read_timezone);
        read_once("keys_file", top.keys_file, &mut self.keys_file, report, |node, report| {
            report.text("keys_file", node, "the name of a file").map(Box::from)
        });
        self.declare_names(top, report);
    }

    fn declare_names(&mut self, top: &TopLevelFields<'_>, report: &mut Reporter<'_>) {
        let DeclaredNames { attributes, units } = &mut self.declared;
        if let Some(node) = top.attributes {
            let check = |name: &str| attribute_name(name).map(|name| Box::from(&*name));
            declare_field("attributes", node, check, attributes, report);
        }
        if let Some(node) = top.units {
            let check = |name: &str| check_unit(name).map(|()| name.into());
            declare_field("units", node, check, units, report);
        }
    }
}

/// Adds the names that one file declares in `field`.
fn declare_field(
    field: &str,
    node: YamlNode<'_>,
    check: impl Fn(&str) -> Result<Box<str>, String>,
    declared: &mut FxHashSet<Box<str>>,
    report: &mut Reporter<'_>,
) {
    for (name, line) in report.texts(field, node, "a list of names") {
        let name = check(name).map_err(|wrong| format!("has in `{field}` {wrong}"));
        declared.extend(report.check(line, name));
    }
    if declared.len() > MAX_DECLARED {
        let message = format!("has {} names in `{field}`; write at most {MAX_DECLARED}", declared.len());
        report.error(node.line(), message);
    }
}

/// Reads a field that only one file may have.
fn read_once<'d, T>(
    field: &str,
    node: Option<YamlNode<'d>>,
    setting: &mut Option<(T, SourceLocation)>,
    report: &mut Reporter<'_>,
    read: impl FnOnce(YamlNode<'d>, &mut Reporter<'_>) -> Option<T>,
) {
    let Some(node) = node else { return };
    if let Some((_, first)) = setting {
        return report.error(node.line(), format!("`{field}` is in {first} too; keep it in one file only"));
    }
    *setting = read(node, report).map(|value| (value, report.location(node.line())));
}

/// Reads and checks the version, which every file must state.
pub(crate) fn check_version(top: &TopLevelFields<'_>, first_line: u32, report: &mut Reporter<'_>) {
    match top.version {
        None => report.error(first_line, "has no version; write `version: 1` at the top"),
        Some(node) => {
            report.parse("version", node, "1", |text| match text {
                "1" => Ok(()),
                other => Err(format!("has version {}, which is unknown; write 1", quoted(other))),
            });
        }
    }
}

pub(crate) fn read_defaults(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Defaults {
    let fields = DefaultsFields::read(node, "defaults", report).unwrap_or_default();
    Defaults {
        algorithm: rule_options::ALGORITHM.read(fields.algorithm, report),
        on_store_failure: rule_options::ON_STORE_FAILURE.read(fields.on_store_failure, report).unwrap_or_default(),
        on_store_late: rule_options::ON_STORE_LATE.read(fields.on_store_late, report),
        durability: rule_options::DURABILITY.read(fields.durability, report).unwrap_or_default(),
    }
}

fn read_identity(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Identity {
    let mut identity = Identity::default();
    let fields = IdentityFields::read(node, "identity", report).unwrap_or_default();
    if let Some(node) = fields.ipv6_prefix {
        let prefix = report.parse("ipv6_prefix", node, "a number from 48 to 128", |text| match text.parse() {
            Ok(prefix @ 48..=128) => Ok(prefix),
            _ => Err(format!("has ipv6_prefix {}, which is no number from 48 to 128; write 64", quoted(text))),
        });
        identity.ipv6_prefix = prefix.unwrap_or(identity.ipv6_prefix);
    }
    if let Some(node) = fields.trusted_proxies {
        identity.trusted_proxies = read_nets("trusted_proxies", node, report);
    }
    identity
}

/// A list of networks, which may be empty.
fn read_nets(field: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Vec<ipnet::IpNet> {
    if let YamlValue::List(mut items) = node.kind()
        && items.next().is_none()
    {
        return Vec::new();
    }
    let texts = report.texts(field, node, "networks such as 10.0.0.0/8");
    let net = |text: &str| parse_net(text).map_err(|wrong| format!("has {field} {wrong}"));
    texts.into_iter().filter_map(|(text, line)| report.check(line, net(text))).collect()
}

fn read_tiers(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Vec<Box<str>> {
    let mut tiers: Vec<Box<str>> = Vec::new();
    for (name, line) in report.texts("tiers", node, "names, least first: [free, pro]") {
        let fits = (1..=64).contains(&name.len())
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !fits {
            let message =
                format!("has tier {}, which is no name; write letters, digits, `-`, `_` and `.`", quoted(name));
            report.error(line, message);
        } else if tiers.iter().any(|known| **known == *name) {
            report.error(line, format!("has tier `{name}` twice; keep one"));
        } else {
            tiers.push(name.into());
        }
    }
    if tiers.len() > MAX_TIERS {
        report.error(node.line(), format!("has {} tiers; write at most {MAX_TIERS}", tiers.len()));
    }
    tiers
}

const MAX_TIERS: usize = 1_000;

fn read_timezone(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Calendar> {
    report.parse("timezone", node, "a name such as Europe/Berlin", |name| {
        Calendar::named(name).ok_or_else(|| {
            let name = quoted(name);
            format!(
                "has timezone {name}, which the time zone database does not know; write a name such as UTC or \
                 Europe/Berlin"
            )
        })
    })
}
