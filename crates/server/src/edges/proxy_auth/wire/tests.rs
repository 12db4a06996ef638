use super::*;

fn headers(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        let name: HeaderName = name.parse().unwrap();
        headers.append(name, value.parse().unwrap());
    }
    headers
}

const RULES: &str = "
version: 1
identity: { trusted_proxies: [10.0.0.0/8] }
rules:
  - { name: r, by: header.user-agent|ip, rate: 1/hour }
";

/// Renders the request parsed from a sub-request of a client on the proxy's machine, unless `lines` name another one.
#[track_caller]
fn check(lines: &[(&str, &str)], query: &str, want: &str) {
    let local = [("x-forwarded-for", "127.0.0.1")];
    let is_named = lines.iter().any(|(name, _)| *name == local[0].0);
    let lines = if is_named { lines } else { &[lines, &local].concat() };
    check_exactly(lines, query, want);
}

#[track_caller]
fn check_exactly(lines: &[(&str, &str)], query: &str, want: &str) {
    let rules = tidegate_rules::SourceFile { name: "r", text: RULES };
    let policy = ProxyHeaderPolicy::of(&Arc::new(tidegate_rules::parse(&[rules]).unwrap()));
    let headers = headers(lines);
    let options = ProxyAuthOptions::parse(Some(query)).unwrap();
    let peer = EndpointAddress::Tcp("127.0.0.1:9".parse().unwrap());
    let got = match parse_request(&headers, options, &peer, &policy) {
        Ok(request) => {
            let pairs = request.attributes.iter().map(|(n, v)| format!(" {n}={v}"));
            let key = if request.api_key.is_some() { " key" } else { "" };
            format!("{}{key}{}", request.ip.unwrap(), pairs.collect::<String>())
        }
        Err(InputError { field, reason }) => {
            format!("{field}: {}", reason.split([';', ' ']).next().unwrap())
        }
    };
    assert_eq!(got, want);
}

#[test]
fn the_headers_of_nginx_and_of_other_proxies_are_read() {
    check(
        &[
            ("x-original-uri", "/a//b?c"),
            ("x-original-method", "post"),
            ("x-original-host", "Example.com:8000"),
            ("x-forwarded-for", "192.0.2.1"),
            ("x-forwarded-host", "of the client"),
        ],
        "",
        "192.0.2.1 path=/a/b method=POST host=example.com",
    );
    check(
        &[
            ("x-forwarded-uri", "/a"),
            ("x-forwarded-method", "GET"),
            ("x-forwarded-host", "Example.COM.:443"),
            ("x-forwarded-for", "6.6.6.6, 192.0.2.1, 10.1.1.1"),
            ("user-agent", "curl"),
        ],
        "",
        "192.0.2.1 path=/a method=GET host=example.com header.user-agent=curl",
    );
}

#[test]
fn a_client_cannot_mix_a_request_from_two_families() {
    let both = [("x-original-uri", "/free"), ("x-forwarded-uri", "/login")];
    check(&both, "", "x-original-uri: differs");
    check(&both, "from=forwarded", "127.0.0.1 path=/login");
    check(&both, "from=original", "127.0.0.1 path=/free");
    // The same path twice, and a method that the client chose.
    let method = [("x-original-uri", "/a"), ("x-forwarded-uri", "/a"), ("x-original-method", "GET")];
    check(&method, "", "x-original-uri: differs");
    check(&[("x-original-uri", "/a"), ("x-forwarded-method", "GET")], "", "x-original-uri: differs");
    // Nor a host: only the host of the selected family counts.
    check(&[("x-forwarded-uri", "/a"), ("x-original-host", "other")], "", "127.0.0.1 path=/a");
    for name in ["x-original-uri", "x-forwarded-uri", "x-forwarded-host"] {
        let twice = [("x-forwarded-uri", "/a"), (name, "/a"), (name, "/b")];
        let twice = if name == "x-forwarded-uri" { &twice[1..] } else { &twice[..] };
        check(twice, "", &format!("{name}: given"));
    }
}

#[test]
fn a_proxy_that_sends_no_target_is_rejected() {
    check(&[("x-forwarded-for", "192.0.2.1")], "", "x-original-uri: missing");
    check(&[("x-original-uri", "")], "", "x-original-uri: missing");
    let unexpanded = "{http.request.uir}";
    check(&[("x-forwarded-uri", unexpanded)], "", "x-forwarded-uri: neither");
    check(&[("x-forwarded-method", "GET")], "", "x-forwarded-uri: missing");
}

