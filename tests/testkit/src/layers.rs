//! Checks which module of a crate may use which other, and which paths of other crates: knowledge points one way.
//!
//! A crate lists its top-level modules, each with those it may use. Modules that are not listed and uses that are not
//! allowed are violations, and so is what would hide a use: a whole parent module, a name that the parent re-exports,
//! and a re-export through which a module reaches one that it may not use. Unit tests may use anything.

mod paths;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use self::paths::{UsedPath, read_paths};

/// A top-level module, and the ones it may use.
pub type AllowedUses<'a> = (&'a str, &'a [&'a str]);

/// A module, and paths of other crates that it must not use: `tidegate::stores`.
pub type ForbiddenUses<'a> = (&'a str, &'a [&'a str]);

/// A source file below a checked folder: the module of that folder that it belongs to, and the paths that it uses.
struct ModuleFile {
    path: PathBuf,
    part: String,
    uses: Vec<UsedPath>,
}

/// Every violation in the sources of a crate below `src`.
///
/// # Panics
/// When `src` cannot be read.
#[must_use]
pub fn violations(src: &Path, allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    check_uses(src, &[], &[], allowed_uses)
}

/// Every violation among the modules inside the top-level module `module`.
///
/// # Panics
/// When `src` cannot be read.
#[must_use]
pub fn violations_inside(src: &Path, module: &str, allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    check_uses(src, &[module], &[module], allowed_uses)
}

/// Every top-level module that a module inside `module` uses and may not.
///
/// # Panics
/// When `src` cannot be read.
#[must_use]
pub fn violations_from_inside(src: &Path, module: &str, allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    check_uses(src, &[module], &[], allowed_uses)
}

/// Every use of a forbidden path of another crate, also of a parent of that path as a whole.
///
/// # Panics
/// When `src` cannot be read.
#[must_use]
pub fn forbidden_uses(src: &Path, forbidden_uses: &[ForbiddenUses<'_>]) -> Vec<String> {
    let mut violations = Vec::new();
    for file in source_files(src, &[]) {
        let of_part = forbidden_uses.iter().filter(|(module, _)| *module == file.part);
        for forbidden in of_part.flat_map(|(_, paths)| *paths) {
            let parts: Vec<&str> = forbidden.split("::").collect();
            let hits = file.uses.iter().filter(|used| !used.is_local && used.reaches(&parts));
            violations.extend(hits.map(|used| format!("{} uses `{}`", file.path.display(), used.text())));
        }
    }
    violations
}

/// Checks the modules in the folder of the module `inside`: which children of the module `parent` they use.
fn check_uses(src: &Path, inside: &[&str], parent: &[&str], allowed_uses: &[AllowedUses<'_>]) -> Vec<String> {
    let files = source_files(src, inside);
    let listed: BTreeSet<&str> = allowed_uses.iter().map(|(module, _)| *module).collect();
    let parts: BTreeSet<&str> = files.iter().map(|file| file.part.as_str()).collect();
    let mut violations: Vec<String> =
        parts.difference(&listed).map(|module| format!("module `{module}` is not listed")).collect();
    violations
        .extend(listed.difference(&parts).map(|module| format!("module `{module}` is listed and does not exist")));
    let may_use = |user: &str, used: &str| {
        let allowed = allowed_uses.iter().find(|(module, _)| *module == user).map(|(_, allowed)| *allowed);
        user == used && inside == parent || allowed.is_none_or(|allowed| allowed.contains(&used))
    };
    let root_macros = root_macros(src);
    for file in &files {
        let place = file.path.display();
        for used in file.uses.iter().filter(|used| used.is_local) {
            let found = match used.child_of(parent) {
                Child::Whole => Some(format!("{place} uses `{}` as a whole", used.text())),
                Child::None => None,
                Child::Named(name) if used.is_macro && root_macros.contains(name) => None,
                Child::Named(name) if !may_use(&file.part, name) => Some(format!("{place} uses `{name}`")),
                Child::Named(name) if used.is_public => {
                    let misused = |(user, allowed): &&AllowedUses<'_>| {
                        allowed.contains(&file.part.as_str()) && !may_use(user, name)
                    };
                    let user = allowed_uses.iter().find(misused).filter(|_| name != file.part);
                    user.map(|(user, _)| format!("{place} re-exports `{name}` to `{user}`"))
                }
                Child::Named(_) => None,
            };
            violations.extend(found);
        }
    }
    violations
}

/// What a path has of a parent module.
enum Child<'a> {
    /// Nothing: it leads elsewhere.
    None,
    /// The parent itself, or everything in it.
    Whole,
    Named(&'a str),
}

impl UsedPath {
    fn child_of(&self, parent: &[&str]) -> Child<'_> {
        let parts = &self.parts;
        let common = parts.iter().zip(parent).take_while(|(one, other)| one == other).count();
        match parts.get(parent.len()) {
            Some(name) if common == parent.len() && name != "*" => Child::Named(name),
            _ if common == parts.len().min(parent.len()) => Child::Whole,
            _ if parts.get(common).is_some_and(|part| part == "*") => Child::Whole,
            _ => Child::None,
        }
    }

    /// Whether this is the path of `forbidden`, of something in it, or of a parent as a whole.
    fn reaches(&self, forbidden: &[&str]) -> bool {
        let common = self.parts.iter().zip(forbidden).take_while(|(one, other)| one == other).count();
        let rest = &self.parts[common..];
        common > 0 && (common == forbidden.len() || rest.is_empty() || rest[0] == "*")
    }

    fn text(&self) -> String {
        let root = if self.is_local { "crate::" } else { "" };
        let text = format!("{root}{}", self.parts.join("::"));
        text.trim_end_matches("::").to_owned()
    }
}

