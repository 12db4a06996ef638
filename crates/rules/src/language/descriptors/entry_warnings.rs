//! Domains, keys and values that Envoy probably never sends. All are compared as they are, as by the reference service,
//! so that a limit for one of them would never apply.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::language::diagnostics::quoted;
use crate::language::names::find_within_one_edit;
use crate::language::values;

/// The key of an entry with a client's address.
const REMOTE_ADDRESS: &str = "remote_address";

/// The key of an entry with a client's network.
const MASKED_REMOTE_ADDRESS: &str = "masked_remote_address";

/// Keys that Envoy uses where its configuration names none.
const ENVOY_KEYS: [&str; 7] = [
    REMOTE_ADDRESS,
    MASKED_REMOTE_ADDRESS,
    "generic_key",
    "header_match",
    "query_match",
    "source_cluster",
    "destination_cluster",
];

/// The warning about the name of a domain.
pub(super) fn domain_warning(domain: &str) -> Option<String> {
    has_outer_blank(domain).then(|| format!("has the domain {}, {OUTER_BLANK}", quoted(domain)))
}

/// The warning about a key and a value. An empty value stands for any.
pub(super) fn entry_warning(key: &str, value: &str) -> Option<String> {
    key_warning(key).or_else(|| value_warning(key, value).filter(|_| !value.is_empty()))
}

const OUTER_BLANK: &str = "which has white space at an end; remove it";

fn has_outer_blank(text: &str) -> bool {
    text.trim() != text
}

fn key_warning(key: &str) -> Option<String> {
    let shown = quoted(key);
    if has_outer_blank(key) {
        return Some(format!("has the key {shown}, {OUTER_BLANK}"));
    }
    if matches!(key, "request_headers" | "query_parameters") {
        return Some(format!(
            "has the key {shown}, but for that action Envoy sends its `descriptor_key`; write that, unless it is just \
             this"
        ));
    }
    let near = sent_name(key).or_else(|| find_within_one_edit(&key.replace('-', "_"), ENVOY_KEYS));
    near.filter(|near| *near != key)
        .map(|near| format!("has the key {shown}, which Envoy sends as `{near}`; correct it, or rename it"))
}

/// The key that Envoy sends for an action or a field that its configuration calls `name`.
fn sent_name(name: &str) -> Option<&'static str> {
    match name {
        "header_value_match" => Some("header_match"),
        "query_parameter_value_match" => Some("query_match"),
        "dest_cluster" => Some("destination_cluster"),
        _ => None,
    }
}

fn value_warning(key: &str, value: &str) -> Option<String> {
    let shown = quoted(value);
    if key == REMOTE_ADDRESS && !value.contains('*') {
        let is_sent = value.parse::<IpAddr>().is_ok_and(|ip| ip.to_string() == value);
        return (!is_sent).then(|| {
            format!(
                "has the value {shown} for `{key}`, and Envoy sends one address in its shortest form; write that, use \
                 `{MASKED_REMOTE_ADDRESS}`, or a rule with `match: {{ ip: ... }}`"
            )
        });
    }
    if key == MASKED_REMOTE_ADDRESS && !value.contains('*') {
        let net = value.parse::<IpNet>().ok().or_else(|| Some(value.parse::<IpAddr>().ok()?.into()));
        let sent = net.map_or_else(|| "one such as 192.0.2.0/24".to_owned(), |net| net.trunc().to_string());
        return (sent != value).then(|| {
            format!("has the value {shown} for `{key}`, and Envoy sends a network in its shortest form; write {sent}")
        });
    }
    values::entry_warning(key, value).map(|found| {
        format!("has the value {shown}, {found}; write the value, `*` for any text in it, or none for all")
    })
}
