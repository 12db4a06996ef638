//! Path normalization: one path for one resource, however it is written.
//!
//! A rule for `/login` must match when a client writes `//login`, `/login/`, `/x/../login`, `/%6cogin`, `/login;a=b`
//! or `/login?x=1`, because the service behind may. In order:
//!
//! 1. `http://host` in front, and `?` or `#` and what follows, are dropped;
//! 2. `%XX` of printable ASCII is decoded, once; others stay, with capital digits, and bytes that are not
//!    ASCII are written like that too;
//! 3. `\` becomes `/`;
//! 4. in each segment `;` and what follows is dropped;
//! 5. empty and `.` segments are dropped, also at the end; `..` removes the segment before it;
//! 6. the result starts with a slash and, unless it is only that, ends without one.
//!
//! Case is significant: `/Login` is another path than `/login`.
//!
//! Servers disagree most where `..` meets `;`, `\` or an encoded slash. Such a path is ambiguous: no
//! honest client sends one, and edges that can reject a request reject it.

use std::borrow::Cow;
use std::fmt::Write;

/// A path that servers interpret differently.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`..` beside `;`, a backslash or an encoded slash means different things to different servers")]
pub struct AmbiguousPathError {
    /// The path by the steps above, for callers that cannot reject.
    pub resolved: String,
}

/// The path of a request target in normal form.
///
/// # Errors
/// When servers interpret it differently.
pub fn normalize_path(target: &str) -> Result<Cow<'_, str>, AmbiguousPathError> {
    if let Some(path) = normalized_prefix(target) {
        return Ok(Cow::Borrowed(path));
    }
    let path = without_origin(target);
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let path = &path[..end];
    let decoded = decode(path);
    let odd = path.contains('%') && hides_slash(path);
    let resolved = resolve(&decoded);
    if decoded.contains("..") && (odd || decoded.contains([';', '\\'])) {
        return Err(AmbiguousPathError { resolved });
    }
    Ok(Cow::Owned(resolved))
}

/// The usual case: the part before the query is in normal form and need not be copied.
fn normalized_prefix(target: &str) -> Option<&str> {
    let mut last = 0;
    let mut end = target.len();
    for (at, byte) in target.bytes().enumerate() {
        match byte {
            b'?' | b'#' => {
                end = at;
                break;
            }
            b'%' | b'\\' | b';' | 0x80.. => return None,
            b'/' | b'.' if last == b'/' => return None,
            _ => last = byte,
        }
    }
    let absolute = target.starts_with('/');
    let path = target.get(..end)?;
    (absolute && (last != b'/' || end == 1)).then_some(path)
}

/// A pattern of paths in normal form: as [`normalize_path`], with `*` left alone.
///
/// # Errors
/// The part that no path in normal form can match.
pub(crate) fn normalize_pattern(pattern: &str) -> Result<String, &'static str> {
    if pattern.to_ascii_lowercase().contains("%2a") {
        return Err("in which an encoded star stands beside a pattern; write `*` for it");
    }
    let decoded = decode(pattern);
    if !decoded.contains(['/', '\\']) {
        return Ok(decoded);
    }
    let mut segments = decoded.split(['/', '\\']);
    let mut out = segments.next().unwrap_or_default().to_owned();
    for segment in segments {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => {
                return Err("in which `..` stands beside a pattern; write the path it leads to");
            }
            segment => {
                out.push('/');
                out.push_str(segment);
            }
        }
    }
    Ok(out)
}

/// Whether a slash or backslash is written as `%2f` or `%5c`.
fn hides_slash(path: &str) -> bool {
    let mut escapes = path.match_indices('%').filter_map(|(at, _)| escaped(&path[at..]));
    escapes.any(|byte| matches!(byte, b'/' | b'\\'))
}

fn without_origin(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else { return target };
    if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return target;
    }
    rest.find(['/', '?', '#']).map_or("", |at| &rest[at..])
}

