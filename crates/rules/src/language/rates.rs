//! The rates of a rule: the default rates, those of tiers, and those of single subjects. Reads them, and compiles them
//! with the options of the rule and its calendar.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::calendar::Calendar;
use super::diagnostics::quoted;
use super::fields::{Reporter, closest_name, what_to_write};
use super::load_shedding::PriorityCeilings;
use super::override_reader;
use super::rule::{By, RateClass, Rates};
use super::yaml::{YamlNode, YamlValue};
use crate::request::Priority;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec, Window};
use tidegate_core::rate::{CalendarUnit, PerWindow, Rate, RateError, RateWindow, parse_rate};
use tidegate_core::units::Nanos;

/// Maximum number of rates of one subject. A store record holds them all.
const MAX_RATES: usize = 8;
const EXPECTED: &str = "a rate such as 100/minute, or a list of them";

/// One set of rates, as written.
type ParsedRates<'d> = SmallVec<[(Rate, &'d str, u32); 2]>;
type RateSetKey<'d> = (SmallVec<[&'d str; 2]>, LimitOptions);

/// All rate sets of one rule, parsed but not compiled: the algorithm may depend on them.
#[derive(Default)]
pub(crate) struct ParsedRuleRates<'d> {
    default_rates: ParsedRates<'d>,
    by_tier: Vec<(usize, ParsedRates<'d>)>,
    by_subject: Vec<(Box<str>, ParsedRates<'d>)>,
}

/// A rate whose window is a unit of the calendar, as written.
#[derive(Clone, Copy)]
pub(crate) struct CalendarRate<'d> {
    pub(crate) text: &'d str,
    pub(crate) unit: CalendarUnit,
    pub(crate) line: u32,
}

/// The rate sets of one rule, compiled.
#[derive(Default)]
pub(crate) struct CompiledRates {
    pub(crate) rates: Vec<Arc<Rates>>,
    pub(crate) tiers: Vec<RateClass>,
    pub(crate) overrides: FxHashMap<Box<str>, RateClass>,
}

/// Options of a limit, apart from the rate.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LimitOptions {
    pub(crate) algorithm: Algorithm,
    pub(crate) precision: Precision,
    pub(crate) guard: Nanos,
    pub(crate) stagger: bool,
    pub(crate) max_delay: Option<Nanos>,
    pub(crate) lease_duration: Option<Nanos>,
    pub(crate) ceilings: Option<PriorityCeilings>,
}

/// Settings for reading rates, and the sets compiled so far.
pub(crate) struct RatesReader<'d, 's> {
    pub(crate) tiers: &'s [Box<str>],
    pub(crate) calendar: &'s Calendar,
    pub(crate) ipv6_prefix: u8,
    /// Files with many rules have few different rates, so equal sets are compiled once.
    pub(crate) compiled_sets: FxHashMap<RateSetKey<'d>, Arc<Rates>>,
}

impl<'d> ParsedRuleRates<'d> {
    /// Whether any rate has a burst.
    pub(crate) fn has_burst(&self) -> bool {
        self.all().any(|(rate, ..)| rate.has_burst())
    }

    /// The first rate per day, week or month.
    pub(crate) fn first_calendar_rate(&self) -> Option<CalendarRate<'d>> {
        self.all().find_map(|(rate, text, line)| match rate {
            Rate::PerWindow(PerWindow { window: RateWindow::Calendar(unit), .. }) => {
                Some(CalendarRate { text, unit: *unit, line: *line })
            }
            _ => None,
        })
    }

    /// The first rate per fixed duration.
    pub(crate) fn first_fixed_rate(&self) -> Option<&'d str> {
        let spans =
            |rate: &Rate| matches!(rate, Rate::PerWindow(rate) if matches!(rate.window, RateWindow::Duration(_)));
        let mut all = self.all();
        all.find(|(rate, ..)| spans(rate)).map(|(_, text, _)| *text)
    }

    fn all(&self) -> impl Iterator<Item = &(Rate, &'d str, u32)> {
        let tiers = self.by_tier.iter().map(|(_, written)| written);
        let subjects = self.by_subject.iter().map(|(_, written)| written);
        [&self.default_rates].into_iter().chain(tiers).chain(subjects).flatten()
    }

    /// Whether every rate is `unlimited`.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.all().all(|(rate, ..)| *rate == Rate::Unlimited)
    }
}

