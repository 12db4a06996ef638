//! The fingerprint of the subject that a rule charges for a request.
//!
//! A substitute for an absent attribute is hashed under its own name, so that a user called `192.0.2.1` and a request
//! from that address without a user have counters of their own.

use std::net::IpAddr;

use crate::envoy::DescriptorEntry;
use crate::language::{By, Rule, SubjectValue, subject_value};
use crate::request::Request;
use tidegate_core::subject::{Fingerprint, FingerprintKey, SubjectHasher};

/// Separates these counters from those of other users of the same store, whatever the attributes.
const NAMESPACE: &str = "tidegate";

/// The subject of `request` under `rule`; `None` if the rule does not apply without one.
pub(super) fn identify(rule: &Rule, request: &Request<'_>, key: &FingerprintKey) -> Option<Fingerprint> {
    let mut hasher = key.hasher(NAMESPACE);
    if let By::All(places) = rule.by() {
        for alternatives in places {
            subject_value(alternatives, rule.if_missing(), request)?.hash(&mut hasher);
        }
    }
    Some(hasher.finish())
}

/// Separates counters of descriptors from all others, whatever the names of their entries.
const DESCRIPTOR_NAMESPACE: &str = "tidegate/envoy";

/// The subject of a descriptor: its domain and entries. `shared` holds patterns, by entry, that replace values. A
/// prefix makes the number of parts even, so no other domain can collide with it.
pub(super) fn descriptor_fingerprint(
    key: &FingerprintKey,
    prefix: &str,
    domain: &str,
    entries: &[DescriptorEntry<'_>],
    shared: &[(usize, &str)],
) -> Fingerprint {
    let mut hasher = key.hasher(DESCRIPTOR_NAMESPACE);
    if !prefix.is_empty() {
        hasher.part(prefix.as_bytes());
    }
    hasher.part(domain.as_bytes());
    for (i, (key, value)) in entries.iter().enumerate() {
        let pattern = shared.iter().find(|(at, _)| *at == i);
        let value = pattern.map_or(&**value, |(_, pattern)| pattern);
        hasher.part(key.as_bytes());
        hasher.part(value.as_bytes());
    }
    hasher.finish()
}

/// A hash of the client, by the best evidence: the key, the address, else all attributes.
pub(super) fn client_hash(request: &Request<'_>, key: &FingerprintKey) -> u64 {
    match (request.api_key, request.ip) {
        (Some(client), _) => key.fingerprint(&client.digest).seed(),
        (None, Some(IpAddr::V4(ip))) => key.fingerprint(&ip.octets()).seed(),
        (None, Some(IpAddr::V6(ip))) => key.fingerprint(&ip.octets()).seed(),
        (None, None) => {
            let mut hasher = key.hasher(NAMESPACE);
            for (name, value) in &request.attributes {
                hasher.part(name.as_bytes());
                hasher.part(value.as_bytes());
            }
            hasher.finish().seed()
        }
    }
}

impl SubjectValue<'_> {
    fn hash(&self, hasher: &mut SubjectHasher) {
        match self {
            SubjectValue::Text(name, value) => {
                hasher.part(name.as_bytes());
                hasher.part(value.as_bytes());
            }
            SubjectValue::Ip(IpAddr::V4(ip)) => {
                hasher.part(b"ip");
                hasher.part(&ip.octets());
            }
            SubjectValue::Ip(IpAddr::V6(ip)) => {
                hasher.part(b"ip");
                hasher.part(&ip.octets());
            }
            SubjectValue::Key(digest) => {
                hasher.part(b"api_key");
                hasher.part(digest);
            }
            // No attribute has an empty name, so no client can claim to be anonymous.
            SubjectValue::Anonymous => hasher.part(b""),
        }
    }
}
