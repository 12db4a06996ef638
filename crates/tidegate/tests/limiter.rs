//! The limiter as its users see it: rules in, decisions out, on a manual clock.

mod common;

use std::collections::BTreeSet;

use common::{TestLimiter, request, rules};
use tidegate::engine::DecisionKind;
use tidegate::http::{BodyStyle, ResetStyle, ResponseContext};
use tidegate::identity::keys::hash_line;
use tidegate::identity::{Digest, KeyTable};
use tidegate::store::{Refunded, Role, Source};
use tidegate::{Policy, Request};

const THREE_LAYERS: &str = "
version: 1
rules:
  - { name: user, by: user, rate: 10/minute, algorithm: fixed-window }
  - { name: route, by: path, rate: 10/minute, algorithm: sliding-window }
  - { name: ceiling, by: global, rate: 2/minute burst 2 }
";

#[test]
fn a_request_denied_by_its_last_limit_has_not_touched_the_others() {
    let fixture = TestLimiter::new(THREE_LAYERS);
    fixture.check("user=a path=/x", "allow");
    fixture.check("user=a path=/x", "allow");
    let before = fixture.usage("user=a path=/x");
    for _ in 0..100 {
        fixture.check("user=a path=/x", "deny ceiling 30s");
    }
    assert_eq!(fixture.usage("user=a path=/x"), before);
    assert_eq!(fixture.used("user=a path=/x", "user"), 2);
}

#[test]
fn the_binding_limit_is_the_one_with_the_least_room() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: wide, by: user, rate: 100/minute }
  - { name: tight, by: user, rate: 5/hour }
",
    );
    let decision = fixture.decide(request("user=a"));
    assert_eq!(decision.binding().unwrap().rule.name().as_str(), "tight");
    let order: Vec<_> = decision.enforced().map(|v| v.rule.name().to_string()).collect();
    assert_eq!(order, ["tight", "wide"]);
}

#[test]
fn of_several_denials_the_longest_wait_is_reported() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: minute, by: user, rate: 1/minute, algorithm: fixed-window }
  - { name: hour, by: user, rate: 1/hour, algorithm: fixed-window }
",
    );
    fixture.check("user=a", "allow");
    fixture.check("user=a", "deny hour 3600s");
}

/// Days and weeks of UTC were shifted and those of all other zones were not.
#[test]
fn calendar_windows_begin_together_in_every_zone_and_others_can_be_staggered() {
    let ends = |zone: &str, rate: &str| {
        let fixture = TestLimiter::new(&format!(
            "version: 1\ntimezone: {zone}\nrules:\n  - {{ name: r, by: user, rate: {rate}, \
             algorithm: fixed-window, stagger: true }}"
        ));
        let users = (0..20).map(|n| format!("user={n}"));
        let ends: BTreeSet<_> = users
            .map(|user| {
                fixture.check(&user, "allow");
                fixture.denied_for(&user)
            })
            .collect();
        ends.len()
    };
    for zone in ["UTC", "America/Sao_Paulo"] {
        for rate in ["1/day", "1/week", "1/month"] {
            assert_eq!(ends(zone, rate), 1, "{rate} in {zone}");
        }
        assert_eq!(ends(zone, "1/24h"), 20, "{zone}");
    }
}

#[test]
fn a_shadow_rule_counts_what_it_would_deny_and_denies_nothing() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: old, by: user, rate: 5/minute, algorithm: fixed-window }
  - { name: new, by: user, rate: 2/minute, algorithm: fixed-window, mode: shadow }
",
    );
    for _ in 0..5 {
        fixture.check("user=a", "allow");
    }
    // The shadow limit was charged only for requests that it would itself have admitted.
    assert_eq!(fixture.used("user=a", "new"), 2);
    let decision = fixture.decide(request("user=a"));
    assert_eq!(fixture.used("user=a", "new"), 2);
    assert!(!decision.allowed());
    assert!(decision.enforced().all(|view| view.role == Role::Enforce));
    assert_eq!(decision.limits().len(), 2);
}

