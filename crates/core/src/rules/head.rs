//! Reads what a rules file says besides its rules, and puts a folder's files together.
//!
//! `defaults` holds for the file it stands in. `identity`, `tiers`, `timezone` and `keys_file` hold
//! for all and may stand in one file only: two files that disagree would make the order of their
//! names matter. `attributes` and `units` hold for all and may stand in several.

use rustc_hash::FxHashSet;

use super::calendar::Calendar;
use super::choices::{algorithm, choice, on_store_failure, on_store_late};
use super::durability::DURABILITIES;
use super::fault::{Place, shown};
use super::names::{Declared, MAX_DECLARED, attribute_name, check_unit};
use super::net_text::parse_net;
use super::set::Identity;
use super::slots::{Report, Slots, slots};
use super::yaml::{Kind, Node};
use crate::algorithms::Algorithm;
use crate::store::{Durability, OnStoreFailure, OnStoreLate};

slots!(
    /// The top level of a rules file.
    TopSlots {
        version: "version",
        identity: "identity",
        defaults: "defaults",
        attributes: "attributes",
        units: "units",
        tiers: "tiers",
        timezone: "timezone",
        rules: "rules",
        keys_file: "keys_file",
        block: "block",
        allow: "allow",
    }
);

slots!(IdentitySlots {
    trusted_proxies: "trusted_proxies",
    ipv6_prefix: "ipv6_prefix",
});

slots!(DefaultSlots {
    algorithm: "algorithm",
    on_store_failure: "on_store_failure",
    on_store_late: "on_store_late",
    durability: "durability",
});

/// What the rules of one file have where they say nothing.
#[derive(Clone, Copy, Default)]
pub(crate) struct Defaults {
    pub(crate) algorithm: Option<Algorithm>,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) on_store_late: Option<OnStoreLate>,
    pub(crate) durability: Durability,
}

/// What holds for all files, with the place that said it.
#[derive(Default)]
pub(crate) struct Shared {
    pub(crate) identity: Option<(Identity, Place)>,
    pub(crate) tiers: Option<(Vec<Box<str>>, Place)>,
    pub(crate) calendar: Option<(Calendar, Place)>,
    pub(crate) keys_file: Option<(Box<str>, Place)>,
    pub(crate) declared: Declared,
}

impl Shared {
    /// Takes in what the top level of one file says.
    pub(crate) fn take(&mut self, top: &TopSlots<'_>, report: &mut Report<'_>) {
        if let Some(node) = once("identity", top.identity, &self.identity, report) {
            self.identity = Some((identity(node, report), report.place(node.line())));
        }
        if let Some(node) = once("tiers", top.tiers, &self.tiers, report) {
            self.tiers = Some((tiers(node, report), report.place(node.line())));
        }
        if let Some(node) = once("timezone", top.timezone, &self.calendar, report)
            && let Some(calendar) = timezone(node, report)
        {
            self.calendar = Some((calendar, report.place(node.line())));
        }
        if let Some(node) = once("keys_file", top.keys_file, &self.keys_file, report)
            && let Some(name) = report.text("keys_file", node, "the name of a file")
        {
            self.keys_file = Some((name.into(), report.place(node.line())));
        }
        self.declare(top, report);
    }

    fn declare(&mut self, top: &TopSlots<'_>, report: &mut Report<'_>) {
        let Declared { attributes, units } = &mut self.declared;
        if let Some(node) = top.attributes {
            let check = |name: &str| attribute_name(name).map(|name| Box::from(&*name));
            declare("attributes", node, check, attributes, report);
        }
        if let Some(node) = top.units {
            let check = |name: &str| check_unit(name).map(|()| name.into());
            declare("units", node, check, units, report);
        }
    }
}

/// Adds the names that one file declares in `field`.
fn declare(
    field: &str,
    node: Node<'_>,
    check: impl Fn(&str) -> Result<Box<str>, String>,
    declared: &mut FxHashSet<Box<str>>,
    report: &mut Report<'_>,
) {
    for (name, line) in report.texts(field, node, "a list of names") {
        match check(name) {
            Ok(name) => _ = declared.insert(name),
            Err(wrong) => report.fault(line, format!("has in `{field}` {wrong}")),
        }
    }
    if declared.len() > MAX_DECLARED {
        let message = format!(
            "has {} names in `{field}`; write at most {MAX_DECLARED}",
            declared.len()
        );
        report.fault(node.line(), message);
    }
}

