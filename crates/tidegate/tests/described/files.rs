//! Files of both kinds in one folder: they come into force together, and an invalid one leaves the old ones in force.

use std::fs;
use std::time::{Duration, Instant};

use tidegate::rules::ParseOptions;
use tidegate::store::Capabilities;
use tidegate::{Policy, PolicyFollower};

use crate::fixture::DescriptorFixture;

fn descriptors(requests: u32) -> String {
    let limit = format!("{{ unit: minute, requests_per_unit: {requests} }}");
    format!("domain: d\ndescriptors:\n  - {{ key: user, rate_limit: {limit} }}\n")
}

const NATIVE: &str = "version: 1\nrules:\n  - { name: api, by: user, rate: 9/minute }\n";

/// Waits until `done`, which must come well within a minute even on a busy machine.
#[track_caller]
fn wait_for(what: &str, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "no {what}");
        std::thread::yield_now();
    }
}

#[test]
fn a_folder_of_both_kinds_comes_into_force_as_one_and_an_invalid_file_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("envoy.yaml", &descriptors(3));
    write("ours.yaml", NATIVE);
    let fixture = DescriptorFixture::of(Policy::load(folder.path()).unwrap());
    let live = fixture.limiter.policy();
    let follower = PolicyFollower::start(&fixture.limiter, folder.path(), |_| {}).unwrap();
    let rule = |name: &str| live.get().rules.rule(name).is_some();
    assert!(rule("api") && rule("d.user") && rule("d.override"));
    fixture.check("user=a", "pass: ok 2 of 3/minute");

    write("envoy.yaml", &descriptors(5));
    follower.poke();
    let rate = || live.get().rules.config_dump().to_string();
    wait_for("new limit", || rate().contains("requests_per_unit=5"));
    fixture.check("user=a", "pass: ok 3 of 5/minute");

    write("envoy.yaml", "domain: d\ndescriptors:\n  - { key: user, rate_limit: { unit: eon } }\n");
    follower.poke();
    let state = || format!("{:?}", follower.rules_state());
    wait_for("error", || state().contains("the rate limit unit `eon`"));
    fixture.check("user=a", "pass: ok 2 of 5/minute");
    assert!(rule("api"));

    write("envoy.yaml", &descriptors(7));
    write("other.yaml", "domain: e\n");
    follower.poke();
    wait_for("recovery", || rate().contains("requests_per_unit=7"));
    fixture.check("e: user=a", "pass: ok 5 of 9/minute api");
    fixture.check("user=a", "pass: ok 3 of 7/minute");
}

#[test]
fn a_file_or_a_folder_with_descriptors_alone_suffices() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("envoy.yaml");
    fs::write(&file, descriptors(3)).unwrap();
    for path in [folder.path(), &file] {
        let fixture = DescriptorFixture::of(Policy::load(path).unwrap());
        fixture.check("user=a", "pass: ok 2 of 3/minute");
    }
}

#[test]
fn parse_options_of_domains_are_kept_for_reloads() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    write("a.yaml", &descriptors(3));
    write("b.yaml", "domain: d\ndescriptors: [{ key: other }]\n");
    assert!(Policy::load(folder.path()).is_err());
    let merging = ParseOptions { merge_domains: true, ..Capabilities::MEMORY.into() };
    let fixture = DescriptorFixture::of(Policy::load_for(folder.path(), merging).unwrap());
    let live = fixture.limiter.policy();
    let follower = PolicyFollower::start(&fixture.limiter, folder.path(), |_| {}).unwrap();
    write("a.yaml", &descriptors(5));
    follower.poke();
    let rate = || live.get().rules.config_dump().to_string();
    wait_for("new limit", || rate().contains("requests_per_unit=5"));
}
