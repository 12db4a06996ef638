//! Builds a request from the headers of a proxy's sub-request. Pure.
//!
//! The operator configures nginx and HAProxy to send `X-Original-URI`, `-Method` and `-Host`. Traefik and Caddy send
//! `X-Forwarded-Uri`, `-Method` and `-Host`. Each proxy passes the other family through as the client wrote it, so only
//! one family is read and never a mixture. Where both are present and differ, the true one is unknown, and the request
//! is rejected unless `?from=original` or `?from=forwarded` selects one. Without either family the request is rejected
//! too: a line that the operator forgot must not skip every rule that has a path. For the same reason a method or host
//! that is absent or empty is rejected while an enforced rule matches it.
//!
//! The address is found by walking `X-Forwarded-For` from the peer. Loopback and unix peers are trusted, others only if
//! the rules name them. Where a trusted proxy names no address, the request is rejected: counted as the proxy's own, it
//! would pass every blocked network, and with the proxy on the allow list every limit. `credentials` finds the API key. Of all other headers only those are read that a rule names as
//! `header.NAME`, and each may occur once. No other header of a client can get its request rejected.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use ipnet::IpNet;
use tidegate::identity::TrustedProxies;
use tidegate::identity::forwarded::{self, ForwardedStop, ForwardingHeader};
use tidegate_core::units::Nanos;
use tidegate_rules::RuleSet;
use tidegate_rules::request::{
    Edge, PRIORITY, Priority, Request, check_host, normalize_host, normalize_method, normalize_path,
};

use super::credentials::{KeyHeader, TOO_LONG, api_key};
use crate::config::EndpointAddress;
use crate::decider::InputError;
use crate::edges::common::check_body::MAX_VALUE_BYTES;
use crate::edges::common::digest_key;

/// How sub-requests are read under a rule set.
#[derive(Debug)]
pub(crate) struct ProxyHeaderPolicy {
    /// The rules this was built for.
    pub(crate) rules: Arc<RuleSet>,
    trusted: TrustedProxies,
    /// Headers that rules name, with the attribute of each.
    headers: Vec<(HeaderName, String)>,
    /// Whether a rule uses the path as it was sent.
    raw_path: bool,
    /// Whether an enforced rule uses the method.
    needs_method: bool,
    /// Whether an enforced rule uses the host.
    needs_host: bool,
}

impl ProxyHeaderPolicy {
    pub(crate) fn of(rules: &Arc<RuleSet>) -> Self {
        let loopback = ["127.0.0.0/8", "::1/128"];
        let loopback = loopback.map(|net| net.parse::<IpNet>().expect("a valid network"));
        let named = rules.identity().trusted_proxies.iter().copied();
        let attributes = rules.attributes();
        let raw_path = attributes.contains("raw_path");
        let headers = attributes.into_iter().filter_map(|attribute| {
            let name = attribute.strip_prefix("header.")?;
            Some((name.parse().ok()?, attribute.to_owned()))
        });
        let enforced = rules.enforced_attributes();
        ProxyHeaderPolicy {
            needs_method: enforced.contains("method"),
            needs_host: enforced.contains("host"),
            rules: Arc::clone(rules),
            trusted: TrustedProxies::new(loopback.into_iter().chain(named)),
            headers: headers.collect(),
            raw_path,
        }
    }
}

/// The options in the URL of the sub-request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ProxyAuthOptions {
    /// The status of a denial that is not a block, where the proxy does not pass 429 on.
    pub(crate) deny_status: Option<StatusCode>,
    /// The family of headers to read.
    from: Option<&'static HeaderFamily>,
    /// The header that holds the API key, where both have a purpose of their own.
    key: Option<KeyHeader>,
    /// The priority of the request. It is in the URL of the sub-request, because no client can write that.
    priority: Option<Priority>,
}

/// The headers of one family, and how a proxy sends the two that a rule may need.
#[derive(PartialEq, Eq, Debug)]
struct HeaderFamily {
    uri: &'static str,
    method: &'static str,
    method_recipe: &'static str,
    host: &'static str,
    host_recipe: &'static str,
}

