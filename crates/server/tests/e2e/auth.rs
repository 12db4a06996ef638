//! Sub-requests of proxies.

use crate::server::Server;

const RULES: &str = "
version: 1
block: [192.0.2.9]
rules:
  - { name: login, match: { path: /login, method: POST }, by: ip, rate: 1/hour }
  - { name: queue, match: { path: /queue }, by: ip, rate: 1/hour, algorithm: leaky-queue }
";

const NGINX: [(&str, &str); 3] = [
    ("x-original-uri", "//login?next=/"),
    ("x-original-method", "POST"),
    ("x-forwarded-for", "6.6.6.6, 192.0.2.7"),
];

#[test]
fn nginx_gets_200_then_the_status_it_asks_for() {
    let server = Server::start(RULES);
    let mut client = server.client();
    let passed = client.request("GET", "/v1/auth?deny_status=403", &NGINX, "");
    assert_eq!((passed.status, &*passed.body), (200, ""));
    assert_eq!(passed.header("x-ratelimit-remaining"), Some("0"));
    let denied = client.request("GET", "/v1/auth?deny_status=403", &NGINX, "");
    assert_eq!(denied.status, 403);
    assert!(denied.header("retry-after").is_some());
    // What the client put left of the address the proxy saw counts for nothing.
    let spoofed = [
        NGINX[0],
        NGINX[1],
        ("x-forwarded-for", "7.7.7.7, 192.0.2.7"),
    ];
    assert_eq!(client.request("GET", "/v1/auth", &spoofed, "").status, 429);
    let other = [NGINX[0], NGINX[1], ("x-forwarded-for", "192.0.2.8")];
    assert_eq!(client.request("GET", "/v1/auth", &other, "").status, 200);
}

#[test]
fn a_blocked_client_gets_403_whatever_a_denial_is() {
    let server = Server::start(RULES);
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
    let server = Server::start(RULES);
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

#[test]
fn contradicting_families_and_bad_queries_are_refused() {
    let server = Server::start(RULES);
    let mut client = server.client();
    let both = [("x-original-uri", "/free"), ("x-forwarded-uri", "/login")];
    let refused = client.request("GET", "/v1/auth", &both, "");
    assert_eq!(
        (refused.status, &refused.json()["field"]),
        (400, &"x-original-uri".into())
    );
    assert_eq!(
        client
            .request("GET", "/v1/auth?deny_status=200", &[], "")
            .status,
        400
    );
}

#[test]
fn a_delay_is_a_denial_with_that_wait() {
    let server = Server::start(RULES);
    let mut client = server.client();
    let headers = [
        ("x-original-uri", "/queue"),
        ("x-forwarded-for", "192.0.2.7"),
    ];
    assert_eq!(client.request("GET", "/v1/auth", &headers, "").status, 200);
    let denied = client.request("GET", "/v1/auth", &headers, "");
    assert_eq!(denied.status, 429, "{denied:?}");
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((3_500..=3_700).contains(&wait), "{wait}");
}
