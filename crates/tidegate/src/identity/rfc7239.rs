//! Parses the `Forwarded` header of RFC 7239, from the right: elements, their pairs, the `for` of each.
//!
//! Does not know which elements are trusted: [`forwarded`](super::forwarded) walks them.

use std::net::IpAddr;

use super::ip;

/// Elements of one `Forwarded` line, right to left, split at commas outside quotes.
///
/// Parsed from the right, the elements that trusted proxies appended are well formed whatever a client put before
/// them; parsed from the left, one stray quote sent by a client would swallow them.
pub(super) fn elements(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let (before, element) = match last_bare_comma(line) {
            Some(at) => (Some(&line[..at]), &line[at + 1..]),
            None => (None, line),
        };
        rest = before;
        Some(element)
    })
}

fn last_bare_comma(line: &[u8]) -> Option<usize> {
    let mut quoted = false;
    (0..line.len()).rev().find(|&at| {
        if line[at] == b'"' && !is_escaped(&line[..at]) {
            quoted = !quoted;
        }
        line[at] == b',' && !quoted
    })
}

/// Whether the byte after `before` is escaped: `before` ends in an odd run of backslashes.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|&&b| b == b'\\').count() % 2 == 1
}

/// The `for` address of one element. There must be exactly one `for`; the other parameters only have to be well
/// formed. `unknown`, `_hidden` and escapes inside quotes are no address.
pub(super) fn for_address(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in pairs(str::from_utf8(element).ok()?) {
        let (name, value) = pair?;
        if name.eq_ignore_ascii_case("for") && found.replace(value).is_some() {
            return None;
        }
    }
    ip::read(without_hidden_port(found?))
}

/// `name=value` pairs of an element; `None` for a malformed pair.
fn pairs(element: &str) -> impl Iterator<Item = Option<(&str, &str)>> {
    let (mut quoted, mut escaped) = (false, false);
    let at_semicolon = move |c: char| {
        let was_escaped = std::mem::replace(&mut escaped, false);
        match c {
            _ if was_escaped => false,
            '\\' => {
                escaped = quoted;
                false
            }
            '"' => {
                quoted = !quoted;
                false
            }
            c => c == ';' && !quoted,
        }
    };
    element.split(at_semicolon).map(str::trim).filter(|pair| !pair.is_empty()).map(pair)
}

fn pair(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let value = match value.strip_prefix('"') {
        Some(rest) => rest.strip_suffix('"')?,
        None if value.bytes().all(is_loose_token) => value,
        None => return None,
    };
    let is_name = !name.is_empty() && name.bytes().all(is_token);
    is_name.then_some((name, value))
}

/// RFC 9110 `tchar`.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// A token, or a character that proxies write without the quotes that IPv6 addresses and ports should have.
fn is_loose_token(b: u8) -> bool {
    is_token(b) || b"[]:/".contains(&b)
}

/// RFC 7239 allows a proxy to hide the port as `_name`; the address before it still counts.
fn without_hidden_port(node: &str) -> &str {
    match node.rsplit_once(":_") {
        Some((address, port)) if !port.is_empty() && port.bytes().all(is_token) => address,
        _ => node,
    }
}