#[test]
fn a_denied_request_charges_no_shadow() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: tight, by: user, rate: 1/minute, algorithm: fixed-window }
  - { name: shadow, by: user, rate: 9/minute, algorithm: fixed-window, mode: shadow }
",
    );
    fixture.check("user=a", "allow");
    fixture.check("user=a", "deny tight 60s");
    assert_eq!(fixture.used("user=a", "shadow"), 1);
}

#[test]
fn in_shadow_mode_no_request_is_denied() {
    let fixture = TestLimiter::in_shadow(THREE_LAYERS);
    for _ in 0..50 {
        fixture.check("user=a path=/x", "allow");
    }
}

#[test]
fn a_request_without_a_rule_is_allowed_by_no_rule() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: login, match: { path: /login }, by: ip, rate: 1/minute }
",
    );
    let decision = fixture.decide(request("path=/other ip=192.0.2.1"));
    assert_eq!(decision.kind(), DecisionKind::Allow);
    assert_eq!(decision.source(), Source::None);
    assert!(decision.binding().is_none());
}

#[test]
fn lists_come_before_rules_and_the_allow_list_wins() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: all, by: ip, rate: 1/hour }
block: [203.0.113.0/24, { match: 198.51.100.7, until: 2020-01-01T00:00:00Z }]
allow: [203.0.113.10]
",
    );
    fixture.check("ip=203.0.113.9", "block");
    for _ in 0..3 {
        fixture.check("ip=203.0.113.10", "allow");
    }
    fixture.check("ip=198.51.100.7", "allow");
    fixture.check("ip=198.51.100.7", "deny all");
}

#[test]
fn a_cost_above_the_capacity_is_denied_for_good_and_charges_nothing() {
    let fixture = TestLimiter::new(THREE_LAYERS);
    fixture.check("user=a path=/x cost=3", "never ceiling");
    assert_eq!(fixture.used("user=a path=/x", "user"), 0);
}

#[test]
fn a_rule_with_a_unit_counts_only_that_unit() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: calls, by: user, rate: 10/minute, algorithm: fixed-window }
  - { name: tokens, by: user, rate: 2000/minute, algorithm: fixed-window, unit: tokens }
",
    );
    fixture.check("user=a tokens:1500", "allow");
    assert_eq!(fixture.used("user=a tokens:1", "tokens"), 1500);
    assert_eq!(fixture.used("user=a", "calls"), 1);
    fixture.check("user=a tokens:1500", "deny tokens 60s");
    fixture.check("user=a tokens:0", "allow");
    assert_eq!(fixture.used("user=a", "calls"), 2);
    assert_eq!(fixture.used("user=a", "tokens"), 1500);
}

/// A rule with a unit did not apply to a request that named no cost in it, or a misspelt one.
#[test]
fn a_cost_that_is_not_named_is_one_and_never_free() {
    let fixture = TestLimiter::new(
        "version: 1\nrules: [{ name: tokens, by: user, rate: 2/minute, algorithm: fixed-window, unit: tokens }]",
    );
    fixture.check("user=a", "allow");
    fixture.check("user=a tokns:1500", "allow");
    fixture.check("user=a", "deny tokens 60s");
    fixture.check("user=a tokens:0", "allow");
}

/// They were stored as attributes that no rule reads, so that all clients shared one counter.
#[test]
fn an_address_and_a_key_may_be_given_as_attributes() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: clients, by: ip, rate: 1/minute, algorithm: fixed-window }
  - { name: keys, by: api_key, rate: 1/minute, algorithm: fixed-window, match: { path: /k } }
",
    );
    let check = |name: &'static str, value: &'static str| {
        let request = Request::default().with("path", "/").with(name, value);
        fixture.limiter.check_now(request).allowed()
    };
    assert!(check("ip", "192.0.2.1") && check("ip", "192.0.2.2"));
    assert!(!check("ip", "192.0.2.1"));
    fixture.check("ip=192.0.2.2", "deny clients 60s");
    // Text that is no address is counted with all requests without an address.
    assert!(check("ip", "somebody") && !check("ip", "somebody else"));
    let keyed = |ip: [u8; 4], key: &'static str| {
        let request = Request::default().with("path", "/k").with("api_key", key);
        let request = Request { ip: Some(ip.into()), ..request };
        fixture.limiter.check_now(request).allowed()
    };
    assert!(keyed([10, 0, 0, 1], "k1") && keyed([10, 0, 0, 2], "k2"));
    assert!(!keyed([10, 0, 0, 3], "k1"));
}

