//! Finds the concurrency limits of a request, before any store call.

use smallvec::SmallVec;

use super::plan::{EnforceMode, role_of};
use super::subject;
use crate::language::{Concurrency, Purpose, Rule, RuleSet};
use crate::request::Request;
use tidegate_core::store::Role;
use tidegate_core::subject::{Fingerprint, FingerprintKey};

/// A concurrency limit that a request must pass.
#[derive(Clone, Copy, Debug)]
pub struct ConcurrencyLimit<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The subject whose requests are counted together.
    pub subject: Fingerprint,
    /// The maximum number of permits in use.
    pub max: Concurrency,
    /// What a denial means.
    pub role: Role,
}

/// Every concurrency limit that applies, in the order in which permits are acquired: those that this node decides
/// alone, then from narrow to wide, so that a denial touches nothing wider.
pub fn concurrency_limits<'r>(
    rules: &'r RuleSet,
    enforce_mode: EnforceMode,
    key: &FingerprintKey,
    request: &Request<'_>,
) -> SmallVec<[ConcurrencyLimit<'r>; 2]> {
    let mut limits: SmallVec<[ConcurrencyLimit<'r>; 2]> = SmallVec::new();
    for position in rules.applicable_rules(request, Purpose::Acquire) {
        let rule = &rules.rules()[position as usize];
        let Some(max) = rule.concurrent() else {
            continue;
        };
        let Some(subject) = subject::identify(rule, request, key) else {
            continue;
        };
        limits.push(ConcurrencyLimit { rule, subject, max, role: role_of(rule, enforce_mode) });
    }
    let is_shared = |limit: &ConcurrencyLimit<'_>| limit.max != Concurrency::Adaptive;
    limits.sort_by_key(|limit| {
        let breadth = u8::MAX - limit.rule.options().specificity;
        (is_shared(limit), breadth)
    });
    limits
}
