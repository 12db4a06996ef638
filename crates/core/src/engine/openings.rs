//! Which limits on what is open at once a request comes under, before any store is asked.

use smallvec::SmallVec;

use super::plan::{Stance, role_of};
use super::subject;
use crate::request::Request;
use crate::rules::{Concurrent, Purpose, Rule, RuleSet};
use crate::store::Role;
use crate::subject::{Fingerprint, FingerprintKey};

/// A limit on open requests that one more is to pass.
#[derive(Clone, Copy, Debug)]
pub struct Opening<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// Whose requests are counted together.
    pub subject: Fingerprint,
    /// How many may be open.
    pub most: Concurrent,
    /// What a refusal means.
    pub role: Role,
}

/// Every limit on open requests that applies, in the order in which slots are taken: what this node
/// decides by itself, then from narrow to wide, so that a refusal touches nothing wider.
pub fn openings<'r>(
    rules: &'r RuleSet,
    stance: Stance,
    key: &FingerprintKey,
    request: &Request<'_>,
) -> SmallVec<[Opening<'r>; 2]> {
    let mut openings: SmallVec<[Opening<'r>; 2]> = SmallVec::new();
    for position in rules.applying(request, Purpose::Acquire) {
        let rule = &rules.rules()[position as usize];
        let Some(most) = rule.concurrent() else {
            continue;
        };
        let Some(subject) = subject::identify(rule, request, key) else {
            continue;
        };
        openings.push(Opening {
            rule,
            subject,
            most,
            role: role_of(rule, stance),
        });
    }
    let shared = |opening: &Opening<'_>| opening.most != Concurrent::Adaptive;
    openings.sort_by_key(|opening| {
        let narrow = u8::MAX - opening.rule.terms().named_by;
        (shared(opening), narrow)
    });
    openings
}