/// A rule for `/login/` never matched, and neither did a rule for `/login` when a query followed.
#[test]
fn a_path_has_one_form_in_rules_and_requests() {
    let fixture = TestLimiter::new(
        "version: 1\nrules: [{ name: login, match: { path: /login/, method: POST }, by: ip, rate: 6/minute, algorithm: fixed-window }]",
    );
    for path in ["/login", "/login/", "/login/?x=1", "//login", "/a/../login", "/%6cogin"] {
        fixture.check(&format!("ip=192.0.2.1 method=post path={path}"), "allow");
    }
    fixture.check("ip=192.0.2.1 method=POST path=/login", "deny login 60s");
    fixture.check("ip=192.0.2.1 method=POST path=/Login", "allow");
    fixture.check("ip=192.0.2.1 method=POST raw_path=/login", "allow");
}

#[test]
fn waiting_for_retry_after_suffices_and_waiting_less_does_not() {
    for algorithm in ["fixed-window", "sliding-log", "sliding-window", "sliding-window-strict"] {
        let fixture = TestLimiter::new(&format!(
            "version: 1\nrules: [{{ name: r, by: user, rate: 3/minute, algorithm: {algorithm} }}]"
        ));
        for _ in 0..3 {
            fixture.check("user=a", "allow");
        }
        let wait = fixture.denied_for("user=a");
        fixture.advance(wait.get() - 1);
        assert_eq!(fixture.denied_for("user=a").get(), 1);
        fixture.advance(1);
        fixture.check("user=a", "allow");
    }
}

#[test]
fn a_queue_delays_and_charges_in_order() {
    let fixture =
        TestLimiter::new("version: 1\nrules: [{ name: q, by: user, rate: 1/second burst 3, algorithm: leaky-queue }]");
    fixture.check("user=a", "allow");
    fixture.check("user=a", "delay 1s");
    fixture.check("user=a", "delay 2s");
    fixture.check("user=a", "deny q 1s");
}

#[test]
fn a_client_that_cannot_wait_is_denied_with_the_wait_and_not_charged() {
    let fixture =
        TestLimiter::new("version: 1\nrules: [{ name: q, by: user, rate: 1/second burst 3, algorithm: leaky-queue }]");
    fixture.check("user=a", "allow");
    fixture.check("user=a patience=0", "deny q 1s");
    assert_eq!(fixture.used("user=a", "q"), 1);
}

#[test]
fn peek_decides_as_check_would_and_changes_nothing() {
    let fixture = TestLimiter::new(THREE_LAYERS);
    for _ in 0..10 {
        assert!(fixture.peek("user=a path=/x").allowed());
    }
    assert_eq!(fixture.used("user=a path=/x", "user"), 0);
    fixture.check("user=a path=/x", "allow");
}

/// A plain cost of 0 made every rule with a unit free.
#[test]
fn a_plain_cost_of_zero_peeks_plain_rules_and_charges_those_with_a_unit() {
    let text = "
version: 1
rules:
  - { name: requests, by: user, rate: 2/hour }
  - { name: tokens, match: { path: /llm }, by: user, unit: tokens, rate: 10/hour }
";
    let fixture = TestLimiter::new(text);
    let check = |words| common::ready(fixture.limiter.check_units(request(words))).unwrap();
    assert!(check("user=a path=/llm").allowed());
    assert!(check("user=a path=/llm tokens:4").allowed());
    assert!(check("user=a path=/llm tokens:0").allowed());
    assert!(check("user=a path=/x").allowed());
    assert_eq!(fixture.used("user=a path=/llm", "tokens"), 5);
    assert_eq!(fixture.used("user=a path=/llm", "requests"), 0);
    assert!(!check("user=a path=/llm tokens:6").allowed());
    fixture.check("user=a cost=2", "allow");
    assert!(!check("user=a path=/llm").allowed(), "no request is left");
    assert_eq!(fixture.used("user=a path=/llm", "tokens"), 5);
}

