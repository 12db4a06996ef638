//! The API key of a proxied request. Pure.
//!
//! A key is sent in `X-API-Key` or as the token of `Authorization: Bearer`. The service behind the proxy reads one of
//! them, and this module cannot know which. A request with two different keys is therefore rejected: otherwise a
//! blocked key would pass beside an invented one. Where both headers have a purpose of their own, `?key=x-api-key` or
//! `?key=authorization` names the one to read.
//!
//! [`find_key`] defines the form of a key. It rejects the commas of joined lines, and here a second line is rejected
//! too. Empty headers count as absent: proxies send variables without a value like that.

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use tidegate::identity::keys::{KeyTextError, find_key};

use crate::decider::InputError;
use crate::edges::common::check_body::MAX_VALUE_BYTES;

pub(super) const TOO_LONG: &str = "a value has at most 4096 bytes";
const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The header that holds the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum KeyHeader {
    ApiKey,
    Authorization,
}

impl KeyHeader {
    /// Parses the value of the query parameter.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        match name {
            "x-api-key" => Some(KeyHeader::ApiKey),
            "authorization" => Some(KeyHeader::Authorization),
            _ => None,
        }
    }
}

/// The only key of a request, from the named header or from either.
pub(super) fn api_key(headers: &HeaderMap, from: Option<KeyHeader>) -> Result<Option<&str>, InputError> {
    reject_lookalike(headers)?;
    match from {
        Some(KeyHeader::ApiKey) => api_key_header(headers),
        Some(KeyHeader::Authorization) => bearer_token(headers),
        None => match (api_key_header(headers)?, bearer_token(headers)?) {
            (Some(key), Some(token)) if key != token => Err(InputError::new(
                "x-api-key",
                "differs from the bearer token; write ?key=x-api-key or ?key=authorization",
            )),
            (key, token) => Ok(key.or(token)),
        },
    }
}

/// Rejects `X_API_Key` and similar names: services that read headers as CGI variables take them for `X-API-Key`.
fn reject_lookalike(headers: &HeaderMap) -> Result<(), InputError> {
    let is_lookalike = |name: &&HeaderName| {
        let name = name.as_str();
        name.contains('_') && name.replace('_', "-") == API_KEY.as_str()
    };
    if headers.keys().any(|name| is_lookalike(&name)) {
        return Err(InputError::new(API_KEY.as_str(), "written with an underscore; send it as x-api-key"));
    }
    Ok(())
}

fn api_key_header(headers: &HeaderMap) -> Result<Option<&str>, InputError> {
    let Some(value) = single_line(headers, &API_KEY)? else {
        return Ok(None);
    };
    let key = find_key(value).map_err(|error| InputError::new(API_KEY.as_str(), error.to_string()))?;
    check_length(key, &API_KEY)
}

/// The token of `Authorization: Bearer`. Other schemes are no keys.
fn bearer_token(headers: &HeaderMap) -> Result<Option<&str>, InputError> {
    let value = single_line(headers, &AUTHORIZATION)?;
    // One word is a scheme alone.
    let Some(value) = value.filter(|value| value.iter().any(u8::is_ascii_whitespace)) else {
        return Ok(None);
    };
    match find_key(value) {
        Ok(key) => check_length(key, &AUTHORIZATION),
        Err(KeyTextError::OtherScheme) => Ok(None),
        Err(error) => Err(InputError::new(AUTHORIZATION.as_str(), error.to_string())),
    }
}

/// Rejects a key that is longer than other values.
fn check_length<'a>(key: Option<&'a str>, header: &HeaderName) -> Result<Option<&'a str>, InputError> {
    if key.is_some_and(|key| key.len() > MAX_VALUE_BYTES) {
        return Err(InputError::new(header.as_str(), TOO_LONG));
    }
    Ok(key)
}