/// The node, unless another file has said it already.
fn once<'d, T>(
    field: &str,
    node: Option<Node<'d>>,
    known: &Option<(T, Place)>,
    report: &mut Report<'_>,
) -> Option<Node<'d>> {
    let node = node?;
    if let Some((_, first)) = known {
        let message = format!("`{field}` stands in {first} too; keep it in one file only");
        report.fault(node.line(), message);
        return None;
    }
    Some(node)
}

/// Reads and checks the version, which every file must state.
pub(crate) fn check_version(top: &TopSlots<'_>, first_line: u32, report: &mut Report<'_>) {
    match top.version {
        None => report.fault(first_line, "has no version; write `version: 1` at the top"),
        Some(node) => match report.text("version", node, "1") {
            None | Some("1") => {}
            Some(other) => {
                let message = format!("has version {}, which is unknown; write 1", shown(other));
                report.fault(node.line(), message);
            }
        },
    }
}

pub(crate) fn defaults(node: Node<'_>, report: &mut Report<'_>) -> Defaults {
    let slots = DefaultSlots::read(node, "defaults", report).unwrap_or_default();
    Defaults {
        algorithm: slots.algorithm.and_then(|node| algorithm(node, report)),
        on_store_failure: slots
            .on_store_failure
            .and_then(|node| on_store_failure(node, report))
            .unwrap_or_default(),
        on_store_late: slots
            .on_store_late
            .and_then(|node| on_store_late(node, report)),
        durability: choice(&slots.durability, "durability", &DURABILITIES, report),
    }
}

fn identity(node: Node<'_>, report: &mut Report<'_>) -> Identity {
    let mut identity = Identity::default();
    let slots = IdentitySlots::read(node, "identity", report).unwrap_or_default();
    if let Some(node) = slots.ipv6_prefix
        && let Some(text) = report.text("ipv6_prefix", node, "a number from 48 to 128")
    {
        match text.parse() {
            Ok(prefix @ 48..=128) => identity.ipv6_prefix = prefix,
            _ => {
                let message = format!(
                    "has ipv6_prefix {}, which is no number from 48 to 128; write 64",
                    shown(text)
                );
                report.fault(node.line(), message);
            }
        }
    }
    if let Some(node) = slots.trusted_proxies {
        identity.trusted_proxies = nets("trusted_proxies", node, report);
    }
    identity
}

/// A list of networks, which may be empty.
fn nets(field: &str, node: Node<'_>, report: &mut Report<'_>) -> Vec<ipnet::IpNet> {
    if let Kind::List(mut items) = node.kind()
        && items.next().is_none()
    {
        return Vec::new();
    }
    let texts = report.texts(field, node, "networks such as 10.0.0.0/8");
    let mut nets = Vec::with_capacity(texts.len());
    for (text, line) in texts {
        match parse_net(text) {
            Ok(net) => nets.push(net),
            Err(wrong) => report.fault(line, format!("has {field} {wrong}")),
        }
    }
    nets
}

fn tiers(node: Node<'_>, report: &mut Report<'_>) -> Vec<Box<str>> {
    let mut tiers: Vec<Box<str>> = Vec::new();
    for (name, line) in report.texts("tiers", node, "names, least first: [free, pro]") {
        let fits = !name.is_empty()
            && name.len() <= 64
            && name
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'));
        if !fits {
            let message = format!(
                "has tier {}, which is no name; write letters, digits, `-`, `_` and `.`",
                shown(name)
            );
            report.fault(line, message);
        } else if tiers.iter().any(|known| **known == *name) {
            report.fault(line, format!("has tier `{name}` twice; keep one"));
        } else {
            tiers.push(name.into());
        }
    }
    if tiers.len() > MOST_TIERS {
        let message = format!("has {} tiers; write at most {MOST_TIERS}", tiers.len());
        report.fault(node.line(), message);
    }
    tiers
}

const MOST_TIERS: usize = 1_000;

fn timezone(node: Node<'_>, report: &mut Report<'_>) -> Option<Calendar> {
    let name = report.text("timezone", node, "a name such as Europe/Berlin")?;
    let calendar = Calendar::named(name);
    if calendar.is_none() {
        let message = format!(
            "has timezone {}, which the time zone database does not know; write a name such as \
             UTC or Europe/Berlin",
            shown(name)
        );
        report.fault(node.line(), message);
    }
    calendar
}
