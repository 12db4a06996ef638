//! Whose counter a rule charges for a request, in words.
//!
//! An absent attribute never means unlimited: the address stands in for it, and all requests without
//! even that share one counter. How the words become a fingerprint is not known here.

use std::net::IpAddr;

use super::model::{By, IfMissing, Rule};
use crate::request::Request;

/// The value that counts for one place of a rule's `by`.
pub(crate) enum Value<'r> {
    Text(&'r str, &'r str),
    Ip(IpAddr),
    Key([u8; 32]),
    Nobody,
}

/// The subject as an operator writes it in `overrides`: values joined by commas, a key by the name
/// it is listed under. Nothing where the address stands in for what is absent, and nothing for a
/// text that reads as an address or a digest: overrides are for who one is, not for what one claims.
pub(crate) fn subject_text(rule: &Rule, request: &Request<'_>) -> Option<String> {
    let By::All(places) = rule.by() else {
        return None;
    };
    let mut out = String::new();
    for (i, alternatives) in places.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        match value_of(alternatives, IfMissing::Skip, request)? {
            Value::Text(_, value) if claims_another_kind(value) => return None,
            Value::Text(_, value) => out.push_str(value),
            Value::Ip(ip) => out.push_str(&ip.to_string()),
            Value::Key(digest) => match request.api_key.and_then(|key| key.name) {
                Some(name) => out.push_str(name),
                None => write_digest(&mut out, &digest),
            },
            Value::Nobody => return None,
        }
    }
    Some(out)
}

fn claims_another_kind(value: &str) -> bool {
    value.starts_with("sha256:") || value.parse::<IpAddr>().is_ok()
}

fn write_digest(out: &mut String, digest: &[u8; 32]) {
    out.push_str("sha256:");
    for byte in digest {
        out.push_str(&format!("{byte:02x}"));
    }
}

/// What counts for one place of a `by`; nothing if the rule wants to be skipped without it.
pub(crate) fn value_of<'r>(
    alternatives: &'r [Box<str>],
    if_missing: IfMissing,
    request: &'r Request<'_>,
) -> Option<Value<'r>> {
    let present = alternatives.iter().find_map(|name| match &**name {
        "ip" => request.ip.map(Value::Ip),
        "api_key" => request.api_key.map(|key| Value::Key(key.digest)),
        name => request
            .text(name)
            .filter(|value| !value.is_empty())
            .map(|value| Value::Text(name, value)),
    });
    match (present, if_missing) {
        (Some(value), _) => Some(value),
        (None, IfMissing::Skip) => None,
        (None, IfMissing::Substitute) => Some(request.ip.map_or(Value::Nobody, Value::Ip)),
    }
}
