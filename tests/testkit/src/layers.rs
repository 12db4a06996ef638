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

/// The modules below `parent` that a file names, its unit tests left out.
fn used_modules(text: &str, parent: &str) -> BTreeSet<String> {
    const TESTS: &str = "#[cfg(test)]\nmod ";
    // The unit tests are the end of a file. Tests in a file of their own are only declared.
    let is_inline = |at: &usize| text[*at + TESTS.len()..].lines().next().is_some_and(|line| line.ends_with('{'));
    let end = text.match_indices(TESTS).map(|(at, _)| at).find(is_inline);
    let code = &text[..end.unwrap_or(text.len())];
    let lines: Vec<&str> = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = lines.join("\n");
    code.split(parent).skip(1).flat_map(modules_named).collect()
}

/// The modules that the rest of a path begins with: one, or several in braces.
fn modules_named(rest: &str) -> Vec<String> {
    let Some(group) = rest.strip_prefix('{') else { return first_module(rest).into_iter().collect() };
    let (mut depth, mut modules, mut begins) = (1, Vec::new(), true);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 1 => break,
            '}' => depth -= 1,
            ',' if depth == 1 => begins = true,
            _ if begins && !c.is_whitespace() => {
                modules.extend(first_module(&group[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    modules
}

/// The module that a path begins with, if that is what its first word names. A macro is in no module.
fn first_module(path: &str) -> Option<String> {
    let end = path.find(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '_').unwrap_or(path.len());
    let (module, rest) = path.split_at(end);
    (!module.is_empty() && rest.starts_with([':', ';', ' ', ',', '}'])).then(|| module.to_owned())
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
        write("below.rs", "use crate::{\n    below::{B, C},\n    above::A,\n};");
        let found = violations(folder.path(), &allowed);
        assert!(found.len() == 1 && found[0].ends_with("below.rs uses `above`"), "{found:?}");
        write("beside.rs", "");
        let found = violations(folder.path(), &allowed);
        assert!(found.contains(&"module `beside` is not listed".to_owned()), "{found:?}");
    }
}