/// The macros that the root of a crate defines. They know no module.
fn root_macros(src: &Path) -> BTreeSet<String> {
    let roots = ["lib.rs", "main.rs"].map(|name| fs::read_to_string(src.join(name)).unwrap_or_default());
    let names = roots.iter().flat_map(|text| text.split("macro_rules! ").skip(1));
    names.filter_map(|rest| Some(rest.split_once([' ', '{'])?.0.to_owned())).collect()
}

/// The files of the modules in the folder of the module `inside`, without those that are only compiled for tests.
fn source_files(src: &Path, inside: &[&str]) -> Vec<ModuleFile> {
    let folder = inside.iter().fold(src.to_owned(), |folder, module| folder.join(module));
    let mut paths = Vec::new();
    collect_rust_files(&folder, &mut paths);
    let (mut files, mut tests) = (Vec::new(), BTreeSet::new());
    for path in paths {
        let module = module_of(path.strip_prefix(src).expect("a file below `src`"));
        let text = fs::read_to_string(&path).expect("a source file");
        let read = read_paths(&text, &module);
        tests.extend(read.test_modules);
        files.push((path, module, read.uses));
    }
    files.retain(|(_, module, _)| !(1..=module.len()).any(|length| tests.contains(&module[..length])));
    files
        .into_iter()
        .filter_map(|(path, module, uses)| {
            let part = module.get(inside.len())?.clone();
            Some(ModuleFile { path, part, uses })
        })
        .collect()
}

