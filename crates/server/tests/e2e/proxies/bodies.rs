//! Request bodies are for the backend alone: no proxy sends them to Tidegate, and a broken or truncated one does
//! not count as a failure of Tidegate.

use tidegate_testkit::{ProxyProduct, ProxyRelease, ReverseProxy, Upstream};

use super::{PATIENT, ProxyTestbed, three_lines};
use crate::http::{HttpClient, HttpReply};

/// The first line of sub-requests, and lines close to it. Caddy sends a body along if the client has sent exactly
/// that line.
const TARGETS: [&str; 6] = [
    "/v1/auth?from=forwarded",
    "/v1/auth?from=forwarded&nonce=",
    "/v1/auth?from=forwarded&nonce={http.request.uuid}",
    "/v1/auth?from=original",
    "/v1/auth?from=original&deny_status=401",
    "/v1/auth",
];

/// The body `hello`, in every framing that a client can choose.
const WHOLE: [&str; 5] = [
    "content-length: 5\r\n\r\nhello",
    "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    "trailer: x-sum\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\nx-sum: 1\r\n\r\n",
    "expect: 100-continue\r\ncontent-length: 5\r\n\r\nhello",
    "connection: upgrade\r\nupgrade: chat\r\ncontent-length: 5\r\n\r\nhello",
];

/// Bodies that are broken, or end before they should.
const BROKEN: [&str; 6] = [
    "transfer-encoding: chunked\r\n\r\nZZ\r\n\r\n",
    "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n\r\n",
    "transfer-encoding: chunked\r\n\r\n5\r\nhe",
    "content-length: 50\r\n\r\nhello",
    "expect: 100-continue\r\ncontent-length: 50\r\n\r\n",
    "connection: upgrade\r\nupgrade: chat\r\ntransfer-encoding: chunked\r\n\r\nZZ\r\n\r\n",
];

/// Sends one request as the client `127.0.0.8`, and waits until the proxy has responded or closed the connection.
fn exchange(proxy: &ReverseProxy, first: &str, host: &str, rest: &str) -> std::io::Result<HttpReply> {
    let mut client = HttpClient::connect_from([127, 0, 0, 8].into(), proxy.address());
    client.send_raw(format!("{first} HTTP/1.1\r\nhost: {host}\r\n{rest}").as_bytes())?;
    if BROKEN.contains(&rest) {
        client.shut_down_sending()?;
    }
    loop {
        let reply = client.receive()?;
        if reply.status >= 200 {
            return Ok(reply);
        }
    }
}

/// With a recorder in the place of Tidegate, which allows everything.
fn sub_requests_omit_the_body(release: ProxyRelease, edits: &[(&str, &str)]) {
    let (limiter, backend) = (Upstream::start(), Upstream::start());
    let port = |upstream: &Upstream| format!(":{}", upstream.address().port());
    let (limiter_port, behind) = (port(&limiter), port(&backend));
    let edits: Vec<_> = edits.iter().map(|(from, to)| (*from, to.replace(":8080", &limiter_port))).collect();
    let edits = edits.iter().map(|(from, to)| (*from, &**to));
    let edits = edits.chain(PATIENT);
    let ports = [(":8080", &*limiter_port), (":3000", &*behind)];
    let proxy = ReverseProxy::start(release, &edits.chain(ports).collect::<Vec<_>>());
    limiter.take();
    for target in TARGETS {
        for method in ["GET", "POST"] {
            for rest in WHOLE {
                let what = format!("{release:?}: {method} {target} {rest:?}");
                let first = format!("{method} {target}");
                let reply = exchange(&proxy, &first, "x", rest).unwrap();
                assert_eq!(reply.status, 200, "{what}: {reply:?}");
                let arrived = backend.take();
                assert_eq!(arrived.len(), 1, "{what}: {arrived:?}");
                assert_eq!(arrived[0].request_line, first, "{what}");
                assert_eq!(arrived[0].body, "hello", "{what}");
                let mut sub_requests = limiter.take();
                sub_requests.retain(|it| !it.request_line.ends_with("/readyz")); // HAProxy's health checks
                assert_eq!(sub_requests.len(), 1, "{what}: {sub_requests:?}");
                assert_eq!(sub_requests[0].body, "", "{what}");
                let framed = |(name, value): &(String, String)| {
                    name == "transfer-encoding" || (name == "content-length" && value != "0")
                };
                assert!(!sub_requests[0].headers.iter().any(framed), "{what}: {sub_requests:?}");
            }
        }
    }
}

#[test]
fn sub_requests_have_no_body() {
    for product in [ProxyProduct::Nginx, ProxyProduct::Caddy, ProxyProduct::Traefik, ProxyProduct::Haproxy] {
        for release in product.releases() {
            sub_requests_omit_the_body(release, &[]);
        }
    }
    for release in ProxyProduct::Caddy.releases() {
        sub_requests_omit_the_body(release, &[three_lines()]);
    }
}

/// A client that has used its limit stays denied, and others are served, whatever bodies another client sends.
/// Allowed bodies reach the backend and denied ones do not. The client `127.0.0.2` has used `/api`.
pub(super) fn break_no_limit(testbed: &ProxyTestbed) {
    let release = testbed.proxy.release();
    for target in TARGETS {
        for method in ["GET", "POST", "get"] {
            for rest in BROKEN {
                let what = format!("{release:?}: {method} {target} {rest:?}");
                let first = format!("{method} {target}");
                if let Ok(reply) = exchange(&testbed.proxy, &first, "x", rest) {
                    assert_ne!(reply.status, 503, "{what}: {reply:?}");
                }
                let reply = testbed.request(2, "POST", "/api/x", &[]);
                assert_eq!(reply.status, 429, "{what}: {reply:?}");
                assert_eq!(testbed.backend.take(), [], "{what}");
            }
        }
    }
    let first = format!("GET {}", TARGETS[0]);
    let send = |rest| exchange(&testbed.proxy, &first, "shop.example", rest).unwrap();
    assert_eq!(send(WHOLE[1]).status, 200, "{release:?}");
    let arrived = testbed.backend.take();
    assert_eq!(arrived.len(), 1, "{release:?}: {arrived:?}");
    assert_eq!((&*arrived[0].request_line, &*arrived[0].body), (&*first, "hello"));
    for rest in WHOLE {
        assert_eq!(send(rest).status, 429, "{release:?}: {rest:?}");
        assert_eq!(testbed.backend.take(), [], "{release:?}: {rest:?}");
    }
}

/// One bad chunk a second, sent to the URL of the sub-request itself, made Caddy mark Tidegate as failed: all
/// clients got 503, or passed without a limit. A counted failure lasts until the test ends.
fn bodies_cause_no_outage(product: ProxyProduct) {
    let lasting = ("fail_duration 1s", "fail_duration 1h");
    for release in product.releases() {
        let testbed = ProxyTestbed::edited(release, &[lasting]);
        for _ in 0..2 {
            testbed.passes(2, "POST", "/api/x", &[]);
        }
        break_no_limit(&testbed);
    }
}

#[test]
fn no_body_disables_limits_in_nginx() {
    bodies_cause_no_outage(ProxyProduct::Nginx);
}

#[test]
fn no_body_disables_limits_in_caddy() {
    bodies_cause_no_outage(ProxyProduct::Caddy);
}

#[test]
fn no_body_disables_limits_in_traefik() {
    bodies_cause_no_outage(ProxyProduct::Traefik);
}

#[test]
fn no_body_disables_limits_in_haproxy() {
    bodies_cause_no_outage(ProxyProduct::Haproxy);
}
