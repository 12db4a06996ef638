//! Real proxies with the files of `docs/proxies`, between a client and a backend, asking Tidegate. Each in
//! the oldest and the newest release that the page claims.

mod bodies;
mod heads;

use tidegate_parts::{ProxyProduct, ProxyRelease, ReceivedRequest, ReverseProxy, Upstream};

use crate::http::{Client, Reply};
use crate::no_configuration;
use crate::server::{Server, wait_for};

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

const MAKES: [ProxyProduct; 4] = [
    ProxyProduct::Nginx,
    ProxyProduct::Caddy,
    ProxyProduct::Traefik,
    ProxyProduct::Haproxy,
];

/// A machine that is busy must not look like a Tidegate that is away, where a test is not about that.
pub(crate) const PATIENT: [(&str, &str); 7] = [
    ("proxy_connect_timeout 1s", "proxy_connect_timeout 20s"),
    ("proxy_read_timeout 1s", "proxy_read_timeout 20s"),
    ("dial_timeout 1s", "dial_timeout 20s"),
    ("response_header_timeout 1s", "response_header_timeout 20s"),
    ("timeout connect 1s", "timeout connect 20s"),
    // Else a check has no longer than lies between two of them.
    (
        "timeout server 1s",
        "timeout server 20s\n    timeout check 20s",
    ),
    ("PATIENCE = 1000", "PATIENCE = 20000"),
];

/// What a client may say about itself, and nobody believes.
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

/// Tidegate, a proxy that asks it, and the backend behind.
struct ProxyTestbed {
    server: Server,
    proxy: ReverseProxy,
    backend: Upstream,
}

impl ProxyTestbed {
    /// With the proxy's files as they are, also in how long they wait.
    fn impatient(release: ProxyRelease) -> Self {
        ProxyTestbed::start(Server::start(RULES), release, &[])
    }

    /// With texts of the proxy's files replaced.
    fn edited(release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        ProxyTestbed::patient(Server::start(RULES), release, edits)
    }

    fn patient(server: Server, release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        ProxyTestbed::start(server, release, &[edits, &PATIENT].concat())
    }

    fn start(server: Server, release: ProxyRelease, edits: &[(&str, &str)]) -> Self {
        let backend = Upstream::start();
        let tidegate = format!(":{}", server.http.port());
        let behind = format!(":{}", backend.address().port());
        let ports = [(":8080", &*tidegate), (":3000", &*behind)];
        let proxy = ReverseProxy::start(release, &[&ports, edits].concat());
        ProxyTestbed {
            server,
            proxy,
            backend,
        }
    }

    /// One request of the client `127.0.0.LAST`.
    fn request(&self, last: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let source = [127, 0, 0, last].into();
        let body = if method == "POST" { "hello" } else { "" };
        Client::connect_from(source, self.proxy.address()).request(method, path, headers, body)
    }

    #[track_caller]
    fn passes(&self, last: u8, method: &str, path: &str, headers: &[(&str, &str)]) -> Reply {
        let reply = self.request(last, method, path, headers);
        let what = format!("{:?}: {reply:?}", self.proxy.release());
        assert_eq!((reply.status, &*reply.body), (200, "backend"), "{what}");
        let arrived = self.backend.take();
        let request_lines: Vec<_> = arrived
            .iter()
            .map(|it: &ReceivedRequest| &*it.request_line)
            .collect();
        assert_eq!(request_lines, [format!("{method} {path}")], "{what}");
        let sent = if method == "POST" { "hello" } else { "" };
        assert_eq!(arrived[0].body, sent, "{what}");
        reply
    }