#[test]
fn a_receipt_refunds_once() {
    let fixture = TestLimiter::new(THREE_LAYERS);
    let decision = fixture.decide(request("user=a path=/x"));
    let receipt = fixture.limiter.receipt(&decision).unwrap().unwrap();
    assert_eq!(fixture.used("user=a path=/x", "user"), 1);
    assert_eq!(fixture.refund(&receipt), Refunded::Done);
    assert_eq!(fixture.used("user=a path=/x", "user"), 0);
    fixture.check("user=a path=/x", "allow");
    assert_eq!(fixture.refund(&receipt), Refunded::Already);
    assert_eq!(fixture.used("user=a path=/x", "user"), 1);
}

/// With one secret for both, a receipt was refunded by each process that saw it, out of charges that were never its
/// own.
#[test]
fn a_receipt_of_another_run_or_node_is_unknown() {
    let [before, after] = [TestLimiter::new(THREE_LAYERS), TestLimiter::new(THREE_LAYERS)];
    let decision = before.decide(request("user=a path=/x"));
    let receipt = before.limiter.receipt(&decision).unwrap().unwrap();
    after.check("user=a path=/x", "allow");
    assert_eq!(after.refund(&receipt), Refunded::Unknown);
    assert_eq!(after.used("user=a path=/x", "user"), 1);
    assert_eq!(before.refund(&receipt), Refunded::Done);
}

#[test]
fn a_denial_has_no_receipt() {
    let fixture = TestLimiter::new("version: 1\nrules: [{ name: r, by: user, rate: 1/hour }]");
    fixture.check("user=a", "allow");
    let denied = fixture.decide(request("user=a"));
    assert_eq!(fixture.limiter.receipt(&denied).unwrap(), None);
}

#[test]
fn a_limit_lowered_below_usage_denies_and_a_raised_one_adds_the_difference() {
    let rules =
        |rate: &str| format!("version: 1\nrules: [{{ name: r, by: user, rate: {rate}, algorithm: fixed-window }}]");
    let fixture = TestLimiter::new(&rules("10/hour"));
    for _ in 0..8 {
        fixture.check("user=a", "allow");
    }
    fixture.reload(&rules("5/hour"));
    let denied = fixture.decide(request("user=a"));
    assert!(!denied.allowed());
    assert_eq!(denied.binding().unwrap().reading.figures.remaining, 0);
    fixture.reload(&rules("12/hour"));
    for _ in 0..4 {
        fixture.check("user=a", "allow");
    }
    fixture.check("user=a", "deny r 3600s");
}

/// Without writing the moved state, a subject at its limit stayed denied until the clock was back where it had been:
/// two hours for a limit of one minute.
#[test]
fn a_clock_set_back_by_hours_denies_no_client_for_longer_than_a_window() {
    let alone = "version: 1\nrules: [{ name: r, by: user, rate: 2/minute burst 2 }]";
    let among_others = "
version: 1
rules:
  - { name: r, by: user, rate: 2/minute burst 2 }
  - { name: wide, by: user, rate: 1000/minute }
";
    for rules in [alone, among_others] {
        let fixture = TestLimiter::new(rules);
        fixture.check("user=a", "allow");
        fixture.check("user=a", "allow");
        fixture.set_back(7_200);
        let denied = fixture.decide(request("user=a"));
        assert!(!denied.allowed() && denied.clock_stepped(), "the step is reported");
        let again = fixture.decide(request("user=a"));
        assert!(!again.allowed() && !again.clock_stepped(), "once");
        fixture.advance(60_000_000_000);
        fixture.check("user=a", "allow");
    }
}

#[test]
fn a_clock_set_back_a_little_admits_nothing_extra() {
    let fixture = TestLimiter::new("version: 1\nrules: [{ name: r, by: user, rate: 60/minute burst 2 }]");
    fixture.check("user=a", "allow");
    fixture.check("user=a", "allow");
    for _ in 0..10 {
        fixture.set_back(3);
        fixture.check("user=a", "deny r");
        fixture.advance(3_000_000_000);
        fixture.check("user=a", "deny r");
    }
}

