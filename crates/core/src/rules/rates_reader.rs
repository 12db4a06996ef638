//! Reads the rates of a rule: for everybody, for tiers, for single subjects.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::calendar::{Calendar, CalendarUnit};
use super::fault::shown;
use super::model::{By, Class, Rates};
use super::override_reader;
use super::rate::{Manner, PerWindow, Rate, parse_rate};
use super::slots::{Report, nearest};
use super::span::Span;
use super::yaml::{Kind, Node};
use crate::algorithms::{Algorithm, Limit};
use crate::request::Priority;

/// The most rates of one subject. A store record holds them all.
const MOST_RATES: usize = 8;
const WANTS: &str = "a rate such as 100/minute, or a list of them";

/// One set of rates as written.
type Written<'d> = SmallVec<[(Rate, &'d str, u32); 2]>;
type SetKey<'d> = (SmallVec<[&'d str; 2]>, Manner);

/// All sets of rates of one rule, read but not compiled: the algorithm may depend on them.
#[derive(Default)]
pub(crate) struct RuleRates<'d> {
    usual: Written<'d>,
    by_tier: Vec<(usize, Written<'d>)>,
    by_subject: Vec<(Box<str>, Written<'d>)>,
}

/// A rate whose window is a unit of the calendar, as written.
#[derive(Clone, Copy)]
pub(crate) struct CalendarRate<'d> {
    pub(crate) text: &'d str,
    pub(crate) unit: CalendarUnit,
    pub(crate) line: u32,
}

/// The sets of rates of one rule, compiled.
#[derive(Default)]
pub(crate) struct Compiled {
    pub(crate) rates: Vec<Arc<Rates>>,
    pub(crate) tiers: Vec<Class>,
    pub(crate) overrides: FxHashMap<Box<str>, Class>,
}

/// What reading rates needs to know and keeps.
pub(crate) struct RatesReader<'d, 's> {
    pub(crate) tiers: &'s [Box<str>],
    pub(crate) calendar: &'s Calendar,
    pub(crate) ipv6_prefix: u8,
    /// Sets compiled so far. Files with many rules have few different rates.
    pub(crate) known: FxHashMap<SetKey<'d>, Arc<Rates>>,
}

impl<'d> RuleRates<'d> {
    /// Whether any of them names a burst.
    pub(crate) fn has_burst(&self) -> bool {
        self.all().any(|(rate, ..)| rate.has_burst())
    }

    /// The first rate per day, week or month.
    pub(crate) fn on_calendar(&self) -> Option<CalendarRate<'d>> {
        self.all().find_map(|(rate, text, line)| match rate {
            Rate::PerWindow(PerWindow {
                window: Span::Calendar(unit),
                ..
            }) => Some(CalendarRate {
                text,
                unit: *unit,
                line: *line,
            }),
            _ => None,
        })
    }

    /// The first rate per span of time.
    pub(crate) fn off_calendar(&self) -> Option<&'d str> {
        let spans = |rate: &Rate| matches!(rate, Rate::PerWindow(rate) if matches!(rate.window, Span::Time(_)));
        let mut all = self.all();
        all.find(|(rate, ..)| spans(rate)).map(|(_, text, _)| *text)
    }

    fn all(&self) -> impl Iterator<Item = &(Rate, &'d str, u32)> {
        let tiers = self.by_tier.iter().map(|(_, written)| written);
        let subjects = self.by_subject.iter().map(|(_, written)| written);
        [&self.usual]
            .into_iter()
            .chain(tiers)
            .chain(subjects)
            .flatten()
    }

    /// Whether everybody passes.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.all().all(|(rate, ..)| *rate == Rate::Unlimited)
    }
}

