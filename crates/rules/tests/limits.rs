//! Files that are too long, too deep, too many or truncated are rejected, with little work and a clear text.
#![allow(clippy::unwrap_used)]

use tidegate_fuzz_inputs::work_units;
use tidegate_rules::{MAX_FILE_BYTES, RuleSet, SourceFile, parse};

fn read(text: &str) -> Result<RuleSet, String> {
    let file = SourceFile { name: "rules.yaml", text };
    parse(&[file]).map_err(|errors| errors.to_string())
}

/// The maximum work for a file of 16 MiB, which is a thousand times as long as the text of a work unit. A quadratic
/// parser needs a thousand times more.
const MAX_WORK_UNITS: f64 = 20_000.0;

#[track_caller]
fn check_rejected(text: &str, words: &str) {
    let error = read(text).unwrap_err();
    assert!(error.contains(words), "{error}");
    let work = work_units(|| _ = read(text));
    assert!(work < MAX_WORK_UNITS, "{work} work units");
}

#[test]
fn a_file_above_16_mib_is_rejected_before_it_is_parsed() {
    let text = "#".repeat(MAX_FILE_BYTES + 1);
    check_rejected(&text, "rules.yaml: is longer than the maximum of 16 MiB; split the file");
}

#[test]
fn very_many_values_are_rejected() {
    let text = format!("version: 1\nrules: [{}]", "1,".repeat(5_000_000));
    check_rejected(&text, "more than 4000000 values");
}

#[test]
fn very_deep_nesting_is_rejected() {
    check_rejected(&"[".repeat(1_000_000), "nested more than 32 levels");
    check_rejected(&"- ".repeat(1_000_000), "nested more than 32 levels");
    check_rejected(&"{a: ".repeat(1_000_000), "nested more than 32 levels");
}

#[test]
fn aliases_of_large_mappings_are_rejected() {
    let many: String = (0..20_000).map(|i| format!("s{i}: 1/s, ")).collect();
    let uses: String =
        (0..20_000).map(|i| format!("- {{ name: r{i}, by: ip, rate: 1/s, overrides: *all }}\n")).collect();
    let text = format!("version: 1\nx: &all {{ {many} }}\nrules:\n{uses}");
    check_rejected(&text, "aliases expand to more than");
}

#[test]
fn a_million_errors_are_counted_and_not_listed() {
    let text = format!("version: 1\nrules:\n{}", "- {}\n".repeat(200_000));
    check_rejected(&text, "more errors");
}

#[test]
fn all_errors_of_all_files_are_reported_at_once() {
    let files = [
        SourceFile {
            name: "b.yaml",
            text: "version: 1\ntiers: [free]\nrules:\n  - { name: x, by: ip, rate: 0/s, colour: red, mode: on }\n  - { name: y, rate: 5/s }",
        },
        SourceFile {
            name: "a.yaml",
            text: "version: 1\ntiers: [pro]\nrules:\n  - { name: x, by: ip, rate: 1/s }\n  - 5",
        },
        SourceFile { name: "c.yaml", text: "version: [" },
    ];
    let errors = parse(&files).unwrap_err();
    let locations: Vec<String> = errors.iter().map(|error| error.location.to_string()).collect();
    let want = ["b.yaml:4", "b.yaml:4", "b.yaml:4", "b.yaml:5", "a.yaml:2", "a.yaml:4", "a.yaml:5", "c.yaml:1"];
    assert_eq!(locations, want, "{errors}");
    assert_eq!(errors.count(), 8);
}

#[test]
fn a_file_cut_anywhere_is_rejected_or_parsed_without_a_panic() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/rules/good");
    let text = std::fs::read_to_string(format!("{folder}/shop.yaml")).unwrap();
    for end in (0..text.len()).filter(|end| text.is_char_boundary(*end)) {
        // A parsed file was complete up to a whole rule; a file cut within a rule mostly does not parse.
        let _ = read(&text[..end]);
    }
    assert!(read(&text[..0]).is_err());
    assert!(read("version: 1\n").is_err());
    assert!(read("version: 1\nrules:\n").is_err());
}