static ORIGINAL: HeaderFamily = HeaderFamily {
    uri: "x-original-uri",
    method: "x-original-method",
    method_recipe: "nginx: proxy_set_header X-Original-Method $request_method",
    host: "x-original-host",
    host_recipe: "nginx: proxy_set_header X-Original-Host $host",
};

static FORWARDED: HeaderFamily = HeaderFamily {
    uri: "x-forwarded-uri",
    method: "x-forwarded-method",
    method_recipe: "Caddy: header_up X-Forwarded-Method {method}",
    host: "x-forwarded-host",
    host_recipe: "Caddy: header_up X-Forwarded-Host {host}",
};

impl ProxyAuthOptions {
    /// Parses a query such as `deny_status=403&from=original&priority=sheddable`.
    pub(crate) fn parse(query: Option<&str>) -> Result<Self, InputError> {
        let mut options = ProxyAuthOptions::default();
        let mut seen = Vec::new();
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        for pair in pairs {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if seen.contains(&name) {
                return Err(InputError::new("query", "has a parameter twice; keep one"));
            }
            seen.push(name);
            match (name, value) {
                ("deny_status", "401") => options.deny_status = Some(StatusCode::UNAUTHORIZED),
                ("deny_status", "403") => options.deny_status = Some(StatusCode::FORBIDDEN),
                ("deny_status", "429") => options.deny_status = Some(StatusCode::TOO_MANY_REQUESTS),
                ("deny_status", _) => {
                    return Err(InputError::new("deny_status", "write 401, 403 or 429"));
                }
                ("from", "original") => options.from = Some(&ORIGINAL),
                ("from", "forwarded") => options.from = Some(&FORWARDED),
                ("from", _) => return Err(InputError::new("from", "write original or forwarded")),
                ("key", name) => {
                    let invalid = || InputError::new("key", "write x-api-key or authorization");
                    options.key = Some(KeyHeader::from_name(name).ok_or_else(invalid)?);
                }
                // Makes the URL unpredictable for clients: see `docs/proxies/Caddyfile`.
                ("nonce", _) => {}
                ("priority", name) => {
                    let invalid = || InputError::new("priority", "write critical, normal or sheddable");
                    options.priority = Some(Priority::from_name(name).ok_or_else(invalid)?);
                }
                _ => {
                    return Err(InputError::new(
                        "query",
                        "unknown parameter, write deny_status, from, key, nonce or priority",
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The request that the proxy forwards for a decision.
pub(crate) fn parse_request<'a>(
    headers: &'a HeaderMap,
    options: ProxyAuthOptions,
    peer: &EndpointAddress,
    policy: &'a ProxyHeaderPolicy,
) -> Result<Request<'a>, InputError> {
    let original = original_request(headers, options, policy)?;
    let mut request = Request {
        edge: Edge::Auth,
        ip: Some(client_ip(headers, peer, &policy.trusted)?),
        api_key: api_key(headers, options.key)?.map(digest_key),
        // A proxy cannot delay a request: a delay becomes a denial with that wait.
        max_delay: Some(Nanos::ZERO),
        ..Request::default()
    };
    let path = normalize_path(original.target).map_err(|error| InputError::new("path", error.to_string()))?;
    if path.len() > MAX_VALUE_BYTES {
        return Err(InputError::new("path", TOO_LONG));
    }
    request = request.with("path", path);
    if policy.raw_path {
        if original.target.len() > MAX_VALUE_BYTES {
            return Err(InputError::new("raw_path", TOO_LONG));
        }
        request = request.with("raw_path", original.target);
    }
    if let Some(method) = original.method {
        request = request.with("method", normalize_method(method));
    }
    if let Some(host) = original.host {
        request = request.with("host", normalize_host(host));
    }
    if let Some(priority) = options.priority {
        request = request.with(PRIORITY, priority.name());
    }
    for (name, attribute) in &policy.headers {
        if let Some(value) = single_attribute(headers, name.as_str())? {
            request = request.with(attribute.as_str(), value);
        }
    }
    Ok(request)
}

fn client_ip(headers: &HeaderMap, peer: &EndpointAddress, trusted: &TrustedProxies) -> Result<IpAddr, InputError> {
    let peer = match peer {
        EndpointAddress::Tcp(addr) => addr.ip(),
        EndpointAddress::Unix(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let chain = ForwardingHeader::XForwardedFor;
    let lines = headers.get_all(chain.header()).iter();
    let walked = forwarded::client(peer, chain, lines.map(HeaderValue::as_bytes), trusted);
    let reason = match walked.end {
        ForwardedStop::Untrusted => return Ok(walked.client),
        // A trusted proxy, or a program on its machine, sent the request itself.
        ForwardedStop::Exhausted if walked.hops > 0 => return Ok(walked.client),
        ForwardedStop::Exhausted => {
            "missing; the proxy must send the client's address (nginx: proxy_set_header X-Forwarded-For $remote_addr)"
        }
        ForwardedStop::Malformed => {
            "no address where a trusted proxy writes that of its client; is the proxy's variable right?"
        }
        ForwardedStop::TooLong => "names too many trusted proxies; is `trusted_proxies` too wide?",
    };
    Err(InputError::new(chain.header(), reason))
}

/// The original request, as the proxy describes it.
struct OriginalRequest<'a> {
    target: &'a str,
    method: Option<&'a str>,
    host: Option<&'a str>,
}

/// The headers of one of the two families, if it is clear which.
fn original_request<'h>(
    headers: &'h HeaderMap,
    options: ProxyAuthOptions,
    policy: &ProxyHeaderPolicy,
) -> Result<OriginalRequest<'h>, InputError> {
    let read_pair = |names: [&str; 2]| Ok((single_header(headers, names[0])?, single_attribute(headers, names[1])?));
    let original = read_pair([ORIGINAL.uri, ORIGINAL.method])?;
    let forwarded = read_pair([FORWARDED.uri, FORWARDED.method])?;
    let absent = (None, None);
    let names = match options.from {
        Some(family) => family,
        None if forwarded == absent => &ORIGINAL,
        None if original == absent || original == forwarded => &FORWARDED,
        None => {
            let reason = "differs from x-forwarded-uri or -method; write ?from=original or ?from=forwarded";
            return Err(InputError::new("x-original-uri", reason));
        }
    };
    let (target, method) = if *names == ORIGINAL { original } else { forwarded };
    let host = single_attribute(headers, names.host)?;
    let missing =
        "missing; the proxy must send the target of the request (nginx: proxy_set_header X-Original-URI $request_uri)";
    let target = target.filter(|target| !target.is_empty());
    let target = target.ok_or_else(|| InputError::new(names.uri, missing))?;
    if !(target.starts_with('/') || target.contains("://") || target == "*") {
        let reason = "neither a path nor a URL; is the proxy's variable spelt right?";
        return Err(InputError::new(names.uri, reason));
    }
    let needed = [
        (policy.needs_method, method, names.method, "method", names.method_recipe),
        (policy.needs_host, host, names.host, "host", names.host_recipe),
    ];
    for (is_needed, value, header, what, recipe) in needed {
        if is_needed && value.is_none_or(str::is_empty) {
            let reason = format!(
                "missing; a rule uses the {what} of the client's request, so the proxy must send it ({recipe})"
            );
            return Err(InputError::new(header, reason));
        }
    }
    // Another server may take it for a host that a rule names.
    if let Some(Err(error)) = host.map(check_host) {
        return Err(InputError::new(names.host, format!("not a host: {error}")));
    }
    Ok(OriginalRequest { target, method, host })
}

/// The value of a header that may occur once and is an attribute.
fn single_attribute<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, InputError> {
    let value = single_header(headers, name)?;
    if value.is_some_and(|value| value.len() > MAX_VALUE_BYTES) {
        return Err(InputError::new(name, TOO_LONG));
    }
    Ok(value)
}

/// The value of a header that may occur once. Of two lines the service behind the proxy may read either.
fn single_header<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, InputError> {
    let mut lines = headers.get_all(name).iter();
    let Some(value) = lines.next() else {
        return Ok(None);
    };
    if lines.next().is_some() {
        return Err(InputError::new(name, "given twice"));
    }
    let text = std::str::from_utf8(value.as_bytes());
    text.map(Some).map_err(|_| InputError::new(name, "not UTF-8"))
}

#[cfg(test)]
mod tests;
