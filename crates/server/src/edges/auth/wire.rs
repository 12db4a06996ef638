//! From the headers of a proxy's sub-request to a request. Pure.
//!
//! nginx is told by its operator to send `X-Original-URI` and `X-Original-Method`; Traefik and Caddy
//! send `X-Forwarded-Uri`, `-Method` and `-Host` by themselves. Each passes the other family through
//! as the client wrote it, so where both are present and differ nobody can tell which is true: the
//! request is refused unless `?from=original` or `?from=forwarded` says which to read.
//!
//! The address is found by walking `X-Forwarded-For` from the peer. Loopback and unix peers are
//! trusted, others only if the rules name them.

use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use tidegate::identity::Trusted;
use tidegate::identity::forwarded::{self, Chain};
use tidegate_core::engine::{Edge, Request};
use tidegate_core::units::Nanos;

use super::path::normalise;
use crate::address::Place;
use crate::edges::http::digested;
use crate::edges::http::wire::{BadInput, LONGEST_NAME, LONGEST_VALUE, MOST_ATTRIBUTES};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// Headers that are read as something else, or that are secrets and nobody's identity.
const NOT_ATTRIBUTES: [&str; 10] = [
    "authorization",
    "cookie",
    "proxy-authorization",
    "x-api-key",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-method",
    "x-forwarded-uri",
    "x-original-method",
    "x-original-uri",
];

/// What the URL of the sub-request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// The status of a denial, where the proxy does not pass 429 on.
    pub(crate) deny_status: Option<StatusCode>,
    /// Which family of headers to believe.
    from: Option<Family>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Original,
    Forwarded,
}

impl Options {
    /// Reads a query such as `deny_status=403&from=original`.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, BadInput> {
        let mut options = Options::default();
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            match (name, value) {
                ("deny_status", "401") => options.deny_status = Some(StatusCode::UNAUTHORIZED),
                ("deny_status", "403") => options.deny_status = Some(StatusCode::FORBIDDEN),
                ("deny_status", "429") => options.deny_status = Some(StatusCode::TOO_MANY_REQUESTS),
                ("deny_status", _) => return Err(fault("deny_status", "write 401, 403 or 429")),
                ("from", "original") => options.from = Some(Family::Original),
                ("from", "forwarded") => options.from = Some(Family::Forwarded),
                ("from", _) => return Err(fault("from", "write original or forwarded")),
                _ => {
                    return Err(fault(
                        "query",
                        "unknown parameter, write deny_status or from",
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The request that the proxy asks about.
pub(crate) fn request<'a>(
    headers: &'a HeaderMap,
    options: Options,
    peer: &Place,
    trusted: &Trusted,
) -> Result<Request<'a>, BadInput> {
    let mut request = Request {
        edge: Edge::Auth,
        ip: Some(client(headers, peer, trusted)),
        api_key: api_key(headers).map(digested),
        // A proxy cannot hold a request back: a delay is a refusal with that wait.
        patience: Some(Nanos::ZERO),
        ..Request::default()
    };
    if let Some(target) = told(headers, options, "x-original-uri", "x-forwarded-uri")? {
        request = request.with("path", normalise(target));
    }
    if let Some(method) = told(headers, options, "x-original-method", "x-forwarded-method")? {
        request = request.with("method", method);
    }
    if let Some(host) = text(headers, "x-forwarded-host")? {
        request = request.with("host", host_name(host));
    }
    for name in headers
        .keys()
        .filter(|name| !NOT_ATTRIBUTES.contains(&name.as_str()))
    {
        if request.attributes.len() >= MOST_ATTRIBUTES || name.as_str().len() > LONGEST_NAME {
            return Err(fault(
                "header",
                "too many headers, or one with too long a name",
            ));
        }
        if let Some(value) = text(headers, name.as_str())? {
            request = request.with(format!("header.{name}"), value);
        }
    }
    Ok(request)
}

fn client(headers: &HeaderMap, peer: &Place, trusted: &Trusted) -> IpAddr {
    let peer = match peer {
        Place::Tcp(addr) => addr.ip(),
        Place::Unix(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let chain = Chain::XForwardedFor;
    let lines = headers
        .get_all(chain.header())
        .iter()
        .map(HeaderValue::as_bytes);
    forwarded::client(peer, chain, lines, trusted).client
}

fn api_key(headers: &HeaderMap) -> Option<&str> {
    let key = headers.get(API_KEY).and_then(|value| value.to_str().ok());
    let bearer = || {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
    };
    key.or_else(bearer).filter(|key| !key.is_empty())
}

/// What one of the two families says, if they do not contradict each other.
fn told<'a>(
    headers: &'a HeaderMap,
    options: Options,
    original: &'static str,
    forwarded: &'static str,
) -> Result<Option<&'a str>, BadInput> {
    match options.from {
        Some(Family::Original) => return text(headers, original),
        Some(Family::Forwarded) => return text(headers, forwarded),
        None => {}
    }
    match (text(headers, original)?, text(headers, forwarded)?) {
        (Some(a), Some(b)) if a != b => Err(BadInput {
            field: original.to_owned(),
            reason: format!("differs from {forwarded}; say ?from=original or ?from=forwarded"),
        }),
        (a, b) => Ok(a.or(b)),
    }
}

/// The value of a header, which must be there once and be text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, BadInput> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let single = matches!(
        name,
        "x-original-uri" | "x-forwarded-uri" | "x-original-method" | "x-forwarded-method"
    );
    if single && values.next().is_some() {
        return Err(fault(name, "given twice"));
    }
    if value.len() > LONGEST_VALUE {
        return Err(fault(name, "a value has at most 4096 bytes"));
    }
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some).map_err(|_| fault(name, "not UTF-8"))
}

