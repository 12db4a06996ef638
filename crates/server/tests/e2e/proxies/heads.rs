//! Heads that are too long or have too many fields do not bypass a limit.

use tidegate_testkit::ProxyProduct;

use super::ProxyTestbed;
use crate::http::HttpClient;

/// A head that was too long, or had too many fields, bypassed the limit: Tidegate closed the connection over it,
/// Caddy went on without the check for all clients, and HAProxy 2.6 crashed.
fn heads_cause_no_outage(product: ProxyProduct) {
    for release in product.releases() {
        let mut testbed = ProxyTestbed::edited(release, &[]);
        for _ in 0..2 {
            testbed.passes(2, "POST", "/api/x", &[]);
        }
        let long = |kib: usize| format!("x-pad: {}\r\n", "p".repeat(1016)).repeat(kib);
        let many = |count| (0..count).map(|at| format!("x-{at}: a\r\n")).collect();
        let mut heads: Vec<String> = [8, 13, 15, 20, 31, 33, 48, 128, 900].map(long).into();
        heads.extend([50, 80, 94, 98, 99, 100, 101, 120, 2_000].map(many));
        for lines in heads {
            let head = format!("POST /api/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n{lines}\r\n");
            let what = format!("{release:?}: {} bytes, {} lines", head.len(), head.lines().count());
            let mut client = HttpClient::connect_from([127, 0, 0, 2].into(), testbed.proxy.address());
            // The proxy may end the connection before it has read everything.
            let _ = client.send_raw(head.as_bytes());
            if let Ok(reply) = client.receive() {
                assert!((400..500).contains(&reply.status), "{what}: {reply:?}");
            }
            assert!(testbed.proxy.is_running(), "{what}: {}", testbed.proxy.output());
            testbed.fails(429, 2, "POST", "/api/x", &[]);
        }
    }
}

#[test]
fn no_head_disables_limits_in_nginx() {
    heads_cause_no_outage(ProxyProduct::Nginx);
}

#[test]
fn no_head_disables_limits_in_caddy() {
    heads_cause_no_outage(ProxyProduct::Caddy);
}

#[test]
fn no_head_disables_limits_in_traefik() {
    heads_cause_no_outage(ProxyProduct::Traefik);
}

#[test]
fn no_head_disables_limits_in_haproxy() {
    heads_cause_no_outage(ProxyProduct::Haproxy);
}

/// If the proxy sends every header and bounds none, the response of Tidegate alone must be enough.
#[test]
fn no_head_disables_limits_in_a_caddy_that_sends_every_header() {
    let all = [
        ("max_header_size 16KB", "max_header_size 1MB"),
        ("\t\theader_up -*\n", ""),
        ("\t\theader_up X-API-Key {header.X-API-Key}\n", ""),
        ("\t\theader_up Authorization {header.Authorization}\n", ""),
    ];
    for release in ProxyProduct::Caddy.releases() {
        let testbed = ProxyTestbed::edited(release, &all);
        for _ in 0..2 {
            testbed.passes(2, "POST", "/api/x", &[]);
        }
        for kib in [33, 64, 300, 900] {
            for _ in 0..5 {
                let long = "p".repeat(kib << 10);
                let reply = testbed.request(2, "POST", "/api/x", &[("x-pad", &long)]);
                // A head that is a little too long and comes in one piece is still read.
                assert!(matches!(reply.status, 429 | 431), "{release:?}: {reply:?}");
                assert_eq!(testbed.backend.take(), [], "{release:?}");
            }
            testbed.fails(429, 2, "POST", "/api/x", &[]);
        }
    }
}
