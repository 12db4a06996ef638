//! One path for one resource, however it is written.
//!
//! A rule for `/login` must see `/login` when a client writes `//login`, `/login/`, `/x/../login`,
//! `/%6cogin` or `/login;a=b`, because the service behind may. In order:
//!
//! 1. `http://host` in front, and `?` or `#` and what follows, are dropped;
//! 2. `%XX` of printable ASCII is decoded, once; others stay, with capital digits;
//! 3. `\` becomes `/`;
//! 4. in each segment `;` and what follows is dropped;
//! 5. empty and `.` segments are dropped, also at the end; `..` takes the one before with it;
//! 6. what is left starts with a slash and, unless it is only that, ends without one.
//!
//! Servers disagree most where `..` meets `;`, `\` or an encoded slash. Such a path is refused: no
//! honest client sends one.

use std::borrow::Cow;

use super::wire::fault;
use crate::edges::http::wire::BadInput;

/// The path of a request target, normalised.
pub(crate) fn normalise(target: &str) -> Result<Cow<'_, str>, BadInput> {
    let path = without_origin(target);
    let end = path.find(['?', '#']).unwrap_or(path.len());
    let path = &path[..end];
    if is_normal(path) {
        return Ok(Cow::Borrowed(path));
    }
    let decoded = decode(path);
    let odd = path.len() != decoded.len() && hides_slash(path);
    if decoded.contains("..") && (odd || decoded.contains([';', '\\'])) {
        return Err(fault(
            "path",
            "`..` beside `;`, a backslash or an encoded slash means different things to different servers",
        ));
    }
    Ok(Cow::Owned(resolve(&decoded)))
}

/// Whether a slash or backslash is written as `%2f` or `%5c`.
fn hides_slash(path: &str) -> bool {
    let mut escapes = path
        .match_indices('%')
        .filter_map(|(at, _)| escaped(&path[at..]));
    escapes.any(|byte| matches!(byte, b'/' | b'\\'))
}

fn without_origin(target: &str) -> &str {
    let Some((scheme, rest)) = target.split_once("://") else {
        return target;
    };
    if scheme.is_empty() || !scheme.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return target;
    }
    rest.find(['/', '?', '#']).map_or("", |at| &rest[at..])
}

/// The usual case: nothing to do, nothing to copy.
fn is_normal(path: &str) -> bool {
    let bytes = path.as_bytes();
    bytes.first() == Some(&b'/')
        && !bytes.iter().any(|b| matches!(b, b'%' | b'\\' | b';'))
        && !bytes.windows(2).any(|pair| matches!(pair, b"//" | b"/."))
        && (bytes.len() == 1 || bytes.last() != Some(&b'/'))
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
    out
}

/// The byte that `%XX` at the start of `text` stands for.
fn escaped(text: &str) -> Option<u8> {
    let digits = text.as_bytes().get(1..3)?;
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let value = digit(digits[0])? * 16 + digit(digits[1])?;
    u8::try_from(value).ok()
}

fn resolve(path: &str) -> String {
    let mut kept: Vec<&str> = Vec::new();
    for segment in path.split(['/', '\\']) {
        match segment.split(';').next().unwrap_or_default() {
            "" | "." => {}
            ".." => _ = kept.pop(),
            segment => kept.push(segment),
        }
    }
    let mut out = String::with_capacity(path.len() + 1);
    for segment in &kept {
        out.push('/');
        out.push_str(segment);
    }
    if kept.is_empty() {
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
            ("/été/%41", "/été/A"),
        ];
        for (target, want) in cases {
            assert_eq!(normalise(target).as_deref(), Ok(want), "{target}");
        }
    }

    #[test]
    fn paths_that_servers_read_differently_are_refused() {
        for path in [
            "/a/..;x=1/login",
            "/a%2f..%2flogin",
            "/a/..%5clogin",
            r"/a\..\login",
            "/%2e%2e;/x",
        ] {
            assert!(normalise(path).is_err(), "{path}");
        }
        assert!(
            normalise("/a..b;c/d").is_err(),
            "a rare name, and safe to refuse"
        );
        assert!(normalise("/a/../b").is_ok());
    }

    #[test]
    fn a_plain_path_is_not_copied() {
        assert!(matches!(
            normalise("/api/v1/search?q=1").unwrap(),
            Cow::Borrowed("/api/v1/search")
        ));
    }

    #[test]
    fn any_text_gives_a_path_that_starts_with_a_slash_and_holds_no_way_up() {
        let parts = [
            "/", "..", ".", ";", "%2e", "%2f", "%", "\\", "a", "é", "?", "://", "%c3",
        ];
        let mut state = 7_u64;
        for _ in 0..200_000 {
            let mut target = String::new();
            for _ in 0..8 {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                target.push_str(parts[(state >> 33) as usize % parts.len()]);
            }
            let Ok(path) = normalise(&target) else {
                assert!(target.contains("..") || target.contains("%2e"), "{target}");
                continue;
            };
            assert!(path.starts_with('/'), "{target} gives {path}");
            let climbs = |segment: &str| segment == ".." || segment == ".";
            assert!(
                !path.split('/').any(climbs) && !path.contains("//"),
                "{target} gives {path}"
            );
        }
    }
}
