//! The normal form of attributes, the same for rules and for requests of every edge.
//!
//! | attribute | normal form |
//! |---|---|
//! | `path` | see [`normalize_path`] |
//! | `method` | upper case |
//! | `host` | see [`normalize_host`] |
//! | `header.NAME` | the name in lower case; the value as it is |
//!
//! Every other attribute is compared as sent. A caller that wants a path compared as sent uses another name:
//! `raw_path`.

use std::borrow::Cow;

use super::host::normalize_host;
use super::path::{AmbiguousPathError, normalize_path};

/// The prefix of attributes that are headers.
pub const HEADER_PREFIX: &str = "header.";

/// The name of an attribute in normal form.
pub fn normalize_name(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with(HEADER_PREFIX) && name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        name
    }
}

/// The value of the attribute `name` in normal form. Does not copy a value that is in normal form already.
///
/// # Errors
/// For a `path` that servers interpret differently.
pub fn normalize_value<'v>(name: &str, value: Cow<'v, str>) -> Result<Cow<'v, str>, AmbiguousPathError> {
    match name {
        "path" => normalize_cow(value, normalize_path),
        "method" => normalize_cow(value, |text| Ok(normalize_method(text))),
        "host" => normalize_cow(value, |text| Ok(normalize_host(text))),
        _ => Ok(value),
    }
}

/// Normalizes a borrowed or an owned text.
fn normalize_cow<'v>(
    value: Cow<'v, str>,
    normalize: impl for<'t> Fn(&'t str) -> Result<Cow<'t, str>, AmbiguousPathError>,
) -> Result<Cow<'v, str>, AmbiguousPathError> {
    let text = match value {
        Cow::Borrowed(text) => return normalize(text),
        Cow::Owned(text) => text,
    };
    let changed = match normalize(&text)? {
        Cow::Borrowed(same) if same.len() == text.len() => None,
        other => Some(other.into_owned()),
    };
    Ok(Cow::Owned(changed.unwrap_or(text)))
}

/// A method in upper case.
pub fn normalize_method(method: &str) -> Cow<'_, str> {
    if method.bytes().any(|b| b.is_ascii_lowercase()) {
        Cow::Owned(method.to_ascii_uppercase())
    } else {
        Cow::Borrowed(method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, value: &str, want: &str) {
        for value in [value.into(), value.to_owned().into(), want.into()] {
            let normal = normalize_value(name, value);
            assert_eq!(normal.as_deref(), Ok(want));
        }
    }

    #[test]
    fn methods_and_hosts_have_one_form_each() {
        check("path", "/login/?x=1", "/login");
        check("method", "post", "POST");
        check("method", "POST", "POST");
        check("host", "API.Example.com:8443", "api.example.com");
        check("host", "example.com.", "example.com");
        check("host", "2001:db8::1", "[2001:db8::1]");
    }

    #[test]
    fn other_attributes_are_compared_as_sent() {
        check("raw_path", "/Login/?x=1", "/Login/?x=1");
        check("user", "Ada", "Ada");
        check("header.x-method", "post", "post");
    }

    #[test]
    fn the_name_of_a_header_has_no_case() {
        assert_eq!(normalize_name("header.X-Client".into()), "header.x-client");
        assert_eq!(normalize_name("Team".into()), "Team");
    }
}
