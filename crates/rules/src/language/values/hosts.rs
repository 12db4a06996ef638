//! Hosts in rules: finds texts and patterns that no request can have.

use std::net::Ipv6Addr;

use crate::language::glob::Glob;
use crate::request::{HostError, check_host};

/// What is wrong with a host that a rule names, and what to write.
pub(super) fn check(text: &str) -> Result<(), String> {
    if !text.is_ascii() {
        return Err("but requests have the ASCII form of such a name; write it as xn--...".into());
    }
    if text.is_empty() {
        return Err("but an empty host counts as absent; write its name".into());
    }
    if let Some(domain) = text.strip_prefix('.') {
        let domain = domain.escape_debug();
        return Err(format!("but no host begins with a dot; write [{domain}, \"*.{domain}\"]"));
    }
    if text.parse::<Ipv6Addr>().is_ok() {
        return Err(format!("but an IPv6 address is written in brackets; write [{text}]"));
    }
    if Glob::is_glob(text) && text.starts_with('[') {
        return Ok(());
    }
    // A host in which every `*` stands for the letter `a`: also a digit of an IPv6 address.
    let example = text.replace('*', "a");
    check_host(&example).map_err(|wrong| error_text(text, wrong))
}

fn error_text(text: &str, wrong: HostError) -> String {
    let shown = |text: &str| text.escape_debug().to_string();
    match wrong {
        HostError::Url => {
            let host = text.split_once("://").map_or(text, |(_, rest)| rest);
            let host = host.split('/').next().unwrap_or_default();
            format!("but a host has neither scheme nor path; write {}", shown(host))
        }
        HostError::Several => "which is several hosts in one text; write a list: [a.example, b.example]".to_owned(),
        HostError::User => {
            let host = text.rsplit('@').next().unwrap_or_default();
            format!("but a host has no user; write {}", shown(host))
        }
        HostError::Port if text.matches(':').count() > 1 => {
            "but a host has one port at most, and an IPv6 address is written in brackets; write [2001:db8::1] or a name"
                .to_owned()
        }
        HostError::Port => {
            let host = text.split(':').next().unwrap_or_default();
            format!("but hosts are compared without their port; write {}", shown(host))
        }
        HostError::EmptyLabel => {
            let host = text.split('.').filter(|label| !label.is_empty()).collect::<Vec<_>>().join(".");
            format!("in which a part is empty; write {}", shown(&host))
        }
        HostError::Brackets => {
            "but only an IPv6 address is written in brackets; write [2001:db8::1] or a name".to_owned()
        }
        HostError::Character(odd) => {
            format!("but no host has {odd:?}; write a name such as www.example.com, and `*` for any text in it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn wrong(host: &str, cure: &str) {
        let found = check(host);
        assert!(found.as_ref().is_err_and(|wrong| wrong.ends_with(cure)), "{host}: {found:?}");
    }

    #[test]
    fn a_host_that_no_request_has_is_wrong() {
        for (host, cure) in [
            ("example.com:*", "write example.com"),
            ("example.com:https", "write example.com"),
            ("example.com:99999", "write example.com"),
            (r"^example\.com$", "and `*` for any text in it"),
            ("~^www", "and `*` for any text in it"),
            ("exampl?.com", "and `*` for any text in it"),
            ("a.com;b.com", "write a list: [a.example, b.example]"),
            ("::1", "write [::1]"),
            ("example..com", "write example.com"),
            ("user@example.com", "write example.com"),
            ("https://example.com/x", "write example.com"),
            ("", "write its name"),
        ] {
            wrong(host, cure);
        }
    }

    #[test]
    fn names_addresses_and_patterns_are_hosts() {
        for host in [
            "example.com",
            "EXAMPLE.com:8080",
            "*",
            "**",
            "*.example.com",
            "*.example.com:8443",
            "api-*.example.*",
            "192.0.2.7",
            "[::1]:80",
            "[2001:db8:*",
        ] {
            assert_eq!(check(host), Ok(()), "{host}");
        }
    }
}