fn host_name(host: &str) -> Cow<'_, str> {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    }
}

fn fault(field: &str, reason: &str) -> BadInput {
    BadInput {
        field: field.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            let name: HeaderName = name.parse().unwrap();
            headers.append(name, value.parse().unwrap());
        }
        headers
    }

    /// Renders what a sub-request is understood as.
    #[track_caller]
    fn check(lines: &[(&str, &str)], query: &str, want: &str) {
        let loopback = Trusted::parse(&["127.0.0.0/8", "10.0.0.0/8"]).unwrap();
        let headers = headers(lines);
        let options = Options::read(Some(query)).unwrap();
        let peer = Place::Tcp("127.0.0.1:9".parse().unwrap());
        let got = match request(&headers, options, &peer, &loopback) {
            Ok(request) => {
                let pairs = request.attributes.iter().map(|(n, v)| format!(" {n}={v}"));
                let key = if request.api_key.is_some() {
                    " key"
                } else {
                    ""
                };
                format!("{}{key}{}", request.ip.unwrap(), pairs.collect::<String>())
            }
            Err(BadInput { field, reason }) => format!("{field}: {reason}"),
        };
        assert_eq!(got, want);
    }

    #[test]
    fn nginx_and_the_others_are_understood() {
        check(
            &[
                ("x-original-uri", "/a//b?c"),
                ("x-original-method", "POST"),
                ("x-forwarded-for", "192.0.2.1"),
            ],
            "",
            "192.0.2.1 path=/a/b method=POST",
        );
        check(
            &[
                ("x-forwarded-uri", "/a"),
                ("x-forwarded-method", "GET"),
                ("x-forwarded-host", "Example.COM.:443"),
                ("x-forwarded-for", "6.6.6.6, 192.0.2.1, 10.1.1.1"),
                ("user-agent", "curl"),
            ],
            "",
            "192.0.2.1 path=/a method=GET host=example.com header.user-agent=curl",
        );
    }

    #[test]
    fn a_client_cannot_choose_its_path_through_the_other_family() {
        let both = [("x-original-uri", "/free"), ("x-forwarded-uri", "/login")];
        let refused =
            "x-original-uri: differs from x-forwarded-uri; say ?from=original or ?from=forwarded";
        check(&both, "", refused);
        check(&both, "from=forwarded", "127.0.0.1 path=/login");
        check(
            &[("x-original-uri", "/a"), ("x-original-uri", "/b")],
            "",
            "x-original-uri: given twice",
        );
    }

    #[test]
    fn a_key_is_taken_from_either_header_and_never_becomes_an_attribute() {
        check(&[("x-api-key", "k")], "", "127.0.0.1 key");
        check(
            &[("authorization", "bearer k"), ("cookie", "s=1")],
            "",
            "127.0.0.1 key",
        );
        check(&[("authorization", "Basic abc")], "", "127.0.0.1");
        check(&[("x-api-key", "")], "", "127.0.0.1");
    }

    #[test]
    fn the_query_is_checked() {
        let deny = |query| Options::read(Some(query)).map(|options| options.deny_status);
        assert_eq!(deny("deny_status=403"), Ok(Some(StatusCode::FORBIDDEN)));
        for (query, field) in [
            ("deny_status=200", "deny_status"),
            ("from=x", "from"),
            ("a=b", "query"),
        ] {
            assert_eq!(deny(query).unwrap_err().field, field);
        }
    }
}
