//! Reads one rule: every field checked by hand, every fault told, none hiding another.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::choices::{
    FLAGS, IF_MISSING, MODES, algorithm, choice, on_store_failure, on_store_late, span, unknown,
};
use super::concurrent;
use super::counting::{self, Beside};
use super::durability;
use super::fault::shown;
use super::head::Defaults;
use super::match_reader::MatchReader;
use super::model::{By, Rule, RuleKind};
use super::names::{AttributeNames, GLOBAL, UnitNames};
use super::rate::Manner;
use super::rates_reader::{CalendarRate, RatesReader, RuleRates};
use super::shedding;
use super::slots::{Report, Slots, slots};
use super::yaml::{Kind, Node};
use crate::algorithms::{Algorithm, Precision};
use crate::store::{Abilities, Terms};
use crate::subject::RuleName;
use crate::units::Nanos;

slots!(
    /// The fields of a rule, no others.
    RuleSlots {
        name: "name",
        matching: "match",
        by: "by",
        if_missing: "if_missing",
        rate: "rate",
        tiers: "tiers",
        overrides: "overrides",
        algorithm: "algorithm",
        unit: "unit",
        mode: "mode",
        replaces: "replaces",
        counting: "counting",
        on_store_failure: "on_store_failure",
        on_store_late: "on_store_late",
        durability: "durability",
        budget: "budget",
        concurrent: "concurrent",
        priority: "priority",
        soft: "soft",
        max_delay: "max_delay",
        charge_on: "charge_on",
        count_denied: "count_denied",
        stagger: "stagger",
        guard: "guard",
    }
);

const MOST_NAME_BYTES: usize = 100;

/// A name in the `replaces` of a rule, with its line.
pub(crate) struct Replaces<'d> {
    pub(crate) rule: u32,
    pub(crate) name: &'d str,
    pub(crate) line: u32,
}

/// The rules read so far.
#[derive(Default)]
pub(crate) struct Read<'d> {
    pub(crate) rules: Vec<Rule>,
    pub(crate) replaces: Vec<Replaces<'d>>,
}

/// What reading rules needs to know and keeps.
pub(crate) struct RuleReader<'d, 's> {
    pub(crate) rates: RatesReader<'d, 's>,
    /// Whether the rules name a `timezone`, so that days, weeks and months are those of a calendar.
    pub(crate) has_timezone: bool,
    pub(crate) matches: MatchReader<'s>,
    pub(crate) store: Abilities,
    pub(crate) subjects: FxHashMap<&'d str, Arc<By>>,
    pub(crate) units: UnitNames<'s>,
}

