//! Hosts: their normal form in rules and requests, and the check of host syntax.
//!
//! A host is compared in lower case, without port and final dot; an IPv6 address is written in brackets, in its
//! shortest form. An invalid host in a rule is an error, and edges that can reject a request reject an invalid host.

use std::borrow::Cow;
use std::net::Ipv6Addr;

/// Why a text is no host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HostError {
    /// It has a scheme or a path.
    #[error("a host has neither scheme nor path")]
    Url,
    /// It has a separator between several hosts.
    #[error("it is several hosts in one text")]
    Several,
    /// It has a user part.
    #[error("a host has no user")]
    User,
    /// The text after the colon is no port.
    #[error("a port is a number up to 65535")]
    Port,
    /// It has two dots side by side, or begins with one.
    #[error("a label of it is empty")]
    EmptyLabel,
    /// It has brackets around a text that is no IPv6 address.
    #[error("only an IPv6 address may have brackets")]
    Brackets,
    /// It has a character that is not allowed in a host.
    #[error("a host cannot contain the character {0:?}")]
    Character(char),
}

/// A host in normal form. An invalid host becomes the name that most servers resolve it to, because Envoy lets a
/// request pass whose call is rejected.
pub fn normalize_host(host: &str) -> Cow<'_, str> {
    let name = strip_user_and_port(host).trim_end_matches('.');
    if let Some(ip) = ipv6(name) {
        let normalized = format!("[{ip}]");
        return if normalized == name { Cow::Borrowed(name) } else { Cow::Owned(normalized) };
    }
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

/// Whether a request may have this host, in normal form or not. Names that are not ASCII pass.
///
/// # Errors
/// The reason why it is none.
pub fn check_host(host: &str) -> Result<(), HostError> {
    if host.contains('/') {
        return Err(HostError::Url);
    }
    if host.contains(|c: char| matches!(c, ',' | ';' | '|') || c.is_whitespace()) {
        return Err(HostError::Several);
    }
    if host.contains('@') {
        return Err(HostError::User);
    }
    if let Some(port) = port(host)
        && !port.is_empty()
        && (!is_number(port) || port.parse::<u16>().is_err())
    {
        return Err(HostError::Port);
    }
    let name = without_port(host);
    if ipv6(name).is_some() {
        return Ok(());
    }
    if name.contains(['[', ']']) {
        return Err(HostError::Brackets);
    }
    let is_empty = name.is_empty() && !host.is_empty();
    if is_empty || name.starts_with('.') || name.contains("..") {
        return Err(HostError::EmptyLabel);
    }
    let odd = |c: &char| c.is_ascii() && !c.is_ascii_alphanumeric() && !"-._".contains(*c);
    match name.chars().find(odd) {
        Some(':') => Err(HostError::Port),
        Some(odd) => Err(HostError::Character(odd)),
        None => Ok(()),
    }
}

/// The host without user and port, whatever the text in place of a port.
fn strip_user_and_port(host: &str) -> &str {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    if host.starts_with('[') {
        return host.find(']').map_or(host, |end| &host[..=end]);
    }
    match host.split_once(':') {
        Some((name, _)) if ipv6(host).is_none() => name,
        _ => host,
    }
}

/// The host as an IPv6 address, with or without brackets.
fn ipv6(name: &str) -> Option<Ipv6Addr> {
    if !name.contains(':') {
        return None;
    }
    name.strip_prefix('[').map_or(Some(name), |rest| rest.strip_suffix(']'))?.parse().ok()
}

/// The text after the last colon, unless that colon belongs to an IPv6 address.
fn port(host: &str) -> Option<&str> {
    let (name, port) = host.rsplit_once(':')?;
    (!name.contains(':') || name.ends_with(']')).then_some(port)
}

fn without_port(host: &str) -> &str {
    match port(host) {
        Some(port) if is_number(port) => &host[..host.len() - port.len() - 1],
        _ => host,
    }
}

/// An empty port is valid: `example.com:` has the default port of its scheme.
fn is_number(port: &str) -> bool {
    port.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_form() {
        for (host, want) in [
            ("API.Example.com:8443", "api.example.com"),
            ("example.com.", "example.com"),
            ("example.com.:80", "example.com"),
            ("example.com:", "example.com"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("[2001:db8:0::1]", "[2001:db8::1]"),
            ("[::1]", "[::1]"),
            ("2001:DB8::1", "[2001:db8::1]"),
            ("*.Example.com:443", "*.example.com"),
        ] {
            assert_eq!(normalize_host(host), want, "{host}");
            assert_eq!(normalize_host(want), want, "{host}");
        }
    }

    /// Servers behind a proxy resolve each of these to `api.example.com`, and they matched no rule for that.
    #[test]
    fn an_invalid_host_becomes_the_name_that_servers_resolve_it_to() {
        for host in ["api.example.com:x", "api.example.com:80:80", "api.example.com:-1"] {
            assert_eq!(normalize_host(host), "api.example.com", "{host}");
        }
        for host in ["api.example.com..", "u@api.example.com", "a:b@api.example.com.:0x50"] {
            assert_eq!(normalize_host(host), "api.example.com", "{host}");
        }
        assert_eq!(normalize_host("[::1]:x"), "[::1]");
        assert_eq!(normalize_host("[::1"), "[::1");
    }

    #[test]
    fn invalid_hosts_are_rejected_with_the_reason() {
        for host in [
            "example.com",
            "a_b.example:80",
            "localhost",
            "1.2.3.4:80",
            "[::1]:80",
            "::1",
            "",
            "example.com.",
            "example.com:",
            "bücher.example",
        ] {
            assert_eq!(check_host(host), Ok(()), "{host}");
        }
        for (host, want) in [
            ("https://example.com", HostError::Url),
            ("example.com/", HostError::Url),
            ("a.com,b.com", HostError::Several),
            ("a.com;b.com", HostError::Several),
            ("a.com b.com", HostError::Several),
            ("ada@example.com", HostError::User),
            ("example.com:https", HostError::Port),
            ("example.com:*", HostError::Port),
            ("example.com:99999", HostError::Port),
            ("a:1:2", HostError::Port),
            ("example..com", HostError::EmptyLabel),
            (".example.com", HostError::EmptyLabel),
            (":80", HostError::EmptyLabel),
            (":", HostError::EmptyLabel),
            ("[example.com]", HostError::Brackets),
            ("[::1", HostError::Brackets),
            ("^example.com$", HostError::Character('^')),
            ("exampl?.com", HostError::Character('?')),
        ] {
            assert_eq!(check_host(host), Err(want), "{host}");
        }
    }
}