    #[track_caller]
    fn fails(
        &self,
        status: u16,
        last: u8,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Reply {
        let reply = self.request(last, method, path, headers);
        assert_eq!(
            reply.status,
            status,
            "{:?}: {reply:?}",
            self.proxy.release()
        );
        assert_eq!(self.backend.take(), [], "{:?}", self.proxy.release());
        reply
    }
}

/// What the page says of each: whether an answer that passes carries our headers, and what a request gets
/// that cannot be read.
fn documented_behaviour(make: ProxyProduct) -> (bool, u16) {
    match make {
        ProxyProduct::Traefik => (false, 400),
        ProxyProduct::Nginx => (true, 403),
        _ => (true, 400),
    }
}

fn limits(make: ProxyProduct) {
    for release in make.releases() {
        limits_of(release);
    }
}

fn limits_of(release: ProxyRelease) {
    let (make, stand) = (
        release.product,
        ProxyTestbed::edited(release, &plan_sent(release.product)),
    );
    let (headers_pass, unreadable) = documented_behaviour(make);
    for left in ["1", "0"] {
        let reply = stand.passes(2, "POST", "/api/x?y=1", &[]);
        let policy = headers_pass.then_some("\"api\";q=2;w=3600");
        assert_eq!(reply.header("ratelimit-policy"), policy, "{make:?}");
        let wanted = headers_pass.then(|| format!("\"api\";r={left};"));
        let ratelimit = reply.header("ratelimit").map(|it| it[..10].to_owned());
        assert_eq!(ratelimit, wanted, "{make:?}");
        assert_eq!(reply.header("retry-after"), None);
    }
    let refused = stand.fails(429, 2, "POST", "/api/x", &[]);
    let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    assert!((1_700..=2_400).contains(&wait), "{make:?}: {wait}");
    let ratelimit = refused.header("ratelimit").unwrap();
    assert!(ratelimit.starts_with("\"api\";r=0;"), "{ratelimit}");
    assert_eq!(refused.json()["error"], "rate_limit_exceeded", "{make:?}");
    let deny = r#"tidegate_decisions_total{rule="api",edge="auth",outcome="deny",source="exact"}"#;
    assert_eq!(stand.server.metric(deny), 1);
    // Another path, another method, another address: no refusal of theirs.
    stand.passes(2, "POST", "/free", &[]);
    stand.passes(2, "GET", "/api/x", &[]);
    stand.passes(3, "POST", "/api/x", &[]);
    believes_no_client(&stand);
    // The host the client asked for counts, and the backend's name does not.
    let shop = [("host", "shop.example")];
    stand.passes(4, "GET", "/a", &[]);
    stand.passes(4, "GET", "/a", &shop);
    stand.fails(429, 4, "GET", "/a", &shop);
    hides_no_host(&stand);
    stand.fails(403, 99, "GET", "/free", &[]);
    stand.fails(unreadable, 5, "POST", "/free/..;x=1/api/x", &[]);
    // A header that a rule names.
    stand.passes(5, "GET", "/a", &[("x-plan", "free")]);
    stand.fails(429, 5, "GET", "/a", &[("x-plan", "free")]);
    stand.passes(5, "GET", "/a", &[("x-plan", "paid")]);
    takes_one_key(&stand);
}

/// Services behind take each of these for `shop.example`, whose limit is reached. What a proxy makes of it, a 400 of its
/// own or the limit, is all the same.
#[track_caller]
fn hides_no_host(stand: &ProxyTestbed) {
    for host in [
        "shop.example:x",
        "shop.example:80:80",
        "shop.example:80,x",
        "shop.example:,x",
        "shop.example:8,[::1]",
    ] {
        let reply = stand.request(4, "GET", "/a", &[("host", host)]);
        assert_ne!(reply.status, 200, "{:?}: {host}", stand.proxy.release());
        assert_eq!(
            stand.backend.take(),
            [],
            "{:?}: {host}",
            stand.proxy.release()
        );
    }
}

/// Caddy sends only the headers that its file names.
fn plan_sent(make: ProxyProduct) -> Vec<(&'static str, &'static str)> {
    let line = "header_up X-API-Key";
    let lines = "header_up X-Plan {header.X-Plan}\n\t\theader_up X-API-Key";
    match make {
        ProxyProduct::Caddy => vec![(line, lines)],
        _ => Vec::new(),
    }
}

/// A blocked key passes neither alone nor beside another credential.
fn takes_one_key(stand: &ProxyTestbed) {
    let bearer = format!("Bearer {STOLEN}");
    let shown = ("authorization", &*bearer);
    stand.passes(7, "GET", "/a", &[("x-api-key", "another")]);
    stand.passes(7, "GET", "/a", &[("authorization", "Basic YTpi")]);
    stand.fails(403, 7, "GET", "/a", &[("x-api-key", STOLEN)]);
    stand.fails(403, 7, "GET", "/a", &[shown]);
    stand.fails(403, 7, "GET", "/a", &[shown, ("x-api-key", "")]);
    for lines in [
        &[("x-api-key", "junk"), shown][..],
        &[("x-api-key", "junk"), ("x-api-key", STOLEN)],
        &[("x-api-key", STOLEN), ("x-api-key", "junk")],
        &[("authorization", "Basic YTpi"), shown],
        &[shown, ("authorization", "Basic YTpi")],
    ] {
        let reply = stand.request(7, "GET", "/a", lines);
        let what = format!("{:?}: {lines:?}: {reply:?}", stand.proxy.release());
        assert!(matches!(reply.status, 400 | 403), "{what}");
        assert_eq!(stand.backend.take(), [], "{what}");
    }
}

/// The page claims releases that these tests run, and no others.
#[test]
fn the_page_claims_the_releases_that_are_tested() {
    let page = include_str!("../../../../docs/proxies.md");
    for (row, at) in [("oldest", 0), ("newest", 1)] {
        let row = format!("| {row} release that is tested |");
        let row = page.lines().find_map(|line| line.strip_prefix(&row));
        let cells: Vec<&str> = row.unwrap().split('|').map(str::trim).collect();
        for (make, claimed) in MAKES.into_iter().zip(cells) {
            let version = make.releases()[at].version();
            let is_it = version.starts_with(&format!("{claimed}."));
            assert!(is_it, "{make:?} {version}, and the page says {claimed}");
        }
    }
}

/// Whatever a client says about itself, its second request to `/api` is its second.
fn believes_no_client(stand: &ProxyTestbed) {
    for headers in [&FORGED[..], &FORGED[..3], &FORGED[3..6], &FORGED[6..]] {
        stand.fails(429, 2, "POST", "/api/x", headers);
    }
    stand.passes(6, "POST", "/api/x", &FORGED);
    stand.passes(6, "POST", "/api/x", &FORGED[..1]);
    stand.fails(429, 6, "POST", "/api/x", &FORGED);
    // A header that is named as one of the connection is not to be passed on: the proxy's own must be.
    let names = FORGED.map(|(name, _)| name).join(", ");
    let dropped = [("connection", &*names)];
    let reply = stand.request(6, "POST", "/api/x", &dropped);
    assert_ne!(reply.status, 200, "{:?}", stand.proxy.release());
    assert_eq!(stand.backend.take(), [], "{:?}", stand.proxy.release());
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
    let stand = ProxyTestbed::impatient(release);
    // On a busy machine more may pass before.
    let limits_hold = || {
        wait_for("limits to hold", || {
            let status = stand.request(2, "POST", "/api/x", &[]).status;
            (status == 429).then_some(())
        });
        stand.backend.take();
    };
    limits_hold();
    freeze(&stand.server);
    stand.passes(2, "POST", "/api/x", &[]);
    stand.passes(2, "POST", "/api/x", &[]);
    stand.server.signal("CONT");
    limits_hold();
    let ProxyTestbed {
        server,
        proxy,
        backend,
    } = stand;
    drop(server);
    let reply = Client::connect(proxy.address()).post("/api/x", "hello");
    assert_eq!(reply.status, 200, "{release:?}: {reply:?}");
    drop(backend);
}

/// Stops it where it is, and waits until none of its threads runs any more.
fn freeze(server: &Server) {
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
fn nginx_caddy_and_haproxy_let_everything_pass_without_tidegate() {
    for make in [
        ProxyProduct::Nginx,
        ProxyProduct::Caddy,
        ProxyProduct::Haproxy,
    ] {
        make.releases().into_iter().for_each(opens);
    }
}

/// A Tidegate without rules is not away, and its error is not taken for a yes. HAProxy probes it: probes that took it out
/// of service would let everything pass.
#[test]
fn no_proxy_lets_anything_pass_while_tidegate_has_no_configuration() {
    for make in MAKES {
        for release in make.releases() {
            let ProxyTestbed {
                server,
                proxy,
                backend,
            } = ProxyTestbed::edited(release, &[]);
            let place = server.http.to_string();
            drop(server);
            let stand = ProxyTestbed {
                server: no_configuration::start_with(None, &place),
                proxy,
                backend,
            };
            stand.backend.take();
            if make == ProxyProduct::Haproxy {
                // A probe begins when the one before it was evaluated.
                let sample = r#"tidegate_http_answers_total{edge="http",status="503"}"#;
                wait_for("probes", || (stand.server.metric(sample) > 2).then_some(()));
            }
            let status = if make == ProxyProduct::Nginx {
                500
            } else {
                503
            };
            stand.fails(status, 2, "POST", "/free", &[]);
            let folder = stand.server.dir.path().join("config");
            std::fs::create_dir(&folder).unwrap();
            stand.server.write("config/rules.yaml", RULES);
            wait_for("a configuration", || {
                let status = stand.request(2, "POST", "/free", &[]).status;
                (status == 200).then_some(())
            });
            stand.backend.take();
            stand.fails(403, 99, "POST", "/free", &[]);
        }
    }
}

#[test]
fn a_proxy_configured_to_fail_closed_lets_nothing_pass_without_tidegate() {
    let closed = [
        (
            ProxyProduct::Nginx,
            ("error_page 502 504 = @open;", "# closed"),
            500,
        ),
        (ProxyProduct::Caddy, (" 127.0.0.1:8001 {", " {"), 502),
        (ProxyProduct::Haproxy, ("OPEN = true", "OPEN = false"), 503),
        // This one knows nothing else.
        (ProxyProduct::Traefik, ("web", "web"), 500),
    ];
    for (make, edit, status) in closed {
        for release in make.releases() {
            stays_closed(release, edit, status);
        }
    }
}

fn stays_closed(release: ProxyRelease, edit: (&str, &str), status: u16) {
    let ProxyTestbed {
        server,
        proxy,
        backend,
    } = ProxyTestbed::edited(release, &[edit]);
    drop(server);
    let reply = Client::connect(proxy.address()).request("GET", "/free", &[], "");
    assert_eq!(reply.status, status, "{release:?}: {reply:?}");
    assert_eq!(backend.take(), [], "{release:?}");
}

/// Of two Tidegates one may end at any time: what is refused stays refused.
fn survives(make: ProxyProduct, line: &str, two: &str) {
    for release in make.releases() {
        survives_in(release, line, two);
    }
}

fn survives_in(release: ProxyRelease, line: &str, two: &str) {
    let (first, second) = (Server::start(RULES), Server::start(RULES));
    let port = |server: &Server| format!(":{}", server.http.port());
    let two = two
        .replace(":A", &port(&first))
        .replace(":B", &port(&second));
    let stand = ProxyTestbed::patient(first, release, &[(line, &two)]);
    let blocked = || stand.request(99, "GET", "/free", &[]).status;
    assert_eq!(blocked(), 403, "{release:?}");
    stand.server.signal("TERM");
    while Client::try_connect(stand.server.http).is_ok() {
        assert_eq!(blocked(), 403, "{release:?}");
    }
    for _ in 0..20 {
        assert_eq!(blocked(), 403, "{release:?}");
    }
    drop(second);
    assert_eq!(blocked(), 200, "{release:?}: nobody is left to ask");
}

#[test]
fn one_of_two_may_end_unnoticed() {
    let nginx = "server 127.0.0.1:A; server 127.0.0.1:B;";
    survives(ProxyProduct::Nginx, "server 127.0.0.1:8080;", nginx);
    let caddy = "reverse_proxy 127.0.0.1:A 127.0.0.1:B";
    survives(ProxyProduct::Caddy, "reverse_proxy 127.0.0.1:8080", caddy);
    let haproxy = "server first 127.0.0.1:A\n    server second 127.0.0.1:B";
    survives(
        ProxyProduct::Haproxy,
        "server first 127.0.0.1:8080",
        haproxy,
    );
}

/// The part of the Caddyfile that three lines of the page can take the place of, and these lines.
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

/// The page offers a shorter way for Caddy.
#[test]
fn three_lines_are_enough_for_caddy() {
    let (long, lines) = three_lines();
    for release in ProxyProduct::Caddy.releases() {
        let server = Server::start(RULES);
        let lines = lines.replace(":8080", &format!(":{}", server.http.port()));
        let stand = ProxyTestbed::patient(server, release, &[(long, &lines)]);
        stand.passes(2, "POST", "/api/x", &FORGED);
        stand.passes(2, "POST", "/api/x", &[]);
        let refused = stand.fails(429, 2, "POST", "/api/x", &FORGED);
        assert!(refused.header("retry-after").is_some());
        bodies::break_no_limit(&stand);
    }
}
