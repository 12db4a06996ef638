//! Durability: parsed, given a budget, and rejected where the store does not support it.
#![allow(clippy::unwrap_used)]

use tidegate_core::store::{Capabilities, Durability, OnStoreLate};
use tidegate_rules::{RuleSet, SourceFile, lint, parse_with_options};

fn read(text: &str, store: Capabilities) -> Result<RuleSet, String> {
    let name = "rules.yaml";
    parse_with_options(&[SourceFile { name, text }], store).map_err(|errors| errors.to_string())
}

fn rule(rest: &str) -> String {
    format!("version: 1\nrules:\n  - {{ name: bills, by: global, rate: 1000/month, {rest} }}\n")
}

/// The durability of a rule, the store, and the text of the error.
#[test]
fn a_durability_that_a_store_lacks_is_rejected_with_what_to_write() {
    let (memory, journal) = (Capabilities::MEMORY, Capabilities::JOURNAL);
    let (redis, any) = (Capabilities::SHARED, Capabilities::UNKNOWN);
    let accepted = [
        ("none", memory),
        ("none", redis),
        ("disk", journal),
        ("replica", redis),
        ("replica+aof", redis),
        ("disk", any),
        ("replica+aof", any),
    ];
    for (word, store) in accepted {
        let set = read(&rule(&format!("durability: {word}")), store).unwrap();
        assert_eq!(set.rules()[0].options().durability.name(), word);
    }
    let rejected = [
        ("disk", memory, "name one with `--data-dir`, or write none"),
        ("disk", redis, "write replica, replica+aof or none"),
        ("replica", memory, "write disk or none"),
        ("replica", journal, "write disk or none"),
        ("replica+aof", journal, "write disk or none"),
    ];
    for (word, store, cure) in rejected {
        let error = read(&rule(&format!("durability: {word}")), store).unwrap_err();
        let begins = format!("rules.yaml:3: rule `bills` has durability {word}, but ");
        assert!(error.starts_with(&begins) && error.ends_with(cure), "{error}");
    }
}

#[test]
fn a_durable_rule_has_a_longer_budget_unless_it_sets_one() {
    let options = |rest: &str| {
        let set = read(&rule(rest), Capabilities::SHARED).unwrap();
        *set.rules()[0].options()
    };
    let budget = |rest: &str| options(rest).budget.map(|budget| budget.get() / 1_000_000);
    assert_eq!(budget("mode: enforce"), None);
    assert_eq!(budget("durability: none"), None);
    assert_eq!(budget("durability: replica"), Some(50));
    assert_eq!(budget("durability: replica, budget: 8ms"), Some(8));
}

/// Requests in flight when a replica stalls are late, and passed although their rule denies without the store.
#[test]
fn a_durable_rule_that_denies_without_the_store_denies_when_late() {
    for (rest, want) in [
        ("on_store_failure: deny", OnStoreLate::Local),
        ("durability: replica", OnStoreLate::Local),
        ("durability: replica, on_store_failure: deny", OnStoreLate::Deny),
        ("durability: replica, on_store_failure: deny, on_store_late: local", OnStoreLate::Local),
    ] {
        let set = read(&rule(rest), Capabilities::SHARED).unwrap();
        assert_eq!(set.rules()[0].options().on_late, want, "{rest}");
    }
    let defaults = "version: 1\ndefaults: { durability: replica, on_store_failure: deny, on_store_late: local }\n\
                    rules:\n  - { name: a, by: global, rate: 9/hour }\n";
    let set = read(defaults, Capabilities::SHARED).unwrap();
    assert_eq!(set.rules()[0].options().on_late, OnStoreLate::Local);
    let defaults = "version: 1\ndefaults: { durability: replica, on_store_failure: deny }\nrules:\n  \
                    - { name: a, by: global, rate: 9/hour }\n  \
                    - { name: b, by: global, rate: 9/hour, on_store_failure: local }\n";
    let set = read(defaults, Capabilities::SHARED).unwrap();
    let found: Vec<_> = set.rules().iter().map(|r| r.options().on_late).collect();
    assert_eq!(found, [OnStoreLate::Deny, OnStoreLate::Local]);
}

#[test]
fn defaults_hold_for_rules_without_the_option() {
    let text = "version: 1\ndefaults: { durability: disk }\nrules:\n  \
                - { name: a, by: global, rate: 9/hour }\n  \
                - { name: b, by: global, rate: 9/hour, durability: none }\n";
    let set = read(text, Capabilities::JOURNAL).unwrap();
    let found: Vec<_> = set.rules().iter().map(|r| r.options().durability).collect();
    assert_eq!(found, [Durability::Disk, Durability::None]);
}

/// A journal stores records whose numbers have 53 bits.
#[test]
fn a_rate_that_a_journal_cannot_store_exactly_is_rejected() {
    let text = |durability: &str| {
        format!(
            "version: 1\nrules:\n  - {{ name: a, by: ip, algorithm: token-bucket, \
             rate: 999999937/hour burst 4000000000, durability: {durability} }}\n"
        )
    };
    read(&text("none"), Capabilities::JOURNAL).unwrap();
    let error = read(&text("disk"), Capabilities::JOURNAL).unwrap_err();
    assert!(error.contains("cannot be computed exactly"), "{error}");

    let both = "version: 1\nrules:\n  - { name: a, by: ip, rate: 9/s }\n  \
                - { name: b, by: ip, rate: 9/s, durability: disk }\n";
    let set = read(both, Capabilities::JOURNAL).unwrap();
    let scripts = |i: usize| set.rules()[i].limits(None, "")[0].is_exact_in_doubles();
    assert_eq!([scripts(0), scripts(1)], [false, true], "equal rates, parsed separately");
}

#[test]
fn a_window_shorter_than_a_restart_is_warned_about() {
    let warnings_for = |rate: &str| {
        let text = format!("version: 1\nrules:\n  - {{ name: a, by: ip, rate: [{rate}], durability: disk }}\n");
        let found = lint(&read(&text, Capabilities::JOURNAL).unwrap());
        found.iter().map(ToString::to_string).collect::<String>()
    };
    assert_eq!(warnings_for("100/hour"), "");
    assert_eq!(warnings_for("100/second, 5000/hour"), "");
    assert_eq!(
        warnings_for("100/second"),
        "rules.yaml:3: rule `a` has durability disk, but its longest window of 1s ends before a \
         restart or failover is over; remove it, or write a longer window"
    );
}

#[test]
fn the_example_of_the_durability_page_is_a_valid_rule() {
    let docs = include_str!("../../../docs/durability.md");
    let example = docs.split("```").nth(1).unwrap().trim_start_matches("yaml");
    let set = read(&format!("version: 1\nrules:\n{example}"), Capabilities::JOURNAL).unwrap();
    assert_eq!(set.rules()[0].options().durability, Durability::Disk);
    for durability in Durability::ALL {
        let row = format!("| `{}`", durability.name());
        assert!(docs.contains(&row), "docs/durability.md misses {row}");
    }
}
