//! `tidegate lint`: every fault and every warning, before anything runs.
//!
//! Reads what the service would read, in the same way: the same files of a folder, the same limits,
//! the keys file too.

use tidegate::Policy;
use tidegate::live::left_out;
use tidegate_core::rules::{self, Dialect};
use tidegate_core::store::Abilities;

use super::{Exit, LintArgs, complain, say};

pub(super) fn run(args: &LintArgs) -> Exit {
    let mut exit = Exit::Done;
    for path in &args.paths {
        let dialect = Dialect {
            merge_domains: args.merge_domains,
            ..Abilities::UNKNOWN.into()
        };
        let left_out = left_out(path);
        for file in &left_out {
            complain(format_args!(
                "warning: {} is not read: only *.yaml and *.yml files in the folder itself are; rename or move it",
                file.display()
            ));
        }
        match Policy::load_for(path, dialect) {
            Ok(policy) => {
                let warnings = rules::lint(&policy.rules);
                for warning in &warnings {
                    complain(format_args!("warning: {warning}"));
                }
                say(format_args!(
                    "{}: {} rules, {} warnings",
                    path.display(),
                    policy.rules.rules().len(),
                    warnings.len() + left_out.len()
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
