//! Which rules apply to which requests.
#![allow(clippy::unwrap_used)]

use std::borrow::Cow;

use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::request::{ApiKey, Request};
use tidegate_rules::{ListDecision, Purpose, RuleSet, SourceFile, parse};

fn rules(text: &str) -> RuleSet {
    let text = format!("version: 1\n{text}");
    let file = SourceFile { name: "rules.yaml", text: &text };
    parse(&[file]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// A request written as `ip=192.0.2.1 path=/a method=GET`; `key=NAME` is a listed API key, `key=` one without a name.
fn request(text: &str) -> Request<'_> {
    let mut request = Request::default();
    for pair in text.split(' ').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap();
        match name {
            "ip" => request.ip = Some(value.parse().unwrap()),
            "key" => {
                request.api_key =
                    Some(ApiKey { digest: [7; 32], tier: None, name: Some(value).filter(|name| !name.is_empty()) });
            }
            "tokens" => {
                let cost = Cost::new(value.parse().unwrap());
                request.costs.push((Cow::Borrowed(name), cost));
            }
            _ => request = request.with(name, value),
        }
    }
    request
}

#[track_caller]
fn check(set: &RuleSet, text: &str, want: &str) {
    let applying = set.applicable_rules(&request(text), Purpose::Check);
    let names = applying.iter().map(|at| set.rules()[*at as usize].name().as_str());
    assert_eq!(names.collect::<Vec<_>>().join(" "), want, "{text}");
}