#[test]
fn receipts_of_one_charge_are_equal_and_a_peek_has_none() {
    let fixture = TestLimiter::new(THREE_LAYERS);
    fixture.check("user=b path=/x", "allow");
    let decision = fixture.decide(request("user=a path=/x"));
    let first = fixture.limiter.receipt(&decision).unwrap().unwrap();
    let second = fixture.limiter.receipt(&decision.clone()).unwrap().unwrap();
    assert_eq!(fixture.refund(&first), Refunded::Done);
    assert_eq!(fixture.refund(&second), Refunded::Already);
    let peeked = fixture.peek("user=a path=/x");
    assert_eq!(fixture.limiter.receipt(&peeked).unwrap(), None);
}

/// A refund read the counter under the limit of the receipt: for a small tier, it clamped what a large one had used
/// and wrote that back.
#[test]
fn a_refund_under_another_tier_leaves_the_counter_alone() {
    let text = "
version: 1
tiers: [free, pro]
keys_file: keys.txt
rules:
  - { name: r, by: ip, rate: 1000/hour, tiers: { free: 10/hour }, algorithm: fixed-window }
";
    let fixture = TestLimiter::new(text);
    let lines = format!("{}\n", hash_line("pro-key", "pro", "acme").unwrap());
    let set = rules(text);
    let keys = KeyTable::read("keys.txt", lines.as_bytes(), set.tiers()).unwrap();
    fixture.replace(Policy::of(set).with_keys(keys));
    let keyless = fixture.decide(request("ip=192.0.2.1"));
    let receipt = fixture.limiter.receipt(&keyless).unwrap().unwrap();
    for _ in 0..999 {
        fixture.check("ip=192.0.2.1 key=pro-key", "allow");
    }
    fixture.refund(&receipt);
    fixture.check("ip=192.0.2.1 key=pro-key", "deny r");
    assert_eq!(fixture.used("ip=192.0.2.1 key=pro-key", "r"), 1000);
}

/// A leaked key removed from the keys file counted as no key at all, and its block had no effect.
#[test]
fn a_key_blocked_by_its_digest_need_not_be_listed() {
    let digest = |key| format!("{:?}", format!("sha256:{}", hex(Digest::of(key).as_bytes())));
    let text = format!(
        "version: 1
tiers: [free]
keys_file: keys.txt
rules: [{{ name: r, by: api_key, rate: 1/hour, algorithm: fixed-window }}]
block: [{}, {}]
allow: [{}]
",
        digest("leaked"),
        digest("listed"),
        digest("friend"),
    );
    let fixture = TestLimiter::new(&text);
    let lines = format!("{}\n", hash_line("listed", "free", "acme").unwrap());
    let set = rules(&text);
    let keys = KeyTable::read("keys.txt", lines.as_bytes(), set.tiers()).unwrap();
    fixture.replace(Policy::of(set).with_keys(keys));
    for _ in 0..2 {
        fixture.check("ip=192.0.2.1 key=leaked", "block");
        fixture.check("ip=192.0.2.1 key=listed", "block");
        fixture.check("ip=192.0.2.1 key=friend", "allow");
    }
    // Any other unlisted key counts as none: the address is limited.
    fixture.check("ip=192.0.2.1 key=other", "allow");
    fixture.check("ip=192.0.2.1 key=another", "deny r");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn a_receipt_whose_rules_have_changed_lapses() {
    let rules = |rate: &str| format!("version: 1\nrules: [{{ name: r, by: user, rate: {rate} }}]");
    let fixture = TestLimiter::new(&rules("10/hour"));
    let decision = fixture.decide(request("user=a"));
    let receipt = fixture.limiter.receipt(&decision).unwrap().unwrap();
    fixture.reload(&rules("20/hour"));
    assert_eq!(fixture.refund(&receipt), Refunded::Lapsed);
    assert_eq!(fixture.used("user=a", "r"), 1);
}

#[test]
fn an_override_applies_to_the_identity_a_rule_counts_by_and_not_to_a_claim() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - name: r
    by: user|ip
    rate: 1/hour
    overrides: { 192.0.2.7: 3/hour, vip: 2/hour }
",
    );
    let passes = |words: &str| (0..9).filter(|_| fixture.decide(request(words)).allowed()).count();
    assert_eq!(passes("ip=192.0.2.7"), 3, "the address itself");
    assert_eq!(passes("user=192.0.2.7 ip=198.51.100.1"), 1, "a user with the name of an address");
    assert_eq!(passes("user=vip ip=198.51.100.2"), 2);
    let by_user =
        TestLimiter::new("version: 1\nrules: [{ name: r, by: user, rate: 1/hour, overrides: { 192.0.2.7: 3/hour } }]");
    let anonymous = (0..9).filter(|_| by_user.decide(request("ip=192.0.2.7")).allowed());
    assert_eq!(anonymous.count(), 1, "an address that replaces a missing user");
}

