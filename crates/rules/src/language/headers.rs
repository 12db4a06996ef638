//! Header names in rules: names that never carry what the client sent, and names that are probably misspelt.
//!
//! A proxy describes the client's request at `/v1/auth` by a request of its own. Headers that belong to that request,
//! or that a proxy writes for Tidegate to read, carry nothing about the client, or carry it in several forms.

use super::names::find_within_one_edit;
use crate::request::HEADER_PREFIX;

/// Headers that many clients send. A name within one letter of one of them is misspelt, unless it is declared.
const COMMON_HEADERS: [&str; 8] = [
    "accept-encoding",
    "accept-language",
    "authorization",
    "content-type",
    "cookie",
    "origin",
    "referer",
    "user-agent",
];

/// Attributes that are not headers.
const NON_HEADER_ATTRIBUTES: [&str; 6] = ["ip", "path", "raw_path", "method", "api_key", "priority"];

/// What is wrong with the attribute `name`, in lower case, if it is a header that never has the client's value.
pub(super) fn check(name: &str) -> Result<(), String> {
    let header = name.strip_prefix(HEADER_PREFIX).unwrap_or(name);
    let wrong = match header {
        ":authority" => "which is `host` in rules; write `host`",
        ":path" => "which is `path` in rules; write `path`",
        ":method" => "which is `method` in rules; write `method`",
        "host" if header != name => {
            "which behind a proxy is the host of Tidegate and not the one that the client requested; write `host`"
        }
        _ => return Ok(()),
    };
    Err(format!("`{name}`, {wrong}"))
}

/// The common header that the attribute `name` was probably meant to be.
pub(super) fn correct_spelling(name: &str) -> Option<String> {
    let header = name.strip_prefix(HEADER_PREFIX)?;
    if COMMON_HEADERS.contains(&header) {
        return None;
    }
    find_within_one_edit(header, COMMON_HEADERS).map(|near| format!("{HEADER_PREFIX}{near}"))
}

/// The warning about the attribute `name`, if it is probably not meant. Follows the name in the message.
pub(super) fn warning(name: &str) -> Option<String> {
    let header = name.strip_prefix(HEADER_PREFIX)?;
    if is_connection_header(header) {
        return Some(
            "which behind a proxy is about the connection of the proxy and never the client's; remove it unless \
             callers of /v1/check send it"
                .to_owned(),
        );
    }
    if let Some(attribute) = described_attribute(header) {
        return Some(format!("which proxies and clients write in different forms; write `{attribute}`, which has one"));
    }
    if NON_HEADER_ATTRIBUTES.contains(&header) {
        return Some(format!("a header that clients do not send by themselves; write `{header}` unless they do"));
    }
    header.contains('_').then(|| {
        let hyphens = header.replace('_', "-");
        format!(
            "but proxies drop headers with `_` in their names; write `{HEADER_PREFIX}{hyphens}`, or declare it: \
             `attributes: [{name}]`"
        )
    })
}

/// Whether a header is one of one connection. If a proxy sends it at all, it describes its own connection to Tidegate.
fn is_connection_header(header: &str) -> bool {
    matches!(header, "connection" | "keep-alive" | "proxy-connection" | "upgrade")
        || matches!(header, "content-length" | "expect" | "te" | "trailer" | "transfer-encoding")
}

/// The attribute made from a header by which proxies describe the client's request.
fn described_attribute(header: &str) -> Option<&'static str> {
    Some(match header {
        "forwarded" | "x-forwarded-for" | "x-real-ip" => "ip",
        "x-forwarded-host" | "x-original-host" => "host",
        "x-forwarded-method" | "x-original-method" => "method",
        "x-forwarded-uri" | "x-original-uri" => "path",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_of_the_sub_request_are_wrong() {
        for (name, cure) in [
            ("header.host", "write `host`"),
            ("header.:authority", "write `host`"),
            (":path", "write `path`"),
            ("header.:method", "write `method`"),
        ] {
            let wrong = check(name).unwrap_err();
            assert!(wrong.ends_with(cure), "{wrong}");
        }
        for name in ["host", "header.x-host", "header.hosts", "header.user-agent"] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
    }

    #[test]
    fn headers_one_letter_from_a_common_one_are_misspelt() {
        for (name, near) in [
            ("header.user_agent", "header.user-agent"),
            ("header.useragent", "header.user-agent"),
            ("header.referrer", "header.referer"),
            ("header.authorisation", "header.authorization"),
            ("header.content_type", "header.content-type"),
        ] {
            assert_eq!(correct_spelling(name).as_deref(), Some(near));
        }
        for name in [
            "header.user-agent",
            "header.cookie",
            "header.x-user-agent",
            "header.x-origin",
            "header.x-plan",
            "useragent",
        ] {
            assert_eq!(correct_spelling(name), None, "{name}");
        }
    }

    #[test]
    fn headers_that_proxies_write_or_drop_cause_warnings() {
        for (name, cure) in [
            ("header.content-length", "remove it unless"),
            ("header.connection", "remove it unless"),
            ("header.x-original-uri", "write `path`"),
            ("header.x-forwarded-for", "write `ip`"),
            ("header.method", "write `method`"),
            ("header.x_plan", "write `header.x-plan`"),
        ] {
            let warning = warning(name).unwrap_or_default();
            assert!(warning.contains(cure), "{name}: {warning}");
        }
        for name in ["header.x-plan", "header.x-forwarded-proto", "header.accept", "x_plan"] {
            assert_eq!(warning(name), None, "{name}");
        }
    }
}
