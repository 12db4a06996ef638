//! Reads the entries of `allow` and `block`.

use jiff::Timestamp;

use super::access_lists::{AccessList, ListEntry, ListTarget};
use super::cidr::parse_client_net;
use super::diagnostics::quoted;
use super::fields::{MappingFields, Reporter, mapping_fields};
use super::yaml::{YamlNode, YamlValue};
use tidegate_core::units::Nanos;

mapping_fields!(ListEntryFields { target: "match", until: "until" });

const EXPECTED: &str = "a list of networks such as [192.0.2.0/24], or { match: ..., until: ... }";

pub(crate) fn read(field: &str, node: YamlNode<'_>, ipv6_prefix: u8, list: &mut AccessList, report: &mut Reporter<'_>) {
    let YamlValue::List(items) = node.kind() else {
        let found = match node.kind() {
            YamlValue::Text(text) => quoted(text),
            YamlValue::Map(_) => "a mapping".to_owned(),
            _ => "nothing".to_owned(),
        };
        report.error(node.line(), format!("has {found} for `{field}`; write {EXPECTED}"));
        return;
    };
    for item in items {
        let (target, until) = match item.kind() {
            YamlValue::Map(_) => {
                let what = format!("an entry of `{field}`");
                let Some(entry) = ListEntryFields::read(item, &what, report) else {
                    continue;
                };
                let until = entry.until.and_then(|node| read_until(field, node, report));
                let Some(target) = entry.target else {
                    report.error(item.line(), format!("{what} has no `match`; write `match: 192.0.2.7`"));
                    continue;
                };
                (target, until)
            }
            _ => (item, None),
        };
        if let Some(text) = report.text(field, target, EXPECTED) {
            match parse_target(text, ipv6_prefix) {
                Ok(target) => {
                    list.add(target, ListEntry { target: text.into(), until, location: report.location(item.line()) })
                }
                Err(wrong) => report.error(target.line(), format!("has in `{field}` {wrong}")),
            }
        }
    }
}

fn parse_target(text: &str, ipv6_prefix: u8) -> Result<ListTarget, String> {
    if let Some(name) = text.strip_prefix("key:") {
        return match name.trim() {
            "" => Err(format!("{}, which names no key; write key:NAME", quoted(text))),
            name => Ok(ListTarget::KeyNamed(name.into())),
        };
    }
    if let Some(hex) = text.strip_prefix("sha256:") {
        let digest = parse_digest(hex)
            .ok_or_else(|| format!("{}, which is no SHA-256; write sha256: and 64 hex digits", quoted(text)));
        return digest.map(ListTarget::KeyDigest);
    }
    parse_client_net(text, ipv6_prefix).map(ListTarget::Net)
}

fn parse_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(digest)
}

fn read_until(field: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Nanos> {
    let text = report.text("until", node, "an instant such as 2030-01-31T00:00:00Z")?;
    let instant = text.parse::<Timestamp>().ok();
    let nanos = instant.and_then(|at| u64::try_from(at.as_nanosecond()).ok());
    if nanos.is_none() {
        let message =
            format!("has in `{field}` the end {}, which is no instant; write it as 2030-01-31T00:00:00Z", quoted(text));
        report.error(node.line(), message);
    }
    nanos.map(Nanos::new)
}
