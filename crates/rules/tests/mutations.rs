//! Hostile rules files: mutations of good and bad ones.
//!
//! Invariant: any file is parsed or rejected within 10 ms, and parsing it again gives the same result.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tidegate_core::units::Nanos;
use tidegate_fuzz_inputs::{FuzzTarget, NumberEncoding, inputs};
use tidegate_rules::request::Request;
use tidegate_rules::{Purpose, RuleSet, SourceFile, lint, parse};

const TOKENS: &[&[u8]] = &[
    b"\n",
    b"\n  - ",
    b"  ",
    b"\t",
    b": ",
    b", ",
    b"-",
    b"{",
    b"}",
    b"[",
    b"]",
    b"'",
    b"\"",
    b"#",
    b"&a ",
    b"*a",
    b"!!str ",
    b"---\n",
    b"|\n",
    b">-\n",
    b"?",
    b"<<: ",
    b"~",
    b"null",
    b"*",
    b"%",
    b"\0",
    b"\xc3\xa9",
    b"\xff",
    b"\xef\xbb\xbf",
    b"/",
    b"0.5",
];
const OF_RULES: &[&[u8]] = &[
    b"rate: ",
    b"by: ",
    b"burst ",
    b"/month",
    b"/s",
    b"match: ",
    b"tier",
    b"name: r",
    b"algorithm: ",
    b"overrides: ",
    b"99999999d",
    b"counting: leased ",
    b"priority: ",
    b"sheddable: 0.",
    b"soft: ",
    b"max_delay: ",
    b"concurrent: ",
];
const OF_DESCRIPTORS: &[&[u8]] = &[
    b"key: ",
    b"value: ",
    b"rate_limit: ",
    b"unit: ",
    b"requests_per_unit: ",
    b"descriptors:\n",
    b"unlimited: true",
    b"shadow_mode: true",
    b"replaces: ",
    b"domain: ",
    b"share_threshold: true",
];
const NESTS: &[(&[u8], &[u8])] = &[
    (b"[", b"]"),
    (b"{a: ", b"}"),
    (b"- ", b""),
    (b"\n ", b""),
    (b"&a [*a, ", b"]"),
    (b"any: [", b"]"),
    (b"descriptors: [{key: a, ", b"}]"),
];

fn texts(folder: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = fs::read_dir(root.join(folder)).unwrap();
    let mut files: Vec<_> = folder.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    // The file system determines the order of a folder.
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Bad files as well: their errors lead to code that good files never reach.
fn corpus(good: &[&str], bad: &str) -> Vec<Vec<u8>> {
    let good = good.iter().flat_map(|folder| texts(folder));
    let good: Vec<_> = good.collect();
    let mut all = texts(bad);
    all.extend(vec![good; 10].concat());
    all.retain(|text| text.len() < 2_000);
    all
}

fn read(text: &[u8]) -> Option<RuleSet> {
    let file = SourceFile { name: "rules.yaml", text: std::str::from_utf8(text).ok()? };
    parse(&[file]).ok()
}

/// The parsed rules are the same each time, and can be queried.
fn assert_parses_alike(text: &[u8]) {
    let (set, again) = (read(text).unwrap(), read(text).unwrap());
    assert_eq!(format!("{:?}", set.rules()), format!("{:?}", again.rules()));
    assert_eq!(set.identity(), again.identity());
    let warnings = |set| format!("{:?}", lint(set));
    assert_eq!(warnings(&set), warnings(&again));
    let request = Request {
        ip: Some("203.0.113.9".parse().unwrap()),
        attributes: vec![("path".into(), "/api/v1".into())],
        ..Request::default()
    };
    assert_eq!(set.applicable_rules(&request, Purpose::Check), again.applicable_rules(&request, Purpose::Check));
    let now = Nanos::from_secs(1_800_000_000);
    let (explained, explained_again) = (set.explain(&request, now), again.explain(&request, now));
    assert_eq!(format!("{explained:?}"), format!("{explained_again:?}"));
    let listing = |set: &RuleSet| set.config_dump().to_string();
    assert_eq!(listing(&set), listing(&again));
}

fn attack(parser: &str, inputs: u32, corpus: &[Vec<u8>], tokens: &[&[u8]]) {
    let good: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let tokens = [TOKENS, tokens].concat();
    let attack = FuzzTarget {
        parser,
        seed: 0x7275_6c65,
        inputs,
        corpus: &good,
        tokens: &tokens,
        delimiters: NESTS,
        numbers: NumberEncoding::Digits,
        max_len: 8_000,
    };
    let outcome = attack.run(|text| read(text).is_some(), assert_parses_alike);
    eprintln!("{parser}: {outcome:?}");
}

#[test]
fn no_rules_file_panics_takes_long_or_parses_in_two_ways() {
    let good = ["tests/fixtures/rules/good", "examples"];
    let corpus = corpus(&good, "tests/fixtures/rules/bad");
    attack("rules", inputs::RULES, &corpus, OF_RULES);
}

#[test]
fn no_descriptor_file_panics_takes_long_or_parses_in_two_ways() {
    let good = ["tests/fixtures/descriptors/good"];
    let corpus = corpus(&good, "tests/fixtures/descriptors/bad");
    attack("descriptors", inputs::DESCRIPTORS, &corpus, OF_DESCRIPTORS);
}
