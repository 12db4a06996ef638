//! A throttle alone is a small dependency: no YAML, no time zones, no HTTP, no runtime.

use std::collections::BTreeSet;
use std::process::Command;

/// Crates that are compiled for `tidegate` without features, itself included.
const MAX_CRATES: usize = 20;

#[test]
fn a_throttle_alone_compiles_at_most_twenty_crates() {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--package", "tidegate", "--edges", "normal,build"])
        .args(["--prefix", "none", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    let text = String::from_utf8(tree.stdout).expect("text");
    let crates: BTreeSet<&str> =
        text.lines().filter_map(|line| line.split(' ').next()).filter(|name| !name.is_empty()).collect();
    assert!(crates.contains("tidegate-core"), "{text}");
    assert!(crates.len() <= MAX_CRATES, "{}: {crates:?}", crates.len());
}