impl<'d> RuleReader<'d, '_> {
    /// Reads the rule at `node`, if there is enough of it to go on with; the faults are what counts.
    pub(crate) fn read(
        &mut self,
        node: Node<'d>,
        defaults: Defaults,
        read: &mut Read<'d>,
        report: &mut Report<'_>,
    ) -> Option<()> {
        let mut report = Report {
            file: Arc::clone(&report.file),
            rule: name_at(node),
            faults: &mut *report.faults,
        };
        let report = &mut report;
        let slots = read_slots(node, report)?;
        let name = name(&slots, node, report);
        refuse_unready(&slots, report);

        let matching = slots.matching.map(|node| self.matches.read(node, report));
        let by = slots.by.map(|node| self.by(node, report));
        let shown_by = by.clone().unwrap_or_else(|| Arc::new(By::Global));
        let written = self
            .rates
            .read(slots.rate, slots.tiers, slots.overrides, &shown_by, report);
        refuse_no_rate(&slots, name, node, report);
        let unlimited = slots.rate.is_some() && written.is_unlimited();
        let limits = slots.concurrent.is_some() || slots.rate.is_some() && !unlimited;
        if by.is_none() && limits {
            let message = "does not say whose requests it counts together; write `by: ip`, or \
                           `by: global` for everybody";
            report.fault(node.line(), message);
        }
        let own = slots.algorithm.map(|node| algorithm(node, report));
        let own = match own {
            Some(own) => Some(own?),
            None => None,
        };
        let on_calendar = written.on_calendar().filter(|_| self.has_timezone);
        let algorithm = match on_calendar {
            Some(rate) => calendar_algorithm(own, defaults.algorithm, rate, &written, report),
            None => own.unwrap_or_else(|| usual_algorithm(defaults.algorithm, written.has_burst())),
        };
        let durability = durability::read(slots.durability, defaults, self.store, node, report);
        let precision = durability::precision(durability, self.store);
        let beside = Beside {
            algorithm,
            durability,
            store: self.store,
        };
        let way = counting::read(slots.counting, beside, report);
        let ceilings = slots.priority.map(|node| shedding::ceilings(node, report));
        let soft = slots
            .soft
            .map(|node| shedding::soft(node, algorithm, report));
        let manner = Manner {
            leased: way.leased,
            ceilings: ceilings.flatten(),
            ..manner(&slots, algorithm, precision, report)
        };
        let compiled = self.rates.compile(written, manner, report);
        let place = report.place(node.line());
        let at = u32::try_from(read.rules.len()).ok()?;
        let named_by = shown_by.width();
        let replaces = replaces(&slots, at, report);
        let name = RuleName::new(name?);
        // Only of a rule that takes its place: they say whose they are by it.
        read.replaces.extend(replaces);
        let on_failure = slots
            .on_store_failure
            .and_then(|node| on_store_failure(node, report))
            .unwrap_or(defaults.on_store_failure);
        read.rules.push(Rule {
            name,
            kind: RuleKind::Match,
            place,
            matching: matching.unwrap_or_default(),
            by: shown_by,
            if_missing: choice(&slots.if_missing, "if_missing", &IF_MISSING, report),
            mode: choice(&slots.mode, "mode", &MODES, report),
            unit: slots.unit.and_then(|node| self.unit(node, report)),
            terms: Terms {
                on_failure,
                on_late: slots
                    .on_store_late
                    .and_then(|node| on_store_late(node, report))
                    .or(defaults.on_store_late)
                    .unwrap_or_else(|| durability::default_on_late(durability, on_failure)),
                budget: span(&slots.budget, "budget", report)
                    .or_else(|| durability::usual_budget(durability)),
                durability,
                counting: way.counting,
                named_by,
            },
            max_delay: manner.max_delay,
            concurrent: slots
                .concurrent
                .and_then(|node| concurrent::read(node, report)),
            counts_only_permits: slots.concurrent.is_some() && slots.rate.is_none(),
            priority: manner.ceilings,
            soft: soft.flatten(),
            algorithm,
            stagger: manner.stagger,
            guard: manner.guard,
            replaces: Box::default(),
            rates: compiled.rates.into(),
            tiers: compiled.tiers.into(),
            overrides: compiled.overrides,
        });
        Some(())
    }

    fn by(&mut self, node: Node<'d>, report: &mut Report<'_>) -> Arc<By> {
        let text = node.text();
        if let Some(known) = text.and_then(|text| self.subjects.get(text)) {
            return Arc::clone(known);
        }
        let before = report.faults.count();
        let by = Arc::new(read_by(node, &mut self.matches.names, report));
        if let Some(text) = text
            && report.faults.count() == before
        {
            self.subjects.insert(text, Arc::clone(&by));
        }
        by
    }

    fn unit(&mut self, node: Node<'d>, report: &mut Report<'_>) -> Option<Arc<str>> {
        let text = report.text("unit", node, "what the rule counts, such as tokens")?;
        let unit = self.units.find(text);
        unit.map_err(|wrong| report.fault(node.line(), format!("has unit {wrong}")))
            .ok()
    }
}

/// The name a rule states, for faults found before the name is checked.
fn name_at<'d>(node: Node<'d>) -> Option<&'d str> {
    let Kind::Map(mut pairs) = node.kind() else {
        return None;
    };
    let (_, value) = pairs.find(|(key, _)| key.text() == Some("name"))?;
    value.text().filter(|name| is_name(name))
}

fn read_slots<'d>(node: Node<'d>, report: &mut Report<'_>) -> Option<RuleSlots<'d>> {
    let what = if report.rule.is_some() { "" } else { "a rule" };
    RuleSlots::read(node, what, report)
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MOST_NAME_BYTES
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/'))
}

fn name<'d>(slots: &RuleSlots<'d>, node: Node<'d>, report: &mut Report<'_>) -> Option<&'d str> {
    let Some(field) = slots.name else {
        report.fault(node.line(), "a rule has no name; write `name: ...`");
        return None;
    };
    let name = report.text("name", field, "a name")?;
    if !is_name(name) {
        let message = format!(
            "a rule has the name {}; write 1 to {MOST_NAME_BYTES} letters, digits, `-`, `_`, `.`, \
             `:` and `/`",
            shown(name)
        );
        report.fault(field.line(), message);
        return None;
    }
    Some(name)
}

/// A rule without a rate limits only how many requests are open, and then has none for anybody.
fn refuse_no_rate(
    slots: &RuleSlots<'_>,
    name: Option<&str>,
    node: Node<'_>,
    report: &mut Report<'_>,
) {
    if slots.rate.is_some() || name.is_none() {
        return;
    }
    let other = slots.tiers.or(slots.overrides);
    match (slots.concurrent, other) {
        (None, _) => report.fault(
            node.line(),
            "has no rate; write one such as 100/minute, or unlimited",
        ),
        (Some(_), Some(other)) => report.fault(
            other.line(),
            "has rates for some and none for all others; write `rate`, or `rate: unlimited`",
        ),
        (Some(_), None) => {}
    }
}