fn collect_rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            collect_rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// The module of a file: `edges/http/mod.rs` is `edges::http`, and `lib.rs` the root.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut module: Vec<String> = path.iter().map(|part| part.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") || module.len() == 1 && ["lib", "main"].contains(&&*module[0]) {
        module.pop();
    }
    module
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: [AllowedUses<'_>; 3] = [("above", &["below"]), ("below", &[]), ("edges", &["above"])];
    const ALLOWED_OF_EDGES: [AllowedUses<'_>; 2] = [("http", &[]), ("resp", &[])];

    /// The violations of a crate in which one file has this text. `above` may use `below`, `edges` may use `above`, and
    /// edges may not use each other.
    fn found(name: &str, text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let src = folder.path();
        let files = ["lib.rs", "above.rs", "below.rs", "edges/mod.rs", "edges/http/mod.rs", "edges/http/serve.rs"];
        for file in files.into_iter().chain(["edges/resp.rs"]) {
            fs::create_dir_all(src.join(file).parent().expect("a folder")).expect("a folder");
            fs::write(src.join(file), if file == "lib.rs" { "macro_rules! plain { }" } else { "" }).expect("a file");
        }
        fs::write(src.join(name), text).expect("a file");
        let forbidden: [ForbiddenUses<'_>; 1] = [("edges", &["tidegate::stores"])];
        let mut found = violations(src, &ALLOWED);
        found.extend(violations_inside(src, "edges", &ALLOWED_OF_EDGES));
        found.extend(forbidden_uses(src, &forbidden));
        found
    }

    #[track_caller]
    fn check_allowed(name: &str, text: &str) {
        assert_eq!(found(name, text), Vec::<String>::new(), "{text}");
    }

    #[track_caller]
    fn check_found(name: &str, text: &str, want: &str) {
        let found = found(name, text);
        assert!(!found.is_empty() && found.iter().all(|violation| violation.ends_with(want)), "{text}: {found:?}");
    }

    #[test]
    fn a_use_that_is_not_allowed_is_found() {
        check_found("below.rs", "use crate::above::A;", "uses `above`");
        check_found("below.rs", "use crate::{\n    below::{B, C},\n    above::A,\n};", "uses `above`");
        check_found("below.rs", "fn f() -> crate::above::A { todo!() }", "uses `above`");
        check_found("edges/resp.rs", "use crate::edges::http::serve::X;", "uses `http`");
        check_found("beside.rs", "", "module `beside` is not listed");
    }

    /// Each of these was once no violation.
    #[test]
    fn a_use_in_another_spelling_is_found() {
        const SERVE: &str = "edges/http/serve.rs";
        check_found(SERVE, "use crate::{edges::resp::serve::X, above::Y};", "uses `resp`");
        check_found(SERVE, "use crate::{above, edges::{self as e}};", "uses `crate::edges` as a whole");
        check_found(SERVE, "use crate::edges;\nfn f() { edges::resp::f() }", "uses `crate::edges` as a whole");
        check_found(SERVE, "use crate::edges::*;", "uses `crate::edges::*` as a whole");
        check_found(SERVE, "use super::super::resp::serve::X;", "uses `resp`");
        check_found(SERVE, "mod inner { use super::super::super::resp::X; }", "uses `resp`");
        check_found(SERVE, "use super::super::super::below::Store;", "uses `below`");
        check_found(SERVE, "use self::super::super::resp::X;", "uses `resp`");
        check_found(SERVE, "use crate as root;\nuse root::below::Store;", "uses `crate` as a whole");
        check_found(SERVE, "use super::super::super as root;", "uses `crate` as a whole");
        check_found(SERVE, "use crate::edges::RespListener;", "uses `RespListener`");
        check_found("above.rs", "use crate::Limiter;", "uses `Limiter`");
        check_found("above.rs", "crate::other! { }", "uses `other`");
        check_found(
            "below.rs",
            "#[cfg(test)]\nmod tests {\n    use crate::above::A;\n}\nuse crate::above::B;",
            "uses `above`",
        );
        check_found(
            "below.rs",
            "#[cfg(test)]\nmod tests;\n#[cfg(test)]\nuse std::fs;\nuse crate::above::B;",
            "uses `above`",
        );
        check_found("above.rs", "pub(crate) use crate::below::Store;", "re-exports `below` to `edges`");
    }

    #[test]
    fn a_forbidden_path_of_another_crate_is_found() {
        const SERVE: &str = "edges/http/serve.rs";
        check_found(SERVE, "use tidegate::stores::redis::Redis;", "uses `tidegate::stores::redis::Redis`");
        check_found(SERVE, "use tidegate::{Cost, stores::Redis};", "uses `tidegate::stores::Redis`");
        check_found(SERVE, "fn f(store: &::tidegate::stores::Redis) {}", "uses `tidegate::stores::Redis`");
        check_found(SERVE, "use tidegate as t;\nuse t::stores::Redis;", "uses `tidegate`");
        check_found(SERVE, "use tidegate::*;", "uses `tidegate::*`");
        check_allowed(SERVE, "use tidegate::Cost;\nfn f() { tidegate::http::f() }");
        check_allowed("above.rs", "use tidegate::stores::Redis;");
    }

    #[test]
    fn what_only_looks_like_a_violation_is_not_found() {
        check_allowed("above.rs", "use crate::below::A;\npub use self::inner::B;\nuse super::below::C;");
        check_allowed("below.rs", "// crate::above::B\n/* use crate::above; */ const A: &str = \"crate::above\";");
        check_allowed("below.rs", "#[cfg(test)]\nmod tests {\n    use crate::above::B;\n}");
        check_allowed("below.rs", "#[cfg(test)]\nfn f(a: u8, b: u8) -> crate::above::B { g() }\nfn h() {}");
        check_allowed("below.rs", "#[cfg(all(test, unix))]\nuse crate::above::B;");
        check_allowed("below.rs", "crate::plain! { }\npub(crate) fn f() -> impl Fn() + use<'_> { g }");
        check_allowed("edges/http/serve.rs", "pub(in crate::edges) fn f() {}\npub(in super::super) fn g() {}");
        check_allowed("edges/http/serve.rs", "use crate::edges::http::f;\nuse super::g;\nuse crate::above::A;");
    }

    #[test]
    fn a_module_that_is_compiled_for_tests_may_use_anything() {
        let folder = tempfile::tempdir().expect("a folder");
        let src = folder.path();
        fs::create_dir_all(src.join("below/random")).expect("a folder");
        fs::write(src.join("above.rs"), "").expect("a file");
        fs::write(src.join("edges.rs"), "").expect("a file");
        fs::write(src.join("below.rs"), "#[cfg(test)]\nmod random;").expect("a file");
        fs::write(src.join("below/random.rs"), "use crate::above::A;").expect("a file");
        fs::write(src.join("below/random/more.rs"), "use crate::above::A;").expect("a file");
        assert_eq!(violations(src, &ALLOWED), Vec::<String>::new());
    }
}