impl<'d> RatesReader<'d, '_> {
    pub(crate) fn read(
        &self,
        rate: Option<Node<'d>>,
        tiers: Option<Node<'d>>,
        overrides: Option<Node<'d>>,
        by: &By,
        report: &mut Report<'_>,
    ) -> RuleRates<'d> {
        let mut rates = RuleRates::default();
        if let Some(node) = rate {
            rates.usual = read_set("rate", node, report);
        }
        if let Some(node) = tiers {
            rates.by_tier = self.read_tiers(node, report);
        }
        if let Some(node) = overrides {
            rates.by_subject = self.read_overrides(node, by, report);
        }
        rates
    }

    fn read_tiers(&self, node: Node<'d>, report: &mut Report<'_>) -> Vec<(usize, Written<'d>)> {
        let Kind::Map(pairs) = node.kind() else {
            report.text(
                "tiers",
                node,
                "tiers and rates, such as { pro: 1000/minute }",
            );
            return Vec::new();
        };
        let mut found: Vec<(usize, Written<'d>)> = Vec::new();
        for (key, value) in pairs {
            let Some(name) = report.text("tiers", key, "the name of a tier") else {
                continue;
            };
            let Some(tier) = self.tiers.iter().position(|known| **known == *name) else {
                let message = format!(
                    "has rates for tier {}, {}",
                    shown(name),
                    self.known_tiers(name)
                );
                report.fault(key.line(), message);
                continue;
            };
            if found.iter().any(|(known, _)| *known == tier) {
                report.fault(
                    key.line(),
                    format!("has rates for tier `{name}` twice; keep one"),
                );
                continue;
            }
            found.push((tier, read_set(name, value, report)));
        }
        found
    }

    fn known_tiers(&self, name: &str) -> String {
        let known: Vec<&str> = self.tiers.iter().map(|tier| &**tier).collect();
        match nearest(name, &known) {
            _ if known.is_empty() => {
                format!(
                    "but there are no tiers; write `tiers: [{}]` at the top",
                    name.escape_debug()
                )
            }
            Some(near) => format!("which is unknown; write `{near}`?"),
            None => format!("which is unknown; write one of {}", known.join(", ")),
        }
    }

    fn read_overrides(
        &self,
        node: Node<'d>,
        by: &By,
        report: &mut Report<'_>,
    ) -> Vec<(Box<str>, Written<'d>)> {
        let Kind::Map(pairs) = node.kind() else {
            report.text(
                "overrides",
                node,
                "subjects and rates, such as { alice: 1000/minute }",
            );
            return Vec::new();
        };
        if *by == By::Global {
            let message =
                "has `overrides`, but counts everybody together; remove them or write `by`";
            report.fault(node.line(), message);
        }
        let mut found = Vec::new();
        for (key, value) in pairs {
            let Some(text) = report.text("overrides", key, "the text of a subject") else {
                continue;
            };
            let subject = match override_reader::subject_text(text, by, self.ipv6_prefix) {
                Ok(subject) => subject,
                Err(wrong) => {
                    let message = format!("overrides {}, {wrong}", shown(text));
                    report.fault(key.line(), message);
                    continue;
                }
            };
            if let Some(doubt) = override_reader::doubt(text, by) {
                report.doubt(key.line(), format!("overrides {doubt}"));
            }
            found.push((subject, read_set("overrides", value, report)));
        }
        found
    }

    pub(crate) fn compile(
        &mut self,
        written: RuleRates<'d>,
        manner: Manner,
        report: &mut Report<'_>,
    ) -> Compiled {
        let mut compiled = Compiled::default();
        compiled
            .rates
            .push(self.set(&written.usual, manner, report));
        for (tier, set) in &written.by_tier {
            let class = compiled.push(self.set(set, manner, report));
            if compiled.tiers.len() <= *tier {
                compiled.tiers.resize(*tier + 1, Class::default());
            }
            compiled.tiers[*tier] = class;
        }
        for (subject, set) in written.by_subject {
            let class = compiled.push(self.set(&set, manner, report));
            let line = set.first().map_or(0, |(_, _, line)| *line);
            if compiled.overrides.contains_key(&subject) {
                let message = format!("overrides {} twice; keep one", shown(&subject));
                report.fault(line, message);
            }
            compiled.overrides.insert(subject, class);
        }
        compiled
    }

    fn set(
        &mut self,
        written: &Written<'d>,
        manner: Manner,
        report: &mut Report<'_>,
    ) -> Arc<Rates> {
        let texts = written.iter().map(|(_, text, _)| *text).collect();
        let key = (texts, manner);
        if let Some(known) = self.known.get(&key) {
            return Arc::clone(known);
        }
        let mut limits = Vec::with_capacity(written.len());
        let mut texts = Vec::with_capacity(written.len());
        let mut sound = true;
        for (rate, text, line) in written {
            let Rate::PerWindow(rate) = rate else {
                continue;
            };
            match self.limit(rate, manner) {
                Ok(limit) => {
                    limits.push(limit);
                    texts.push(Box::from(*text));
                }
                Err(wrong) => {
                    sound = false;
                    report.fault(*line, format!("has {wrong}"));
                }
            }
        }
        let rates = Rates::new(limits, texts);
        let rates = Arc::new(match manner.ceilings {
            Some(ceilings) => rates.shared_by(ceilings),
            None => rates,
        });
        if sound {
            self.known.insert(key, Arc::clone(&rates));
        }
        rates
    }

    fn limit(&self, rate: &PerWindow, manner: Manner) -> Result<Limit, String> {
        let limit = rate.compile(manner, self.calendar);
        let limit = limit.map_err(|wrong| wrong.to_string())?;
        if manner.algorithm == Algorithm::FixedWindow && manner.guard >= limit.per() {
            return Err(format!(
                "a guard of {}, which is not shorter than the window of `{rate}`; write less",
                manner.guard
            ));
        }
        if let Some(ceilings) = manner.ceilings {
            let none = |priority: &Priority| ceilings.units(*priority, limit.whole()) == 0;
            if let Some(priority) = Priority::ALL.into_iter().find(none) {
                return Err(format!(
                    "rate `{rate}`, of which {} for priority {} is less than one request; write a \
                     larger rate, or another ceiling",
                    ceilings.of(priority),
                    priority.name()
                ));
            }
        }
        Ok(limit)
    }
}

impl Compiled {
    fn push(&mut self, rates: Arc<Rates>) -> Class {
        let known = self
            .rates
            .iter()
            .position(|known| Arc::ptr_eq(known, &rates));
        let at = known.unwrap_or(self.rates.len());
        if at == self.rates.len() {
            self.rates.push(rates);
        }
        Class(u32::try_from(at).unwrap_or(0))
    }
}

fn read_set<'d>(field: &str, node: Node<'d>, report: &mut Report<'_>) -> Written<'d> {
    let mut rates = Written::new();
    let texts = report.texts(field, node, WANTS);
    if texts.len() > MOST_RATES {
        let message = format!(
            "has {} rates at once; write at most {MOST_RATES}",
            texts.len()
        );
        report.fault(node.line(), message);
    }
    for (text, line) in texts.into_iter().take(MOST_RATES) {
        match parse_rate(text) {
            Ok(rate) => rates.push((rate, text.trim(), line)),
            Err(wrong) => report.fault(line, format!("has {wrong}")),
        }
    }
    let unlimited = rates.iter().position(|(rate, ..)| *rate == Rate::Unlimited);
    if let Some(at) = unlimited
        && rates.len() > 1
    {
        let message =
            "has `unlimited` beside other rates, which would still limit; keep one or the other";
        report.fault(rates[at].2, message);
    }
    rates
}
