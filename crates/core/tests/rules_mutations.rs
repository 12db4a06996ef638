//! Hostile rules files: mutations of good and bad ones.
//!
//! Whatever a file says, it is read or refused within 10 ms; and what is read once is read alike again.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

use tidegate_core::request::Request;
use tidegate_core::rules::{RuleSet, SourceFile, lint, parse};
use tidegate_core::units::Nanos;
use tidegate_mutations::{Attack, Numbers, inputs};

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
    b"0.5",
];
const NESTS: &[(&[u8], &[u8])] = &[
    (b"[", b"]"),
    (b"{a: ", b"}"),
    (b"- ", b""),
    (b"\n ", b""),
    (b"&a [*a, ", b"]"),
    (b"any: [", b"]"),
];

fn texts(folder: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = fs::read_dir(root.join(folder)).unwrap();
    let mut files: Vec<_> = folder.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    // The order of a folder is the file system's.
    files.sort();
    files.iter().map(|file| fs::read(file).unwrap()).collect()
}

/// Bad files as well: their faults lead where good ones never come.
fn corpus() -> Vec<Vec<u8>> {
    let good = [texts("tests/fixtures/rules/good"), texts("examples")].concat();
    let mut all = texts("tests/fixtures/rules/bad");
    all.extend(vec![good; 10].concat());
    all.retain(|text| text.len() < 2_000);
    all
}

fn read(text: &[u8]) -> Option<RuleSet> {
    let file = SourceFile {
        name: "rules.yaml",
        text: std::str::from_utf8(text).ok()?,
    };
    parse(&[file]).ok()
}

/// What is in force is the same each time, and can be asked.
fn holds(text: &[u8]) {
    let (set, again) = (read(text).unwrap(), read(text).unwrap());
    assert_eq!(format!("{:?}", set.rules()), format!("{:?}", again.rules()));
    assert_eq!(set.identity(), again.identity());
    let said = |set| format!("{:?}", lint(set));
    assert_eq!(said(&set), said(&again));
    let request = Request {
        ip: Some("203.0.113.9".parse().unwrap()),
        attributes: vec![("path".into(), "/api/v1".into())],
        ..Request::default()
    };
    assert_eq!(set.applying(&request), again.applying(&request));
    let now = Nanos::from_secs(1_800_000_000);
    let (told, told_again) = (set.explain(&request, now), again.explain(&request, now));
    assert_eq!(format!("{told:?}"), format!("{told_again:?}"));
}

#[test]
fn no_rules_file_panics_takes_long_or_is_read_in_two_ways() {
    let corpus = corpus();
    let good: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let attack = Attack {
        parser: "rules",
        seed: 0x7275_6c65,
        inputs: inputs::RULES,
        good: &good,
        tokens: TOKENS,
        nests: NESTS,
        numbers: Numbers::Digits,
        longest: 8_000,
    };
    let outcome = attack.run(|text| read(text).is_some(), holds);
    println!("{outcome:?}");
}