/// Fields whose machinery is still to come. Ignoring them would promise what is not kept.
fn refuse_unready(slots: &RuleSlots<'_>, report: &mut Report<'_>) {
    if let Some(node) = slots.charge_on {
        let message = "has `charge_on`, which this version does not do yet; remove it";
        report.fault(node.line(), message);
    }
    let Some(node) = slots.count_denied else {
        return;
    };
    match report.text("count_denied", node, "false") {
        None | Some("false") => {}
        Some("true") => {
            let message = "has count_denied `true`, which this version does not do yet; write false \
                           or remove it";
            report.fault(node.line(), message);
        }
        Some(other) => {
            let message = unknown("count_denied", other, &["false", "true"]);
            report.fault(node.line(), message);
        }
    }
}

fn usual_algorithm(default: Option<Algorithm>, has_burst: bool) -> Algorithm {
    let default = default.unwrap_or(Algorithm::SlidingWindow);
    if has_burst && !default.takes_burst() {
        return Algorithm::TokenBucket;
    }
    default
}

/// The algorithm of a rule with a rate per day, week or month where a `timezone` is named: a fixed
/// window, which alone follows a calendar. What contradicts that is a fault, because a span of 24 hours
/// in its place would surprise.
fn calendar_algorithm(
    own: Option<Algorithm>,
    default: Option<Algorithm>,
    rate: CalendarRate<'_>,
    written: &RuleRates<'_>,
    report: &mut Report<'_>,
) -> Algorithm {
    let fixed = Algorithm::FixedWindow;
    let beside = written.off_calendar().filter(|_| default != Some(fixed));
    let write = "write `algorithm: fixed-window`";
    let (found, cure) = match own {
        Some(own) if own == fixed => return fixed,
        Some(own) => (format!("with algorithm {own}"), write.to_owned()),
        None if written.has_burst() => ("with a burst".to_owned(), "remove the burst".to_owned()),
        None => match beside {
            Some(other) => (
                format!("beside {}", shown(other)),
                format!("{write} for both or a rule for each"),
            ),
            None => return fixed,
        },
    };
    let CalendarRate { text, unit, line } = rate;
    let (unit, hours) = (unit.name(), unit.usual().get() / HOUR.get());
    let message = format!(
        "has rate {} {found}, but a {unit} of the `timezone` is a fixed window; {cure}, or write \
         {hours}h for a {unit} without a calendar",
        shown(text)
    );
    report.fault(line, message);
    own.unwrap_or_else(|| usual_algorithm(default, written.has_burst()))
}

const HOUR: Nanos = Nanos::from_secs(3_600);

/// The fields that only some algorithms know.
fn manner(
    slots: &RuleSlots<'_>,
    algorithm: Algorithm,
    precision: Precision,
    report: &mut Report<'_>,
) -> Manner {
    let (fixed, queue) = (Algorithm::FixedWindow, Algorithm::LeakyQueue);
    let stagger = only(fixed, algorithm, "stagger", slots.stagger, report);
    let guard = only(fixed, algorithm, "guard", slots.guard, report);
    let max_delay = only(queue, algorithm, "max_delay", slots.max_delay, report);
    Manner {
        algorithm,
        precision,
        stagger: choice(&stagger, "stagger", &FLAGS, report),
        guard: span(&guard, "guard", report).unwrap_or_default(),
        max_delay: span(&max_delay, "max_delay", report),
        leased: None,
        ceilings: None,
    }
}

/// A field that means something to `wanted` alone.
fn only<'d>(
    wanted: Algorithm,
    algorithm: Algorithm,
    field: &str,
    node: Option<Node<'d>>,
    report: &mut Report<'_>,
) -> Option<Node<'d>> {
    if algorithm == wanted {
        return node;
    }
    let message = format!(
        "has `{field}` with algorithm {algorithm}, which has no use for it; remove it or write \
         `algorithm: {wanted}`"
    );
    report.fault(node?.line(), message);
    None
}

fn replaces<'d>(
    slots: &RuleSlots<'d>,
    rule: u32,
    report: &mut Report<'_>,
) -> impl Iterator<Item = Replaces<'d>> + use<'d> {
    let named = slots
        .replaces
        .map(|node| report.texts("replaces", node, "names of rules"));
    let named = named.unwrap_or_default().into_iter();
    named.map(move |(name, line)| Replaces { rule, name, line })
}

fn read_by(node: Node<'_>, known: &mut AttributeNames<'_>, report: &mut Report<'_>) -> By {
    if node.text() == Some(GLOBAL) {
        return By::Global;
    }
    let wants = "an attribute such as ip, a list of them, or global";
    let mut parts = Vec::new();
    for (text, line) in report.texts("by", node, wants) {
        let mut names: Vec<Box<str>> = Vec::new();
        for name in text.split('|') {
            match known.find_in_by(name.trim()) {
                Ok(name) => names.push((&*name).into()),
                Err(wrong) => report.fault(line, format!("counts by {wrong}")),
            }
        }
        if parts.contains(&names) {
            let message = format!("counts by {} twice; keep one", shown(text));
            report.fault(line, message);
        }
        parts.push(names);
    }
    By::All(parts)
}
