//! Tells, for one request, what every rule has to say about it and why.
//!
//! Meant for people: `tidegate explain` and `/v1/explain`. Nothing is charged. Of a client's subject
//! it names the attributes, never the value of an API key.

mod handling;

use std::fmt;

use super::condition::{Attribute, Condition};
use super::fault::shown;
use super::lists::{Entry, Listed};
use super::matrix::Fit;
use super::model::{By, Mode, Purpose, Rule, RuleKind};
use super::set::RuleSet;
use super::subject::subject_text;
use crate::algorithms::Algorithm;
use crate::request::Request;
use crate::subject::RuleName;
use crate::units::Nanos;

pub use self::handling::{Ceiling, Handling, Leased, UnitCost};

/// What the lists and every rule have to say about one request, in the order of the files.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// The list that decides, if one does, and by which entry. Then rules do not matter.
    pub listed: Option<(Listed, Entry)>,
    /// One view per rule.
    pub rules: Vec<RuleView>,
}

/// What one rule has to say about one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleView {
    /// Which rule.
    pub rule: RuleName,
    /// Whether it applies, and if not, why.
    pub standing: Standing,
    /// Whether it refuses or only watches.
    pub mode: Mode,
    /// The attributes that say whose counter it is. Empty for everybody together.
    pub subject: Vec<SubjectPart>,
    /// The rates of this client, as written. Empty means unlimited, unless open requests are limited.
    pub rates: Vec<Box<str>>,
    /// What else it does.
    pub handling: Handling,
    /// How it counts, and what that means.
    pub fit: Fit,
}

/// Whether a rule applies to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
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
        let matching = self.matching(request);
        let views = (0_u32..).zip(&self.rules).map(|(at, rule)| {
            let standing = if matching.binary_search(&at).is_ok() {
                match self.replaced_by(at, &matching, Purpose::Check) {
                    Some(other) => Standing::ReplacedBy(other.name.clone()),
                    None => Standing::Applies,
                }
            } else {
                absence(rule, request)
            };
            view(rule, standing, request)
        });
        let listed = self.listing(request, now);
        Explanation {
            listed: listed.map(|(listed, entry)| (listed, entry.clone())),
            rules: views.collect(),
        }
    }
}

fn view(rule: &Rule, standing: Standing, request: &Request<'_>) -> RuleView {
    let tier = request.api_key.and_then(|key| key.tier);
    let rates = rule.rates(rule.class(tier, &subject_text(rule, request).unwrap_or_default()));
    RuleView {
        rule: rule.name.clone(),
        standing,
        mode: rule.mode,
        subject: subject(rule, request),
        rates: rates.written.to_vec(),
        handling: Handling::of(rule, rates, request),
        fit: Fit::of(rule.algorithm),
    }
}

/// Why a rule does not apply: the first reason, in the order people would look.
fn absence(rule: &Rule, request: &Request<'_>) -> Standing {
    if rule.kind != RuleKind::Match {
        return Standing::ByDescriptor;
    }
    if rule.mode == Mode::Off {
        return Standing::Off;
    }
    let failing = rule.matching.all.iter().find(|c| !c.holds(request));
    if let Some(condition) = failing {
        return unmatched(condition, request, false);
    }
    if let Some(condition) = rule.matching.none.iter().find(|c| c.holds(request)) {
        return unmatched(condition, request, true);
    }
    match &rule.unit {
        Some(unit) if !rule.counts(request) => Standing::NoCost {
            unit: (&**unit).into(),
        },
        _ => Standing::Skipped,
    }
}

fn unmatched(condition: &Condition, request: &Request<'_>, negated: bool) -> Standing {
    Standing::Unmatched {
        attribute: condition.attribute.name().into(),
        found: condition.found(request).map(|found| (&*found).into()),
        wanted: condition.wanted.to_string().into(),
        negated,
    }
}

fn subject(rule: &Rule, request: &Request<'_>) -> Vec<SubjectPart> {
    let By::All(parts) = &*rule.by else {
        return Vec::new();
    };
    let part = |names: &Vec<Box<str>>| {
        let present = names
            .iter()
            .find(|name| Attribute::is_present(name, request));
        let stand_in = || request.ip.map(|_| "ip".into());
        SubjectPart {
            wanted: names.join("|").into(),
            counted: present.cloned().or_else(stand_in),
        }
    };
    parts.iter().map(part).collect()
}

/// One line per rule that does not apply; for one that does, whose counter, how much and how.
impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let applies = |view: &RuleView| view.standing == Standing::Applies;
        match &self.listed {
            Some((Listed::Allow, entry)) => {
                writeln!(f, "the allow list decides, by {entry}: the request passes")?;
            }
            Some((Listed::Block { .. }, entry)) => {
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
        write!(f, "{}: {}", self.rule, self.standing)?;
        if self.standing != Standing::Applies {
            return Ok(());
        }
        if self.mode == Mode::Shadow {
            f.write_str(", but only watches (mode: shadow)")?;
        }
        write!(f, "\n  counted for: {}", Subject(&self.subject))?;
        if self.rates.is_empty() {
            let rate = match self.handling.concurrent {
                Some(_) => "none",
                None => "unlimited",
            };
            return write!(f, "\n  rate: {rate}{}", self.handling);
        }
        let Fit {
            algorithm,
            fits,
            memory,
            accuracy,
            burst,
            worst,
        } = self.fit;
        write!(f, "\n  rate: {}", self.rates.join(" and "))?;
        write!(f, "{}", self.handling)?;
        write!(f, "\n  algorithm: {algorithm}, good for {fits}")?;
        write!(f, "\n    memory: {memory}\n    accuracy: {accuracy}")?;
        write!(
            f,
            "\n    burst: {burst}\n    worst case in one window: {worst}"
        )?;
        f.write_str(letters(algorithm))
    }
}

fn letters(algorithm: Algorithm) -> &'static str {
    if algorithm.takes_burst() {
        " (L the count, B the burst)"
    } else {
        " (L the count)"
    }
}

struct Subject<'a>(&'a [SubjectPart]);

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("everybody together");
        }
        for (i, part) in self.0.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let asked = |name: &str| part.wanted.split('|').any(|wanted| wanted == name);
            match &part.counted {
                Some(name) if asked(name) => write!(f, "{comma}{name}")?,
                Some(name) => write!(f, "{comma}{name}, in place of the absent {}", part.wanted)?,
                None => write!(f, "{comma}all requests without {} together", part.wanted)?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::Applies => f.write_str("applies"),
            Standing::ReplacedBy(other) => write!(f, "does not apply: `{other}` replaces it"),
            Standing::Unmatched {
                attribute,
                found: None,
                wanted,
                ..
            } => write!(f, "does not apply: {attribute} is absent, wanted {wanted}"),
            Standing::Unmatched {
                attribute,
                found: Some(found),
                wanted,
                negated,
            } => {
                let not = if *negated { "not " } else { "" };
                let found = shown(found);
                write!(
                    f,
                    "does not apply: {attribute} is {found}, wanted {not}{wanted}"
                )
            }
            Standing::NoCost { unit } => {
                write!(f, "does not apply: the request costs 0 {unit}")
            }
            Standing::Skipped => f.write_str(IF_SKIPPED),
            Standing::Off => f.write_str("does not apply: its mode is off"),
            Standing::ByDescriptor => f.write_str("does not apply: only descriptors lead to it"),
        }
    }
}

const IF_SKIPPED: &str =
    "does not apply: what it counts by is absent, and it says `if_missing: skip`";
