//! Explains, for one request, what every rule does with it and why.
//!
//! The output is for people: `tidegate explain` and `/v1/explain`. Nothing is charged. For the subject of a client it
//! names the attributes, never the value of an API key.

mod effective_options;

use std::fmt;

use super::access_lists::{ListDecision, ListEntry};
use super::algorithm_profile::AlgorithmProfile;
use super::condition::{Attribute, Condition};
use super::diagnostics::quoted;
use super::rule::{By, Mode, Purpose, Rule, RuleKind};
use super::rule_set::RuleSet;
use super::subject::subject_text;
use crate::request::Request;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

pub use self::effective_options::{EffectiveCeiling, EffectiveOptions, LeasedRate, UnitCost};

/// The explanation of one request: the list that decides, and every rule in file order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The list that decides, and its entry. If there is one, the rules do not matter.
    pub listed: Option<(ListDecision, ListEntry)>,
    /// One view per rule.
    pub rules: Vec<RuleView>,
}

/// The explanation of one rule for one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleView {
    /// Name of the rule.
    pub rule: RuleName,
    /// Whether it applies, and if not, why.
    pub applicability: Applicability,
    /// Whether the rule denies, only counts what it would deny, or is off.
    pub mode: Mode,
    /// The attributes that identify the counter. Empty if everybody shares one counter.
    pub subject: Vec<SubjectPart>,
    /// The rates of this client, as written. Empty means unlimited, unless requests in flight are limited.
    pub rates: Vec<Box<str>>,
    /// Its other options.
    pub options: EffectiveOptions,
    /// Its algorithm, and what that means.
    pub profile: AlgorithmProfile,
}

/// Whether a rule applies to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applicability {
    /// The rule applies.
    Applies,
    /// Another rule that applies replaces it.
    ReplacedBy(RuleName),
    /// A condition of its `match` does not hold, or one of its `not` does.
    Unmatched {
        /// The attribute.
        attribute: Box<str>,
        /// The value in the request.
        found: Option<Box<str>>,
        /// The values that the rule requires.
        wanted: Box<str>,
        /// Whether the condition is one of `not`, so that the value must be another.
        negated: bool,
    },
    /// The rule counts a unit, and the request states a cost of 0 in it.
    NoCost {
        /// The unit.
        unit: Box<str>,
    },
    /// The rule has `if_missing: skip`, and the request lacks the attribute that it counts by.
    Skipped,
    /// The rule has `mode: off`.
    Off,
    /// The rule is a descriptor limit, which attributes never match.
    ByDescriptor,
}

/// One attribute of a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubjectPart {
    /// The attribute as the rule writes it: `api_key|ip`.
    pub wanted: Box<str>,
    /// The attribute that counts for this request; `None` if all such requests share one counter.
    pub counted: Option<Box<str>>,
}

impl RuleSet {
    /// Explains a check of `request` at `now`.
    pub fn explain(&self, request: &Request<'_>, now: Nanos) -> Explanation {
        let matching = self.matching_rules(request);
        let views = (0_u32..).zip(&self.rules).map(|(at, rule)| {
            let applicability = if matching.binary_search(&at).is_ok() {
                match self.replaced_by(at, &matching, Purpose::Check) {
                    Some(other) => Applicability::ReplacedBy(other.name.clone()),
                    None => Applicability::Applies,
                }
            } else {
                inapplicable_reason(rule, request)
            };
            explain_rule(rule, applicability, request)
        });
        let listed = self.list_decision_with_entry(request, now);
        Explanation { listed: listed.map(|(listed, entry)| (listed, entry.clone())), rules: views.collect() }
    }
}

fn explain_rule(rule: &Rule, applicability: Applicability, request: &Request<'_>) -> RuleView {
    let tier = request.api_key.and_then(|key| key.tier);
    let rates = rule.rates(rule.rate_class(tier, &subject_text(rule, request).unwrap_or_default()));
    RuleView {
        rule: rule.name.clone(),
        applicability,
        mode: rule.mode,
        subject: subject_parts(rule, request),
        rates: rates.texts.to_vec(),
        options: EffectiveOptions::of(rule, rates, request),
        profile: AlgorithmProfile::of(rule.algorithm),
    }
}

/// Why a rule does not apply: the first reason, in the order in which people would look.
fn inapplicable_reason(rule: &Rule, request: &Request<'_>) -> Applicability {
    if rule.kind != RuleKind::Match {
        return Applicability::ByDescriptor;
    }
    if rule.mode == Mode::Off {
        return Applicability::Off;
    }
    let failing = rule.matching.all.iter().find(|c| !c.matches(request));
    if let Some(condition) = failing {
        return unmatched(condition, request, false);
    }
    if let Some(condition) = rule.matching.none.iter().find(|c| c.matches(request)) {
        return unmatched(condition, request, true);
    }
    match &rule.unit {
        Some(unit) if !rule.counts(request) => Applicability::NoCost { unit: (&**unit).into() },
        _ => Applicability::Skipped,
    }
}

