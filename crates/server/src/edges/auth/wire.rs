//! From the headers of a proxy's sub-request to a request. Pure.
//!
//! nginx and HAProxy are told by their operator to send `X-Original-URI`, `-Method` and `-Host`; Traefik
//! and Caddy send `X-Forwarded-Uri`, `-Method` and `-Host`. Each passes the other family through
//! as the client wrote it, so one family is read and never a mixture: where both are present and
//! differ nobody can tell which is true, and the request is refused unless `?from=original` or
//! `?from=forwarded` says which to read. Without either the request is refused too: an operator's
//! forgotten line must not skip every rule that has a path. For the same reason a method or host that is
//! absent or empty is rejected while a rule in force looks at it.
//!
//! The address is found by walking `X-Forwarded-For` from the peer. Loopback and unix peers are
//! trusted, others only if the rules name them. The API key is found by `credentials`. Of all other
//! headers only those are read that a rule names as `header.NAME`, and each may come once; whatever else
//! a client sends cannot get its request rejected.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;
use tidegate::identity::Trusted;
use tidegate::identity::forwarded::{self, Chain};
use tidegate_core::request::{
    Edge, PRIORITY, Priority, Request, check_host, normal_host, normal_method, normal_path,
};
use tidegate_core::rules::RuleSet;
use tidegate_core::units::Nanos;

use super::credentials::{KeyHeader, api_key};
use crate::address::Place;
use crate::edges::http::digested;
use crate::edges::http::wire::{BadInput, LONGEST_VALUE};

const TOO_LONG: &str = "a value has at most 4096 bytes";

/// What the rules have to do with reading a sub-request.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The rules this was made for.
    pub(crate) rules: Arc<RuleSet>,
    trusted: Trusted,
    /// Headers that rules name, with the attribute each is.
    headers: Vec<(HeaderName, String)>,
    /// Whether a rule looks at the path as it was sent.
    raw_path: bool,
    /// Whether a rule in force looks at the method.
    needs_method: bool,
    /// Whether a rule in force looks at the host.
    needs_host: bool,
}

impl Reading {
    /// For these rules.
    pub(crate) fn of(rules: &Arc<RuleSet>) -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        let loopback = loopback.map(|net| net.parse::<IpNet>().expect("a network"));
        let named = rules.identity().trusted_proxies.iter().copied();
        let attributes = rules.attributes();
        let raw_path = attributes.contains("raw_path");
        let headers = attributes.into_iter().filter_map(|attribute| {
            let name = attribute.strip_prefix("header.")?;
            Some((name.parse().ok()?, attribute.to_owned()))
        });
        let enforced = rules.enforced_attributes();
        Reading {
            needs_method: enforced.contains("method"),
            needs_host: enforced.contains("host"),
            rules: Arc::clone(rules),
            trusted: Trusted::new(loopback.into_iter().chain(named)),
            headers: headers.collect(),
            raw_path,
        }
    }

    /// Whether this peer speaks for its clients: one on this machine, or a proxy the rules name.
    pub(crate) fn trusts(&self, peer: IpAddr) -> bool {
        self.trusted.trusts(peer)
    }
}

/// What the URL of the sub-request says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Options {
    /// The status of a denial that is not a block, where the proxy does not pass 429 on.
    pub(crate) deny_status: Option<StatusCode>,
    /// Which family of headers to believe.
    from: Option<Family>,
    /// Which header holds the API key, where both have a purpose of their own.
    key: Option<KeyHeader>,
    /// How much the request matters. Said here because no client writes the address that a proxy asks at.
    priority: Option<Priority>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    Original,
    Forwarded,
}

/// The headers of one family, and what to write where one that a rule needs is missing.
struct FamilyHeaders {
    uri: &'static str,
    method: &'static str,
    method_missing: &'static str,
    host: &'static str,
    host_missing: &'static str,
}

const ORIGINAL: FamilyHeaders = FamilyHeaders {
    uri: "x-original-uri",
    method: "x-original-method",
    method_missing: "missing; a rule looks at the method of the client's request, so the proxy must send it \
                     (nginx: proxy_set_header X-Original-Method $request_method)",
    host: "x-original-host",
    host_missing: "missing; a rule looks at the host of the client's request, so the proxy must send it \
                   (nginx: proxy_set_header X-Original-Host $host)",
};

const FORWARDED: FamilyHeaders = FamilyHeaders {
    uri: "x-forwarded-uri",
    method: "x-forwarded-method",
    method_missing: "missing; a rule looks at the method of the client's request, so the proxy must send it \
                     (Caddy: header_up X-Forwarded-Method {method})",
    host: "x-forwarded-host",
    host_missing: "missing; a rule looks at the host of the client's request, so the proxy must send it \
                   (Caddy: header_up X-Forwarded-Host {host})",
};

