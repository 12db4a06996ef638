//! Sub-requests of proxies.

use crate::server::TestServer;

const RULES: &str = "
version: 1
block: [192.0.2.9]
rules:
  - { name: login, match: { path: /login, method: POST }, by: ip, rate: 1/hour }
  - { name: queue, match: { path: /queue }, by: ip, rate: 1/hour, algorithm: leaky-queue }
";

const NGINX: [(&str, &str); 3] =
    [("x-original-uri", "//login?next=/"), ("x-original-method", "POST"), ("x-forwarded-for", "6.6.6.6, 192.0.2.7")];

#[test]
fn nginx_gets_200_and_then_the_status_that_it_requests() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let passed = client.request("GET", "/v1/auth?deny_status=403", &NGINX, "");
    assert_eq!((passed.status, &*passed.body), (200, ""));
    assert_eq!(passed.header("x-ratelimit-remaining"), Some("0"));
    let denied = client.request("GET", "/v1/auth?deny_status=403", &NGINX, "");
    assert_eq!(denied.status, 403);
    assert!(denied.header("retry-after").is_some());
    // Addresses that the client put left of the address that the proxy saw are ignored.
    let spoofed = [NGINX[0], NGINX[1], ("x-forwarded-for", "7.7.7.7, 192.0.2.7")];
    assert_eq!(client.request("GET", "/v1/auth", &spoofed, "").status, 429);
    let other = [NGINX[0], NGINX[1], ("x-forwarded-for", "192.0.2.8")];
    assert_eq!(client.request("GET", "/v1/auth", &other, "").status, 200);
}

#[test]
fn a_blocked_client_gets_403_whatever_status_a_denial_has() {
    let server = TestServer::start(RULES);
    let blocked = [NGINX[0], NGINX[1], ("x-forwarded-for", "192.0.2.9")];
    for query in ["", "?deny_status=401", "?deny_status=429"] {
        let path = format!("/v1/auth{query}");
        let reply = server.client().request("GET", &path, &blocked, "");
        assert_eq!(reply.status, 403, "{query}");
    }
    let passed = server.client().request("GET", "/v1/auth", &NGINX, "");
    assert_eq!(passed.status, 200);
}

#[test]
fn traefik_and_caddy_get_the_denial_itself() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let headers = [
        ("x-forwarded-uri", "/login"),
        ("x-forwarded-method", "POST"),
        ("x-forwarded-host", "example.com"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    assert_eq!(client.request("GET", "/v1/auth", &headers, "").status, 200);
    let denied = client.request("PUT", "/v1/auth", &headers, "");
    assert_eq!(denied.status, 429);
}

/// Every rule on the method silently stopped applying where the proxy misspelt the header.
#[test]
fn a_missing_method_that_a_rule_needs_is_an_error_that_names_the_header() {
    let server = TestServer::start(RULES);
    let misspelt = [NGINX[0], ("x-original-metod", "POST"), NGINX[2]];
    for query in ["", "?from=original"] {
        let path = format!("/v1/auth{query}");
        let reply = server.client().request("GET", &path, &misspelt, "");
        let body = reply.json();
        assert_eq!((reply.status, &body["field"]), (400, &"x-original-method".into()));
        let message = body["message"].as_str().unwrap();
        assert!(message.contains("proxy_set_header X-Original-Method"), "{message}");
    }
}

/// Such a proxy once switched off every block of an address, and every limit where its own address was allowed.
#[test]
fn a_proxy_that_names_no_client_is_rejected() {
    let rules = "
version: 1
allow: [127.0.0.1]
block: [192.0.2.9]
rules: [{ name: r, by: ip, rate: 1/hour }]
";
    let server = TestServer::start(rules);
    let target = ("x-original-uri", "/");
    for lines in [
        &[target][..],
        &[target, ("x-forwarded-fro", "192.0.2.9")],
        &[target, ("x-forwarded-for", "")],
        &[target, ("x-forwarded-for", "unknown")],
    ] {
        let reply = server.client().request("GET", "/v1/auth", lines, "");
        assert_eq!((reply.status, &reply.json()["field"]), (400, &"x-forwarded-for".into()), "{lines:?}");
    }
    let blocked = [target, ("x-forwarded-for", "192.0.2.9")];
    assert_eq!(server.client().request("GET", "/v1/auth", &blocked, "").status, 403);
}

#[test]
fn contradicting_header_families_and_bad_queries_are_rejected() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let both = [("x-original-uri", "/free"), ("x-forwarded-uri", "/login")];
    let rejected = client.request("GET", "/v1/auth", &both, "");
    assert_eq!((rejected.status, &rejected.json()["field"]), (400, &"x-original-uri".into()));
    assert_eq!(client.request("GET", "/v1/auth?deny_status=200", &[], "").status, 400);
}

