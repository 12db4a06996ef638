//! Which room of the core may know which other: knowledge points one way.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms it may use.
const MAY_USE: [(&str, &[&str]); 12] = [
    ("units", &[]),
    ("sweep", &["units"]),
    ("siphash", &[]),
    ("subject", &["siphash"]),
    ("algorithms", &["units"]),
    ("request", &["units"]),
    ("described", &["units"]),
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
            "described",
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
            "described",
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

/// The rooms named in a file. Its tests may use any.
fn used(text: &str) -> BTreeSet<String> {
    let code = text.split("#[cfg(test)]").next().unwrap();
    // A macro is in no room.
    let rooms = code.split("crate::").skip(1).filter_map(|rest| {
        let room: String = rest.chars().take_while(char::is_ascii_lowercase).collect();
        let inside = rest[room.len()..].starts_with("::");
        (inside && !room.is_empty()).then_some(room)
    });
    rooms.collect()
}

#[test]
fn no_room_knows_one_that_stands_on_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut rooms = BTreeSet::new();
    for entry in fs::read_dir(&src).unwrap() {
        let path = entry.unwrap().path();
        let room = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if room == "lib" {
            continue;
        }
        let known = MAY_USE.iter().find(|(name, _)| *name == room);
        let (_, may_use) =
            known.unwrap_or_else(|| panic!("{room} is new; say here what it may use"));
        let mut within = Vec::new();
        files(&path, &mut within);
        rooms.insert(room.clone());
        within.retain(|file| file.extension().is_some_and(|end| end == "rs"));
        for file in within {
            for used in used(&fs::read_to_string(&file).unwrap()) {
                let fine = used == room || may_use.contains(&&*used);
                assert!(fine, "{} uses {used}", file.display());
            }
        }
    }
    assert_eq!(rooms.len(), MAY_USE.len());
}
