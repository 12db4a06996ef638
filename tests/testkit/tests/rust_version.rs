//! The oldest Rust that compiles the library: 1.85 without features, 1.90 with all that are public.
//!
//! Clippy (`incompatible_msrv`, in `make lint`) finds what is newer in the standard library. Checked here: what the
//! dependencies ask for, and the one newer construct of the language that edition 2024 has, `let` in a chain of
//! conditions, which is of Rust 1.88.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

type RustVersion = (u64, u64);

/// What is compiled without features, beside all of `tidegate-core`.
const DEFAULT_FILES: [&str; 7] =
    ["clock.rs", "counted_permits.rs", "lib.rs", "permit_set.rs", "quota.rs", "stores/memory", "throttle.rs"];

#[test]
fn no_dependency_needs_a_newer_rust() {
    let metadata = cargo(&["metadata", "--format-version", "1", "--locked"]);
    let metadata: serde_json::Value = serde_json::from_str(&metadata).expect("JSON");
    let packages = metadata["packages"].as_array().expect("a list of packages");
    for (features, oldest) in [("", (1, 85)), ("rules,live,http,tokio,redis,disk", (1, 90))] {
        let tree = ["tree", "--package", "tidegate", "--edges", "normal,build", "--prefix", "none", "--locked"];
        let tree = cargo(&[&tree[..], &["--features", features]].concat());
        let compiled: BTreeSet<(&str, &str)> = tree.lines().filter_map(name_and_version).collect();
        assert!(compiled.len() > 10, "{tree}");
        let newer = packages.iter().filter(|package| {
            let text = |field: &str| package[field].as_str().unwrap_or_default();
            compiled.contains(&(text("name"), text("version"))) && version(text("rust_version")) > oldest
        });
        let newer: Vec<String> =
            newer.map(|package| format!("{} {}", package["name"], package["rust_version"])).collect();
        assert!(newer.is_empty(), "newer than {oldest:?} with the features {features:?}: {newer:?}");
    }
}

#[test]
fn the_default_features_have_no_let_in_a_chain_of_conditions() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let library = root.join("crates/tidegate/src");
    let mut files = Vec::new();
    collect(&root.join("crates/core/src"), &mut files);
    for name in DEFAULT_FILES {
        collect(&library.join(name), &mut files);
    }
    assert!(files.len() > 50, "only {} files found", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a source file");
        assert!(!has_let_chain(&text), "{}: write two `if`, one in the other", file.display());
    }
}

#[test]
fn each_kind_of_chain_is_found() {
    for text in ["if a && let Some(b) = c {}", "if let Some(b) = c\n    && b {}", "while let A(b) = c && d {}"] {
        assert!(has_let_chain(text), "{text}");
    }
    for text in ["if let Some(b) = c.filter(|c| *c && d) {}", "// if let a && b {", "let a = b && c;"] {
        assert!(!has_let_chain(text), "{text}");
    }
}

fn has_let_chain(text: &str) -> bool {
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect();
    let code = code.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
    let conditions = ["if let ", "while let "].iter().flat_map(|start| code.split(start).skip(1));
    code.contains("&& let ") || conditions.map(condition).any(|condition| condition.contains("&&"))
}

/// The condition at the start of `code`, without what is in its parentheses.
fn condition(code: &str) -> String {
    let mut depth = 0_u32;
    let mut condition = String::new();
    for c in code.chars() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' if depth == 0 => break,
            _ if depth == 0 => condition.push(c),
            _ => {}
        }
    }
    condition
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("a folder") {
            collect(&entry.expect("an entry").path(), files);
        }
    } else {
        files.push(path.to_owned());
    }
}

fn cargo(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO")).args(arguments).current_dir(env!("CARGO_MANIFEST_DIR")).output();
    let output = output.expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The package of a line like `redis v1.8.1 (*)`.
fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

/// The first two parts of a version. Without one a package asks for nothing.
fn version(text: &str) -> RustVersion {
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
