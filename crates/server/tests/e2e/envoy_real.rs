//! A real Envoy with the file of `docs/envoy`, between a client and a backend, with Tidegate as its rate limit
//! service.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_testkit::{ProxyProduct, ReverseProxy, Upstream, free_port, port_edits};

use crate::http::{HttpClient, HttpReply};
use crate::server::{TestServer, metric, wait_for};
use crate::window::{unit, window};

/// A busy machine must not look like an unavailable service.
const PATIENT: (&str, &str) = ("timeout: 0.25s", "timeout: 20s");

/// Files of the reference service.
fn descriptors() -> String {
    let unit = unit();
    format!(
        "
domain: web
descriptors:
  - {{ key: user, rate_limit: {{ unit: {unit}, requests_per_unit: 2 }} }}
  - {{ key: user, value: nobody, rate_limit: {{ unit: {unit}, requests_per_unit: 0 }} }}
  - {{ key: user, value: watched, shadow_mode: true, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}
  - {{ key: user, value: member, quota_mode: true, rate_limit: {{ unit: {unit}, requests_per_unit: 2 }} }}
  - key: path
    value: /quota
    descriptors:
      - {{ key: method, quota_mode: true, rate_limit: {{ unit: {unit}, requests_per_unit: 1 }} }}
  - key: budget
    value: tokens
    descriptors:
      - {{ key: remote_address, rate_limit: {{ unit: {unit}, requests_per_unit: 100 }} }}
"
    )
}

/// An Envoy in front of a backend, with rate limit services at two ports.
struct EnvoyTestbed {
    envoy: ReverseProxy,
    backend: Upstream,
}

impl EnvoyTestbed {
    fn with_services(services: [u16; 2], edits: &[(&str, &str)]) -> Self {
        let backend = Upstream::start();
        let ports = [(3000, backend.address().port()), (8081, services[0]), (8083, services[1])];
        let ports = ports.map(port_edits).map(|[_, value]| value);
        let ports = ports.iter().map(|(from, to)| (&**from, &**to));
        let edits: Vec<_> = ports.chain(edits.iter().copied()).collect();
        EnvoyTestbed { envoy: ReverseProxy::start(ProxyProduct::Envoy.releases()[0], &edits), backend }
    }

    /// An Envoy whose only rate limit service is `server`.
    fn in_front_of(server: &TestServer, edits: &[(&str, &str)]) -> Self {
        let testbed = EnvoyTestbed::with_services([port(server), free_port()], &[&[PATIENT], edits].concat());
        testbed.wait_healthy(1);
        testbed
    }

    fn wait_healthy(&self, services: u64) {
        wait_for("Envoy to see the healthy services", || {
            let healthy = self.figure("cluster.tidegate.membership_healthy");
            (healthy == services).then_some(())
        });
    }

    /// One of Envoy's statistics. Envoy sends them in chunks, and this response is small enough for one.
    fn figure(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.envoy.admin()).unwrap();
        let request = format!("GET /stats?filter={name} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let page = std::io::read_to_string(stream).unwrap();
        metric(&page, &format!("{name}:"))
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        HttpClient::connect(self.envoy.address()).request("GET", path, headers, "")
    }

    fn user(&self, name: &str, path: &str) -> HttpReply {
        self.get(path, &[("x-user", name)])
    }
}

fn port(server: &TestServer) -> u16 {
    let address: SocketAddr = server.grpc.parse().unwrap();
    address.port()
}

/// What is left of the first limit, from `RateLimit`.
fn left(reply: &HttpReply) -> Option<&str> {
    let (_, rest) = reply.header("ratelimit")?.split_once(";r=")?;
    rest.split(';').next()
}

#[test]
fn everything_passes_while_no_service_responds() {
    let testbed = EnvoyTestbed::with_services([free_port(), free_port()], &[]);
    let reply = testbed.user("nobody", "/a");
    assert_eq!((reply.status, &*reply.body), (200, "backend"), "{reply:?}");
    assert_eq!(testbed.backend.take().len(), 1);
}

#[test]
fn envoy_passes_allowed_requests_and_denies_the_rest_with_headers() {
    let server = TestServer::start(&descriptors());
    let own = "failure_mode_deny: false\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let testbed = EnvoyTestbed::in_front_of(&server, &[("failure_mode_deny: false", own)]);
    for remaining in ["1", "0"] {
        let reply = testbed.user("ada", "/a");
        assert_eq!((reply.status, left(&reply)), (200, Some(remaining)));
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(testbed.backend.take().len(), 2);
    let denied = testbed.user("ada", "/a");
    assert_eq!((denied.status, left(&denied)), (429, Some("0")), "{denied:?}");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 0, "{denied:?}");
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(testbed.backend.take(), []);
    // Envoy makes its own headers from the status of each descriptor.
    let own = format!("2, 2;w={}", window().secs);
    let is_limit_header = |value: &(String, String)| value.0 == "x-ratelimit-limit" && value.1 == own;
    assert!(denied.headers.iter().any(is_limit_header), "{denied:?}");
    assert_eq!(testbed.user("bea", "/a").status, 200, "another user");
    assert_eq!(testbed.get("/a", &[]).status, 200, "no user");
}

/// Envoy passes requests that get no verdict. So whatever a client sends must get one; otherwise it could disable
/// its limits.
#[test]
fn nothing_a_client_can_send_takes_its_limit_away() {
    let server = TestServer::start(&descriptors());
    let other = ("header_name: \":method\"", "header_name: x-other");
    let testbed = EnvoyTestbed::in_front_of(&server, &[other]);
    let request = |path: &str, user: &[u8], other: &[u8]| {
        let mut client = HttpClient::connect(testbed.envoy.address());
        let head = format!("GET {path} HTTP/1.1\r\nhost: envoy\r\nx-user: ");
        let request = [head.as_bytes(), user, b"\r\nx-other: ", other, b"\r\n\r\n"].concat();
        client.send_raw(&request).unwrap();
        client.receive().unwrap().status
    };
    let (long, path) = (vec![b'x'; 5_000], format!("/{}", "p".repeat(5_000)));
    let users: [&[u8]; 6] = [b"ada", &long, &long[1..], b"\xff", b"\xfe\xff", "\u{fffd}".as_bytes()];
    for user in users {
        let statuses = [(); 2].map(|()| request("/a", user, b"y"));
        assert_eq!(statuses, [200, 200], "each has a limit of its own");
        let odd: [(&str, &[u8]); 4] = [("/a", b"y"), (&path, b"y"), ("/a", &long), (&path, b"\xc3\x28\xff")];
        for (path, other) in odd {
            assert_eq!(request(path, user, other), 429, "{} bytes", user.len());
        }
    }
    assert_eq!(testbed.figure("cluster.backend.ratelimit.error"), 0);
}

#[test]
fn a_shadow_limit_denies_nothing() {
    let server = TestServer::start(&descriptors());
    let testbed = EnvoyTestbed::in_front_of(&server, &[]);
    for _ in 0..4 {
        assert_eq!(testbed.user("watched", "/a").status, 200);
    }
    assert_eq!(testbed.user("nobody", "/a").status, 429, "others do");
}

#[test]
fn of_several_budgets_one_with_room_is_enough() {
    let server = TestServer::start(&descriptors());
    let testbed = EnvoyTestbed::in_front_of(&server, &[]);
    // One unit on the path, two for the member: the second request has room only in the second budget.
    let statuses = [(); 3].map(|()| testbed.user("member", "/quota").status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn usage_of_a_response_is_charged_when_it_is_complete() {
    let server = TestServer::start(&descriptors());
    let testbed = EnvoyTestbed::in_front_of(&server, &[]);
    let peek = || testbed.get("/chat", &[]);
    assert_eq!(left(&peek()), Some("100"), "a peek costs nothing");
    let spend = || testbed.get("/chat", &[("x-spend", "60")]);
    assert_eq!(spend().status, 200);
    wait_for("60 to be charged", || (left(&peek()) == Some("40")).then_some(()));
    let over = spend();
    assert_eq!(over.status, 200, "something is left, so it may begin");
    wait_for("the rest to be charged", || (peek().status == 429).then_some(()));
    testbed.backend.take();
    assert_eq!(spend().status, 429);
    assert_eq!(testbed.backend.take(), []);
}

#[test]
fn rules_of_our_own_decide_through_envoy_too() {
    let server = TestServer::start(
        "
version: 1
rules:
  - { name: api, match: { domain: web, path: /api/**, method: GET }, by: ip, rate: 1/hour burst 1 }
",
    );
    let testbed = EnvoyTestbed::in_front_of(&server, &[]);
    let passed = testbed.get("/api/x?y=1", &[]);
    assert_eq!((passed.status, left(&passed)), (200, Some("0")));
    let denied = testbed.get("/api/x", &[]);
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    let header = denied.header("ratelimit").unwrap();
    assert!(header.starts_with("\"api\";r=0;"), "{header}");
    assert_eq!(testbed.get("/free", &[]).status, 200);
}

#[test]
fn without_tidegate_envoy_follows_its_failure_mode() {
    let open = TestServer::start(&descriptors());
    let testbed = EnvoyTestbed::in_front_of(&open, &[]);
    assert_eq!(testbed.user("nobody", "/a").status, 429);
    let grpc = open.grpc.clone();
    drop(open);
    assert_eq!(testbed.user("nobody", "/a").status, 200);
    let _back = TestServer::with(&descriptors(), &["--grpc", &grpc]);
    // Envoy may not even have noticed the outage, so its health status proves nothing.
    wait_for("Envoy to call again", || (testbed.user("nobody", "/a").status == 429).then_some(()));

    let closed = TestServer::start(&descriptors());
    let deny = ("failure_mode_deny: false", "failure_mode_deny: true");
    let testbed = EnvoyTestbed::in_front_of(&closed, &[deny]);
    assert_eq!(testbed.user("ada", "/a").status, 200);
    drop(closed);
    assert_eq!(testbed.user("ada", "/a").status, 500);
}

/// Ends one server and starts it again in its place, while the other responds.
fn restart(server: TestServer, testbed: &EnvoyTestbed) -> TestServer {
    let grpc = server.grpc.clone();
    server.signal("TERM");
    // Otherwise its return would not be noticed.
    testbed.wait_healthy(1);
    let (status, _) = server.wait_end();
    assert!(status.success(), "{status}");
    let next = start(&grpc);
    testbed.wait_healthy(2);
    next
}

/// With enough time for a busy Envoy to notice the shutdown.
fn start(grpc: &str) -> TestServer {
    TestServer::with(&descriptors(), &["--grpc", grpc, "--drain-delay", "10"])
}

#[test]
fn a_rolling_restart_of_two_loses_no_request_and_no_decision() {
    let (first, second) = (start("127.0.0.1:0"), start("127.0.0.1:0"));
    let testbed = EnvoyTestbed::with_services([port(&first), port(&second)], &[PATIENT]);
    testbed.wait_healthy(2);
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut client = HttpClient::connect(testbed.envoy.address());
                let mut sent = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    // A request that passes would have been passed by Envoy for lack of a response.
                    let reply = client.request("GET", "/a", &[("x-user", "nobody")], "");
                    assert_eq!(reply.status, 429, "{reply:?}");
                    sent += 1;
                }
                sent
            })
        });
        let _running = [first, second].map(|server| restart(server, &testbed));
        over.store(true, Ordering::Relaxed);
        clients.map(|client| client.join().unwrap()).iter().sum::<u64>()
    });
    assert!(sent > 100, "{sent}");
    assert_eq!(testbed.figure("cluster.backend.ratelimit.error"), 0);
    assert_eq!(testbed.figure("cluster.backend.ratelimit.over_limit"), sent);
    assert_eq!(testbed.backend.take(), []);
}