fn decode(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        match escaped(rest) {
            Some(byte @ 0x20..=0x7e) => {
                out.push(char::from(byte));
                rest = &rest[3..];
            }
            Some(_) => {
                out.push_str(&rest[..3].to_ascii_uppercase());
                rest = &rest[3..];
            }
            None => {
                out.push('%');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    if out.is_ascii() { out } else { encode(&out) }
}

/// Writes bytes that are not ASCII as `%XX`.
fn encode(path: &str) -> String {
    let mut out = String::with_capacity(path.len() * 2);
    for byte in path.bytes() {
        match byte {
            0x80.. => _ = write!(out, "%{byte:02X}"), // cannot fail
            _ => out.push(char::from(byte)),
        }
    }
    out
}

/// The byte that `%XX` at the start of `text` encodes.
fn escaped(text: &str) -> Option<u8> {
    let digits = text.as_bytes().get(1..3)?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(digits[0])? * 16 + digit(digits[1])?;
    u8::try_from(value).ok()
}

fn resolve(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => _ = segments.pop(),
            segment => segments.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &segments {
        out.push('/');
        out.push_str(segment);
    }
    if segments.is_empty() {
        out.push('/');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_resource_has_one_path() {
        let cases = [
            ("/login", "/login"),
            ("/login?x=/../y", "/login"),
            ("/login#f", "/login"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/login;y=1", "/login"),
            ("/%6cogin", "/login"),
            ("/%6Cogin", "/login"),
            ("/a%2flogin", "/a/login"),
            ("/%2e%2e/login", "/login"),
            (r"\a\login", "/a/login"),
            ("https://host/login?x", "/login"),
            ("login", "/login"),
            ("/login/", "/login"),
            ("/login/.", "/login"),
            ("/login//", "/login"),
            ("/", "/"),
            ("/a/b/..", "/a"),
            ("", "/"),
            ("?x", "/"),
            ("https://host", "/"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/100%", "/100%"),
            ("/%zz%4", "/%zz%4"),
            ("/%252f", "/%2f"),
            ("/%00x", "/%00x"),
            ("/été/%41", "/%C3%A9t%C3%A9/A"),
            ("/café", "/caf%C3%A9"),
        ];
        for (target, want) in cases {
            assert_eq!(normalize_path(target).as_deref(), Ok(want), "{target}");
        }
    }

    #[test]
    fn paths_that_servers_interpret_differently_are_rejected() {
        for path in ["/a/..;x=1/login", "/a%2f..%2flogin", "/a/..%5clogin", r"/a\..\login", "/%2e%2e;/x"] {
            assert!(normalize_path(path).is_err(), "{path}");
        }
        assert!(normalize_path("/a..b;c/d").is_err(), "a rare name, and safe to reject");
        assert!(normalize_path("/a/../b").is_ok());
    }

    #[test]
    fn a_pattern_of_paths_has_the_same_form() {
        for (pattern, want) in [
            ("/api/**", "/api/**"),
            ("/api/**/", "/api/**"),
            ("//api//*/x/", "/api/*/x"),
            ("/%61pi/./*", "/api/*"),
            ("**/x/", "**/x"),
            ("*.css", "*.css"),
            ("/a;b/*", "/a/*"),
            ("/café/*", "/caf%C3%A9/*"),
        ] {
            assert_eq!(normalize_pattern(pattern).as_deref(), Ok(want), "{pattern}");
        }
        assert!(normalize_pattern("/a/../*").is_err());
        assert!(normalize_pattern("/a%2A/*").is_err());
    }

    #[test]
    fn an_ambiguous_path_is_resolved_for_callers_that_cannot_reject_it() {
        let ambiguous = normalize_path("/a/..;x=1/login").unwrap_err();
        assert_eq!(ambiguous.resolved, "/login");
    }

    #[test]
    fn a_plain_path_is_not_copied() {
        assert!(matches!(normalize_path("/api/v1/search?q=1").unwrap(), Cow::Borrowed("/api/v1/search")));
    }

    #[test]
    fn any_text_gives_a_path_with_a_leading_slash_and_without_dot_segments() {
        let parts = ["/", "..", ".", ";", "%2e", "%2f", "%", "\\", "a", "é", "?", "://", "%c3"];
        let mut state = 7_u64;
        for _ in 0..200_000 {
            let mut target = String::new();
            for _ in 0..8 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                target.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            let Ok(path) = normalize_path(&target) else {
                assert!(target.contains("..") || target.contains("%2e"), "{target}");
                continue;
            };
            assert!(path.starts_with('/'), "{target} gives {path}");
            let climbs = |segment: &str| segment == ".." || segment == ".";
            assert!(!path.split('/').any(climbs) && !path.contains("//"), "{target} gives {path}");
        }
    }
}
