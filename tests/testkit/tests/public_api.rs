//! The public API of the library is the list in `crates/tidegate/public-api.txt`, which is read off the pages that
//! rustdoc writes. A change of the API changes the list, and so is seen.
//!
//!     PUBLIC_API=write cargo test -p tidegate-testkit --test public_api

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIST: &str = "crates/tidegate/public-api.txt";

/// Types, traits, functions, constants and methods. Variants and fields are listed and not counted.
const MAX_ITEMS: usize = 250;

#[test]
fn the_public_api_is_as_listed_and_small() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (listed, items) = listing(&documented(&root));
    if std::env::var_os("PUBLIC_API").is_some_and(|value| value == "write") {
        fs::write(root.join(LIST), &listed).expect("the list can be written");
    }
    let recorded = fs::read_to_string(root.join(LIST)).unwrap_or_default();
    let added =
        listed.lines().filter(|line| !recorded.lines().any(|known| known == *line)).map(|line| format!("+ {line}"));
    let gone =
        recorded.lines().filter(|line| !listed.lines().any(|known| known == *line)).map(|line| format!("- {line}"));
    let changes: Vec<String> = added.chain(gone).collect();
    assert!(
        listed == recorded,
        "the public API has changed; if this is meant, run with PUBLIC_API=write:\n{}",
        changes.join("\n")
    );
    assert!(items < MAX_ITEMS, "{items} public items");
}

/// Documents the library with the features that docs.rs shows. Returns the folder of its pages.
fn documented(root: &Path) -> PathBuf {
    let manifest = fs::read_to_string(root.join("crates/tidegate/Cargo.toml")).expect("a manifest");
    let (_, of_docs) = manifest.split_once("[package.metadata.docs.rs]").expect("metadata of docs.rs");
    let (_, features) = of_docs.split_once("features = [").expect("features");
    let (features, _) = features.split_once(']').expect("the end of a list");
    let target = root.join("target");
    let status = Command::new(env!("CARGO"))
        .args(["doc", "--package", "tidegate", "--no-deps", "--locked", "--quiet", "--features"])
        .arg(features.replace(['"', ' '], ""))
        // Pages of their own: those with all features are in the usual place. What is compiled for them is shared.
        .env("CARGO_BUILD_BUILD_DIR", &target)
        .env("CARGO_TARGET_DIR", target.join("public-api"))
        .env_remove("RUSTDOCFLAGS")
        .current_dir(root)
        .status()
        .expect("cargo runs");
    assert!(status.success(), "the library cannot be documented");
    target.join("public-api/doc/tidegate")
}

/// Every public item with its members, one per line, and the number of items and methods.
fn listing(pages: &Path) -> (String, usize) {
    let index = fs::read_to_string(pages.join("all.html")).expect("the index of all items");
    let mut items: Vec<&str> = index
        .split("<li><a href=\"")
        .skip(1)
        .filter_map(|link| link.split_once(".html\"").map(|(page, _)| page))
        .filter(|page| !page.starts_with('.'))
        .collect();
    items.sort_unstable();
    let (mut text, mut count) = (String::new(), 0);
    for item in items {
        let (module, name) = item.rsplit_once('/').map_or(("", item), |(module, name)| (module, name));
        let (kind, name) = name.split_once('.').expect("pages are KIND.NAME");
        let path = if module.is_empty() { name.to_owned() } else { format!("{}::{name}", module.replace('/', "::")) };
        let _ = writeln!(text, "{kind} {path}");
        count += 1;
        let page = fs::read_to_string(pages.join(format!("{item}.html"))).expect("a page of an item");
        for (kind, member) in members(&page) {
            let _ = writeln!(text, "    {kind} {member}");
            count += usize::from(matches!(kind, "method" | "tymethod" | "associatedconstant"));
        }
    }
    (text, count)
}

/// The members of an item without those of its traits: methods, constants, variants and fields.
fn members(page: &str) -> Vec<(&str, &str)> {
    let foreign = ["trait-implementations", "synthetic-implementations", "blanket-implementations", "implementors"];
    let ends = foreign.iter().chain(&["foreign-impls"]).filter_map(|id| page.find(&format!("id=\"{id}\"")));
    let own = &page[..ends.min().unwrap_or(page.len())];
    let ids = own.split("id=\"").skip(1).filter_map(|rest| rest.split_once('"').map(|(id, _)| id));
    // A variant with fields has a heading for them, too.
    let members = ids.filter_map(|id| id.split_once('.')).filter(|(_, name)| !name.ends_with(".fields"));
    let kinds = ["method", "tymethod", "associatedconstant", "associatedtype", "variant", "structfield"];
    let mut members: Vec<_> = members.filter(|(kind, _)| kinds.contains(kind)).collect();
    members.sort_unstable();
    members
}