/// Such requests once counted as the proxy's own: no block of an address held, and with `allow: [127.0.0.1]` no limit.
#[test]
fn a_proxy_that_sends_no_address_is_rejected() {
    let target = ("x-original-uri", "/a");
    check_exactly(&[target], "", "x-forwarded-for: missing");
    check_exactly(&[target, ("x-forwarded-fro", "203.0.113.9")], "", "x-forwarded-for: missing");
    for address in ["", "unknown", "unix:", "-", "$remote_adr", "203.0.113.9, unknown", "203.0.113.9,", "_hidden"] {
        check_exactly(&[target, ("x-forwarded-for", address)], "", "x-forwarded-for: no");
    }
    check_exactly(&[target, ("x-forwarded-for", "203.0.113.9, -, 10.1.1.1")], "", "x-forwarded-for: no");
    let chain = ["10.1.1.1"; 50].join(",");
    check_exactly(&[target, ("x-forwarded-for", &chain)], "", "x-forwarded-for: names");
    // What the client wrote itself is behind the first untrusted address and does not matter.
    check_exactly(&[target, ("x-forwarded-for", "unknown, 203.0.113.9")], "", "203.0.113.9 path=/a");
    // A proxy may send requests itself, and so may programs on its machine.
    check_exactly(&[target, ("x-forwarded-for", "10.1.1.1")], "", "10.1.1.1 path=/a");
}

/// A misspelt header in the proxy's configuration once disabled a rule.
#[test]
fn a_method_or_host_that_an_enforced_rule_needs_must_be_sent() {
    let fields = |rule: &str| {
        let text = format!("version: 1\nrules:\n  - {{ name: r, by: ip, rate: 1/hour, {rule} }}\n");
        let file = tidegate_rules::SourceFile { name: "r", text: &text };
        let policy = ProxyHeaderPolicy::of(&Arc::new(tidegate_rules::parse(&[file]).unwrap()));
        let peer = EndpointAddress::Unix("x".into());
        let parse_with = |lines: &[(&str, &str)], query: &str| {
            let options = ProxyAuthOptions::parse(Some(query)).unwrap();
            let headers = headers(&[lines, &[("x-forwarded-for", "192.0.2.1")]].concat());
            let request = parse_request(&headers, options, &peer, &policy);
            request.map_or_else(|error| error.field, |_| "ok".to_owned())
        };
        let mixed = [("x-forwarded-uri", "/"), ("x-original-method", "GET"), ("x-original-host", "a.example")];
        let empty = [("x-original-uri", "/"), ("x-original-method", ""), ("x-original-host", "")];
        let whole = [("x-original-uri", "/"), ("x-original-method", "GET"), ("x-original-host", "a.example")];
        [
            parse_with(&[("x-original-uri", "/")], ""),
            parse_with(&mixed, "from=forwarded"),
            parse_with(&empty, "from=original"),
            parse_with(&whole, ""),
        ]
    };
    let (method, host) = ("x-original-method", "x-original-host");
    let forwarded = ["x-forwarded-method", "x-forwarded-host"];
    assert_eq!(fields("match: { method: POST }"), [method, forwarded[0], method, "ok"]);
    assert_eq!(fields("match: { not: { host: a.example } }"), [host, forwarded[1], host, "ok"]);
    // A rule in shadow mode denies nothing.
    assert_eq!(fields("match: { host: a.example }, mode: shadow"), ["ok"; 4]);
    assert_eq!(fields("match: { path: /a }"), ["ok"; 4]);
}

#[test]
fn headers_that_no_rule_names_are_ignored() {
    let (long, latin) = ("c".repeat(9_000), HeaderValue::from_bytes(b"caf\xe9").unwrap());
    let mut all = headers(&[("x-original-uri", "/a"), ("x-forwarded-for", "192.0.2.1"), ("cookie", &long)]);
    all.insert("x-latin", latin.clone());
    for i in 0..90 {
        all.insert(HeaderName::try_from(format!("x-{i}")).unwrap(), latin.clone());
    }
    let rules = tidegate_rules::SourceFile { name: "r", text: RULES };
    let policy = ProxyHeaderPolicy::of(&Arc::new(tidegate_rules::parse(&[rules]).unwrap()));
    let peer = EndpointAddress::Unix("x".into());
    assert!(parse_request(&all, ProxyAuthOptions::default(), &peer, &policy).is_ok());
    all.insert("user-agent", latin);
    assert!(parse_request(&all, ProxyAuthOptions::default(), &peer, &policy).is_err());
}

