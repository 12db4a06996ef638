//! Real proxies with the files of `docs/proxies`, between a client and a backend, that check requests with
//! Tidegate. Each in the oldest and the newest release that the page claims.

mod bodies;
mod heads;

use tidegate_testkit::{ProxyProduct, ProxyRelease, ReceivedRequest, ReverseProxy, Upstream};

use crate::http::{HttpClient, HttpReply};
use crate::no_configuration;
use crate::server::{TestServer, wait_for};

const RULES: &str = "
version: 1
block: [127.0.0.99, 'sha256:d7cb5ea3f967f6e0715b176b561bc607d6d9c55ca6eeefcb22072158b34d8886']
rules:
  - { name: api, match: { path: /api/**, method: POST }, by: ip, rate: 2/hour burst 2 }
  - { name: plan, match: { header.x-plan: free }, by: ip, rate: 1/hour burst 1 }
  - { name: shop, match: { host: shop.example }, by: ip, rate: 1/hour burst 1 }
";

/// The key on the block list.
const STOLEN: &str = "k-of-a-stolen-laptop";

const PRODUCTS: [ProxyProduct; 4] =
    [ProxyProduct::Nginx, ProxyProduct::Caddy, ProxyProduct::Traefik, ProxyProduct::Haproxy];

/// A busy machine must not look like an unavailable Tidegate, except in tests about that.
pub(crate) const PATIENT: [(&str, &str); 7] = [
    ("proxy_connect_timeout 1s", "proxy_connect_timeout 20s"),
    ("proxy_read_timeout 1s", "proxy_read_timeout 20s"),
    ("dial_timeout 1s", "dial_timeout 20s"),
    ("response_header_timeout 1s", "response_header_timeout 20s"),
    ("timeout connect 1s", "timeout connect 20s"),
    // Otherwise a check may take no longer than the interval between two of them.
    ("timeout server 1s", "timeout server 20s\n    timeout check 20s"),
    ("PATIENCE = 1000", "PATIENCE = 20000"),
];

/// Headers about itself that a client may send, and that must be ignored.
const FORGED: [(&str, &str); 9] = [
    ("x-forwarded-for", "6.6.6.6"),
    ("x-real-ip", "6.6.6.6"),
    ("forwarded", "for=6.6.6.6"),
    ("x-forwarded-uri", "/free"),
    ("x-forwarded-method", "GET"),
    ("x-forwarded-host", "free.example"),
    ("x-original-uri", "/free"),
    ("x-original-method", "GET"),
    ("x-original-host", "free.example"),
];

/// Tidegate, a proxy that checks requests with it, and the backend behind.
struct ProxyTestbed {
    server: TestServer,
    proxy: ReverseProxy,
    backend: Upstream,
}

impl ProxyTestbed {
    /// With the proxy's files unchanged, including their timeouts.
    fn impatient(release: ProxyRelease) -> Self {
        ProxyTestbed::start(TestServer::start(RULES), release, &[])
    }

    /// With texts of the proxy's files replaced.
    fn edited(release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        ProxyTestbed::patient(TestServer::start(RULES), release, edits)
    }

    fn patient(server: TestServer, release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        ProxyTestbed::start(server, release, &[edits, &PATIENT].concat())
    }

    fn start(server: TestServer, release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        let backend = Upstream::start();
        let tidegate = format!(":{}", server.http.port());
        let behind = format!(":{}", backend.address().port());
        let ports = [(":8080", &*tidegate), (":3000", &*behind)];
        let proxy = ReverseProxy::start(release, &[&ports, edits].concat());
        ProxyTestbed { server, proxy, backend }
    }

    /// One request of the client `127.0.0.LAST`.
    fn request(&self, last: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        let source = [127, 0, 0, last].into();
        let body = if method == "POST" { "hello" } else { "" };
        HttpClient::connect_from(source, self.proxy.address()).request(method, path, headers, body)
    }

    #[track_caller]
    fn passes(&self, last: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        let reply = self.request(last, method, path, headers);
        let what = format!("{:?}: {reply:?}", self.proxy.release());
        assert_eq!((reply.status, &*reply.body), (200, "backend"), "{what}");
        let arrived = self.backend.take();
        let request_lines: Vec<_> = arrived.iter().map(|it: &ReceivedRequest| &*it.request_line).collect();
        assert_eq!(request_lines, [format!("{method} {path}")], "{what}");
        let sent = if method == "POST" { "hello" } else { "" };
        assert_eq!(arrived[0].body, sent, "{what}");
        reply
    }

    #[track_caller]
    fn fails(&self, status: u16, last: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> HttpReply {
        let reply = self.request(last, method, path, headers);
        assert_eq!(reply.status, status, "{:?}: {reply:?}", self.proxy.release());
        assert_eq!(self.backend.take(), [], "{:?}", self.proxy.release());
        reply
    }
}

/// What the page documents for each: whether an allowed response carries our headers, and the status of a request
/// that cannot be parsed.
fn documented_behaviour(product: ProxyProduct) -> (bool, u16) {
    match product {
        ProxyProduct::Traefik => (false, 400),
        ProxyProduct::Nginx => (true, 403),
        _ => (true, 400),
    }
}

fn limits(product: ProxyProduct) {
    for release in product.releases() {
        limits_of(release);
    }
}

fn limits_of(release: ProxyRelease) {
    let (product, testbed) = (release.product, ProxyTestbed::edited(release, &plan_sent(release.product)));
    let (headers_pass, unreadable) = documented_behaviour(product);
    for left in ["1", "0"] {
        let reply = testbed.passes(2, "POST", "/api/x?y=1", &[]);
        let policy = headers_pass.then_some("\"api\";q=2;w=3600");
        assert_eq!(reply.header("ratelimit-policy"), policy, "{product:?}");
        let wanted = headers_pass.then(|| format!("\"api\";r={left};"));
        let ratelimit = reply.header("ratelimit").map(|it| it[..10].to_owned());
        assert_eq!(ratelimit, wanted, "{product:?}");
        assert_eq!(reply.header("retry-after"), None);
    }
    let denied = testbed.fails(429, 2, "POST", "/api/x", &[]);
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1_700..=2_400).contains(&wait), "{product:?}: {wait}");
    let ratelimit = denied.header("ratelimit").unwrap();
    assert!(ratelimit.starts_with("\"api\";r=0;"), "{ratelimit}");
    assert_eq!(denied.json()["error"], "rate_limit_exceeded", "{product:?}");
    let deny = r#"tidegate_decisions_total{rule="api",edge="auth",outcome="deny",source="exact"}"#;
    assert_eq!(testbed.server.metric(deny), 1);
    // Another path, another method and another address are not denied.
    testbed.passes(2, "POST", "/free", &[]);
    testbed.passes(2, "GET", "/api/x", &[]);
    testbed.passes(3, "POST", "/api/x", &[]);
    believes_no_client(&testbed);
    // The host in the client's request counts, and the backend's name does not.
    let shop = [("host", "shop.example")];
    testbed.passes(4, "GET", "/a", &[]);
    testbed.passes(4, "GET", "/a", &shop);
    testbed.fails(429, 4, "GET", "/a", &shop);
    hides_no_host(&testbed);
    testbed.fails(403, 99, "GET", "/free", &[]);
    testbed.fails(unreadable, 5, "POST", "/free/..;x=1/api/x", &[]);
    // A header that a rule names.
    testbed.passes(5, "GET", "/a", &[("x-plan", "free")]);
    testbed.fails(429, 5, "GET", "/a", &[("x-plan", "free")]);
    testbed.passes(5, "GET", "/a", &[("x-plan", "paid")]);
    takes_one_key(&testbed);
}

/// Backends treat each of these as `shop.example`, whose limit is reached. Whether the proxy responds with its own
/// 400 or with the limit does not matter.
#[track_caller]
fn hides_no_host(testbed: &ProxyTestbed) {
    for host in ["shop.example:x", "shop.example:80:80", "shop.example:80,x", "shop.example:,x", "shop.example:8,[::1]"]
    {
        let reply = testbed.request(4, "GET", "/a", &[("host", host)]);
        assert_ne!(reply.status, 200, "{:?}: {host}", testbed.proxy.release());
        assert_eq!(testbed.backend.take(), [], "{:?}: {host}", testbed.proxy.release());
    }
}

/// Caddy sends only the headers that its file names.
fn plan_sent(product: ProxyProduct) -> Vec<(&'static str, &'static str)> {
    let line = "header_up X-API-Key";
    let lines = "header_up X-Plan {header.X-Plan}\n\t\theader_up X-API-Key";
    match product {
        ProxyProduct::Caddy => vec![(line, lines)],
        _ => Vec::new(),
    }
}

/// A blocked key passes neither alone nor beside another credential.
fn takes_one_key(testbed: &ProxyTestbed) {
    let bearer = format!("Bearer {STOLEN}");
    let shown = ("authorization", &*bearer);
    testbed.passes(7, "GET", "/a", &[("x-api-key", "another")]);
    testbed.passes(7, "GET", "/a", &[("authorization", "Basic YTpi")]);
    testbed.fails(403, 7, "GET", "/a", &[("x-api-key", STOLEN)]);
    testbed.fails(403, 7, "GET", "/a", &[shown]);
    testbed.fails(403, 7, "GET", "/a", &[shown, ("x-api-key", "")]);
    for lines in [
        &[("x-api-key", "junk"), shown][..],
        &[("x-api-key", "junk"), ("x-api-key", STOLEN)],
        &[("x-api-key", STOLEN), ("x-api-key", "junk")],
        &[("authorization", "Basic YTpi"), shown],
        &[shown, ("authorization", "Basic YTpi")],
    ] {
        let reply = testbed.request(7, "GET", "/a", lines);
        let what = format!("{:?}: {lines:?}: {reply:?}", testbed.proxy.release());
        assert!(matches!(reply.status, 400 | 403), "{what}");
        assert_eq!(testbed.backend.take(), [], "{what}");
    }
}

/// The page claims the releases that these tests run, and no others.
#[test]
fn the_page_claims_the_releases_that_are_tested() {
    let page = include_str!("../../../../docs/proxies.md");
    for (row, at) in [("oldest", 0), ("newest", 1)] {
        let row = format!("| {row} release that is tested |");
        let row = page.lines().find_map(|line| line.strip_prefix(&row));
        let cells: Vec<&str> = row.unwrap().split('|').map(str::trim).collect();
        for (product, claimed) in PRODUCTS.into_iter().zip(cells) {
            let version = product.releases()[at].version();
            let is_it = version.starts_with(&format!("{claimed}."));
            assert!(is_it, "{product:?} {version}, and the page claims {claimed}");
        }
    }
}

/// Whatever a client sends about itself, its second request to `/api` counts as its second.
fn believes_no_client(testbed: &ProxyTestbed) {
    for headers in [&FORGED[..], &FORGED[..3], &FORGED[3..6], &FORGED[6..]] {
        testbed.fails(429, 2, "POST", "/api/x", headers);
    }
    testbed.passes(6, "POST", "/api/x", &FORGED);
    testbed.passes(6, "POST", "/api/x", &FORGED[..1]);
    testbed.fails(429, 6, "POST", "/api/x", &FORGED);
    // A header that `Connection` names is not passed on: the proxy's own must be.
    let names = FORGED.map(|(name, _)| name).join(", ");
    let dropped = [("connection", &*names)];
    let reply = testbed.request(6, "POST", "/api/x", &dropped);
    assert_ne!(reply.status, 200, "{:?}", testbed.proxy.release());
    assert_eq!(testbed.backend.take(), [], "{:?}", testbed.proxy.release());
}

#[test]
fn nginx_enforces_what_tidegate_decides() {
    limits(ProxyProduct::Nginx);
}

#[test]
fn caddy_enforces_what_tidegate_decides() {
    limits(ProxyProduct::Caddy);
}

#[test]
fn traefik_enforces_what_tidegate_decides() {
    limits(ProxyProduct::Traefik);
}

#[test]
fn haproxy_enforces_what_tidegate_decides() {
    limits(ProxyProduct::Haproxy);
}

/// Everything passes while Tidegate is frozen or gone, and is limited again when it is back.
fn opens(release: ProxyRelease) {
    let testbed = ProxyTestbed::impatient(release);
    // On a busy machine more may pass before.
    let limits_hold = || {
        wait_for("limits to hold", || {
            let status = testbed.request(2, "POST", "/api/x", &[]).status;
            (status == 429).then_some(())
        });
        testbed.backend.take();
    };
    limits_hold();
    freeze(&testbed.server);
    testbed.passes(2, "POST", "/api/x", &[]);
    testbed.passes(2, "POST", "/api/x", &[]);
    testbed.server.signal("CONT");
    limits_hold();
    let ProxyTestbed { server, proxy, backend } = testbed;
    drop(server);
    let reply = HttpClient::connect(proxy.address()).post("/api/x", "hello");
    assert_eq!(reply.status, 200, "{release:?}: {reply:?}");
    drop(backend);
}

/// Stops the process, and waits until none of its threads runs any more.
fn freeze(server: &TestServer) {
    server.signal("STOP");
    let threads = format!("/proc/{}/task", server.pid());
    let stopped = |entry: std::io::Result<std::fs::DirEntry>| {
        let status = std::fs::read_to_string(entry.unwrap().path().join("status"));
        status.is_ok_and(|status| status.contains("State:\tT"))
    };
    wait_for("every thread to stop", || {
        let mut threads = std::fs::read_dir(&threads).unwrap();
        threads.all(stopped).then_some(())
    });
}

#[test]
fn nginx_caddy_and_haproxy_pass_everything_without_tidegate() {
    for product in [ProxyProduct::Nginx, ProxyProduct::Caddy, ProxyProduct::Haproxy] {
        product.releases().into_iter().for_each(opens);
    }
}

/// A Tidegate without rules is available, and its error does not mean "allowed". HAProxy probes it: if probes took
/// it out of service, everything would pass.
#[test]
fn no_proxy_passes_anything_while_tidegate_has_no_configuration() {
    for product in PRODUCTS {
        for release in product.releases() {
            let ProxyTestbed { server, proxy, backend } = ProxyTestbed::edited(release, &[]);
            let place = server.http.to_string();
            drop(server);
            let testbed = ProxyTestbed { server: no_configuration::start_with(None, &place), proxy, backend };
            testbed.backend.take();
            if product == ProxyProduct::Haproxy {
                // A probe begins when the one before it was evaluated.
                let sample = r#"tidegate_http_responses_total{edge="http",status="503"}"#;
                wait_for("probes", || (testbed.server.metric(sample) > 2).then_some(()));
            }
            let status = if product == ProxyProduct::Nginx { 500 } else { 503 };
            testbed.fails(status, 2, "POST", "/free", &[]);
            let folder = testbed.server.dir.path().join("config");
            std::fs::create_dir(&folder).unwrap();
            testbed.server.write("config/rules.yaml", RULES);
            wait_for("a configuration", || {
                let status = testbed.request(2, "POST", "/free", &[]).status;
                (status == 200).then_some(())
            });
            testbed.backend.take();
            testbed.fails(403, 99, "POST", "/free", &[]);
        }
    }
}

#[test]
fn a_proxy_configured_to_fail_closed_passes_nothing_without_tidegate() {
    let closed = [
        (ProxyProduct::Nginx, ("error_page 502 504 = @open;", "# closed"), 500),
        (ProxyProduct::Caddy, (" 127.0.0.1:8001 {", " {"), 502),
        (ProxyProduct::Haproxy, ("OPEN = true", "OPEN = false"), 503),
        // This one has no other mode.
        (ProxyProduct::Traefik, ("web", "web"), 500),
    ];
    for (product, edit, status) in closed {
        for release in product.releases() {
            stays_closed(release, edit, status);
        }
    }
}

fn stays_closed(release: ProxyRelease, edit: (&str, &str), status: u16) {
    let ProxyTestbed { server, proxy, backend } = ProxyTestbed::edited(release, &[edit]);
    drop(server);
    let reply = HttpClient::connect(proxy.address()).request("GET", "/free", &[], "");
    assert_eq!(reply.status, status, "{release:?}: {reply:?}");
    assert_eq!(backend.take(), [], "{release:?}");
}

/// One of two Tidegates may end at any time: denied clients stay denied.
fn survives(product: ProxyProduct, line: &str, two: &str) {
    for release in product.releases() {
        survives_in(release, line, two);
    }
}

fn survives_in(release: ProxyRelease, line: &str, two: &str) {
    let (first, second) = (TestServer::start(RULES), TestServer::start(RULES));
    let port = |server: &TestServer| format!(":{}", server.http.port());
    let two = two.replace(":A", &port(&first)).replace(":B", &port(&second));
    let testbed = ProxyTestbed::patient(first, release, &[(line, &two)]);
    let blocked = || testbed.request(99, "GET", "/free", &[]).status;
    assert_eq!(blocked(), 403, "{release:?}");
    testbed.server.signal("TERM");
    while HttpClient::try_connect(testbed.server.http).is_ok() {
        assert_eq!(blocked(), 403, "{release:?}");
    }
    for _ in 0..20 {
        assert_eq!(blocked(), 403, "{release:?}");
    }
    drop(second);
    assert_eq!(blocked(), 200, "{release:?}: no Tidegate is left");
}

#[test]
fn one_of_two_servers_may_end_unnoticed() {
    let nginx = "server 127.0.0.1:A; server 127.0.0.1:B;";
    survives(ProxyProduct::Nginx, "server 127.0.0.1:8080;", nginx);
    let caddy = "reverse_proxy 127.0.0.1:A 127.0.0.1:B";
    survives(ProxyProduct::Caddy, "reverse_proxy 127.0.0.1:8080", caddy);
    let haproxy = "server first 127.0.0.1:A\n    server second 127.0.0.1:B";
    survives(ProxyProduct::Haproxy, "server first 127.0.0.1:8080", haproxy);
}

/// The part of the Caddyfile that three lines of the page can replace, and these lines.
fn three_lines() -> (&'static str, &'static str) {
    let page = include_str!("../../../../docs/proxies.md");
    let file = include_str!("../../../../docs/proxies/Caddyfile");
    let lines = page.split("```caddyfile\n").nth(1).unwrap();
    let lines = lines.split("```").next().unwrap();
    assert_eq!(lines.lines().count(), 3);
    let long = &file[file.find("\t# forward_auth").unwrap()..];
    let long = &long[..long.find("\treverse_proxy 127.0.0.1:3000").unwrap()];
    (long, lines)
}

/// The page offers a shorter configuration for Caddy.
#[test]
fn three_lines_are_enough_for_caddy() {
    let (long, lines) = three_lines();
    for release in ProxyProduct::Caddy.releases() {
        let server = TestServer::start(RULES);
        let lines = lines.replace(":8080", &format!(":{}", server.http.port()));
        let testbed = ProxyTestbed::patient(server, release, &[(long, &lines)]);
        testbed.passes(2, "POST", "/api/x", &FORGED);
        testbed.passes(2, "POST", "/api/x", &[]);
        let denied = testbed.fails(429, 2, "POST", "/api/x", &FORGED);
        assert!(denied.header("retry-after").is_some());
        bodies::break_no_limit(&testbed);
    }
}