impl<'d> RatesReader<'d, '_> {
    pub(crate) fn read(
        &self,
        rate: Option<YamlNode<'d>>,
        tiers: Option<YamlNode<'d>>,
        overrides: Option<YamlNode<'d>>,
        by: &By,
        report: &mut Reporter<'_>,
    ) -> ParsedRuleRates<'d> {
        let mut rates = ParsedRuleRates::default();
        if let Some(node) = rate {
            rates.default_rates = read_set("rate", node, report);
        }
        if let Some(node) = tiers {
            rates.by_tier = self.read_tiers(node, report);
        }
        if let Some(node) = overrides {
            rates.by_subject = self.read_overrides(node, by, report);
        }
        rates
    }

    fn read_tiers(&self, node: YamlNode<'d>, report: &mut Reporter<'_>) -> Vec<(usize, ParsedRates<'d>)> {
        let YamlValue::Map(pairs) = node.kind() else {
            report.text("tiers", node, "tiers and rates, such as { pro: 1000/minute }");
            return Vec::new();
        };
        let mut found: Vec<(usize, ParsedRates<'d>)> = Vec::new();
        for (key, value) in pairs {
            let Some(name) = report.text("tiers", key, "the name of a tier") else {
                continue;
            };
            let Some(tier) = self.tiers.iter().position(|known| **known == *name) else {
                let message = format!("has rates for tier {}, {}", quoted(name), self.known_tiers(name));
                report.error(key.line(), message);
                continue;
            };
            if found.iter().any(|(known, _)| *known == tier) {
                report.error(key.line(), format!("has rates for tier `{name}` twice; keep one"));
                continue;
            }
            found.push((tier, read_set(name, value, report)));
        }
        found
    }

    fn known_tiers(&self, name: &str) -> String {
        let known: Vec<&str> = self.tiers.iter().map(|tier| &**tier).collect();
        if known.is_empty() {
            return format!("but there are no tiers; write `tiers: [{}]` at the top", name.escape_debug());
        }
        format!("which is unknown; {}", what_to_write(closest_name(name, &known), &known))
    }

    fn read_overrides(
        &self,
        node: YamlNode<'d>,
        by: &By,
        report: &mut Reporter<'_>,
    ) -> Vec<(Box<str>, ParsedRates<'d>)> {
        let YamlValue::Map(pairs) = node.kind() else {
            report.text("overrides", node, "subjects and rates, such as { alice: 1000/minute }");
            return Vec::new();
        };
        if *by == By::Global {
            let message = "has `overrides`, but counts everybody together; remove them or write `by`";
            report.error(node.line(), message);
        }
        let mut found = Vec::new();
        for (key, value) in pairs {
            let Some(text) = report.text("overrides", key, "the text of a subject") else {
                continue;
            };
            let subject = match override_reader::normalize_subject(text, by, self.ipv6_prefix) {
                Ok(subject) => subject,
                Err(wrong) => {
                    let message = format!("overrides {}, {wrong}", quoted(text));
                    report.error(key.line(), message);
                    continue;
                }
            };
            if let Some(warning) = override_reader::warning(text, by) {
                report.warn(key.line(), format!("overrides {warning}"));
            }
            found.push((subject, read_set("overrides", value, report)));
        }
        found
    }

    pub(crate) fn compile(
        &mut self,
        written: ParsedRuleRates<'d>,
        options: LimitOptions,
        report: &mut Reporter<'_>,
    ) -> CompiledRates {
        let mut compiled = CompiledRates::default();
        compiled.rates.push(self.compile_set(&written.default_rates, options, report));
        for (tier, set) in &written.by_tier {
            let class = compiled.push(self.compile_set(set, options, report));
            if compiled.tiers.len() <= *tier {
                compiled.tiers.resize(*tier + 1, RateClass::default());
            }
            compiled.tiers[*tier] = class;
        }
        for (subject, set) in written.by_subject {
            let class = compiled.push(self.compile_set(&set, options, report));
            let line = set.first().map_or(0, |(_, _, line)| *line);
            if compiled.overrides.contains_key(&subject) {
                let message = format!("overrides {} twice; keep one", quoted(&subject));
                report.error(line, message);
            }
            compiled.overrides.insert(subject, class);
        }
        compiled
    }

    fn compile_set(
        &mut self,
        written: &ParsedRates<'d>,
        options: LimitOptions,
        report: &mut Reporter<'_>,
    ) -> Arc<Rates> {
        let texts = written.iter().map(|(_, text, _)| *text).collect();
        let key = (texts, options);
        if let Some(known) = self.compiled_sets.get(&key) {
            return Arc::clone(known);
        }
        let mut limits = Vec::with_capacity(written.len());
        let mut texts = Vec::with_capacity(written.len());
        let mut is_valid = true;
        for (rate, text, line) in written {
            let Rate::PerWindow(rate) = rate else {
                continue;
            };
            match self.compile_limit(rate, options) {
                Ok(limit) => {
                    limits.push(limit);
                    texts.push(Box::from(*text));
                }
                Err(wrong) => {
                    is_valid = false;
                    report.error(*line, format!("has {wrong}"));
                }
            }
        }
        let rates = Rates::new(limits, texts);
        let rates = Arc::new(match options.ceilings {
            Some(ceilings) => rates.with_ceilings(ceilings),
            None => rates,
        });
        if is_valid {
            self.compiled_sets.insert(key, Arc::clone(&rates));
        }
        rates
    }

    fn compile_limit(&self, rate: &PerWindow, options: LimitOptions) -> Result<Limit, String> {
        let limit = compile_rate(rate, options, self.calendar);
        let limit = limit.map_err(|wrong| wrong.to_string())?;
        if options.algorithm == Algorithm::FixedWindow && options.guard >= limit.per() {
            return Err(format!(
                "a guard of {}, which is not shorter than the window of `{rate}`; write less",
                options.guard
            ));
        }
        if let Some(ceilings) = options.ceilings {
            let none = |priority: &Priority| ceilings.units(*priority, limit.full_capacity()) == 0;
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

impl CompiledRates {
    fn push(&mut self, rates: Arc<Rates>) -> RateClass {
        let known = self.rates.iter().position(|known| Arc::ptr_eq(known, &rates));
        let at = known.unwrap_or(self.rates.len());
        if at == self.rates.len() {
            self.rates.push(rates);
        }
        RateClass(u32::try_from(at).unwrap_or(0))
    }
}

fn read_set<'d>(field: &str, node: YamlNode<'d>, report: &mut Reporter<'_>) -> ParsedRates<'d> {
    let mut rates = ParsedRates::new();
    let texts = report.texts(field, node, EXPECTED);
    if texts.len() > MAX_RATES {
        let message = format!("has {} rates at once; write at most {MAX_RATES}", texts.len());
        report.error(node.line(), message);
    }
    for (text, line) in texts.into_iter().take(MAX_RATES) {
        match parse_rate(text) {
            Ok(rate) => rates.push((rate, text.trim(), line)),
            Err(wrong) => report.error(line, format!("has {wrong}")),
        }
    }
    let unlimited = rates.iter().position(|(rate, ..)| *rate == Rate::Unlimited);
    if let Some(at) = unlimited
        && rates.len() > 1
    {
        let message = "has `unlimited` beside other rates, which would still limit; keep one or the other";
        report.error(rates[at].2, message);
    }
    rates
}

/// Compiles a rate with the options of its rule. Days, weeks and months of a fixed window follow the calendar; elsewhere
/// they are durations.
pub(crate) fn compile_rate(rate: &PerWindow, options: LimitOptions, calendar: &Calendar) -> Result<Limit, RateError> {
    let window = match rate.window {
        RateWindow::Duration(span) => Window::Span(span),
        RateWindow::Calendar(unit) if options.algorithm == Algorithm::FixedWindow => calendar.window(unit),
        RateWindow::Calendar(unit) => Window::Span(unit.nominal_length()),
    };
    let spec = Spec {
        algorithm: options.algorithm,
        count: rate.count,
        window,
        burst: rate.burst,
        guard: options.guard,
        // A calendar window is the same for all subjects, in UTC as in any other zone.
        stagger: options.stagger && matches!(rate.window, RateWindow::Duration(_)),
        max_delay: options.max_delay,
        lease_ttl: options.lease_duration,
    };
    rate.compile(&spec, options.precision)
}
