//! The attributes of a request, for every reader and every edge: bounded, each given once, and in normal form.

use std::borrow::Cow;

use tidegate::identity::keys::find_key;
use tidegate::identity::{Digest, ip};
use tidegate_rules::request::{ApiKey, Request, check_host, normalize_name, normalize_value};

use super::check_body::{MAX_ATTRIBUTES, MAX_NAME_BYTES, MAX_VALUE_BYTES};

/// A request to which attributes are added.
pub(crate) struct AttributeBuilder<'r, 'b> {
    request: &'r mut Request<'b>,
    count: usize,
    has_key: bool,
}

impl<'r, 'b> AttributeBuilder<'r, 'b> {
    pub(crate) fn of(request: &'r mut Request<'b>) -> Self {
        AttributeBuilder { request, count: 0, has_key: false }
    }

    /// Counts one more attribute.
    pub(crate) fn count_one(&mut self) -> Result<(), String> {
        if self.count == MAX_ATTRIBUTES {
            return Err(format!("more than {MAX_ATTRIBUTES} attributes"));
        }
        self.count += 1;
        Ok(())
    }

    /// Adds one attribute. Its name has been checked.
    pub(crate) fn add(&mut self, name: Cow<'b, str>, value: Cow<'b, str>) -> Result<(), String> {
        if value.len() > MAX_VALUE_BYTES {
            return Err(format!("a value has at most {MAX_VALUE_BYTES} bytes"));
        }
        let request = &mut *self.request;
        match &*name {
            "ip" if request.ip.is_none() => {
                let address = ip::parse(&value).map_err(|reason| reason.to_string())?;
                request.ip = Some(address);
            }
            "api_key" if !self.has_key => {
                self.has_key = true;
                let key = find_key(value.as_bytes()).map_err(|reason| reason.to_string())?;
                request.api_key = key.map(digest_key);
            }
            "ip" | "api_key" => return Err(GIVEN_TWICE.to_owned()),
            other => {
                // No rule would find the client by such a name, and no list its key.
                if let Some(known) = identity_name(other) {
                    return Err(format!("write `{known}`"));
                }
                let name = normalize_name(name);
                if request.attributes.iter().any(|(known, _)| *known == name) {
                    return Err(GIVEN_TWICE.to_owned());
                }
                check_value(&name, &value)?;
                let value = normalize_value(&name, value).map_err(|error| error.to_string())?;
                request.attributes.push((name, value));
            }
        }
        Ok(())
    }
}

/// Checks that a rule can match `value`.
fn check_value(name: &str, value: &str) -> Result<(), String> {
    let has_form = matches!(name, "method" | "host" | "path");
    if has_form && value.trim_ascii() != value {
        return Err(WHITE_SPACE.to_owned());
    }
    match name {
        "host" => check_host(value).map_err(|error| format!("is not a host: {error}; write only its name")),
        "path" if value.is_empty() => Err("is empty; write `/`, or leave it out".to_owned()),
        _ => Ok(()),
    }
}

const GIVEN_TWICE: &str = "given twice";
const WHITE_SPACE: &str = "has white space at its beginning or end; leave it out";

/// The identity attribute that `name` differs from in case only.
fn identity_name(name: &str) -> Option<&'static str> {
    let known = ["ip", "api_key"].into_iter();
    known.filter(|known| known.len() == name.len()).find(|known| known.eq_ignore_ascii_case(name))
}

/// Checks the name of an attribute or a unit.
pub(crate) fn check_name(name: &str) -> Result<(), String> {
    if name.trim_ascii() != name {
        return Err(WHITE_SPACE.to_owned());
    }
    match name.len() {
        1..=MAX_NAME_BYTES => Ok(()),
        _ => Err(format!("a name has 1 to {MAX_NAME_BYTES} bytes")),
    }
}

/// A key as a request carries it. Only its digest is stored.
pub(crate) fn digest_key<'a>(key: &str) -> ApiKey<'a> {
    ApiKey { digest: *Digest::of(key).as_bytes(), tier: None, name: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, value: &str, want: Result<Option<&str>, &str>) {
        let mut request = Request::default();
        let added = AttributeBuilder::of(&mut request).add(name.into(), value.into());
        match want {
            Ok(normal) => assert_eq!((added, request.text(name)), (Ok(()), normal)),
            Err(part) => {
                assert!(added.as_ref().is_err_and(|error| error.contains(part)), "{name} {value:?}: {added:?}")
            }
        }
    }

    /// A blocked key with a line end was an unknown key.
    #[test]
    fn a_key_is_known_whatever_surrounds_it() {
        let key = |value: &'static str| {
            let mut request = Request::default();
            let added = AttributeBuilder::of(&mut request).add("api_key".into(), value.into());
            added.map(|()| request.api_key)
        };
        for value in ["K", "K\n", " K", "Bearer K"] {
            assert_eq!(key(value), Ok(Some(digest_key("K"))), "{value:?}");
        }
        for value in ["", "\n", "Bearer "] {
            assert_eq!(key(value), Ok(None), "{value:?}");
        }
        for value in ["junk K", "junk,K", "Basic YTpi", "K\0"] {
            assert!(key(value).is_err_and(|error| error.starts_with("not one key")), "{value:?}");
        }
    }

    #[test]
    fn a_value_that_no_rule_can_match_is_rejected() {
        for (name, value, part) in [
            ("host", "https://example.com", "neither scheme nor path"),
            ("host", "example.com:https", "a port is a number"),
            ("host", "example.com:99999", "a port is a number"),
            ("host", "a.com,b.com", "several hosts"),
            ("host", "ada@example.com", "has no user"),
            ("host", "example..com", "is empty"),
            ("host", "example.com ", "white space"),
            ("path", "/login ", "white space"),
            ("path", " /login", "white space"),
            ("path", "", "write `/`"),
            ("method", "POST ", "white space"),
        ] {
            check(name, value, Err(part));
        }
        check("host", "EXAMPLE.com:80", Ok(Some("example.com")));
        check("host", "::1", Ok(Some("[::1]")));
        check("host", "", Ok(None));
        check("path", "/a b", Ok(Some("/a b")));
        check("user", "ada ", Ok(Some("ada ")));
    }
}