#[test]
fn a_delay_is_a_denial_with_that_wait() {
    let server = TestServer::start(RULES);
    let mut client = server.client();
    let headers = [("x-original-uri", "/queue"), ("x-original-method", "GET"), ("x-forwarded-for", "192.0.2.7")];
    assert_eq!(client.request("GET", "/v1/auth", &headers, "").status, 200);
    let denied = client.request("GET", "/v1/auth", &headers, "");
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_700).contains(&wait), "{wait}");
}

/// A blocked key passed beside an invented one, in a second line, and behind a tab.
#[test]
fn a_blocked_key_is_denied_beside_any_other_header() {
    const KEY: &str = "k-of-a-stolen-laptop";
    const DIGEST: &str = "d7cb5ea3f967f6e0715b176b561bc607d6d9c55ca6eeefcb22072158b34d8886";
    let rules = format!(
        "version: 1\nblock: [\"sha256:{DIGEST}\"]\nrules:\n  - {{ name: r, by: api_key|ip, rate: 1000/hour }}\n"
    );
    let server = TestServer::start(&rules);
    let status = |query: &str, lines: &[(&str, &str)]| {
        let lines = [&[("x-original-uri", "/"), NGINX[2]], lines].concat();
        let path = format!("/v1/auth?from=original{query}");
        server.client().request("GET", &path, &lines, "").status
    };
    let bearer = format!("Bearer {KEY}");
    let shown = ("authorization", &*bearer);
    // The key alone is blocked, and another one passes.
    for lines in [
        &[shown][..],
        &[("x-api-key", KEY)],
        &[("x-api-key", KEY), shown],
        &[("x-api-key", ""), shown],
        &[("authorization", ""), shown],
        &[("authorization", &format!("bearer  \t{KEY}"))],
        &[("authorization", &format!("Bearer\t{KEY}"))],
    ] {
        assert_eq!(status("", lines), 403, "{lines:?}");
    }
    assert_eq!(status("", &[("x-api-key", "another")]), 200);
    // With a second credential it is ambiguous which one counts.
    for lines in [
        &[("x-api-key", "junk"), shown][..],
        &[("x-api-key", "junk"), ("x-api-key", KEY)],
        &[("x-api-key", &format!("junk, {KEY}"))],
        &[("authorization", "Basic abc"), shown],
        &[("authorization", &format!("Basic abc, Bearer {KEY}"))],
        &[("authorization", &format!("Bearer junk {KEY}"))],
    ] {
        assert_eq!(status("", lines), 400, "{lines:?}");
    }
    // Unless the query names one.
    let both = [("x-api-key", "app"), shown];
    assert_eq!(status("&key=authorization", &both), 403);
    assert_eq!(status("&key=x-api-key", &both), 200);
}

#[test]
fn names_of_identity_in_another_case_are_rejected() {
    let server = TestServer::with_resp(RULES, &[]);
    for name in ["IP", "Api_Key", "API_KEY"] {
        let body = format!(r#"{{"attributes": {{"{name}": "192.0.2.7"}}}}"#);
        let reply = server.post("/v1/check", &body);
        assert_eq!(reply.status, 400, "{name}");
        assert_eq!(reply.json()["field"], format!("attributes.{name}"));
        let error = server.redis().error(&format!("TG.CHECK {name} 192.0.2.7"));
        assert!(error.contains(name), "{error}");
    }
    let body = r#"{"attributes": {"ip": "192.0.2.7", "api_key": "k", "ips": "x"}}"#;
    assert_eq!(server.post("/v1/check", body).status, 200);
}

/// The connection was closed without a response, and the next request of the proxy was lost.
#[test]
fn a_body_that_is_not_read_ends_the_connection_only_if_it_is_still_to_come() {
    let server = TestServer::start("version: 1\nrules: []\n");
    let mut client = server.client();
    for _ in 0..3 {
        let reply = client.request("POST", "/v1/auth", &NGINX, "a body that is all there");
        assert_eq!((reply.status, reply.header("connection")), (200, None));
        let reply = client.request("POST", "/nothing", &[], "another one");
        assert_eq!((reply.status, reply.header("connection")), (404, None));
    }
    for (path, status) in [("/v1/auth", 200), ("/nothing", 404), ("/healthz", 405)] {
        let mut client = server.client();
        let fields = NGINX.map(|(name, value)| format!("{name}: {value}\r\n"));
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n{}\r\nhalf", fields.concat());
        client.send_raw(head.as_bytes()).unwrap();
        let reply = client.receive().unwrap();
        assert_eq!((reply.status, reply.header("connection")), (status, Some("close")));
        assert!(client.is_closed());
    }
}
