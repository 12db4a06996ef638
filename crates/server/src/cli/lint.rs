//! `tidegate lint`: every fault and every warning, before anything runs.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate_core::rules::{self, RuleSet, SourceFile};

use super::{Exit, LintArgs, complain, say};

pub(super) fn run(args: &LintArgs) -> Exit {
    let mut exit = Exit::Done;
    for path in &args.paths {
        match load(path) {
            Ok(rules) => {
                let warnings = rules::lint(&rules);
                for warning in &warnings {
                    complain(format_args!("warning: {warning}"));
                }
                say(format_args!(
                    "{}: {} rules, {} warnings",
                    path.display(),
                    rules.rules().len(),
                    warnings.len()
                ));
            }
            Err(faults) => {
                complain(faults);
                exit = Exit::BadConfig;
            }
        }
    }
    exit
}

/// The rules of a file or folder, read as the service would.
pub(super) fn load(path: &Path) -> Result<RuleSet, String> {
    let mut texts = Vec::new();
    for file in files(path)? {
        let name = file.display().to_string();
        let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
        texts.push((name, text));
    }
    let sources: Vec<_> = texts
        .iter()
        .map(|(name, text)| SourceFile { name, text })
        .collect();
    rules::parse(&sources).map_err(|faults| faults.to_string())
}

/// The rules files at `path`, in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let fault = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(fault)? {
        let file = entry.map_err(fault)?.path();
        let yaml = file
            .extension()
            .is_some_and(|ext| ext == "yaml" || ext == "yml");
        let hidden = file
            .file_name()
            .is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if yaml && !hidden {
            found.push(file);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(format!("{}: holds no .yaml file", path.display())),
        false => Ok(found),
    }
}
