//! A real Envoy with the file of `docs/envoy`, between a client and a backend, asking Tidegate.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_parts::{ProxyProduct, ReverseProxy, Upstream, free_port, port_edits};

use crate::http::{Client, Reply};
use crate::server::{Server, metric, wait_for};
use crate::window::{unit, window};

/// A machine that is busy must not look like a service that is away.
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

/// An Envoy before a backend that asks at two ports.
struct EnvoyTestbed {
    envoy: ReverseProxy,
    backend: Upstream,
}

impl EnvoyTestbed {
    fn with_services(services: [u16; 2], edits: &[(&str, &str)]) -> Self {
        let backend = Upstream::start();
        let ports = [
            (3000, backend.address().port()),
            (8081, services[0]),
            (8083, services[1]),
        ];
        let ports = ports.map(port_edits).map(|[_, value]| value);
        let ports = ports.iter().map(|(from, to)| (&**from, &**to));
        let edits: Vec<_> = ports.chain(edits.iter().copied()).collect();
        EnvoyTestbed {
            envoy: ReverseProxy::start(ProxyProduct::Envoy.releases()[0], &edits),
            backend,
        }
    }

    /// One that asks `server` and nobody else.
    fn in_front_of(server: &Server, edits: &[(&str, &str)]) -> Self {
        let stand =
            EnvoyTestbed::with_services([port(server), free_port()], &[&[PATIENT], edits].concat());
        stand.wait_healthy(1);
        stand
    }

    fn wait_healthy(&self, services: u64) {
        wait_for("Envoy to see who is well", || {
            let healthy = self.figure("cluster.tidegate.membership_healthy");
            (healthy == services).then_some(())
        });
    }

    /// One of Envoy's statistics. Envoy tells them in chunks, and this is small enough for one.
    fn figure(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.envoy.admin()).unwrap();
        let ask = format!(
            "GET /stats?filter={name} HTTP/1.1\r\nhost: envoy\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(ask.as_bytes()).unwrap();
        let page = std::io::read_to_string(stream).unwrap();
        metric(&page, &format!("{name}:"))
    }

    fn get(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        Client::connect(self.envoy.address()).request("GET", path, headers, "")
    }

    fn user(&self, name: &str, path: &str) -> Reply {
        self.get(path, &[("x-user", name)])
    }
}

fn port(server: &Server) -> u16 {
    let address: SocketAddr = server.grpc.parse().unwrap();
    address.port()
}

/// What `RateLimit` says is left of the first limit.
fn left(reply: &Reply) -> Option<&str> {
    let (_, rest) = reply.header("ratelimit")?.split_once(";r=")?;
    rest.split(';').next()
}

#[test]
fn everything_passes_while_nobody_answers() {
    let stand = EnvoyTestbed::with_services([free_port(), free_port()], &[]);
    let reply = stand.user("nobody", "/a");
    assert_eq!((reply.status, &*reply.body), (200, "backend"), "{reply:?}");
    assert_eq!(stand.backend.take().len(), 1);
}

#[test]
fn envoy_lets_pass_what_may_and_refuses_the_rest_with_headers() {
    let server = Server::start(&descriptors());
    let own = "failure_mode_deny: false\n                      enable_x_ratelimit_headers: DRAFT_VERSION_03";
    let stand = EnvoyTestbed::in_front_of(&server, &[("failure_mode_deny: false", own)]);
    for remaining in ["1", "0"] {
        let reply = stand.user("ada", "/a");
        assert_eq!((reply.status, left(&reply)), (200, Some(remaining)));
        assert_eq!(reply.header("retry-after"), None);
    }
    assert_eq!(stand.backend.take().len(), 2);
    let refused = stand.user("ada", "/a");
    assert_eq!(
        (refused.status, left(&refused)),
        (429, Some("0")),
        "{refused:?}"
    );
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!(wait > 0, "{refused:?}");
    assert_eq!(refused.header("x-envoy-ratelimited"), Some("true"));
    assert_eq!(stand.backend.take(), []);
    // Envoy's own headers are made of what the service says about each descriptor.
    let own = format!("2, 2;w={}", window().secs);
    let is_limit_header =
        |value: &(String, String)| value.0 == "x-ratelimit-limit" && value.1 == own;
    assert!(refused.headers.iter().any(is_limit_header), "{refused:?}");
    assert_eq!(stand.user("bea", "/a").status, 200, "another user");
    assert_eq!(stand.get("/a", &[]).status, 200, "no user");
}

/// Envoy lets pass what gets no verdict. So whatever a client sends must get one, or it has switched its
/// limits off.
#[test]
fn nothing_a_client_can_send_takes_its_limit_away() {
    let server = Server::start(&descriptors());
    let other = ("header_name: \":method\"", "header_name: x-other");
    let stand = EnvoyTestbed::in_front_of(&server, &[other]);
    let ask = |path: &str, user: &[u8], other: &[u8]| {
        let mut client = Client::connect(stand.envoy.address());
        let head = format!("GET {path} HTTP/1.1\r\nhost: envoy\r\nx-user: ");
        let ask = [head.as_bytes(), user, b"\r\nx-other: ", other, b"\r\n\r\n"].concat();
        client.send_raw(&ask).unwrap();
        client.receive().unwrap().status
    };
    let (long, path) = (vec![b'x'; 5_000], format!("/{}", "p".repeat(5_000)));
    let users: [&[u8]; 6] = [
        b"ada",
        &long,
        &long[1..],
        b"\xff",
        b"\xfe\xff",
        "\u{fffd}".as_bytes(),
    ];
    for user in users {
        let statuses = [(); 2].map(|()| ask("/a", user, b"y"));
        assert_eq!(statuses, [200, 200], "each has a limit of its own");
        let odd: [(&str, &[u8]); 4] = [
            ("/a", b"y"),
            (&path, b"y"),
            ("/a", &long),
            (&path, b"\xc3\x28\xff"),
        ];
        for (path, other) in odd {
            assert_eq!(ask(path, user, other), 429, "{} bytes", user.len());
        }
    }
    assert_eq!(stand.figure("cluster.backend.ratelimit.error"), 0);
}

