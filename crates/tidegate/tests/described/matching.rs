//! Which counter a descriptor is charged to, and the metadata of its status.

use tidegate::envoy::Metadata;
use tidegate::request::Request;
use tidegate::rules::ParseOptions;
use tidegate::store::Capabilities;

use crate::fixture::{DescriptorFixture, described, policy, policy_in};

#[test]
fn a_replaced_limit_is_neither_checked_nor_charged() {
    let fixture = DescriptorFixture::new(
        "
domain: d
descriptors:
  - key: wide
    rate_limit: { unit: minute, requests_per_unit: 1, name: wide }
  - key: narrow
    rate_limit: { unit: minute, requests_per_unit: 3, name: narrow, replaces: [{ name: wide }] }
  - key: partner
    rate_limit: { unlimited: true, replaces: [{ name: narrow }, { name: wide }] }
  - key: unnamed
    rate_limit: { unit: minute, requests_per_unit: 1 }
",
    );
    fixture.check("wide=1 | narrow=1", "pass: free | ok 2 of 3/minute narrow");
    fixture.check("narrow=1 | wide=1", "pass: ok 1 of 3/minute narrow | free");
    fixture.check("wide=1 | narrow=1 | partner=1", "pass: free | free | unlimited");
    fixture.check("wide=1", "pass: ok 0 of 1/minute wide");
    fixture.check("wide=1", "deny: over 0 of 1/minute wide");
    fixture.check("wide=1 | narrow=1", "pass: free | ok 0 of 3/minute narrow");
    fixture.check("unnamed=1 | partner=1", "pass: ok 0 of 1/minute | unlimited");
    // A limit supplied by the request has no name that another limit could replace.
    fixture.check("wide=2 limit=4/minute | narrow=2", "pass: ok 3 of 4/minute | ok 2 of 3/minute narrow");
}

#[test]
fn values_have_counters_of_their_own_unless_their_pattern_shares_one() {
    let fixture = DescriptorFixture::new(
        "
domain: d
descriptors:
  - { key: path, value: /a/*, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - { key: path, value: /b/*, share_threshold: true, rate_limit: { unit: minute, requests_per_unit: 2 } }
  - key: path
    value: /c/*
    share_threshold: true
    descriptors:
      - { key: user, rate_limit: { unit: minute, requests_per_unit: 2 } }
",
    );
    fixture.check("path=/a/1 hits=2", "pass: ok 0 of 2/minute");
    fixture.check("path=/a/2", "pass: ok 1 of 2/minute");
    fixture.check("path=/b/1 hits=2", "pass: ok 0 of 2/minute");
    fixture.check("path=/b/2", "deny: over 0 of 2/minute");
    fixture.check("path=/c/1,user=u hits=2", "pass: ok 0 of 2/minute");
    fixture.check("path=/c/2,user=u", "deny: over 0 of 2/minute");
    fixture.check("path=/c/2,user=v", "pass: ok 1 of 2/minute");
}

#[test]
fn counters_differ_by_domain_and_entries_and_by_nothing_else() {
    let text = |domain: &str| {
        let limit = "rate_limit: { unit: minute, requests_per_unit: 1 }";
        format!(
            "domain: {domain}\ndescriptors:\n  - {{ key: a, {limit}, descriptors: [{{ key: b, {limit} }}] \
             }}\n  - {{ key: a_b, {limit} }}\n"
        )
    };
    let fixture = DescriptorFixture::of(policy(&[&text("d"), &text("d2")]).unwrap());
    let one = "pass: ok 0 of 1/minute";
    for words in ["d: a=x", "d2: a=x", "d: a=y", "d: a=x,b=y", "d: a=x,b=", "d: a=,b=x", "d: a=b", "d: a_b=x"] {
        fixture.check(words, one);
        fixture.check(words, "deny: over 0 of 1/minute");
    }
}

/// Nothing else separates deployments that share a store.
#[test]
fn every_prefix_has_counters_of_its_own() {
    let text = |domain: &str| {
        format!("domain: {domain}\ndescriptors: [{{ key: a, rate_limit: {{ unit: minute, requests_per_unit: 1 }} }}]\n")
    };
    let fixture = DescriptorFixture::new(&text("d"));
    let counted_by = |prefix: &str, domain: &str, want: &str| {
        let options = ParseOptions { prefix: prefix.into(), ..Capabilities::MEMORY.into() };
        let next = || policy_in(options.clone(), &[&text(domain)]);
        fixture.limiter.policy().replace_with(next).unwrap();
        fixture.check(&format!("{domain}: a=x"), want);
        fixture.check(&format!("{domain}: a=y limit=1/minute"), want);
    };
    let (fresh, used) = ("pass: ok 0 of 1/minute", "deny: over 0 of 1/minute");
    fixture.check("d: a=x", fresh);
    fixture.check("d: a=y", fresh);
    counted_by("", "d", used);
    for (prefix, domain) in [("p", "d"), ("q", "d"), ("d", "d"), ("p", "qd"), ("pq", "d")] {
        counted_by(prefix, domain, fresh);
        counted_by(prefix, domain, used);
    }
    counted_by("", "d", used);
}

#[test]
fn a_counter_outlives_the_name_and_the_size_of_its_limit() {
    let text = |key: &str, requests: u32| {
        format!(
            "domain: d\ndescriptors:\n  - key: user\n    {key}\n    rate_limit: {{ unit: minute, \
             requests_per_unit: {requests} }}\n"
        )
    };
    let fixture = DescriptorFixture::new(&text("shadow_mode: false", 3));
    fixture.check("user=a hits=2", "pass: ok 1 of 3/minute");
    for (key, requests, want) in [
        ("value: a", 5, "pass: ok 2 of 5/minute"),
        ("value: 'a*'", 4, "pass: ok 0 of 4/minute"),
        ("quota_mode: false", 9, "pass: ok 4 of 9/minute"),
    ] {
        let next = || policy(&[&text(key, requests)]);
        fixture.limiter.policy().replace_with(next).unwrap();
        fixture.check("user=a", want);
    }
}

#[test]
fn a_status_has_metadata_and_the_name_it_is_counted_under() {
    let fixture = DescriptorFixture::new(
        "
domain: d
descriptors:
  - key: plain
    metadata: { tier: gold, weight: 2, on: [true, ~, 'x'] }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: shown
    value_to_metric: true
    metadata: { tier: gold }
    rate_limit: { unit: minute, requests_per_unit: 1 }
  - key: free
    metadata: { tier: gold }
    rate_limit: { unlimited: true }
",
    );
    let request = described("plain=1 | shown=1.2.3.4 | free=1 | x=1,y= limit=1/minute | other=1");
    fixture.judge(Request::default(), &request, |judged| {
        let stats: Vec<_> = judged.statuses.iter().map(|s| s.stats.as_deref()).collect();
        let want = [Some("d.plain"), Some("d.shown_1.2.3.4"), None, Some("d.x.y"), None];
        assert_eq!(stats, want);
        let text = |text: &str| Metadata::Text(text.into());
        let list = Metadata::List(vec![Metadata::Bool(true), Metadata::Null, text("x")]);
        let gold = Metadata::Map(vec![
            ("tier".into(), text("gold")),
            ("weight".into(), Metadata::Number(2.0)),
            ("on".into(), list),
        ]);
        let metadata: Vec<_> = judged.statuses.iter().map(|status| status.metadata).collect();
        assert_eq!(metadata, [Some(&gold), None, None, None, None]);
        assert!(judged.domain_known);
    });
    fixture.judge(Request::default(), &described("e: plain=1"), |judged| {
        assert!(!judged.domain_known);
    });
}