#[test]
fn denied_clients_of_a_shared_limit_retry_at_different_times() {
    let fixture = TestLimiter::new("version: 1\nrules: [{ name: r, by: global, rate: 1/hour burst 1 }]");
    fixture.check("ip=192.0.2.1", "allow");
    let retry_after = |ip: u8| {
        let words = format!("ip=198.51.100.{ip}");
        let decision = fixture.decide(request(&words));
        let context = ResponseContext {
            id: "x",
            wall: common::START,
            reset: ResetStyle::Delta,
            body: BodyStyle::Plain,
            receipt: None,
            reservation: None,
        };
        let headers = tidegate::http::headers(&decision, &context);
        headers["retry-after"].to_str().unwrap().parse::<u64>().unwrap()
    };
    let waits: std::collections::BTreeSet<u64> = (0..200).map(retry_after).collect();
    assert!(waits.len() > 20, "{waits:?}");
    assert!(waits.iter().all(|wait| (3_600..=3_630).contains(wait)));
}

#[test]
fn a_client_is_inspected_and_reset_in_every_unit_and_on_every_list() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: calls, by: ip, rate: 10/hour }
  - { name: tokens, by: ip, rate: 100/hour, unit: tokens }
",
    );
    fixture.check("ip=192.0.2.1 tokens:60", "allow");
    assert_eq!(fixture.used("ip=192.0.2.1", "tokens"), 60);
    let reset = common::ready(fixture.limiter.view().reset(request("ip=192.0.2.1")));
    assert_eq!(reset.unwrap(), 2);
    assert_eq!(fixture.used("ip=192.0.2.1", "tokens"), 0);
}

/// A reset of one client once emptied the counters of all.
#[test]
fn a_reset_of_one_client_leaves_shared_counters_alone() {
    let fixture = TestLimiter::new(
        "
version: 1
rules:
  - { name: ceiling, by: global, rate: 9/hour }
  - { name: each, by: user, rate: 9/hour }
  - { name: orgs, by: org, rate: 9/hour }
",
    );
    let reset = |words: &str| common::ready(fixture.limiter.view().reset(request(words))).unwrap();
    let used = |words: &str| ["ceiling", "each", "orgs"].map(|rule| fixture.used(words, rule));
    fixture.check("user=ada", "allow");
    fixture.check("user=bob", "allow");
    assert_eq!(reset("user=ada"), 1);
    assert_eq!(used("user=ada"), [2, 0, 2]);
    assert_eq!(used("user=bob"), [2, 1, 2]);
    // An address replaces a missing attribute, and its counter is its own.
    fixture.check("ip=192.0.2.1", "allow");
    assert_eq!(reset("ip=192.0.2.1"), 2);
    assert_eq!(used("ip=192.0.2.1"), [3, 0, 0]);
    let ceiling = fixture.limiter.view();
    let ceiling = common::ready(ceiling.reset_rule("ceiling", request("user=ada")));
    assert_eq!(ceiling.unwrap(), 1);
    assert_eq!(used("user=bob"), [0, 1, 2]);
}

#[test]
fn in_shadow_mode_the_block_list_denies_no_request_either() {
    let fixture = TestLimiter::in_shadow("version: 1\nrules: []\nblock: [192.0.2.0/24]");
    fixture.check("ip=192.0.2.1", "allow");
}
