//! Checks which module of a crate may use which other: knowledge points one way.
//!
//! A crate lists its top-level modules, each with those it may use. Modules that are not listed, and uses that are not
//! allowed, fail. Unit tests may use anything.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A top-level module, and the ones it may use.
pub type AllowedUses<'a> = (&'a str, &'a [&'a str]);

/// Every violation in the sources of a crate below `src`.
///
/// # Panics
/// When `src` cannot be read.
#[must_use]
pub fn violations(src: &Path, allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    violations_inside(src, "crate::", allowed_uses)
}

/// Every violation among the modules in `folder`, whose paths begin with `parent`.
///
/// # Panics
/// When `folder` cannot be read.
#[must_use]
pub fn violations_inside(folder: &Path, parent: &str, allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    let mut violations = Vec::new();
    let mut listed: BTreeSet<&str> = allowed_uses.iter().map(|(module, _)| *module).collect();
    for path in entries(folder) {
        let module = path.file_stem().and_then(|name| name.to_str());
        let module = module.expect("a module has a name").to_owned();
        let is_root = ["lib", "main", "mod"].contains(&module.as_str());
        if is_root || path.is_file() && !is_rust(&path) {
            continue;
        }
        let Some((listed_as, allowed)) = allowed_uses.iter().find(|(name, _)| *name == module) else {
            violations.push(format!("module `{module}` is not listed"));
            continue;
        };
        listed.remove(listed_as);
        let mut files = Vec::new();
        collect_rust_files(&path, &mut files);
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file");
            let forbidden = used_modules(&text, parent)
                .into_iter()
                .filter(|used| *used != module && !allowed.contains(&used.as_str()));
            violations.extend(forbidden.map(|used| format!("{} uses `{used}`", file.display())));
        }
    }
    violations.extend(listed.iter().map(|module| format!("module `{module}` is listed and does not exist")));
    violations
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn is_rust(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "rs")
}

fn collect_rust_files(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_dir() {
        for entry in entries(path) {
            collect_rust_files(&entry, files);
        }
    } else if is_rust(path) && !path.ends_with("tests.rs") {
        files.push(path.to_owned());
    }
}

/// The modules below `parent` that a file names, its unit tests left out. A macro is in no module.
fn used_modules(text: &str, parent: &str) -> BTreeSet<String> {
    const TESTS: &str = "#[cfg(test)]\nmod ";
    // The unit tests are the end of a file. Tests in a file of their own are only declared.
    let is_inline = |at: &usize| text[*at + TESTS.len()..].lines().next().is_some_and(|line| line.ends_with('{'));
    let end = text.match_indices(TESTS).map(|(at, _)| at).find(is_inline);
    let code = &text[..end.unwrap_or(text.len())];
    let lines = code.lines().filter(|line| !line.trim_start().starts_with("//"));
    let uses = lines.flat_map(|line| line.split(parent).skip(1));
    uses.filter_map(|rest| {
        let is_word = |c: &char| c.is_ascii_lowercase() || *c == '_';
        let module: String = rest.chars().take_while(is_word).collect();
        let is_path = rest[module.len()..].starts_with([':', ';', ' ']);
        (is_path && !module.is_empty()).then_some(module)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_that_is_not_allowed_is_found_and_one_in_a_comment_or_test_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
        write("lib.rs", "mod above; mod below;");
        write("above.rs", "use crate::below::A;");
        write("below.rs", "// crate::above::B\n#[cfg(test)]\nmod tests {\n    use crate::above::B;\n}");
        let allowed: [AllowedUses<'_>; 2] = [("above", &["below"]), ("below", &[])];
        assert_eq!(violations(folder.path(), &allowed), Vec::<String>::new());
        write("below.rs", "use crate::above::B;");
        let found = violations(folder.path(), &allowed);
        assert!(found.len() == 1 && found[0].ends_with("below.rs uses `above`"), "{found:?}");
        write("beside.rs", "");
        let found = violations(folder.path(), &allowed);
        assert!(found.contains(&"module `beside` is not listed".to_owned()), "{found:?}");
    }
}
