//! Reads the subjects of `overrides`: exact values, in the form that requests have.
//!
//! An override takes no patterns. An override for a subject that no request can have would silently leave out a
//! limit, so values of attributes with a form of their own (`ip`, `path`, `host`, `method`, `priority`) are checked
//! like those of `match`, and so are digests of API keys. Other attributes may have any text; lint warns about some of
//! them.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::IpNet;

use super::access_lists::parse_digest;
use super::diagnostics::quoted;
use super::glob::Glob;
use super::match_reader::normal_text;
use super::rule::{Alternatives, By};
use super::subject::{digest_text, push_value, split_subject};
use super::values::networks::{cut_error, cut_to, reject_nat64};
use super::values::{self, methods};
use crate::request::{PRIORITY, normalize_method};

/// The text that requests of this subject have, see `subject::subject_text`, or the error for it.
pub(super) fn normalize_subject(text: &str, by: &By, ipv6_prefix: u8) -> Result<Box<str>, String> {
    let By::All(parts) = by else { return Ok(text.into()) };
    let values = split_subject(text, parts);
    if values.len() != parts.len() {
        return Err(format!(
            "which has {} of the {} values of `by: {by}`; join all of them by `,`, and write a comma \
             inside a value as `\\,`",
            values.len(),
            parts.len()
        ));
    }
    let mut out = String::new();
    for (index, (value, names)) in values.iter().zip(parts).enumerate() {
        let value = normalize_value(value, names, ipv6_prefix)?;
        push_value(&mut out, &value, index, parts.len());
    }
    Ok(out.into())
}

/// The warning about a subject that is valid and probably not meant. Begins with the value.
pub(super) fn warning(text: &str, by: &By) -> Option<String> {
    let By::All(parts) = by else { return None };
    split_subject(text, parts).iter().zip(parts).find_map(|(value, names)| value_warning(value, names))
}

/// One value of a subject: an address as clients have it after normalization, a path and the like in normal form.
fn normalize_value<'t>(text: &'t str, names: &Alternatives, ipv6_prefix: u8) -> Result<Cow<'t, str>, String> {
    if text.is_empty() {
        return Err("in which a value is empty, and an empty text counts as absent; write it".into());
    }
    if text.trim() != text {
        return Err("which has white space at an end; remove it".into());
    }
    if contains_name(names, "api_key")
        && let Some(digest) = parse_digest(text)
    {
        return Ok(digest_text(&digest?).into());
    }
    const NO_ADDRESS: &str = "which is no address; write one such as 192.0.2.7";
    if contains_name(names, "ip") {
        let ip = text.parse::<IpAddr>().map(|ip| IpNet::from(ip.to_canonical()));
        match ip.or_else(|_| text.parse::<IpNet>()) {
            Ok(net) => return normalize_address(net, ipv6_prefix).map(Cow::Owned),
            Err(_) if looks_like_address(text) => return Err(NO_ADDRESS.to_owned()),
            Err(_) => {}
        }
    }
    if !names.iter().all(|name| has_restricted_values(name)) {
        return Ok(text.into());
    }
    let mut wrong = NO_ADDRESS.to_owned();
    for name in names.iter().filter(|name| ***name != *"ip") {
        match normalize_exact(name, text) {
            Ok(value) => return Ok(value),
            Err(other) => wrong = other,
        }
    }
    Err(wrong)
}

fn contains_name(names: &Alternatives, name: &str) -> bool {
    names.iter().any(|known| **known == *name)
}

/// Whether requests have only certain texts for the attribute `name`.
fn has_restricted_values(name: &str) -> bool {
    matches!(name, "ip" | "path" | "host" | "method" | PRIORITY)
}

/// One value of the attribute `name` in normal form.
fn normalize_exact<'t>(name: &str, text: &'t str) -> Result<Cow<'t, str>, String> {
    if Glob::is_glob(text) {
        return Err(format!(
            "but overrides take no patterns; write one {name}, or a rule with `match: {{ {name}: {text:?} }}`"
        ));
    }
    // The keys of a mapping cannot be lists.
    values::check(name, text).map_err(|wrong| match wrong.split_once("; write a list") {
        Some((several, _)) => format!("{several}; write an override for each"),
        None => wrong,
    })?;
    normal_text(name, text)
}

/// Whether a text looks like an address but cannot be parsed as one: `01.2.3.4`, `1.2.3.*`, `1.2.3.4:80`,
/// `2001:db8::g`.
fn looks_like_address(text: &str) -> bool {
    let digits = text.bytes().any(|b| b.is_ascii_digit());
    let v4 = |b: u8| b.is_ascii_digit() || b".*/:".contains(&b);
    let dots = text.matches('.').count();
    // Before the first colon of an IPv6 address are at most four digits, and none in `tenant::42`.
    let begins_hex =
        text.split(':').next().is_some_and(|first| first.len() <= 4 && first.bytes().all(|b| b.is_ascii_hexdigit()));
    let v6 = text.contains("::") && begins_hex;
    digits && (dots == 3 && text.bytes().all(v4) || v6)
}

