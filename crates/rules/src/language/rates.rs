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
use super::rule_reader::{RuleFields, RuleReader};
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
pub(crate) type RateSetKey<'d> = (SmallVec<[&'d str; 2]>, LimitOptions);

/// Whom a set of rates is for.
enum RateOwner {
    Everyone,
    /// By position in the list of tiers.
    Tier(usize),
    Subject(Box<str>),
}

/// All rate sets of one rule, parsed but not compiled: the algorithm may depend on them. The first is for everyone.
pub(crate) struct ParsedRuleRates<'d>(Vec<(RateOwner, ParsedRates<'d>)>);

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

impl<'d> ParsedRuleRates<'d> {
    /// Whether any rate has a burst.
    pub(crate) fn has_burst(&self) -> bool {
        self.all().any(|(rate, ..)| rate.has_burst())
    }

    /// The first rate per day, week or month: its text, unit and line.
    pub(crate) fn first_calendar_rate(&self) -> Option<(&'d str, CalendarUnit, u32)> {
        self.all().find_map(|(rate, text, line)| match rate {
            Rate::PerWindow(PerWindow { window: RateWindow::Calendar(unit), .. }) => Some((*text, *unit, *line)),
            _ => None,
        })
    }

    /// The first rate per fixed duration.
    pub(crate) fn first_fixed_rate(&self) -> Option<&'d str> {
        self.all().find_map(|(rate, text, _)| match rate {
            Rate::PerWindow(PerWindow { window: RateWindow::Duration(_), .. }) => Some(*text),
            _ => None,
        })
    }

    fn all(&self) -> impl Iterator<Item = &(Rate, &'d str, u32)> {
        self.0.iter().flat_map(|(_, rates)| rates)
    }

    /// Whether every rate is `unlimited`.
    pub(crate) fn is_unlimited(&self) -> bool {
        self.all().all(|(rate, ..)| *rate == Rate::Unlimited)
    }
}

impl<'d> RuleReader<'d, '_> {
    pub(super) fn read_rates(
        &self,
        fields: &RuleFields<'d>,
        by: &By,
        report: &mut Reporter<'_>,
    ) -> ParsedRuleRates<'d> {
        let rates = fields.rate.map(|node| read_set("rate", node, report)).unwrap_or_default();
        let mut sets = vec![(RateOwner::Everyone, rates)];
        if let Some(node) = fields.tiers {
            self.read_tiers(node, &mut sets, report);
        }
        if let Some(node) = fields.overrides {
            self.read_overrides(node, by, &mut sets, report);
        }
        ParsedRuleRates(sets)
    }

    fn read_tiers(&self, node: YamlNode<'d>, sets: &mut Vec<(RateOwner, ParsedRates<'d>)>, report: &mut Reporter<'_>) {
        let YamlValue::Map(pairs) = node.kind() else {
            report.text("tiers", node, "tiers and rates, such as { pro: 1000/minute }");
            return;
        };
        for (key, value) in pairs {
            let found = report.parse("tiers", key, "the name of a tier", |name| {
                let Some(tier) = self.tiers.iter().position(|known| **known == *name) else {
                    return Err(format!("has rates for tier {}, {}", quoted(name), self.known_tiers(name)));
                };
                if sets.iter().any(|(owner, _)| matches!(owner, RateOwner::Tier(known) if *known == tier)) {
                    return Err(format!("has rates for tier `{name}` twice; keep one"));
                }
                Ok((tier, name))
            });
            if let Some((tier, name)) = found {
                sets.push((RateOwner::Tier(tier), read_set(name, value, report)));
            }
        }
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
        sets: &mut Vec<(RateOwner, ParsedRates<'d>)>,
        report: &mut Reporter<'_>,
    ) {
        let YamlValue::Map(pairs) = node.kind() else {
            report.text("overrides", node, "subjects and rates, such as { alice: 1000/minute }");
            return;
        };
        if *by == By::Global {
            report.error(node.line(), "has `overrides`, but counts everybody together; remove them or write `by`");
        }
        for (key, value) in pairs {
            let found = report.parse("overrides", key, "the text of a subject", |text| {
                let subject = override_reader::normalize_subject(text, by, self.ipv6_prefix);
                let subject = subject.map_err(|wrong| format!("overrides {}, {wrong}", quoted(text)))?;
                Ok((subject, override_reader::warning(text, by)))
            });
            let Some((subject, warning)) = found else { continue };
            if let Some(warning) = warning {
                report.warn(key.line(), format!("overrides {warning}"));
            }
            sets.push((RateOwner::Subject(subject), read_set("overrides", value, report)));
        }
    }

    pub(super) fn compile_rates(
        &mut self,
        written: ParsedRuleRates<'d>,
        options: LimitOptions,
        report: &mut Reporter<'_>,
    ) -> CompiledRates {
        let mut compiled = CompiledRates::default();
        for (owner, set) in written.0 {
            let class = compiled.push(self.compile_set(&set, options, report));
            match owner {
                RateOwner::Everyone => {}
                RateOwner::Tier(tier) => {
                    let tiers = &mut compiled.tiers;
                    tiers.resize(tiers.len().max(tier + 1), RateClass::default());
                    tiers[tier] = class;
                }
                RateOwner::Subject(subject) => {
                    if compiled.overrides.contains_key(&subject) {
                        let line = set.first().map_or(0, |(_, _, line)| *line);
                        report.error(line, format!("overrides {} twice; keep one", quoted(&subject)));
                    }
                    compiled.overrides.insert(subject, class);
                }
            }
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
        let (mut limits, mut texts, mut is_valid) = (Vec::new(), Vec::new(), true);
        for (rate, text, line) in written {
            let Rate::PerWindow(rate) = rate else { continue };
            let limit = self.compile_limit(rate, options).map_err(|wrong| format!("has {wrong}"));
            match report.check(*line, limit) {
                Some(limit) => {
                    limits.push(limit);
                    texts.push(Box::from(*text));
                }
                None => is_valid = false,
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
        let at = known.unwrap_or_else(|| {
            self.rates.push(rates);
            self.rates.len() - 1
        });
        RateClass(u32::try_from(at).unwrap_or(0))
    }
}

fn read_set<'d>(field: &str, node: YamlNode<'d>, report: &mut Reporter<'_>) -> ParsedRates<'d> {
    let mut rates = ParsedRates::new();
    let texts = report.texts(field, node, EXPECTED);
    if texts.len() > MAX_RATES {
        report.error(node.line(), format!("has {} rates at once; write at most {MAX_RATES}", texts.len()));
    }
    for (text, line) in texts.into_iter().take(MAX_RATES) {
        let rate = report.check(line, parse_rate(text).map_err(|wrong| format!("has {wrong}")));
        rates.extend(rate.map(|rate| (rate, text.trim(), line)));
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