#[test]
fn all_rules_whose_match_holds_apply_in_the_order_of_the_file() {
    let set = rules(
        "rules:
  - { name: everything, by: global, rate: 5000/second }
  - { name: login, match: { path: /login, method: POST }, by: ip, rate: 10/minute }
  - { name: api, match: { path: /api/** }, by: ip, rate: 10/minute }
  - { name: reads, match: { path: /api/**, method: [GET, HEAD] }, by: ip, rate: 10/minute }",
    );
    check(&set, "path=/", "everything");
    check(&set, "path=/login method=POST", "everything login");
    check(&set, "path=/login method=GET", "everything");
    check(&set, "path=/api method=GET", "everything api reads");
    check(&set, "path=/api/x/y method=PUT", "everything api");
    check(&set, "", "everything");
}

#[test]
fn any_attribute_can_be_matched_and_an_absent_one_never_is() {
    let set = rules(
        "rules:
  - { name: inside, match: { ip: [10.0.0.0/8, '2001:db8::/32'] }, by: ip, rate: 1/s }
  - { name: bots, match: { header.User-Agent: '*bot*' }, by: ip, rate: 1/s }
  - { name: acme, match: { api_key: acme }, by: api_key, rate: 1/s }
  - { name: plan, match: { plan: [gold, plat*] }, by: user, rate: 1/s }
  - { name: known, match: { user: '**' }, by: user, rate: 1/s }
  - { name: unknown, match: { not: { user: '**' } }, by: ip, rate: 1/s }
  - { name: outside, match: { path: /x, not: { ip: 10.0.0.0/8, method: GET } }, by: ip, rate: 1/s }",
    );
    check(&set, "", "unknown");
    check(&set, "ip=10.1.2.3", "inside unknown");
    check(&set, "ip=2001:db8:1::", "inside unknown");
    check(&set, "header.user-agent=Some/bot/1.0", "bots unknown");
    check(&set, "key=acme user=u", "acme known");
    check(&set, "key=other user=u", "known");
    check(&set, "plan=gold user=u", "plan known");
    check(&set, "plan=platinum user=u", "plan known");
    check(&set, "path=/x method=POST ip=192.0.2.1 user=u", "known outside");
    check(&set, "path=/x method=GET ip=192.0.2.1 user=u", "known");
    check(&set, "path=/x method=POST ip=10.0.0.1 user=u", "inside known");
}

/// It was missing to `by` and present to `match`: a client with an empty header had neither of two rules that together
/// cover everybody.
#[test]
fn an_empty_attribute_is_a_missing_one_for_every_field() {
    let set = rules(
        "rules:
  - { name: users, by: header.X-User, if_missing: skip, rate: 5/hour }
  - { name: guests, match: { not: { header.X-User: '**' } }, by: ip, rate: 2/hour }
  - { name: members, match: { header.X-User: '**' }, by: ip, rate: 20/hour }
  - { name: literal, match: { header.X-User: '' }, by: ip, rate: 1/hour }",
    );
    check(&set, "header.x-user=ada ip=192.0.2.1", "users members");
    check(&set, "header.x-user= ip=192.0.2.1", "guests");
    check(&set, "header.x-user= a=1 b=2 c=3", "guests");
    check(&set, "ip=192.0.2.1", "guests");
}

/// Keys without a name had no limit where a rule matches any key.
#[test]
fn any_key_matches_keys_with_and_without_a_name() {
    let set = rules(
        "rules:\n  \
         - { name: any, match: { api_key: \"**\" }, by: ip, rate: 1/s }\n  \
         - { name: some, match: { api_key: \"p*\" }, by: ip, rate: 1/s }\n  \
         - { name: none, match: { not: { api_key: \"*\" } }, by: ip, rate: 1/s }\n",
    );
    check(&set, "ip=192.0.2.1 key=partner", "any some");
    check(&set, "ip=192.0.2.1 key=", "any");
    check(&set, "ip=192.0.2.1", "none");
}

#[test]
fn a_rule_replaces_others_only_where_it_applies() {
    let set = rules(
        "rules:
  - { name: everything, by: global, rate: 5/second }
  - { name: health, match: { path: /healthz }, rate: unlimited, replaces: [everything] }
  - { name: tried, match: { path: /t }, by: ip, rate: 1/s, mode: shadow, replaces: [everything] }
  - { name: gone, match: { path: /g }, by: ip, rate: 1/s, mode: off, replaces: [everything] }
  - { name: users, match: { path: /u }, by: user, if_missing: skip, rate: 1/s, replaces: everything }
  - { name: tokens, match: { path: /l }, by: user, unit: tokens, rate: 1/s, replaces: everything }",
    );
    check(&set, "path=/healthz", "health");
    check(&set, "path=/other", "everything");
    // A rule in shadow mode must not switch off the enforced one.
    check(&set, "path=/t", "everything tried");
    check(&set, "path=/g", "everything");
    // A rule that skips the request cannot be the one that protects it.
    check(&set, "path=/u user=u", "users");
    check(&set, "path=/u", "everything");
    check(&set, "path=/u user=", "everything");
    check(&set, "path=/l user=u tokens=5", "tokens");
    check(&set, "path=/l user=u tokens=0", "everything");
    // A cost that is absent or misspelt is not free.
    check(&set, "path=/l user=u", "tokens");
}

#[test]
fn a_rule_matches_every_spelling_of_its_path() {
    for path in ["/login", "/login/", "//login", "/x/../login", "/%6cogin", "/login;a=b"] {
        let set =
            rules(&format!("rules: [{{ name: r, match: {{ path: '{path}', method: post }}, by: ip, rate: 1/s }}]"));
        check(&set, "path=/login method=POST", "r");
        check(&set, "path=/Login method=POST", "");
    }
    for (pattern, path) in [("/api/**/", "/api/x"), ("//api//*", "/api/x"), ("/%61pi/*/", "/api/x"), ("/a%2Ab", "/a*b")]
    {
        let set = rules(&format!("rules: [{{ name: r, match: {{ path: '{pattern}' }}, by: ip, rate: 1/s }}]"));
        check(&set, &format!("path={path}"), "r");
        check(&set, "path=/other", "");
    }
    let set = rules("rules: [{ name: r, match: { host: 'API.Example.com:443' }, by: ip, rate: 1/s }]");
    check(&set, "host=api.example.com", "r");
}

#[test]
fn an_override_matches_every_spelling_of_its_subject() {
    let set = rules(
        "rules:
  - { name: a, by: path, rate: 1/s, overrides: { /login/: 7/s } }
  - { name: b, by: [ip, method], rate: 1/s, overrides: { '2001:db8:0::/64,post': 7/s } }
  - { name: c, by: user, rate: 1/s, overrides: { 'Ada, Countess': 7/s } }",
    );
    let count = |rule: &str, subject| set.rule(rule).unwrap().limits(None, subject)[0].count();
    assert_eq!((count("a", "/login"), count("a", "/login/")), (7, 1));
    assert_eq!((count("b", "2001:db8::,POST"), count("b", "x,POST")), (7, 1));
    assert_eq!((count("c", "Ada, Countess"), count("c", "Ada")), (7, 1));
}

#[test]
fn days_of_a_time_zone_are_calendar_windows() {
    let set = rules(
        "timezone: Europe/Berlin
defaults: { algorithm: sliding-window }
rules:
  - { name: day, by: user, rate: 1000/day }
  - { name: both, by: user, rate: [1000/week, 4000/month], overrides: { ada: unlimited } }
  - { name: mixed, by: user, rate: [10/second, 1000/day], algorithm: fixed-window }
  - { name: hours, by: user, rate: 1000/24h }
  - { name: hourly, by: user, rate: 1000/hour }",
    );
    let algorithms = set.rules().iter().map(|rule| rule.algorithm().name());
    let fixed = "fixed-window fixed-window fixed-window";
    let want = format!("{fixed} sliding-window sliding-window");
    assert_eq!(algorithms.collect::<Vec<_>>().join(" "), want);
    let anywhere = rules("rules: [{ name: day, by: user, rate: 1000/day }]");
    assert_eq!(anywhere.rules()[0].algorithm().name(), "sliding-window");
}

#[test]
fn a_unit_of_a_request_that_no_rule_knows_is_reported() {
    let set = rules(
        "units: [images]
rules: [{ name: t, by: user, unit: tokens, rate: 9/s }]",
    );
    let unknown = |unit: &'static str| {
        let mut request = request("tokens=1");
        request.costs.push((unit.into(), None));
        let unknown = set.unknown_unit(&request);
        unknown.map(|unknown| format!("{}: {unknown}", unknown.unit))
    };
    assert_eq!(unknown("tokens"), None);
    assert_eq!(unknown("images"), None);
    let message = |unit| unknown(unit).unwrap_or_default();
    assert_eq!(message("Token"), "Token: unknown unit, no rule counts it; write tokens");
    assert!(message("words").contains("write images, tokens, or declare it"));
    assert!(message("requests").contains("requests are counted by `cost`"));
}

#[test]
fn the_allow_list_wins_and_entries_expire() {
    let set = rules(
        "rules: []
allow: [192.0.2.10, 'key:acme']
block:
  - 192.0.2.0/24
  - { match: 198.51.100.7, until: 2026-12-01T00:00:00Z }
  - { match: 198.51.100.0/24, until: 2026-11-01T00:00:00Z }
  - 'sha256:0707070707070707070707070707070707070707070707070707070707070707'",
    );
    let end = Nanos::from_secs(1_796_083_200);
    let now = Nanos::from_secs(1_794_000_000);
    let listed = |text, now| set.list_decision(&request(text), now);
    assert!(set.has_access_lists());
    assert_eq!(listed("ip=192.0.2.10", now), Some(ListDecision::Allow));
    assert_eq!(listed("ip=192.0.2.11", now), Some(ListDecision::Block { until: None }));
    assert_eq!(listed("ip=198.51.100.7", now), Some(ListDecision::Block { until: Some(end) }));
    assert_eq!(listed("ip=198.51.100.7", end), None);
    assert_eq!(listed("ip=198.51.100.8", now), None);
    assert_eq!(listed("key=acme", now), Some(ListDecision::Allow));
    assert_eq!(listed("key=other", now), Some(ListDecision::Block { until: None }));
    assert_eq!(listed("", now), None);
}

#[test]
fn tiers_and_single_subjects_have_rates_of_their_own() {
    let set = rules(
        "tiers: [free, pro, big]
rules:
  - name: api
    by: api_key|ip
    rate: 100/minute
    tiers: { pro: 1000/minute, big: unlimited }
    overrides: { acme: [5000/minute, 9/second], '2001:db8:0:0::/64': 1/minute }",
    );
    let rule = set.rule("api").unwrap();
    let counts = |tier, subject| -> Vec<u64> {
        let limits = rule.limits(tier, subject).iter();
        limits.map(|limit| limit.count()).collect()
    };
    assert_eq!(counts(None, "x"), [100]);
    assert_eq!(counts(Some(0), "x"), [100]);
    assert_eq!(counts(Some(1), "x"), [1000]);
    assert_eq!(counts(Some(2), "x"), [0_u64; 0]);
    assert_eq!(counts(Some(2), "acme"), [5000, 9]);
    // A client of IPv6 is a network, which has many spellings.
    assert_eq!(counts(None, "2001:db8::"), [1]);
    assert_eq!(rule.rates(rule.rate_class(Some(1), "x")).text(0), "1000/minute");
    let tag = rule.limits(Some(1), "x")[0].tag();
    assert_eq!(rule.limit_with_tag(0, tag).unwrap().count(), 1000);
}

#[test]
fn the_files_of_a_folder_are_one_set() {
    let files = [
        SourceFile {
            name: "a.yaml",
            text: "version: 1\ndefaults: { algorithm: fixed-window }\nrules: [{ name: a, by: ip, rate: 1/s }]",
        },
        SourceFile {
            name: "b.yaml",
            text: "version: 1\nkeys_file: keys.txt\ntiers: [free]\nrules: [{ name: b, by: ip, rate: 1/s, replaces: a }]",
        },
    ];
    let set = parse(&files).unwrap();
    assert_eq!(set.rules()[0].algorithm().name(), "fixed-window");
    assert_eq!(set.rules()[1].algorithm().name(), "sliding-window");
    assert_eq!(set.position("b"), Some(1));
    assert_eq!(set.rules()[1].location().to_string(), "b.yaml:4");
    assert_eq!((set.keys_file(), set.tiers().len()), (Some("keys.txt"), 1));
    check(&set, "", "b");
}

/// A rule for normal requests left out requests without a priority, which are most.
#[test]
fn a_request_without_a_priority_or_with_an_unknown_one_is_normal() {
    let set = rules(
        "rules:
  - { name: usual, match: { priority: normal }, by: ip, rate: 1/s }
  - { name: login, match: { path: /login, priority: [normal, critical] }, by: ip, rate: 1/s }
  - { name: rest, match: { not: { priority: normal } }, by: ip, rate: 1/s }",
    );
    check(&set, "path=/login", "usual login");
    check(&set, "priority=normal", "usual");
    check(&set, "priority=urgent", "usual");
    check(&set, "priority=critical path=/login", "login rest");
    check(&set, "priority=sheddable path=/login", "rest");
}