fn value_warning(text: &str, names: &Alternatives) -> Option<String> {
    let is_path = names.len() == 1 && contains_name(names, "path");
    if !is_path && names.iter().all(|name| has_restricted_values(name)) {
        let method = normalize_method(text);
        let is_odd = names.len() == 1 && contains_name(names, "method") && !methods::is_known(&method);
        return is_odd.then(|| values::unregistered_method(text));
    }
    let name = names.first()?;
    let quoted = quoted(text);
    if text.contains(['*', '?']) {
        return Some(format!(
            "{quoted}, but overrides take no patterns: only the {} of just that text has these rates; write \
             each subject, or a rule with a `match`",
            names.join(" or ")
        ));
    }
    if let [only] = &names[..]
        && let Some(warning) = values::check(only, text).err().or_else(|| values::warning(only, text))
    {
        // The advice for a `match` may be a pattern or a list, and overrides take neither.
        let found = values::without_advice(&warning);
        return Some(format!("{quoted}, {found}; write each subject, or a rule with a `match`"));
    }
    let is_address = text.parse::<IpAddr>().is_ok() && !contains_name(names, "ip");
    let is_digest = text.starts_with("sha256:") && !contains_name(names, "api_key");
    (is_address || is_digest).then(|| {
        let claimed = if is_address { "an address" } else { "a digest of a key" };
        format!(
            "{quoted}, which reads as {claimed}, so that no {name} has it; write a rule with `match: {{ {name}: {} }}`",
            text.escape_debug()
        )
    })
}

/// The address of one client in the form in which clients are counted. An IPv6 client has a whole network, and is
/// written as that network.
fn normalize_address(net: IpNet, ipv6_prefix: u8) -> Result<String, String> {
    reject_nat64(net)?;
    let one_client = match net {
        IpNet::V4(_) => 32,
        IpNet::V6(_) => ipv6_prefix,
    };
    if net.prefix_len() < one_client {
        return Err(format!(
            "which is a network, but an override is for one client; write an address, or a rule \
             with `match: {{ ip: {} }}`",
            net.trunc()
        ));
    }
    let client = cut_to(net, one_client);
    if net != client {
        return Err(cut_error(one_client, client));
    }
    Ok(client.addr().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by(text: &str) -> By {
        let alternatives = |names: &str| names.split('|').map(Box::from).collect();
        By::All(text.split(", ").map(alternatives).collect())
    }

    #[track_caller]
    fn wrong(names: &str, text: &str, cure: &str) {
        let found = normalize_subject(text, &by(names), 64);
        assert!(found.as_ref().is_err_and(|wrong| wrong.contains(cure)), "{names} {text:?}: {found:?}");
    }

    #[test]
    fn a_subject_that_no_request_can_have_is_wrong() {
        for (names, text, cure) in [
            ("path", "/login/*", "take no patterns; write one path"),
            ("path", "login", "write /login"),
            ("path", "/a, /b", "write an override for each"),
            ("path", "/a?x", "write what stands before `?`"),
            ("host", "*.example.com", "match: { host: \"*.example.com\" }"),
            ("host", "https://example.com", "write example.com"),
            ("host", "::1", "write [::1]"),
            ("host|ip", "*.example.com", "take no patterns"),
            ("method", "PSOT", "write POST"),
            ("method", "GET,POST", "several methods"),
            ("method", "P*", "take no patterns"),
            ("priority", "Critical", "write `critical`"),
            ("user|ip", "01.2.3.4", "write one such as 192.0.2.7"),
            ("user|ip", "1.2.3.*", "write one such as 192.0.2.7"),
            ("user|ip", "1.2.3.4:80", "write one such as 192.0.2.7"),
            ("ip", "ada", "write one such as 192.0.2.7"),
            ("user", "ada ", "white space"),
            ("user", "", "is empty"),
            ("org, user", "acme,", "is empty"),
            ("api_key", "sha256:ab12", "is no SHA-256; write sha256: and 64 hex digits"),
            ("api_key|ip", "SHA256:", "is no SHA-256"),
            ("user|api_key", &format!("sha256:{}", "g".repeat(64)), "is no SHA-256"),
            ("org, api_key", &format!("acme,sha256:{}", "a".repeat(63)), "is no SHA-256"),
            ("ip, path", "192.0.2.7,/a/*", "take no patterns"),
        ] {
            wrong(names, text, cure);
        }
    }

    #[test]
    fn an_exact_subject_has_the_form_of_requests() {
        for (names, text, want) in [
            ("path", "/login/", "/login"),
            ("host", "EXAMPLE.com:80", "example.com"),
            ("host|ip", "EXAMPLE.com", "example.com"),
            ("host|ip", "192.0.2.7", "192.0.2.7"),
            ("user|ip", "12:30:45", "12:30:45"),
            ("user|ip", "ada", "ada"),
            ("method", "get", "GET"),
            ("priority", "critical", "critical"),
            ("org, user", "acme, ada", "acme,ada"),
            ("api_key", &format!("SHA256:{}", "AB".repeat(32)), &format!("sha256:{}", "ab".repeat(32))),
        ] {
            let found = normalize_subject(text, &by(names), 64);
            assert_eq!(found.as_deref(), Ok(want), "{names}");
            assert_eq!(warning(text, &by(names)), None, "{names}");
        }
    }

    #[test]
    fn suspicious_texts_cause_warnings() {
        for (names, text) in [
            ("user", "bot-*"),
            ("org, user", "acme,*"),
            ("user", "192.0.2.7"),
            ("user", "sha256:00"),
            ("method", "FETCH"),
            ("header.user-agent", "^curl"),
            ("header.x-plan", "free, pro"),
            ("raw_path", "login"),
            ("path", "/l\u{43e}gin"),
        ] {
            assert!(normalize_subject(text, &by(names), 64).is_ok(), "{text}");
            assert!(warning(text, &by(names)).is_some(), "{text}");
        }
    }
}