fn unmatched(condition: &Condition, request: &Request<'_>, negated: bool) -> Applicability {
    Applicability::Unmatched {
        attribute: condition.attribute.name().into(),
        found: condition.actual_value(request).map(|found| (&*found).into()),
        wanted: condition.matcher.to_string().into(),
        negated,
    }
}

fn subject_parts(rule: &Rule, request: &Request<'_>) -> Vec<SubjectPart> {
    let By::All(parts) = &*rule.by else {
        return Vec::new();
    };
    let part = |names: &Vec<Box<str>>| {
        let present = names.iter().find(|name| Attribute::is_present(name, request));
        let substitute = || request.ip.map(|_| "ip".into());
        SubjectPart { wanted: names.join("|").into(), counted: present.cloned().or_else(substitute) }
    };
    parts.iter().map(part).collect()
}

/// Prints one line per rule that does not apply; for a rule that applies, also its counter, rates and options.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applies = |view: &RuleView| view.applicability == Applicability::Applies;
        match &self.listed {
            Some((ListDecision::Allow, entry)) => {
                writeln!(f, "the allow list decides, by {entry}: the request passes")?;
            }
            Some((ListDecision::Block { .. }, entry)) => {
                writeln!(f, "the block list decides, by {entry}: the request is denied")?;
            }
            None if !self.rules.iter().any(applies) => {
                writeln!(f, "no rule applies: the request passes")?;
            }
            None => {}
        }
        if self.listed.is_some() && self.rules.iter().any(applies) {
            writeln!(f, "without that entry:")?;
        }
        for view in &self.rules {
            writeln!(f, "{view}")?;
        }
        Ok(())
    }
}

impl fmt::Display for RuleView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.rule, self.applicability)?;
        if self.applicability != Applicability::Applies {
            return Ok(());
        }
        if self.mode == Mode::Shadow {
            f.write_str(", but only in shadow mode")?;
        }
        write!(f, "\n  counted for: {}", SubjectDisplay(&self.subject))?;
        if self.rates.is_empty() {
            let rate = match self.options.concurrent {
                Some(_) => "none",
                None => "unlimited",
            };
            return write!(f, "\n  rate: {rate}{}", self.options);
        }
        let AlgorithmProfile { algorithm, suited_for, memory, accuracy, burst, worst_case } = self.profile;
        write!(f, "\n  rate: {}", self.rates.join(" and "))?;
        write!(f, "{}", self.options)?;
        write!(f, "\n  algorithm: {algorithm}, good for {suited_for}")?;
        write!(f, "\n    memory: {memory}\n    accuracy: {accuracy}")?;
        write!(f, "\n    burst: {burst}\n    worst case in one window: {worst_case}")?;
        f.write_str(legend(algorithm))
    }
}

fn legend(algorithm: Algorithm) -> &'static str {
    if algorithm.takes_burst() { " (L the count, B the burst)" } else { " (L the count)" }
}

struct SubjectDisplay<'a>(&'a [SubjectPart]);

impl fmt::Display for SubjectDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("everybody together");
        }
        for (i, part) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let is_listed = |name: &str| part.wanted.split('|').any(|wanted| wanted == name);
            match &part.counted {
                Some(name) if is_listed(name) => write!(f, "{comma}{name}")?,
                Some(name) => write!(f, "{comma}{name}, in place of the absent {}", part.wanted)?,
                None => write!(f, "{comma}all requests without {} together", part.wanted)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Applicability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Applicability::Applies => f.write_str("applies"),
            Applicability::ReplacedBy(other) => write!(f, "does not apply: `{other}` replaces it"),
            Applicability::Unmatched { attribute, found: None, wanted, .. } => {
                write!(f, "does not apply: {attribute} is absent, wanted {wanted}")
            }
            Applicability::Unmatched { attribute, found: Some(found), wanted, negated } => {
                let not = if *negated { "not " } else { "" };
                let found = quoted(found);
                write!(f, "does not apply: {attribute} is {found}, wanted {not}{wanted}")
            }
            Applicability::NoCost { unit } => {
                write!(f, "does not apply: the request costs 0 {unit}")
            }
            Applicability::Skipped => f.write_str(SKIPPED_TEXT),
            Applicability::Off => f.write_str("does not apply: its mode is off"),
            Applicability::ByDescriptor => f.write_str("does not apply: only descriptors match it"),
        }
    }
}

const SKIPPED_TEXT: &str = "does not apply: the attribute it counts by is absent, and it has `if_missing: skip`";
