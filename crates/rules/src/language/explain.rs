//! Explains, for one request, what every rule does with it and why.
//!
//! The output is for people: `tidegate explain` and `/v1/explain`. Nothing is charged. For the subject of a client it
//! names the attributes, never the value of an API key.

use std::fmt;

use super::access_lists::{ListDecision, ListEntry};
use super::algorithm_profile::AlgorithmProfile;
use super::condition::Attribute;
use super::diagnostics::quoted;
use super::load_shedding::{Permille, SoftLimit};
use super::rule::{By, Mode, Purpose, Rates, Rule, RuleKind};
use super::rule_options::Concurrency;
use super::rule_set::RuleSet;
use super::subject::subject_text;
use crate::request::{Priority, Request};
use tidegate_core::algorithms::Limit;
use tidegate_core::rate::{Rate, parse_rate};
use tidegate_core::rule_options::Counting;
use tidegate_core::subject::RuleName;
use tidegate_core::units::{Cost, Nanos};

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
    let required = rule.matching.all.iter().map(|condition| (condition, false));
    let excluded = rule.matching.none.iter().map(|condition| (condition, true));
    let mut failing = required.chain(excluded).filter(|(condition, negated)| condition.matches(request) == *negated);
    if let Some((condition, negated)) = failing.next() {
        return Applicability::Unmatched {
            attribute: condition.attribute.name().into(),
            found: condition.actual_value(request).map(|found| (&*found).into()),
            wanted: condition.matcher.to_string().into(),
            negated,
        };
    }
    match &rule.unit {
        Some(unit) if !rule.counts(request) => Applicability::NoCost { unit: (&**unit).into() },
        _ => Applicability::Skipped,
    }
}

fn subject_parts(rule: &Rule, request: &Request<'_>) -> Vec<SubjectPart> {
    let By::All(parts) = &*rule.by else { return Vec::new() };
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
        self.rules.iter().try_for_each(|view| writeln!(f, "{view}"))
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
            let rate = if self.options.concurrent.is_some() { "none" } else { "unlimited" };
            return write!(f, "\n  rate: {rate}{}", self.options);
        }
        let AlgorithmProfile { algorithm, suited_for, memory, accuracy, burst, worst_case } = self.profile;
        write!(f, "\n  rate: {}", self.rates.join(" and "))?;
        write!(f, "{}", self.options)?;
        write!(f, "\n  algorithm: {algorithm}, good for {suited_for}")?;
        write!(f, "\n    memory: {memory}\n    accuracy: {accuracy}")?;
        write!(f, "\n    burst: {burst}\n    worst case in one window: {worst_case}")?;
        f.write_str(if algorithm.takes_burst() { " (L the count, B the burst)" } else { " (L the count)" })
    }
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
            Applicability::Skipped => {
                f.write_str("does not apply: the attribute it counts by is absent, and it has `if_missing: skip`")
            }
            Applicability::Off => f.write_str("does not apply: its mode is off"),
            Applicability::ByDescriptor => f.write_str("does not apply: only descriptors match it"),
        }
    }
}

/// Options of a rule for one request, apart from its rates.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveOptions {
    /// How the counts of all nodes are combined.
    pub counting: Counting,
    /// What each leased rate gives up for its leases.
    pub leases: Vec<LeasedRate>,
    /// What requests of this priority may use of each rate, if priorities differ.
    pub ceiling: Option<EffectiveCeiling>,
    /// When requests are delayed, and for how long.
    pub soft: Option<SoftLimit>,
    /// How many requests may be in flight at once.
    pub concurrent: Option<Concurrency>,
    /// Cost of the request, if the rule counts in a unit.
    pub unit_cost: Option<UnitCost>,
}

/// Cost of a request in the unit of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnitCost {
    /// The unit.
    pub unit: Box<str>,
    /// Number of units.
    pub cost: u64,
    /// Whether the request states the cost. An unstated cost counts as one.
    pub stated: bool,
}

/// A rate from which leases are drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LeasedRate {
    /// Lifetime of a lease: how long its units may wait to be used.
    pub duration: Nanos,
    /// The burst as written; `None` for a window, which gives nothing up.
    pub burst: Option<u64>,
    /// How many units can be used at once.
    pub capacity: u64,
}

/// How much of a rule's rates a request may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EffectiveCeiling {
    /// Priority of the request.
    pub priority: Priority,
    /// Fraction of each rate that this priority may use.
    pub fraction: Permille,
    /// For each rate, the units that it may use and all units.
    pub units: Vec<(u64, u64)>,
}

impl EffectiveOptions {
    fn of(rule: &Rule, rates: &Rates, request: &Request<'_>) -> Self {
        let limits = rates.limits.iter().zip(&rates.texts);
        EffectiveOptions {
            counting: rule.options.counting,
            leases: limits.filter_map(|(limit, text)| leased_rate(limit, text)).collect(),
            ceiling: rule.priority.map(|ceilings| {
                let priority = request.priority();
                let limits = rates.limits_for(priority).iter();
                EffectiveCeiling {
                    priority,
                    fraction: ceilings.of(priority),
                    units: limits.map(|limit| (limit.capacity(), limit.full_capacity())).collect(),
                }
            }),
            soft: rule.soft,
            concurrent: rule.concurrent,
            unit_cost: rule.unit().map(|unit| UnitCost {
                unit: unit.into(),
                cost: request.cost_in(Some(unit)).map_or(0, Cost::get),
                stated: request.costs.iter().any(|(named, _)| named == unit),
            }),
        }
    }
}

fn leased_rate(limit: &Limit, text: &str) -> Option<LeasedRate> {
    let duration = limit.lease_ttl()?;
    let burst = match parse_rate(text) {
        Ok(Rate::PerWindow(rate)) => rate.burst.unwrap_or(rate.count),
        _ => limit.full_capacity(),
    };
    Some(LeasedRate {
        duration,
        burst: limit.algorithm().takes_burst().then_some(burst),
        capacity: limit.full_capacity(),
    })
}

/// Prints one line for each option that differs from the default.
impl fmt::Display for EffectiveOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(UnitCost { unit, cost, stated }) = &self.unit_cost {
            let absent = if *stated { "" } else { ", because the request names no cost in it" };
            write!(f, "\n  cost: {cost} {unit}{absent}")?;
        }
        if let Some(ceiling) = &self.ceiling {
            write!(f, "\n  priority: {ceiling}")?;
        }
        if let Some(soft) = self.soft {
            let (threshold, max_delay) = (soft.threshold(), soft.max_delay());
            write!(f, "\n  soft: delayed from {threshold} of the limit on, by up to {max_delay}")?;
        }
        if self.counting != Counting::Exact {
            write!(f, "\n  counting: {}", self.counting.name())?;
        }
        for leased in &self.leases {
            write!(f, ", {leased}")?;
        }
        match self.concurrent {
            Some(concurrent) => write!(f, "\n  concurrent: {concurrent}, counted by acquire and release alone"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for EffectiveCeiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} may use {}", self.priority.name(), self.fraction)?;
        for (i, (units, whole)) in self.units.iter().enumerate() {
            let before = if i == 0 { ":" } else { " and" };
            write!(f, "{before} {units} of {whole}")?;
        }
        Ok(())
    }
}

impl fmt::Display for LeasedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for {} at most", self.duration)?;
        match self.burst {
            Some(burst) => write!(f, " (burst {} of the {burst} written)", self.capacity),
            None => Ok(()),
        }
    }
}
