//! Good and bad files, of rules and of descriptors, each beside its expected output.
//!
//! `UPDATE=1 cargo test -p tidegate-rules --test fixtures` rewrites the expected output.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_rules::{SourceFile, lint, parse};

fn fixtures(kind: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures");
    let files = fs::read_dir(folder.join(kind)).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "yaml"));
    files.sort();
    assert!(!files.is_empty());
    files
}

/// Compares `output` with the text beside `file`, or writes it there.
fn compare(file: &Path, output: &str, differences: &mut String) {
    let beside = file.with_extension("txt");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&beside, output).unwrap();
    }
    let wanted = fs::read_to_string(&beside).unwrap_or_default();
    if wanted != output {
        let name = file.file_name().unwrap().to_string_lossy();
        differences.push_str(&format!("{name}:\nwanted: {wanted}\nfound:  {output}\n"));
    }
}

#[test]
fn every_bad_file_is_rejected_word_for_word() {
    let mut differences = String::new();
    for file in [fixtures("rules/bad"), fixtures("descriptors/bad")].concat() {
        let text = fs::read_to_string(&file).unwrap();
        let source = SourceFile { name: "rules.yaml", text: &text };
        let output = match parse(&[source]) {
            Ok(_) => "nothing is wrong\n".to_owned(),
            Err(errors) => format!("{errors}\n"),
        };
        assert!(!output.contains("nothing is wrong"), "{}", file.display());
        let lines = output.lines().count();
        assert_eq!(lines, 1, "one error each: {} gives\n{output}", file.display());
        compare(&file, &output, &mut differences);
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_good_file_is_accepted_and_warned_about_word_for_word() {
    let mut differences = String::new();
    for file in fixtures("rules/good") {
        let text = fs::read_to_string(&file).unwrap();
        let source = SourceFile { name: "rules.yaml", text: &text };
        let set = parse(&[source]).unwrap_or_else(|errors| panic!("{}\n{errors}", file.display()));
        let warnings: String = lint(&set).iter().map(|warning| format!("{warning}\n")).collect();
        compare(&file, &warnings, &mut differences);
    }
    assert!(differences.is_empty(), "{differences}");
}

#[test]
fn every_good_file_of_descriptors_lists_its_limits_and_is_warned_about_word_for_word() {
    let mut differences = String::new();
    for file in fixtures("descriptors/good") {
        let text = fs::read_to_string(&file).unwrap();
        let source = SourceFile { name: "rules.yaml", text: &text };
        let set = parse(&[source]).unwrap_or_else(|errors| panic!("{}\n{errors}", file.display()));
        let warnings = lint(&set);
        let warnings = warnings.iter().map(|warning| format!("{warning}\n"));
        let listing = set.config_dump().to_string();
        let all: String = std::iter::once(listing).chain(warnings).collect();
        compare(&file, &all, &mut differences);
    }
    assert!(differences.is_empty(), "{differences}");
}
