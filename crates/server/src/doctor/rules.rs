//! The rules that would run on this store.

use std::path::Path;

use tidegate::clock::{Clock, SystemClock};
use tidegate_core::store::Capabilities;

use super::finding::DoctorFinding;
use crate::policy::watcher;

/// One finding for each error and each warning, or one that reports success.
pub(super) fn rules(path: &Path) -> Vec<DoctorFinding> {
    let check = "rules";
    let policy = match watcher::load_policy(Some(path), Capabilities::SHARED) {
        Ok(policy) => policy,
        Err(errors) => {
            let each = errors.lines();
            let cure = "tidegate lint reports the same without a store";
            return each.map(|error| DoctorFinding::fail(check, error, cure)).collect();
        }
    };
    let count = policy.rules.rules().len();
    let warnings = policy.lint(SystemClock::new().now()).into_iter();
    let warnings: Vec<DoctorFinding> =
        warnings.map(|warning| DoctorFinding::warn(check, warning.to_string(), "see docs/rules.md")).collect();
    if warnings.is_empty() {
        vec![DoctorFinding::ok(check, format!("{}: {count} rules", path.display()))]
    } else {
        warnings
    }
}