/// The only line of a header that is not empty, without surrounding white space.
fn single_line<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, InputError> {
    let lines = headers.get_all(name).iter();
    let mut lines = lines.map(|line| line.as_bytes().trim_ascii()).filter(|line| !line.is_empty());
    let first = lines.next();
    if lines.next().is_some() {
        return Err(InputError::new(name.as_str(), "given twice"));
    }
    Ok(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    /// Checks the key of these header lines: `-` for none, or the rejected header.
    #[track_caller]
    fn check(lines: &[(&'static str, &[u8])], from: Option<KeyHeader>, want: &str) {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let got = match api_key(&headers, from) {
            Ok(key) => key.unwrap_or("-").to_owned(),
            Err(InputError { field, .. }) => format!("rejected: {field}"),
        };
        assert_eq!(got, want, "{lines:?}");
    }

    const KEY: &str = "x-api-key";
    const AUTH: &str = "authorization";

    #[test]
    fn a_key_is_read_from_either_header() {
        for value in [&b"k"[..], b" k", b"k\t", b"Bearer k"] {
            check(&[(KEY, value)], None, "k");
        }
        for value in [&b"Bearer k"[..], b"bearer k", b"BEARER   k", b"Bearer\tk", b"Bearer \t k", b"\tBearer k "] {
            check(&[(AUTH, value)], None, "k");
        }
        check(&[(KEY, b"k"), (AUTH, b"Bearer k")], None, "k");
        check(&[], None, "-");
    }

    #[test]
    fn an_empty_header_counts_as_absent() {
        check(&[(KEY, b"")], None, "-");
        check(&[(KEY, b"  ")], None, "-");
        check(&[(AUTH, b"Bearer")], None, "-");
        check(&[(AUTH, b"Bearer ")], None, "-");
        check(&[(KEY, b""), (AUTH, b"Bearer k")], None, "k");
        check(&[(KEY, b""), (KEY, b"k"), (AUTH, b"")], None, "k");
        check(&[(AUTH, b""), (AUTH, b"Bearer k")], None, "k");
    }

    #[test]
    fn a_key_is_no_longer_than_other_values() {
        let key = "k".repeat(MAX_VALUE_BYTES);
        let longer = format!("{key}k");
        check(&[(KEY, key.as_bytes())], None, &key);
        check(&[(KEY, longer.as_bytes())], None, "rejected: x-api-key");
        check(&[(AUTH, format!("Bearer {key}").as_bytes())], None, &key);
        check(&[(AUTH, format!("Bearer {longer}").as_bytes())], None, "rejected: authorization");
        check(&[(AUTH, format!("Basic {longer}").as_bytes())], None, "-");
    }

    #[test]
    fn other_schemes_are_no_keys() {
        check(&[(AUTH, b"Basic YTpi")], None, "-");
        check(&[(AUTH, b"Bearerk")], None, "-");
        check(&[(AUTH, b"k")], None, "-");
        let digest = b"Digest username=\"bearer\", realm=\"a, bearerx\", nc=1";
        check(&[(AUTH, digest)], None, "-");
        check(&[(AUTH, b"Basic \xff"), (KEY, b"k")], None, "k");
    }

    #[test]
    fn two_keys_are_rejected_however_they_are_written() {
        let key = "rejected: x-api-key";
        check(&[(KEY, b"junk"), (AUTH, b"Bearer k")], None, key);
        check(&[(KEY, b"junk"), (KEY, b"k")], None, key);
        check(&[(KEY, b"k"), (KEY, b"k")], None, key);
        check(&[(KEY, b"junk,k")], None, key);
        check(&[(KEY, b"junk, k")], None, key);
        check(&[(KEY, b"junk k")], None, key);
        check(&[(KEY, b"\xff"), (AUTH, b"Bearer k")], None, key);
        let auth = "rejected: authorization";
        check(&[(AUTH, b"Basic a"), (AUTH, b"Bearer k")], None, auth);
        check(&[(AUTH, b"Bearer k"), (AUTH, b"Basic a")], None, auth);
        check(&[(AUTH, b"Basic a, Bearer k")], None, auth);
        check(&[(AUTH, b"Basic a,bearer\tk")], None, auth);
        check(&[(AUTH, b"Bearer junk,Bearer k")], None, auth);
        check(&[(AUTH, b"Bearer junk k")], None, auth);
        check(&[(AUTH, b"Bearer \xff")], None, auth);
    }

    /// A blocked key passed in this form, and the service behind the proxy read it.
    #[test]
    fn a_key_written_with_underscores_is_rejected() {
        for name in ["x_api_key", "x-api_key", "x_api-key"] {
            check(&[(name, b"k")], None, "rejected: x-api-key");
            check(&[(KEY, b"j"), (name, b"k")], None, "rejected: x-api-key");
        }
        check(&[("x_api_keys", b"k"), ("x_apikey1", b"k")], None, "-");
    }

    #[test]
    fn a_named_header_is_the_only_one_that_is_read() {
        let both: &[(&str, &[u8])] = &[(KEY, b"app"), (AUTH, b"Bearer user")];
        check(both, Some(KeyHeader::ApiKey), "app");
        check(both, Some(KeyHeader::Authorization), "user");
        check(&both[1..], Some(KeyHeader::ApiKey), "-");
        check(&both[..1], Some(KeyHeader::Authorization), "-");
        let doubled: &[(&str, &[u8])] = &[(KEY, b"app"), (AUTH, b"Bearer a, Bearer b")];
        check(doubled, Some(KeyHeader::ApiKey), "app");
    }
}
