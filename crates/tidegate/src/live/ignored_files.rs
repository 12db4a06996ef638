//! Files of a rules folder that are not read, although they look like rules.
//!
//! Only `*.yaml` and `*.yml` in the folder itself are rules. A limit in `limits.json` or in a subfolder would be
//! missing silently, so the service reports such files.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::scan::{FileFilter, files_in};

/// Bytes of a file that are examined.
const HEAD_BYTES: u64 = 64 << 10;
/// Maximum of files that are examined.
const MAX_FILES: usize = 1_000;

/// The files in and below the folder `path` that look like rules and are not read as such, sorted by name.
/// Empty if `path` is not a folder.
pub fn ignored_rule_files(path: &Path) -> Vec<PathBuf> {
    let every = FileFilter::Every { dot_files: false };
    let Ok(files) = files_in(path, every) else {
        return Vec::new();
    };
    let rule_files = files_in(path, FileFilter::Rules).unwrap_or_default();
    let others = files.into_iter().filter(|file| !rule_files.contains(file));
    let mut ignored: Vec<PathBuf> = others.take(MAX_FILES).filter(|f| is_like_rules(f)).collect();
    ignored.sort_unstable();
    ignored
}

/// Copies and documents beside rules, made by editors and people, are ignored on purpose.
fn is_like_rules(file: &Path) -> bool {
    let name = file.file_name().and_then(|name| name.to_str());
    let on_purpose =
        |name: &str| name.starts_with('#') || ["~", ".bak", ".orig", ".md"].iter().any(|end| name.ends_with(end));
    if name.is_none_or(on_purpose) || !file.is_file() {
        return false;
    }
    let mut head = Vec::new();
    let opened = File::open(file).and_then(|file| file.take(HEAD_BYTES).read_to_end(&mut head));
    opened.is_ok() && reads_like_rules(&String::from_utf8_lossy(&head))
}

/// Whether a text has a top-level field of a rules file: at the beginning of a line, or, if the whole text is in
/// braces as in JSON, anywhere in a line.
fn reads_like_rules(text: &str) -> bool {
    let text = text.trim_start_matches('\u{feff}');
    let is_content = |line: &&str| !line.is_empty() && !line.starts_with(['#', '%', '-']);
    let mut lines = text.lines().map(str::trim_start);
    if lines.find(is_content).is_some_and(|line| line.starts_with('{')) {
        return text.split(['{', ',', '\n']).any(names_rules);
    }
    text.lines().any(names_rules)
}

/// Whether a line or a field starts with a top-level field of a rules file, of either kind.
fn names_rules(line: &str) -> bool {
    let line = line.trim_start_matches([' ', '\t', '{', '"', '\'']);
    ["rules", "descriptors", "domain"].iter().any(|name| {
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.trim_start_matches(['"', '\'']).trim_start().starts_with(':'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_files_that_look_like_rules_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let limits = "domain: shop\ndescriptors: []\n";
        for name in ["read.yaml", "read.yml", ".hidden", "..data/x.yaml", "#x#", "x.yaml~"] {
            write(name, limits);
        }
        write("keys.txt", "sha256:00 free someone\n");
        write("README.md", "rules: are here\n");
        assert_eq!(ignored_rule_files(dir.path()), [] as [PathBuf; 0]);
        write("limits", limits);
        write("limits.txt", "version: 1\nrules: []\n");
        write("limits.json", r#"{"domain": "shop", "descriptors": []}"#);
        write("below/deeper/more.yaml", limits);
        // Rules on one line were not recognized.
        let flow = r#"{"version":1,"rules":[{"name":"b","by":"ip","rate":"1/hour"}]}"#;
        write("flow.json", flow);
        write("flow.txt", "# limits\n---\n{version: 1, rules: []}\n");
        write("flow.YML", flow);
        write("prose.txt", "these pages, rules: none\n");
        write("other.json", r#"{"a":{"b":"rules, and more"}}"#);
        let want =
            ["below/deeper/more.yaml", "flow.YML", "flow.json", "flow.txt", "limits", "limits.json", "limits.txt"];
        assert_eq!(ignored_rule_files(dir.path()), want.map(|name| dir.path().join(name)));
        assert!(ignored_rule_files(&dir.path().join("read.yaml")).is_empty(), "a file");
    }
}