impl Options {
    /// Reads a query such as `deny_status=403&from=original&priority=sheddable`.
    pub(crate) fn read(query: Option<&str>) -> Result<Self, BadInput> {
        let mut options = Options::default();
        let mut seen = Vec::new();
        let pairs = query
            .unwrap_or_default()
            .split('&')
            .filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&name) {
                return Err(fault("query", "has a parameter twice, keep one"));
            }
            seen.push(name);
            match (name, value) {
                ("deny_status", "401") => options.deny_status = Some(StatusCode::UNAUTHORIZED),
                ("deny_status", "403") => options.deny_status = Some(StatusCode::FORBIDDEN),
                ("deny_status", "429") => options.deny_status = Some(StatusCode::TOO_MANY_REQUESTS),
                ("deny_status", _) => return Err(fault("deny_status", "write 401, 403 or 429")),
                ("from", "original") => options.from = Some(Family::Original),
                ("from", "forwarded") => options.from = Some(Family::Forwarded),
                ("from", _) => return Err(fault("from", "write original or forwarded")),
                ("key", name) => {
                    let wrong = || fault("key", "write x-api-key or authorization");
                    options.key = Some(KeyHeader::from_name(name).ok_or_else(wrong)?);
                }
                // Makes the URL one that no client has written: see `docs/proxies/Caddyfile`.
                ("nonce", _) => {}
                ("priority", name) => {
                    let wrong = || fault("priority", "write critical, normal or sheddable");
                    options.priority = Some(Priority::from_name(name).ok_or_else(wrong)?);
                }
                _ => {
                    return Err(fault(
                        "query",
                        "unknown parameter, write deny_status, from, key, nonce or priority",
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
    reading: &'a Reading,
) -> Result<Request<'a>, BadInput> {
    let told = told(headers, options, reading)?;
    let mut request = Request {
        edge: Edge::Auth,
        ip: Some(client(headers, peer, &reading.trusted)),
        api_key: api_key(headers, options.key)?.map(digested),
        // A proxy cannot hold a request back: a delay is a refusal with that wait.
        patience: Some(Nanos::ZERO),
        ..Request::default()
    };
    let path = normal_path(told.target).map_err(|wrong| fault("path", &wrong.to_string()))?;
    if path.len() > LONGEST_VALUE {
        return Err(fault("path", TOO_LONG));
    }
    request = request.with("path", path);
    if reading.raw_path {
        if told.target.len() > LONGEST_VALUE {
            return Err(fault("raw_path", TOO_LONG));
        }
        request = request.with("raw_path", told.target);
    }
    if let Some(method) = told.method {
        request = request.with("method", normal_method(method));
    }
    if let Some(host) = told.host {
        request = request.with("host", normal_host(host));
    }
    if let Some(priority) = options.priority {
        request = request.with(PRIORITY, priority.name());
    }
    for (name, attribute) in &reading.headers {
        if let Some(value) = once(headers, name.as_str())? {
            request = request.with(attribute.as_str(), value);
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
    let lines = headers.get_all(chain.header()).iter();
    forwarded::client(peer, chain, lines.map(HeaderValue::as_bytes), trusted).client
}

/// What a proxy says about the request it asks for.
struct Told<'a> {
    target: &'a str,
    method: Option<&'a str>,
    host: Option<&'a str>,
}

/// What one of the two families says, if it can be told which.
fn told<'h>(
    headers: &'h HeaderMap,
    options: Options,
    reading: &Reading,
) -> Result<Told<'h>, BadInput> {
    let read = |names: [&str; 2]| Ok((single(headers, names[0])?, once(headers, names[1])?));
    let original = read([ORIGINAL.uri, ORIGINAL.method])?;
    let forwarded = read([FORWARDED.uri, FORWARDED.method])?;
    let silent = (None, None);
    let family = match options.from {
        Some(family) => family,
        None if forwarded == silent => Family::Original,
        None if original == silent || original == forwarded => Family::Forwarded,
        None => {
            let reason =
                "differs from x-forwarded-uri or -method; say ?from=original or ?from=forwarded";
            return Err(fault("x-original-uri", reason));
        }
    };
    let (names, (target, method)) = match family {
        Family::Original => (&ORIGINAL, original),
        Family::Forwarded => (&FORWARDED, forwarded),
    };
    let host = once(headers, names.host)?;
    let missing = "missing; the proxy must say what is asked for (nginx: proxy_set_header X-Original-URI $request_uri)";
    let target = target.filter(|target| !target.is_empty());
    let target = target.ok_or_else(|| fault(names.uri, missing))?;
    if !(target.starts_with('/') || target.contains("://") || target == "*") {
        let reason = "neither a path nor a URL; is the proxy's variable spelt right?";
        return Err(fault(names.uri, reason));
    }
    let is_absent = |value: Option<&str>| value.is_none_or(str::is_empty);
    if reading.needs_method && is_absent(method) {
        return Err(fault(names.method, names.method_missing));
    }
    if reading.needs_host && is_absent(host) {
        return Err(fault(names.host, names.host_missing));
    }
    // Another server may take it for a host that a rule names.
    if let Some(Err(wrong)) = host.map(check_host) {
        return Err(fault(names.host, &format!("no host: {wrong}")));
    }
    Ok(Told {
        target,
        method,
        host,
    })
}

/// The value of a header that may be there once and is an attribute.
fn once<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, BadInput> {
    let value = single(headers, name)?;
    if value.is_some_and(|value| value.len() > LONGEST_VALUE) {
        return Err(fault(name, TOO_LONG));
    }
    Ok(value)
}

/// The value of a header that may be there once. Which of two lines counts is up to the service behind.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, BadInput> {
    let mut lines = headers.get_all(name).iter();
    let Some(value) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(fault(name, "given twice"));
    }
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some).map_err(|_| fault(name, "not UTF-8"))
}

pub(super) fn fault(field: &str, reason: &str) -> BadInput {
    BadInput {
        field: field.to_owned(),
        reason: reason.to_owned(),
    }
}

#[cfg(test)]
mod tests;
