//! `tidegate lint`: reports every error and every warning before anything runs.
//!
//! Invariant: it reads rules as the service does: the same files of a folder, the same limits, the keys file too.
//! `-` is standard input, which has no keys file beside it.

use std::io::Read;
use std::path::Path;

use tidegate::Policy;
use tidegate::clock::{Clock, SystemClock};
use tidegate::live::ignored_rule_files;
use tidegate_core::store::Capabilities;
use tidegate_rules::{MAX_FILE_BYTES, ParseOptions, RuleKind, SourceFile};

use super::{Exit, LintArgs, print_error, print_line};

pub(super) fn run(args: &LintArgs) -> Exit {
    let mut exit = Exit::Done;
    for path in &args.paths {
        let ignored = ignored_rule_files(path);
        for file in &ignored {
            print_error(format_args!(
                "warning: {} is not read: only *.yaml and *.yml files in the folder itself are; rename or move it",
                file.display()
            ));
        }
        let dialect = ParseOptions { merge_domains: args.merge_domains, ..Capabilities::UNKNOWN.into() };
        match load(path, dialect) {
            Ok(policy) => {
                let warnings = policy.lint(SystemClock::new().now());
                for warning in &warnings {
                    print_error(format_args!("warning: {warning}"));
                }
                print_line(format_args!(
                    "{}: {}, {}",
                    path.display(),
                    pluralized(count_written_rules(&policy), "rule"),
                    pluralized(warnings.len() + ignored.len(), "warning"),
                ));
            }
            Err(errors) => {
                print_error(errors);
                exit = Exit::BadConfig;
            }
        }
    }
    exit
}

fn load(path: &Path, dialect: ParseOptions) -> Result<Policy, String> {
    if path != Path::new("-") {
        return Policy::load_for(path, dialect).map_err(|error| error.to_string());
    }
    let mut text = String::new();
    // One byte more than the parser accepts, so that it rejects a file that is too long.
    let input = std::io::stdin().take(MAX_FILE_BYTES as u64 + 1);
    let read = { input }.read_to_string(&mut text);
    read.map_err(|error| format!("standard input: {error}"))?;
    let file = SourceFile { name: "standard input", text: &text };
    Policy::parse_for(&[file], dialect).map_err(|error| error.to_string())
}

/// The number of rules in the files. The rule for limits that requests carry themselves is in no file.
fn count_written_rules(policy: &Policy) -> usize {
    let rules = policy.rules.rules().iter();
    rules.filter(|rule| rule.kind() != RuleKind::RequestOverride).count()
}

/// A count with its noun: `1 rule`, `2 rules`.
fn pluralized(count: usize, thing: &str) -> String {
    match count {
        1 => format!("1 {thing}"),
        count => format!("{count} {thing}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_rules_from_files_are_counted() {
        let envoy = "domain: web\ndescriptors:\n  - key: user\n    rate_limit: { unit: hour, requests_per_unit: 2 }\n";
        let native = "version: 1\nrules: [{ name: r, by: ip, rate: 1/hour }]\n";
        for text in [envoy, native] {
            let file = SourceFile { name: "rules.yaml", text };
            let policy = Policy::parse_for(&[file], Capabilities::UNKNOWN).unwrap();
            assert_eq!(count_written_rules(&policy), 1, "{text}");
        }
    }
}
