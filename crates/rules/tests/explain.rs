//! The explanation of a request.
#![allow(clippy::unwrap_used)]

use tidegate_core::algorithms::Algorithm;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::request::{ApiKey, Request};
use tidegate_rules::{AlgorithmProfile, Applicability, RuleSet, SourceFile, parse};

/// The first of November 2026.
const NOW: Nanos = Nanos::from_secs(1_793_491_200);

const RULES: &str = "version: 1
tiers: [free, pro]
rules:
  - { name: everything, by: global, rate: 5000/second burst 5000 }
  - { name: search, match: { path: /search/** }, by: api_key|ip, rate: 100/minute, tiers: { pro: 900/minute } }
  - { name: writes, match: { method: [POST, PUT] }, by: user, rate: 5/minute, overrides: { alice: 50/minute } }
  - { name: outside, match: { not: { ip: 192.0.2.0/24 } }, by: ip, rate: 5/minute }
  - { name: words, by: user, unit: tokens, rate: 500/hour }
  - { name: known, by: user, rate: 500/hour, if_missing: skip }
  - { name: tried, by: [user, method], rate: [1/s, 9/m], mode: shadow }
  - { name: gone, by: ip, rate: 1/s, mode: off }
  - { name: alive, match: { path: /alive }, rate: unlimited, replaces: [everything] }
";

fn rules() -> RuleSet {
    let file = SourceFile { name: "rules.yaml", text: RULES };
    parse(&[file]).unwrap()
}

fn explain_rule(request: &Request<'_>, rule: &str) -> String {
    let explanation = rules().explain(request, NOW);
    let view = explanation.rules.iter().find(|view| view.rule.as_str() == rule);
    view.unwrap().to_string()
}

fn request() -> Request<'static> {
    Request {
        ip: Some([192, 0, 2, 7].into()),
        api_key: Some(ApiKey { digest: [9; 32], tier: Some(1), name: Some("acme") }),
        ..Request::default()
    }
    .with("path", "/search/x")
    .with("method", "GET")
}

#[test]
fn a_rule_that_applies_is_explained_by_counter_rate_and_algorithm() {
    let want = "search: applies
  counted for: api_key
  rate: 900/minute
  algorithm: sliding-window, good for most APIs: no burst at the edge of a window, and cheap
    memory: two counts
    accuracy: assumes that the last window was even
    burst: the whole count at once, then spread over the window
    worst case in one window: 2L - 1 (L the count)";
    assert_eq!(explain_rule(&request(), "search"), want);
}

#[test]
fn a_rule_that_does_not_apply_is_explained_by_the_reason() {
    let check = |rule: &str, want: &str| {
        assert_eq!(explain_rule(&request(), rule), format!("{rule}: does not apply: {want}"));
    };
    check("writes", "method is `GET`, wanted POST or PUT");
    check("outside", "ip is `192.0.2.7`, wanted not 192.0.2.0/24");
    check("known", "the attribute it counts by is absent, and it has `if_missing: skip`");
    check("gone", "its mode is off");
    check("alive", "path is `/search/x`, wanted /alive");
    let alive = Request::default().with("path", "/alive");
    assert_eq!(explain_rule(&alive, "everything"), "everything: does not apply: `alive` replaces it");
    assert_eq!(explain_rule(&alive, "writes"), "writes: does not apply: method is absent, wanted POST or PUT");
}

#[test]
fn a_cost_that_the_request_does_not_name_is_explained() {
    let with = |costs: &[(&'static str, u64)]| {
        let mut request = request();
        let costs = costs.iter();
        request.costs = costs.map(|(unit, n)| ((*unit).into(), Cost::new(*n))).collect();
        explain_rule(&request, "words")
    };
    assert!(with(&[]).contains("cost: 1 tokens, because the request names no cost in it\n"));
    assert!(with(&[("tokens", 7)]).contains("cost: 7 tokens\n"));
    let none = "words: does not apply: the request costs 0 tokens";
    assert_eq!(with(&[("tokens", 0)]), none);
}

#[test]
fn the_substitute_for_an_absent_attribute_is_explained() {
    let shadow = explain_rule(&request(), "tried");
    assert!(shadow.starts_with("tried: applies, but only in shadow mode"), "{shadow}");
    assert!(shadow.contains("counted for: ip, in place of the absent user, method"), "{shadow}");
    let nobody = explain_rule(&Request::default(), "tried");
    assert!(nobody.contains("all requests without user together"), "{nobody}");
    assert!(explain_rule(&request(), "everything").contains("counted for: everybody together"));
}

#[test]
fn overrides_are_explained_and_keys_are_never_printed() {
    let alice = request().with("user", "alice");
    let explanation = rules().explain(&alice, NOW);
    assert_eq!(*explanation.rules[2].rates, ["50/minute".into()]);
    let printed = explanation.to_string() + &format!("{explanation:?}");
    assert!(!printed.contains("0909"), "{printed}");
    assert_eq!(explanation.rules[0].applicability, Applicability::Applies);
}

/// Values were joined by plain commas: a client that chose its `user` could have the rates of another.
#[test]
fn an_override_of_several_values_is_for_one_subject_only() {
    let text = r"version: 1
rules:
  - name: r
    by: [user, team|ip]
    rate: 5/minute
    overrides: { 'a,b': unlimited, 'a\,b,c': 7/minute, 'v6, 2001:db8:0::/64': 9/minute }
";
    let name = "rules.yaml";
    let set = parse(&[SourceFile { name, text }]).unwrap();
    let rates = |user, team| -> String {
        let request = Request::default().with("user", user).with("team", team);
        set.explain(&request, NOW).rules[0].rates.join(" ")
    };
    assert_eq!(rates("a", "b"), "", "unlimited");
    assert_eq!(rates("a,b", "c"), "7/minute");
    assert_eq!(rates("a", "b,c"), "5/minute");
    assert_eq!(rates("a,b", "b"), "5/minute");
    assert_eq!(rates(r"a\", "b"), "5/minute");
    let by_address = Request { ip: Some("2001:db8::".parse().unwrap()), ..Request::default().with("user", "v6") };
    let explained = set.explain(&by_address, NOW);
    assert_eq!(explained.rules[0].rates.join(" "), "9/minute");
}

#[test]
fn the_documentation_has_the_table_that_explain_uses() {
    let docs = include_str!("../../../docs/rules.md");
    for algorithm in Algorithm::ALL {
        let AlgorithmProfile { suited_for, memory, accuracy, burst, worst_case, .. } = AlgorithmProfile::of(algorithm);
        let row = format!("| `{algorithm}` | {suited_for} | {memory} | {accuracy} | {burst} | {worst_case} |");
        assert!(docs.contains(&row), "docs/rules.md misses\n{row}");
    }
}

#[test]
fn the_list_that_decides_is_explained_with_its_entry() {
    let set = |text: &str| {
        let name = "rules.yaml";
        parse(&[SourceFile { name, text }]).unwrap()
    };
    let set = set("version: 1
rules: [{ name: all, by: ip, rate: 1/s }]
allow: [192.0.2.10, 'key:acme']
block:
  - { match: 192.0.2.0/24, until: 2026-12-01T00:00:00Z }
  - { match: 192.0.2.7, until: 2026-11-15T12:00:00Z }
  - { match: 198.51.100.7, until: 2026-10-01T00:00:00Z }
");
    let first_lines = |ip: [u8; 4], key: Option<&'static str>| {
        let request = Request {
            ip: Some(ip.into()),
            api_key: key.map(|name| ApiKey { digest: [9; 32], tier: None, name: Some(name) }),
            ..Request::default()
        };
        let explained = set.explain(&request, NOW).to_string();
        explained.lines().take(2).collect::<Vec<_>>().join("\n")
    };
    assert_eq!(
        first_lines([192, 0, 2, 10], None),
        "the allow list decides, by `192.0.2.10`: the request passes\nwithout that entry:"
    );
    assert_eq!(
        first_lines([192, 0, 2, 7], Some("acme")),
        "the allow list decides, by `key:acme`: the request passes\nwithout that entry:"
    );
    assert_eq!(
        first_lines([192, 0, 2, 7], None),
        "the block list decides, by `192.0.2.0/24` (until 2026-12-01T00:00:00Z): the request is \
         denied\nwithout that entry:"
    );
    // That entry has expired.
    let lines = first_lines([198, 51, 100, 7], None);
    assert!(lines.starts_with("all: applies"), "{lines}");
}
