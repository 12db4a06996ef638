//! The allowed dependencies between modules of the core: they point one way.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module and the modules it may use.
const ALLOWED_DEPENDENCIES: [(&str, &[&str]); 12] = [
    ("units", &[]),
    ("sweep", &["units"]),
    ("siphash", &[]),
    ("subject", &["siphash"]),
    ("algorithms", &["units"]),
    ("request", &["units"]),
    ("envoy", &["units"]),
    ("store", &["units", "sweep", "subject", "algorithms"]),
    ("invariants", &["units", "algorithms"]),
    (
        "rules",
        &[
            "units",
            "subject",
            "algorithms",
            "store",
            "request",
            "envoy",
        ],
    ),
    (
        "engine",
        &[
            "units",
            "subject",
            "algorithms",
            "store",
            "request",
            "envoy",
            "rules",
        ],
    ),
    ("event", &["engine", "request", "store"]),
];

fn files(path: &Path, found: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            files(&entry.unwrap().path(), found);
        }
    } else {
        found.push(path.to_owned());
    }
}

/// The modules named in a file. Its tests may use any.
fn used_modules(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    // A macro belongs to no module.
    let modules = code.split("crate::").skip(1).filter_map(|rest| {
        let module: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
        let is_path = rest[module.len()..].starts_with("::");
        (is_path && !module.is_empty()).then_some(module)
    });
    modules.collect()
}

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut modules = BTreeSet::new();
    for entry in fs::read_dir(&src).unwrap() {
        let path = entry.unwrap().path();
        let module = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if module == "lib" {
            continue;
        }
        let allowed = ALLOWED_DEPENDENCIES
            .iter()
            .find(|(name, _)| *name == module);
        let (_, allowed) =
            allowed.unwrap_or_else(|| panic!("`{module}` is new; add it to ALLOWED_DEPENDENCIES"));
        let mut sources = Vec::new();
        files(&path, &mut sources);
        modules.insert(module.clone());
        sources.retain(|file| file.extension().is_some_and(|end| end == "rs"));
        for file in sources {
            for used in used_modules(&fs::read_to_string(&file).unwrap()) {
                let is_allowed = used == module || allowed.contains(&&*used);
                assert!(is_allowed, "{} uses {used}", file.display());
            }
        }
    }
    assert_eq!(modules.len(), ALLOWED_DEPENDENCIES.len());
}
