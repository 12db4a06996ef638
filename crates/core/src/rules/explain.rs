//! Tells, for one request, what every rule has to say about it and why.
//!
//! Meant for people: `tidegate explain` and `/v1/explain`. Nothing is charged. Of a client's subject
//! it names the attributes, never the value of an API key.

mod effective_options;

use std::fmt;

use super::access_lists::{ListDecision, ListEntry};
use super::algorithm_profile::AlgorithmProfile;
use super::condition::{Attribute, Condition};
use super::diagnostics::quoted;
use super::rule::{By, Mode, Purpose, Rule, RuleKind};
use super::rule_set::RuleSet;
use super::subject::subject_text;
use crate::algorithms::Algorithm;
use crate::request::Request;
use crate::subject::RuleName;
use crate::units::Nanos;

pub use self::effective_options::{EffectiveCeiling, EffectiveOptions, LeasedRate, UnitCost};

/// What the lists and every rule have to say about one request, in the order of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The list that decides, if one does, and by which entry. Then rules do not matter.
    pub listed: Option<(ListDecision, ListEntry)>,
    /// One view per rule.
    pub rules: Vec<RuleView>,
}

/// What one rule has to say about one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleView {
    /// Which rule.
    pub rule: RuleName,
    /// Whether it applies, and if not, why.
    pub applicability: Applicability,
    /// Whether it refuses or only watches.
    pub mode: Mode,
    /// The attributes that say whose counter it is. Empty for everybody together.
    pub subject: Vec<SubjectPart>,
    /// The rates of this client, as written. Empty means unlimited, unless open requests are limited.
    pub rates: Vec<Box<str>>,
    /// What else it does.
    pub options: EffectiveOptions,
    /// How it counts, and what that means.
    pub profile: AlgorithmProfile,
}

/// Whether a rule applies to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applicability {
    /// It does.
    Applies,
    /// Another rule that applies takes its place.
    ReplacedBy(RuleName),
    /// A condition of its `match` does not hold, or one of its `not` does.
    Unmatched {
        /// The attribute.
        attribute: Box<str>,
        /// What the request has.
        found: Option<Box<str>>,
        /// What the rule wants.
        wanted: Box<str>,
        /// Whether it wants it to be otherwise.
        negated: bool,
    },
    /// It counts a unit of which the request says that it costs none.
    NoCost {
        /// The unit.
        unit: Box<str>,
    },
    /// It says `if_missing: skip` and the request has not what it counts by.
    Skipped,
    /// It says `mode: off`.
    Off,
    /// Only descriptors lead to it, and attributes are none.
    ByDescriptor,
}

/// One attribute of a subject.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubjectPart {
    /// What the rule asks for: `api_key|ip`.
    pub wanted: Box<str>,
    /// The attribute that counts for this request; absent if all such requests share one counter.
    pub counted: Option<Box<str>>,
}

impl RuleSet {
    /// What the lists and every rule have to say about a check of `request` at `now`.
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
        Explanation {
            listed: listed.map(|(listed, entry)| (listed, entry.clone())),
            rules: views.collect(),
        }
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

/// Why a rule does not apply: the first reason, in the order people would look.
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
        Some(unit) if !rule.counts(request) => Applicability::NoCost {
            unit: (&**unit).into(),
        },
        _ => Applicability::Skipped,
    }
}

fn unmatched(condition: &Condition, request: &Request<'_>, negated: bool) -> Applicability {
    Applicability::Unmatched {
        attribute: condition.attribute.name().into(),
        found: condition
            .actual_value(request)
            .map(|found| (&*found).into()),
        wanted: condition.matcher.to_string().into(),
        negated,
    }
}

fn subject_parts(rule: &Rule, request: &Request<'_>) -> Vec<SubjectPart> {
    let By::All(parts) = &*rule.by else {
        return Vec::new();
    };
    let part = |names: &Vec<Box<str>>| {
        let present = names
            .iter()
            .find(|name| Attribute::is_present(name, request));
        let substitute = || request.ip.map(|_| "ip".into());
        SubjectPart {
            wanted: names.join("|").into(),
            counted: present.cloned().or_else(substitute),
        }
    };
    parts.iter().map(part).collect()
}

/// One line per rule that does not apply; for one that does, whose counter, how much and how.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applies = |view: &RuleView| view.applicability == Applicability::Applies;
        match &self.listed {
            Some((ListDecision::Allow, entry)) => {
                writeln!(f, "the allow list decides, by {entry}: the request passes")?;
            }
            Some((ListDecision::Block { .. }, entry)) => {
                writeln!(
                    f,
                    "the block list decides, by {entry}: the request is refused"
                )?;
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
            f.write_str(", but only watches (mode: shadow)")?;
        }
        write!(f, "\n  counted for: {}", SubjectDisplay(&self.subject))?;
        if self.rates.is_empty() {
            let rate = match self.options.concurrent {
                Some(_) => "none",
                None => "unlimited",
            };
            return write!(f, "\n  rate: {rate}{}", self.options);
        }
        let AlgorithmProfile {
            algorithm,
            suited_for: fits,
            memory,
            accuracy,
            burst,
            worst_case: worst,
        } = self.profile;
        write!(f, "\n  rate: {}", self.rates.join(" and "))?;
        write!(f, "{}", self.options)?;
        write!(f, "\n  algorithm: {algorithm}, good for {fits}")?;
        write!(f, "\n    memory: {memory}\n    accuracy: {accuracy}")?;
        write!(
            f,
            "\n    burst: {burst}\n    worst case in one window: {worst}"
        )?;
        f.write_str(legend(algorithm))
    }
}

fn legend(algorithm: Algorithm) -> &'static str {
    if algorithm.takes_burst() {
        " (L the count, B the burst)"
    } else {
        " (L the count)"
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
            Applicability::Unmatched {
                attribute,
                found: None,
                wanted,
                ..
            } => write!(f, "does not apply: {attribute} is absent, wanted {wanted}"),
            Applicability::Unmatched {
                attribute,
                found: Some(found),
                wanted,
                negated,
            } => {
                let not = if *negated { "not " } else { "" };
                let found = quoted(found);
                write!(
                    f,
                    "does not apply: {attribute} is {found}, wanted {not}{wanted}"
                )
            }
            Applicability::NoCost { unit } => {
                write!(f, "does not apply: the request costs 0 {unit}")
            }
            Applicability::Skipped => f.write_str(SKIPPED_TEXT),
            Applicability::Off => f.write_str("does not apply: its mode is off"),
            Applicability::ByDescriptor => {
                f.write_str("does not apply: only descriptors lead to it")
            }
        }
    }
}

const SKIPPED_TEXT: &str =
    "does not apply: what it counts by is absent, and it says `if_missing: skip`";
