//! Several files, of one kind or both, read together.

use std::fmt::Write;

use super::{lookup, read, set, tree};
use crate::language::descriptors::tree::DescriptorLookup;
use crate::language::{DescriptorConfig, DomainConfig, LimitConfig, SourceFile, SourceLocation, parse_with_domains};
use tidegate_core::rule_options::Capabilities;

#[test]
fn domains_of_several_files_merge_only_with_merge_domains() {
    let (a, b) = (tree("k !\nl=a* !\n"), tree("m !\nl=*b !\n"));
    let rejected = read(&[&a, &b], false).unwrap_err();
    let words = "b.yaml:1: has the domain `d`, which is in a.yaml:1 too; keep it in one file, or \
                 merge domains (`--merge-domains`)";
    assert_eq!(rejected, words);

    let merged = read(&[&a, &b], true).unwrap();
    assert_eq!(merged.domains().collect::<Vec<_>>(), ["d"]);
    let path = |words: &str| match lookup(&merged, words) {
        DescriptorLookup::Limit(hit) => hit.limit.path.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(path("m=1"), "d.m");
    assert_eq!(path("l=ab"), "d.l_a*", "files in order");

    let twice = read(&[&a, &tree("k !\n")], true).unwrap_err();
    let words = "b.yaml:3: has the composite key `k` twice below `d`, the first at a.yaml:3; keep one";
    assert_eq!(twice, words);

    // Only top levels merge: a node below an existing one is not added to it.
    let deeper = read(&[&tree("k ...\n x !\n"), &tree("k ...\n y !\n")], true).unwrap_err();
    assert_eq!(deeper, words);
}

#[test]
fn both_kinds_of_files_are_read_together_and_their_names_may_not_collide() {
    let native = "version: 1\nrules:\n  - { name: d.k, by: ip, rate: 1/s }\n";
    let other = "version: 1\nrules:\n  - { name: api, by: ip, rate: 1/s }\n";
    let descriptors = tree("k !\n");
    let set = read(&[&descriptors, other], false).unwrap();
    let names: Vec<_> = set.rules().iter().map(|rule| rule.name().as_str()).collect();
    assert_eq!(names, ["api", "d.k", "d.override"]);
    assert_eq!(set.position("d.k"), Some(1));

    let rejected = read(&[&descriptors, native], false).unwrap_err();
    let words = "a.yaml:3: has a descriptor whose limit has the same name as the rule `d.k` at b.yaml:3; rename \
                 that rule";
    assert_eq!(rejected, words);
}

/// Two nodes whose paths read the same are two limits, as in the reference service.
#[test]
fn paths_may_read_the_same() {
    let set = set(&tree("a ...\n b !\na.b !\noverride !\n"));
    assert_eq!(set.rules().len(), 4);
    assert_eq!(set.position("d.a.b"), Some(0));
    assert!(matches!(lookup(&set, "a=1 b=1"), DescriptorLookup::Limit(_)));
    assert!(matches!(lookup(&set, "a.b=1"), DescriptorLookup::Limit(_)));
}

#[test]
fn every_error_of_every_file_is_reported() {
    let errors = read(
        &[
            "domain: ''\ndescriptors:\n  - key: ''\n    rate_limit: {}\n    foo: 1\n",
            "version: 1\nrules: [{ name: a }]\n",
            "domain: d\ndescriptors: [{ key: a }, { key: a }]\n",
        ],
        false,
    );
    let errors = errors.unwrap_err();
    let locations: Vec<&str> = errors.lines().map(|line| &line[..8]).collect();
    let want = ["a.yaml:1", "a.yaml:3", "a.yaml:4", "a.yaml:5", "b.yaml:2", "c.yaml:2"];
    assert_eq!(locations, want, "{errors}");
}

/// A domain of a source that is not a file.
fn domain_config(resource: &str, domain: &str, unit: &str) -> DomainConfig {
    DomainConfig {
        location: SourceLocation { file: resource.into(), line: 0 },
        domain: domain.to_owned(),
        descriptors: vec![DescriptorConfig {
            key: "k".to_owned(),
            limit: Some(LimitConfig { requests_per_unit: 5, unit: unit.to_owned(), ..LimitConfig::default() }),
            ..DescriptorConfig::default()
        }],
    }
}

#[test]
fn domains_of_an_external_source_go_through_the_same_checks() {
    let nothing = parse_with_domains(&[], &[], Capabilities::MEMORY).unwrap();
    assert_eq!(nothing.domains().len(), 0);

    let two = [domain_config("one", "d", "MINUTE"), domain_config("two", "e", "day")];
    let file = SourceFile { name: "rules.yaml", text: "version: 1\nrules: []\n" };
    let set = parse_with_domains(&[file], &two, Capabilities::MEMORY).unwrap();
    assert_eq!(set.domains().collect::<Vec<_>>(), ["d", "e"]);
    assert!(matches!(lookup(&set, "k=1"), DescriptorLookup::Limit(_)));

    let bad =
        [domain_config("one", "d", "UNKNOWN"), domain_config("two", "d", "day"), domain_config("three", "", "day")];
    let errors = parse_with_domains(&[], &bad, Capabilities::MEMORY).unwrap_err().to_string();
    let mut reported: Vec<&str> = errors.lines().map(|line| line.split_once(':').unwrap().0).collect();
    reported.sort_unstable();
    assert_eq!(reported, ["one", "three", "two"], "{errors}");
}

/// Depth that the parser cannot see: each anchor contains the one before it.
#[test]
fn aliases_cannot_exceed_the_maximum_depth_of_a_tree() {
    let mut nodes = "domain: d\ndescriptors:\n  - &n0 { key: k0 }\n".to_owned();
    let mut metadata = "domain: d\ndescriptors:\n  - key: k\n    metadata:\n      a0: &n0 {}\n".to_owned();
    for (below, n) in (1..1_000).enumerate() {
        writeln!(nodes, "  - &n{n} {{ key: k{n}, descriptors: [*n{below}] }}").unwrap();
        writeln!(metadata, "      a{n}: &n{n} [*n{below}]").unwrap();
    }
    let errors = read(&[&nodes], false).unwrap_err();
    assert!(errors.contains("13 deep; write at most 12 levels"), "{errors}");
    let errors = read(&[&metadata], false).unwrap_err();
    assert!(errors.contains("metadata that responses cannot carry"), "{errors}");
}
