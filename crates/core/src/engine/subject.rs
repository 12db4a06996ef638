//! Whose counter a rule charges for a request.
//!
//! An absent attribute never means unlimited: the address stands in for it, and all requests without
//! even that share one counter. What stands in is hashed under its own name, so that a user called
//! `192.0.2.1` and a request from that address without a user have counters of their own.

use std::net::IpAddr;

use crate::rules::{By, IfMissing, Rule};
use crate::subject::{Fingerprint, FingerprintKey, SubjectHasher};

use super::Request;

/// Counters of other users of the same store cannot be reached by any attribute.
const NAMESPACE: &str = "tidegate";

/// The value that counts for one place of a rule's `by`.
enum Value<'r> {
    Text(&'r str, &'r str),
    Ip(IpAddr),
    Key([u8; 32]),
    Nobody,
}

/// The subject of `request` under `rule`; nothing if the rule wants to be skipped without one.
pub(super) fn identify(
    rule: &Rule,
    request: &Request<'_>,
    key: &FingerprintKey,
) -> Option<Fingerprint> {
    let mut hasher = key.subject(NAMESPACE);
    if let By::All(places) = rule.by() {
        for alternatives in places {
            value_of(alternatives, rule.if_missing(), request)?.hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

/// The subject as an operator writes it in `overrides`: values joined by commas, a key by the name
/// it is listed under. Nothing where the address stands in for what is absent, and nothing for a
/// text that reads as an address or a digest: overrides are for who one is, not for what one claims.
pub(crate) fn text(rule: &Rule, request: &Request<'_>) -> Option<String> {
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

/// A hash of who asks, by the best evidence there is: the key, the address, else all that was said.
pub(super) fn client(request: &Request<'_>, key: &FingerprintKey) -> u64 {
    match (request.api_key, request.ip) {
        (Some(client), _) => key.only(&client.digest).seed(),
        (None, Some(IpAddr::V4(ip))) => key.only(&ip.octets()).seed(),
        (None, Some(IpAddr::V6(ip))) => key.only(&ip.octets()).seed(),
        (None, None) => {
            let mut hasher = key.subject(NAMESPACE);
            for (name, value) in &request.attributes {
                hasher.part(name.as_bytes());
                hasher.part(value.as_bytes());
            }
            hasher.finish().seed()
        }
    }
}

fn write_digest(out: &mut String, digest: &[u8; 32]) {
    out.push_str("sha256:");
    for byte in digest {
        out.push_str(&format!("{byte:02x}"));
    }
}

fn value_of<'r>(
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

impl Value<'_> {
    fn hash(&self, hasher: &mut SubjectHasher) {
        match self {
            Value::Text(name, value) => {
                hasher.part(name.as_bytes());
                hasher.part(value.as_bytes());
            }
            Value::Ip(IpAddr::V4(ip)) => {
                hasher.part(b"ip");
                hasher.part(&ip.octets());
            }
            Value::Ip(IpAddr::V6(ip)) => {
                hasher.part(b"ip");
                hasher.part(&ip.octets());
            }
            Value::Key(digest) => {
                hasher.part(b"api_key");
                hasher.part(digest);
            }
            // No attribute has an empty name, so nobody can claim to be nobody.
            Value::Nobody => hasher.part(b""),
        }
    }
}
