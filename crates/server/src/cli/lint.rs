//! `tidegate lint`: every fault and every warning, before anything runs.
//!
//! Reads what the service would read, in the same way: the same files of a folder, the same limits,
//! the keys file too.

use tidegate::Policy;
use tidegate_core::rules;
use tidegate_core::store::Abilities;

use super::{Exit, LintArgs, complain, say};

pub(super) fn run(args: &LintArgs) -> Exit {
    let mut exit = Exit::Done;
    for path in &args.paths {
        match Policy::load_for(path, Abilities::UNKNOWN) {
            Ok(policy) => {
                let warnings = rules::lint(&policy.rules);
                for warning in &warnings {
                    complain(format_args!("warning: {warning}"));
                }
                say(format_args!(
                    "{}: {} rules, {} warnings",
                    path.display(),
                    policy.rules.rules().len(),
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
