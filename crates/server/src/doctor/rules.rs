//! The rules that would run on this store.

use std::path::Path;

use tidegate::clock::{Clock, SystemClock};
use tidegate_core::store::Abilities;

use super::finding::Finding;
use crate::live;

/// One finding for each fault and each warning, or one that says all is well.
pub(super) fn rules(path: &Path) -> Vec<Finding> {
    let check = "rules";
    let policy = match live::policy(Some(path), Abilities::SCRIPTS) {
        Ok(policy) => policy,
        Err(faults) => {
            let each = faults.lines();
            let cure = "tidegate lint says the same without a store";
            return each
                .map(|fault| Finding::fail(check, fault, cure))
                .collect();
        }
    };
    let count = policy.rules.rules().len();
    let warnings = policy.lint(SystemClock::new().now()).into_iter();
    let warnings: Vec<Finding> = warnings
        .map(|warning| Finding::warn(check, warning.to_string(), "see docs/rules.md"))
        .collect();
    match warnings.is_empty() {
        true => vec![Finding::ok(
            check,
            format!("{}: {count} rules", path.display()),
        )],
        false => warnings,
    }
}
