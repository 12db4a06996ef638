//! Reads the entries of `allow` and `block`.

use jiff::Timestamp;

use super::fault::shown;
use super::lists::{Entry, List, Whom};
use super::net_text::parse_client_net;
use super::slots::{Report, Slots, slots};
use super::yaml::{Kind, Node};
use crate::units::Nanos;

slots!(EntrySlots {
    whom: "match",
    until: "until",
});

const WANTS: &str = "a list of networks such as [192.0.2.0/24], or { match: ..., until: ... }";

pub(crate) fn read(
    field: &str,
    node: Node<'_>,
    ipv6_prefix: u8,
    list: &mut List,
    report: &mut Report<'_>,
) {
    let Kind::List(items) = node.kind() else {
        let found = match node.kind() {
            Kind::Text(text) => shown(text),
            Kind::Map(_) => "a mapping".to_owned(),
            _ => "nothing".to_owned(),
        };
        report.fault(
            node.line(),
            format!("has {found} for `{field}`; write {WANTS}"),
        );
        return;
    };
    for item in items {
        let (whom, until) = match item.kind() {
            Kind::Map(_) => {
                let what = format!("an entry of `{field}`");
                let Some(entry) = EntrySlots::read(item, &what, report) else {
                    continue;
                };
                let until = entry.until.and_then(|node| read_until(field, node, report));
                let Some(whom) = entry.whom else {
                    report.fault(
                        item.line(),
                        format!("{what} has no `match`; write `match: 192.0.2.7`"),
                    );
                    continue;
                };
                (whom, until)
            }
            _ => (item, None),
        };
        if let Some(text) = report.text(field, whom, WANTS) {
            match read_whom(text, ipv6_prefix) {
                Ok(whom) => list.add(
                    whom,
                    Entry {
                        whom: text.into(),
                        until,
                        place: report.place(item.line()),
                    },
                ),
                Err(wrong) => report.fault(whom.line(), format!("has in `{field}` {wrong}")),
            }
        }
    }
}

fn read_whom(text: &str, ipv6_prefix: u8) -> Result<Whom, String> {
    if let Some(name) = text.strip_prefix("key:") {
        return match name.trim() {
            "" => Err(format!(
                "{}, which names no key; write key:NAME",
                shown(text)
            )),
            name => Ok(Whom::KeyNamed(name.into())),
        };
    }
    if let Some(hex) = text.strip_prefix("sha256:") {
        let digest = read_digest(hex).ok_or_else(|| {
            format!(
                "{}, which is no SHA-256; write sha256: and 64 hex digits",
                shown(text)
            )
        });
        return digest.map(Whom::KeyDigest);
    }
    parse_client_net(text, ipv6_prefix).map(Whom::Net)
}

fn read_digest(hex: &str) -> Option<[u8; 32]> {
    let mut digest = [0; 32];
    if hex.len() != 64 || !hex.bytes().all(|b| b.is_ascii_hexdigit()) {
        return None;
    }
    for (i, byte) in digest.iter_mut().enumerate() {
        *byte = u8::from_str_radix(hex.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(digest)
}

fn read_until(field: &str, node: Node<'_>, report: &mut Report<'_>) -> Option<Nanos> {
    let text = report.text("until", node, "an instant such as 2030-01-31T00:00:00Z")?;
    let instant = text.parse::<Timestamp>().ok();
    let nanos = instant.and_then(|at| u64::try_from(at.as_nanosecond()).ok());
    if nanos.is_none() {
        let message = format!(
            "has in `{field}` the end {}, which is no instant; write it as 2030-01-31T00:00:00Z",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    nanos.map(Nanos::new)
}
