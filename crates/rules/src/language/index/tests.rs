//! Few rules are checked, however many there are, and none that applies is missed.

use std::fmt::Write;

use crate::language::{Purpose, RuleSet, SourceFile, parse};
use crate::request::{ApiKey, Request};

const MANY: usize = 10_000;

fn rules(matching: impl Fn(usize) -> String) -> RuleSet {
    let mut text = "version: 1\nrules:\n".to_owned();
    for i in 0..MANY {
        let matching = matching(i);
        writeln!(text, "- {{ name: r{i}, match: {{ {matching} }}, by: ip, rate: 1/s }}").unwrap();
    }
    let file = SourceFile { name: "rules.yaml", text: &text };
    parse(&[file]).unwrap_or_else(|errors| panic!("{errors}"))
}

fn examined(set: &RuleSet, request: &Request<'_>) -> usize {
    let mut count = 0;
    set.index.find(request, &mut |_| count += 1);
    count
}

/// Of 10,000 rules, `request` must find rule 7 and check few others.
#[track_caller]
fn check(matching: impl Fn(usize) -> String, request: &Request<'_>) {
    let set = rules(matching);
    let position = set.position("r7").unwrap() as u32;
    assert!(set.applicable_rules(request, Purpose::Check).contains(&position));
    let examined = examined(&set, request);
    assert!(examined <= 12, "{examined} of {MANY} rules were checked");
}

fn path(path: &'static str) -> Request<'static> {
    Request::default().with("path", path).with("method", "GET")
}

#[test]
fn paths() {
    check(|i| format!("path: /api/r{i}"), &path("/api/r7"));
    check(|i| format!("path: /api/r{i}/**"), &path("/api/r7/a/b"));
    check(|i| format!("path: /tenants/*/r{i}"), &path("/tenants/acme/r7"));
    check(|i| format!("path: /a/*/b/*/r{i}/**"), &path("/a/x/b/y/r7/z"));
}

#[test]
fn paths_with_a_wildcard_early_or_within_a_segment() {
    check(|i| format!("path: /files/report-{i}-*"), &path("/files/report-7-x"));
    check(|i| format!("path: /files/*-{i}.csv"), &path("/files/x-7.csv"));
    check(|i| format!("path: /v*/tenants/t{i}"), &path("/v2/tenants/t7"));
    check(|i| format!("path: '/a/**/r{i}'"), &path("/a/b/c/r7"));
    check(|i| format!("path: '/a/**/r-{i}-*'"), &path("/a/b/c/r-7-x"));
    check(|i| format!("path: '*.type{i}'"), &path("/a/b/c.type7"));
}

#[test]
fn other_attributes() {
    check(|i| format!("user: u{i}"), &Request::default().with("user", "u7"));
    check(|i| format!("plan: 'p{i}-*'"), &Request::default().with("plan", "p7-x"));
    check(
        |i| format!("header.User-Agent: 'Bot-{i}/1.*'"),
        &Request::default().with("header.user-agent", "Bot-7/1.0 (+https://bot.example)"),
    );
    check(|i| format!("header.X-{i}: a"), &Request::default().with("header.x-7", "a"));
    let key = ApiKey { digest: [0; 32], tier: None, name: Some("k7") };
    let request = Request { api_key: Some(key), ..Request::default() };
    check(|i| format!("api_key: k{i}"), &request);
}

#[test]
fn networks() {
    let request = Request { ip: Some([10, 0, 7, 1].into()), ..Request::default() };
    check(|i| format!("ip: 10.{}.{}.0/24", i / 250, i % 250), &request);
}

#[test]
fn rules_are_indexed_by_their_most_selective_condition() {
    let request = path("/api").with("user", "u7");
    check(|i| format!("path: /api, method: GET, user: u{i}"), &request);
    check(|i| format!("path: /r{i}, method: [GET, PUT]"), &path("/r7"));
    check(|i| format!("path: '/**', user: u{i}"), &request);
}

#[test]
fn an_index_finds_all_that_a_scan_finds() {
    let patterns = [
        "/a", "/a/**", "/a/*", "/*/b", "/**/b", "/a/**/c", "/a*/b", "/*a/b", "/a/*b*/c", "/**", "*b", "*a*", "**",
        "/a/b/c", "/*/*", "/**/*c", "/a/", "/",
    ];
    let paths =
        ["/", "/a", "/a/", "/a/b", "/a/b/c", "/ab/b", "/ba/b", "/b", "/a/xbx/c", "/x/y", "b", "abc", "/a/b/c/b", ""];
    for name in ["resource", "raw_path"] {
        let set = rules(|i| format!("{name}: ['{}', /never-{i}]", patterns[i % patterns.len()]));
        for path in paths {
            let request = Request::default().with(name, path);
            let found = set.applicable_rules(&request, Purpose::Check).to_vec();
            let all = (0_u32..).zip(set.rules()).filter(|(_, rule)| rule.applies(&request));
            let all = all.map(|(at, _)| at).collect::<Vec<_>>();
            assert_eq!(found, all, "{name} {path}");
        }
    }
}
