//! The charges of a request and the concurrency limits that it must pass, before any store call.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::subject;
use crate::language::{Concurrency, ListDecision, Mode, Purpose, RateClass, Rule, RuleSet, subject_text};
use crate::request::{Priority, Request};
use tidegate_core::store::{Charge, ChargeSet, Role};
use tidegate_core::subject::{Fingerprint, FingerprintKey};
use tidegate_core::units::Nanos;

/// Whether rules enforce or run in shadow mode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum EnforceMode {
    /// Each rule in its own mode.
    #[default]
    AsWritten,
    /// Every rule in shadow mode.
    AllShadow,
}

/// The charges and context for one request.
#[derive(Clone, Debug, Default)]
pub struct ChargePlan<'r> {
    /// The decision of a list; then there is nothing to charge.
    pub listed: Option<ListDecision>,
    /// The limits that decide. Empty if no rule applies.
    pub set: ChargeSet<'r>,
    /// The origin of each charge, in the order of the set.
    pub origins: SmallVec<[Origin; 4]>,
    /// Positions of the rules that apply and have no rate for this client.
    pub unlimited: SmallVec<[u32; 2]>,
    /// A hash of the client.
    pub client_hash: u64,
    /// The maximum delay that the caller accepts, if it has one.
    pub max_delay: Option<Nanos>,
}

impl ChargePlan<'_> {
    /// Splits the plan in two: the charges of rules without a unit, and those of rules with one.
    #[must_use]
    pub fn split_by_unit(self, rules: &RuleSet) -> (Self, Self) {
        let has_unit = |rule: u32| rules.rules()[rule as usize].unit().is_some();
        let mut halves = [self.clone(), self];
        for (half, with_unit) in halves.iter_mut().zip([false, true]) {
            let belongs: SmallVec<[bool; 4]> =
                half.origins.iter().map(|origin| has_unit(origin.rule) == with_unit).collect();
            let mut each = belongs.iter();
            half.set.charges.retain(|_| each.next().copied().unwrap_or(false));
            half.origins.retain(|origin| has_unit(origin.rule) == with_unit);
            half.unlimited.retain(|rule| has_unit(*rule) == with_unit);
        }
        halves.into()
    }
}

/// The place in the rules that a charge comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Origin {
    /// The rule's position.
    pub rule: u32,
    /// The class of rates that applies to this client.
    pub class: RateClass,
    /// The index of the rate in that class.
    pub rate: u8,
    /// The priority of the request, for a rule with priorities.
    pub priority: Priority,
}

/// Finds every limit that the request must pass, unless a list decides. `now` is only used to expire entries of the
/// lists.
pub fn plan<'r>(
    rules: &'r RuleSet,
    enforce_mode: EnforceMode,
    key: &FingerprintKey,
    request: &Request<'_>,
    purpose: Purpose,
    now: impl FnOnce() -> Nanos,
) -> ChargePlan<'r> {
    let listed = if rules.has_access_lists() { rules.list_decision(request, now()) } else { None };
    match (listed, enforce_mode) {
        (None, _) | (Some(ListDecision::Block { .. }), EnforceMode::AllShadow) => {
            plan_charges(rules, enforce_mode, key, request, purpose)
        }
        (Some(listed), _) => ChargePlan {
            listed: Some(listed),
            client_hash: subject::client_hash(request, key),
            ..ChargePlan::default()
        },
    }
}

/// Every limit that applies to the request, regardless of the lists.
pub fn plan_charges<'r>(
    rules: &'r RuleSet,
    enforce_mode: EnforceMode,
    key: &FingerprintKey,
    request: &Request<'_>,
    purpose: Purpose,
) -> ChargePlan<'r> {
    let mut plan = ChargePlan {
        client_hash: subject::client_hash(request, key),
        max_delay: request.max_delay,
        ..ChargePlan::default()
    };
    plan.set.max_wait = request.max_wait;
    for position in rules.applicable_rules(request, purpose) {
        let rule = &rules.rules()[position as usize];
        let Some(cost) = request.cost_in(rule.unit()) else { continue };
        let Some(subject) = subject::identify(rule, request, key) else { continue };
        let class = class_for(rule, request);
        let rates = rule.rates(class);
        if rates.limits().is_empty() {
            plan.unlimited.push(position);
        }
        let priority = if rates.has_priorities() { request.priority() } else { Priority::default() };
        for (rate, limit) in rates.limits_for(priority).iter().enumerate() {
            let rate = u8::try_from(rate).expect("a rule has at most `MAX_RATES` rates");
            let limit = match (limit.is_staggered(), limit.is_queue()) {
                (false, false) => Cow::Borrowed(limit),
                (true, _) => Cow::Owned(limit.for_subject(subject.seed())),
                (false, true) => match (rule.max_delay(), request.max_delay) {
                    (None, Some(max_delay)) => Cow::Owned(limit.clone().with_max_delay(max_delay)),
                    _ => Cow::Borrowed(limit),
                },
            };
            plan.set.charges.push(Charge {
                subject,
                rule: rule.name(),
                rate,
                limit,
                cost,
                role: role_of(rule, enforce_mode),
                options: rule.options(),
            });
            plan.origins.push(Origin { rule: position, class, rate, priority });
        }
    }
    plan
}

fn class_for(rule: &Rule, request: &Request<'_>) -> RateClass {
    let tier = request.api_key.and_then(|key| key.tier);
    let own = if rule.has_overrides() { subject_text(rule, request) } else { None };
    rule.rate_class(tier, own.as_deref().unwrap_or_default())
}

fn role_of(rule: &Rule, enforce_mode: EnforceMode) -> Role {
    match (enforce_mode, rule.mode()) {
        (EnforceMode::AllShadow, _) | (_, Mode::Shadow) => Role::Shadow,
        (EnforceMode::AsWritten, _) => Role::Enforce,
    }
}

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
        let Some(max) = rule.concurrent() else { continue };
        let Some(subject) = subject::identify(rule, request, key) else { continue };
        limits.push(ConcurrencyLimit { rule, subject, max, role: role_of(rule, enforce_mode) });
    }
    let is_shared = |limit: &ConcurrencyLimit<'_>| limit.max != Concurrency::Adaptive;
    limits.sort_by_key(|limit| {
        let breadth = u8::MAX - limit.rule.options().specificity;
        (is_shared(limit), breadth)
    });
    limits
}