#[test]
fn a_key_is_read_from_either_header() {
    let with = |name, value| [("x-original-uri", "/"), (name, value)];
    check(&with("x-api-key", "k"), "", "127.0.0.1 key path=/");
    check(&with("authorization", "bearer k"), "", "127.0.0.1 key path=/");
    check(&with("authorization", "Basic abc"), "", "127.0.0.1 path=/");
    check(&with("x-api-key", ""), "", "127.0.0.1 path=/");
}

#[test]
fn repeated_headers_of_a_rule_and_two_different_keys_are_rejected() {
    let agents = [("x-original-uri", "/"), ("user-agent", "a"), ("user-agent", "b")];
    check(&agents, "", "user-agent: given");
    let keys = [("x-original-uri", "/"), ("x-api-key", "a"), ("authorization", "Bearer b")];
    check(&keys, "", "x-api-key: differs");
    check(&keys, "key=authorization", "127.0.0.1 key path=/");
}

/// HAProxy, Traefik and Caddy pass such hosts on, the service behind takes them for `a.example`, and no rule for it
/// applied.
#[test]
fn an_invalid_host_is_rejected() {
    for host in ["a.example:x", "a.example:80:80", "a.example..", "u@a.example"] {
        for [uri, name] in [["x-original-uri", "x-original-host"], ["x-forwarded-uri", "x-forwarded-host"]] {
            check(&[(uri, "/a"), (name, host)], "", &format!("{name}: not"));
        }
    }
    let lines = [("x-original-uri", "/a"), ("x-original-host", "")];
    check(&lines, "", "127.0.0.1 path=/a host=");
}

/// The query is not used, and so its length does not matter either.
#[test]
fn a_long_query_is_read_and_a_long_path_is_rejected() {
    let query = format!("/a?q={}", "x".repeat(20_000));
    check(&[("x-original-uri", &query)], "", "127.0.0.1 path=/a");
    let longest = format!("/{}", "x".repeat(4_095));
    let want = format!("127.0.0.1 path={longest}");
    check(&[("x-original-uri", &longest)], "", &want);
    let longer = format!("{longest}x?q");
    check(&[("x-original-uri", &longer)], "", "path: a");
    let long = "x".repeat(4_097);
    for name in ["x-original-method", "x-original-host", "user-agent"] {
        let lines = [("x-original-uri", "/a"), (name, &*long)];
        check(&lines, "", &format!("{name}: a"));
    }
}

#[test]
fn the_priority_is_set_by_the_url_and_not_by_clients() {
    let claims = [("x-original-uri", "/a?priority=critical"), ("priority", "critical"), ("x-priority", "critical")];
    check(&claims, "", "127.0.0.1 path=/a");
    let query = "priority=sheddable";
    check(&claims, query, "127.0.0.1 path=/a priority=sheddable");
}

#[test]
fn the_query_is_checked() {
    let deny = |query| ProxyAuthOptions::parse(Some(query)).map(|options| options.deny_status);
    assert_eq!(deny("deny_status=403"), Ok(Some(StatusCode::FORBIDDEN)));
    for nonce in ["nonce", "nonce=", "nonce=0b5c7f1e-8d1c-4c55"] {
        assert_eq!(ProxyAuthOptions::parse(Some(nonce)), Ok(ProxyAuthOptions::default()));
    }
    for (query, field) in [
        ("deny_status=200", "deny_status"),
        ("from=x", "from"),
        ("key=cookie", "key"),
        ("priority=high", "priority"),
        ("priority=", "priority"),
        ("a=b", "query"),
        ("deny_status=401&deny_status=403", "query"),
        ("from=original&key=x-api-key&from=original", "query"),
    ] {
        assert_eq!(deny(query).unwrap_err().field, field);
    }
}

#[test]
fn the_raw_path_is_available_to_rules_that_use_it() {
    let text = "version: 1\nrules:\n  - { name: r, match: { raw_path: /a/ }, by: ip, rate: 1/hour }\n";
    let file = tidegate_rules::SourceFile { name: "r", text };
    let policy = ProxyHeaderPolicy::of(&Arc::new(tidegate_rules::parse(&[file]).unwrap()));
    let peer = EndpointAddress::Unix("x".into());
    let parse_with = |target: &str| {
        let headers = headers(&[("x-original-uri", target), ("x-forwarded-for", "192.0.2.1")]);
        let request = parse_request(&headers, ProxyAuthOptions::default(), &peer, &policy);
        let raw = request.map(|request| request.text("raw_path").map(str::to_owned));
        raw.map_err(|error| error.field)
    };
    assert_eq!(parse_with("/a/?x"), Ok(Some("/a/?x".to_owned())));
    let long = format!("/a?{}", "x".repeat(MAX_VALUE_BYTES));
    assert_eq!(parse_with(&long), Err("raw_path".to_owned()));
}