#[test]
fn a_limit_that_only_watches_refuses_nothing() {
    let server = Server::start(&descriptors());
    let stand = EnvoyTestbed::in_front_of(&server, &[]);
    for _ in 0..4 {
        assert_eq!(stand.user("watched", "/a").status, 200);
    }
    assert_eq!(stand.user("nobody", "/a").status, 429, "others do");
}

#[test]
fn of_several_budgets_one_with_room_is_enough() {
    let server = Server::start(&descriptors());
    let stand = EnvoyTestbed::in_front_of(&server, &[]);
    // One on the path, two for the member: the second request has room in the second only.
    let statuses = [(); 3].map(|()| stand.user("member", "/quota").status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn what_an_answer_used_is_charged_when_it_is_there() {
    let server = Server::start(&descriptors());
    let stand = EnvoyTestbed::in_front_of(&server, &[]);
    let peek = || stand.get("/chat", &[]);
    assert_eq!(left(&peek()), Some("100"), "to ask costs nothing");
    let spend = || stand.get("/chat", &[("x-spend", "60")]);
    assert_eq!(spend().status, 200);
    wait_for("60 to be charged", || {
        (left(&peek()) == Some("40")).then_some(())
    });
    let over = spend();
    assert_eq!(over.status, 200, "something is left, so it may begin");
    wait_for("the rest to be charged", || {
        (peek().status == 429).then_some(())
    });
    stand.backend.take();
    assert_eq!(spend().status, 429);
    assert_eq!(stand.backend.take(), []);
}

#[test]
fn rules_of_our_own_decide_through_envoy_too() {
    let server = Server::start(
        "
version: 1
rules:
  - { name: api, match: { domain: web, path: /api/**, method: GET }, by: ip, rate: 1/hour burst 1 }
",
    );
    let stand = EnvoyTestbed::in_front_of(&server, &[]);
    let passed = stand.get("/api/x?y=1", &[]);
    assert_eq!((passed.status, left(&passed)), (200, Some("0")));
    let refused = stand.get("/api/x", &[]);
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let header = refused.header("ratelimit").unwrap();
    assert!(header.starts_with("\"api\";r=0;"), "{header}");
    assert_eq!(stand.get("/free", &[]).status, 200);
}

#[test]
fn without_tidegate_envoy_follows_its_failure_mode() {
    let open = Server::start(&descriptors());
    let stand = EnvoyTestbed::in_front_of(&open, &[]);
    assert_eq!(stand.user("nobody", "/a").status, 429);
    let grpc = open.grpc.clone();
    drop(open);
    assert_eq!(stand.user("nobody", "/a").status, 200);
    let _back = Server::with(&descriptors(), &["--grpc", &grpc]);
    // Envoy may not even have noticed that it was away, so its word on health says nothing.
    wait_for("Envoy to ask again", || {
        (stand.user("nobody", "/a").status == 429).then_some(())
    });

    let closed = Server::start(&descriptors());
    let deny = ("failure_mode_deny: false", "failure_mode_deny: true");
    let stand = EnvoyTestbed::in_front_of(&closed, &[deny]);
    assert_eq!(stand.user("ada", "/a").status, 200);
    drop(closed);
    assert_eq!(stand.user("ada", "/a").status, 500);
}

/// Ends one and starts it again in its place, while the other answers.
fn restart(server: Server, stand: &EnvoyTestbed) -> Server {
    let grpc = server.grpc.clone();
    server.signal("TERM");
    // Else it would not be noticed when it is back.
    stand.wait_healthy(1);
    let (status, _) = server.wait_end();
    assert!(status.success(), "{status}");
    let next = start(&grpc);
    stand.wait_healthy(2);
    next
}

/// With time enough for a busy Envoy to hear that it is about to end.
fn start(grpc: &str) -> Server {
    Server::with(&descriptors(), &["--grpc", grpc, "--drain-delay", "10"])
}

#[test]
fn a_rolling_restart_of_two_loses_no_request_and_no_decision() {
    let (first, second) = (start("127.0.0.1:0"), start("127.0.0.1:0"));
    let stand = EnvoyTestbed::with_services([port(&first), port(&second)], &[PATIENT]);
    stand.wait_healthy(2);
    let over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let clients = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut client = Client::connect(stand.envoy.address());
                let mut sent = 0_u64;
                while !over.load(Ordering::Relaxed) {
                    // One that passes would have been let pass by Envoy, for want of an answer.
                    let reply = client.request("GET", "/a", &[("x-user", "nobody")], "");
                    assert_eq!(reply.status, 429, "{reply:?}");
                    sent += 1;
                }
                sent
            })
        });
        let _running = [first, second].map(|server| restart(server, &stand));
        over.store(true, Ordering::Relaxed);
        clients
            .map(|client| client.join().unwrap())
            .iter()
            .sum::<u64>()
    });
    assert!(sent > 100, "{sent}");
    assert_eq!(stand.figure("cluster.backend.ratelimit.error"), 0);
    assert_eq!(stand.figure("cluster.backend.ratelimit.over_limit"), sent);
    assert_eq!(stand.backend.take(), []);
}
