//! Reads one rule. Every field is checked by hand, and every error is reported: none hides another.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::calendar::Calendar;
use super::diagnostics::quoted;
use super::fields::{MappingFields, Reporter, mapping_fields, read_duration, unknown_value};
use super::load_shedding;
use super::names::{GLOBAL, KnownNames};
use super::rates::{LimitOptions, ParsedRuleRates, RateSetKey};
use super::rule::{By, Rates, Rule, RuleKind};
use super::rule_options;
use super::top_level::Defaults;
use super::yaml::{YamlNode, YamlValue};
use tidegate_core::algorithms::{Algorithm, Precision};
use tidegate_core::rate::CalendarUnit;
use tidegate_core::rule_options::{Capabilities, RuleOptions};
use tidegate_core::subject::RuleName;
use tidegate_core::units::Nanos;

mapping_fields!(
    /// The fields of a rule, and no others.
    RuleFields {
        name, matching: "match", by, if_missing, rate, tiers, overrides, algorithm, unit, mode, replaces, counting,
        on_store_failure, on_store_late, durability, budget, concurrent, priority, soft, max_delay, charge_on,
        count_denied, stagger, guard,
    }
);

const MAX_NAME_BYTES: usize = 100;

/// A name in the `replaces` of a rule, with its line.
pub(crate) struct ReplacedName<'d> {
    pub(crate) rule: u32,
    pub(crate) name: &'d str,
    pub(crate) line: u32,
}

/// Settings for reading rules, and what was read so far.
pub(crate) struct RuleReader<'d, 's> {
    pub(crate) tiers: &'s [Box<str>],
    pub(crate) calendar: &'s Calendar,
    /// Whether the rules have a `timezone`, so that days, weeks and months follow a calendar.
    pub(crate) has_timezone: bool,
    pub(crate) ipv6_prefix: u8,
    pub(crate) store: Capabilities,
    pub(crate) names: KnownNames<'s>,
    pub(crate) parsed_by: FxHashMap<&'d str, Arc<By>>,
    /// Files with many rules have few different rates, so equal sets are compiled once.
    pub(crate) compiled_sets: FxHashMap<RateSetKey<'d>, Arc<Rates>>,
    pub(crate) rules: Vec<Rule>,
    pub(crate) replaces: Vec<ReplacedName<'d>>,
}

impl<'d> RuleReader<'d, '_> {
    /// Reads the rule at `node` and reports its errors. The rule is added if enough of it is valid.
    pub(crate) fn read(&mut self, node: YamlNode<'d>, defaults: Defaults, report: &mut Reporter<'_>) -> Option<()> {
        let mut report = Reporter { file: Arc::clone(&report.file), rule: name_at(node), errors: &mut *report.errors };
        let report = &mut report;
        let fields = RuleFields::read(node, if report.rule.is_some() { "" } else { "a rule" }, report)?;
        let name = read_name(&fields, node, report);
        reject_unsupported(&fields, report);

        let matching = fields.matching.map(|node| self.read_match(node, report));
        let by = fields.by.map(|node| self.cached_by(node, report));
        let effective_by = by.clone().unwrap_or_else(|| Arc::new(By::Global));
        let written = self.read_rates(&fields, &effective_by, report);
        reject_missing_rate(&fields, name, node, report);
        let unlimited = fields.rate.is_some() && written.is_unlimited();
        let limits = fields.concurrent.is_some() || fields.rate.is_some() && !unlimited;
        if by.is_none() && limits {
            let message = "has no `by`, which names whose requests are counted together; write `by: ip`, or \
                           `by: global` for everybody";
            report.error(node.line(), message);
        }
        let own = rule_options::ALGORITHM.read(fields.algorithm, report);
        if fields.algorithm.is_some() && own.is_none() {
            return None;
        }
        let on_calendar = written.first_calendar_rate().filter(|_| self.has_timezone);
        let algorithm = match on_calendar {
            Some(rate) => calendar_algorithm(own, defaults.algorithm, rate, &written, report),
            None => own.unwrap_or_else(|| default_algorithm(defaults.algorithm, written.has_burst())),
        };
        let durability = rule_options::read_durability(fields.durability, defaults, self.store, node, report);
        let precision = rule_options::precision(durability, self.store);
        let (counting, lease_duration) =
            rule_options::read_counting(fields.counting, algorithm, durability, self.store, report);
        let ceilings = fields.priority.map(|node| load_shedding::read_ceilings(node, report));
        let soft = fields.soft.map(|node| load_shedding::read_soft_limit(node, algorithm, report));
        let limit_options = LimitOptions {
            lease_duration,
            ceilings: ceilings.flatten(),
            ..read_limit_options(&fields, algorithm, precision, report)
        };
        let compiled = self.compile_rates(written, limit_options, report);
        let location = report.location(node.line());
        let at = u32::try_from(self.rules.len()).ok()?;
        let specificity = effective_by.arity();
        let replaces = fields.replaces.map(|node| report.texts("replaces", node, "names of rules"));
        let name = RuleName::new(name?);
        // Only for a rule that is added: the names refer to it by position.
        let replaces = replaces.unwrap_or_default().into_iter();
        self.replaces.extend(replaces.map(|(name, line)| ReplacedName { rule: at, name, line }));
        let on_failure = rule_options::ON_STORE_FAILURE.read(fields.on_store_failure, report);
        let on_failure = on_failure.unwrap_or(defaults.on_store_failure);
        let unit = fields.unit.and_then(|node| self.read_unit(node, report));
        self.rules.push(Rule {
            name,
            kind: RuleKind::Match,
            location,
            matching: matching.unwrap_or_default(),
            by: effective_by,
            if_missing: rule_options::IF_MISSING.read(fields.if_missing, report).unwrap_or_default(),
            mode: rule_options::MODE.read(fields.mode, report).unwrap_or_default(),
            unit,
            options: RuleOptions {
                on_failure,
                on_late: rule_options::ON_STORE_LATE
                    .read(fields.on_store_late, report)
                    .or(defaults.on_store_late)
                    .unwrap_or_else(|| rule_options::default_on_late(durability, on_failure)),
                budget: read_duration(fields.budget, "budget", report)
                    .or_else(|| rule_options::default_budget(durability)),
                durability,
                counting,
                specificity,
            },
            max_delay: limit_options.max_delay,
            concurrent: fields.concurrent.and_then(|node| rule_options::read_concurrency(node, report)),
            counts_only_permits: fields.concurrent.is_some() && fields.rate.is_none(),
            priority: limit_options.ceilings,
            soft: soft.flatten(),
            algorithm,
            stagger: limit_options.stagger,
            guard: limit_options.guard,
            replaces: Box::default(),
            rates: compiled.rates.into(),
            tiers: compiled.tiers.into(),
            overrides: compiled.overrides,
        });
        Some(())
    }

    fn cached_by(&mut self, node: YamlNode<'d>, report: &mut Reporter<'_>) -> Arc<By> {
        let text = node.text();
        if let Some(known) = text.and_then(|text| self.parsed_by.get(text)) {
            return Arc::clone(known);
        }
        let before = report.errors.count();
        let by = Arc::new(read_by(node, &mut self.names, report));
        if let Some(text) = text
            && report.errors.count() == before
        {
            self.parsed_by.insert(text, Arc::clone(&by));
        }
        by
    }

    fn read_unit(&mut self, node: YamlNode<'d>, report: &mut Reporter<'_>) -> Option<Arc<str>> {
        report.parse("unit", node, "what the rule counts, such as tokens", |text| {
            self.names.unit(text).map_err(|wrong| format!("has unit {wrong}"))
        })
    }
}

/// The name that a rule states, for errors found before the name is checked.
fn name_at<'d>(node: YamlNode<'d>) -> Option<&'d str> {
    let YamlValue::Map(mut pairs) = node.kind() else { return None };
    let (_, value) = pairs.find(|(key, _)| key.text() == Some("name"))?;
    value.text().filter(|name| is_name(name))
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.' | b':' | b'/'))
}

fn read_name<'d>(fields: &RuleFields<'d>, node: YamlNode<'d>, report: &mut Reporter<'_>) -> Option<&'d str> {
    let Some(name_field) = fields.name else {
        report.error(node.line(), "a rule has no name; write `name: ...`");
        return None;
    };
    report.parse("name", name_field, "a name", |name| {
        Some(name).filter(|name| is_name(name)).ok_or_else(|| {
            let name = quoted(name);
            format!(
                "a rule has the name {name}; write 1 to {MAX_NAME_BYTES} letters, digits, `-`, `_`, `.`, `:` and `/`"
            )
        })
    })
}

/// Rejects a rule without a rate, unless it limits only requests in flight. Such a rule has no rates for anybody.
fn reject_missing_rate(fields: &RuleFields<'_>, name: Option<&str>, node: YamlNode<'_>, report: &mut Reporter<'_>) {
    if fields.rate.is_some() || name.is_none() {
        return;
    }
    let other = fields.tiers.or(fields.overrides);
    match (fields.concurrent, other) {
        (None, _) => report.error(node.line(), "has no rate; write one such as 100/minute, or unlimited"),
        (Some(_), Some(other)) => {
            report.error(other.line(), "has rates for some and none for all others; write `rate`, or `rate: unlimited`")
        }
        (Some(_), None) => {}
    }
}

/// Rejects fields that are not implemented yet. To ignore them would make a promise that is not kept.
fn reject_unsupported(fields: &RuleFields<'_>, report: &mut Reporter<'_>) {
    if let Some(node) = fields.charge_on {
        report.error(node.line(), "has `charge_on`, which this version does not support yet; remove it");
    }
    if let Some(node) = fields.count_denied {
        report.parse("count_denied", node, "false", |text| match text {
            "false" => Ok(()),
            "true" => {
                Err("has count_denied `true`, which this version does not support yet; write false or remove it".into())
            }
            other => Err(unknown_value("count_denied", other, &["false", "true"])),
        });
    }
}

fn default_algorithm(default: Option<Algorithm>, has_burst: bool) -> Algorithm {
    let default = default.unwrap_or(Algorithm::SlidingWindow);
    if has_burst && !default.takes_burst() {
        return Algorithm::TokenBucket;
    }
    default
}

/// The algorithm of a rule with a rate per day, week or month where a `timezone` is set: a fixed window, the only one
/// that follows a calendar. A contradiction to that is an error, because a span of 24 hours instead would be a
/// surprise.
fn calendar_algorithm(
    own: Option<Algorithm>,
    default: Option<Algorithm>,
    (text, unit, line): (&str, CalendarUnit, u32),
    written: &ParsedRuleRates<'_>,
    report: &mut Reporter<'_>,
) -> Algorithm {
    let fixed = Algorithm::FixedWindow;
    let beside = written.first_fixed_rate().filter(|_| default != Some(fixed));
    let write = "write `algorithm: fixed-window`";
    let (found, cure) = match own {
        Some(own) if own == fixed => return fixed,
        Some(own) => (format!("with algorithm {own}"), write.to_owned()),
        None if written.has_burst() => ("with a burst".to_owned(), "remove the burst".to_owned()),
        None => match beside {
            Some(other) => (format!("beside {}", quoted(other)), format!("{write} for both or a rule for each")),
            None => return fixed,
        },
    };
    let (unit, hours) = (unit.name(), unit.nominal_length().get() / HOUR.get());
    let message = format!(
        "has rate {} {found}, but a {unit} of the `timezone` is a fixed window; {cure}, or write \
         {hours}h for a {unit} without a calendar",
        quoted(text)
    );
    report.error(line, message);
    own.unwrap_or_else(|| default_algorithm(default, written.has_burst()))
}

const HOUR: Nanos = Nanos::from_secs(3_600);

/// Reads the fields that only some algorithms use.
fn read_limit_options(
    fields: &RuleFields<'_>,
    algorithm: Algorithm,
    precision: Precision,
    report: &mut Reporter<'_>,
) -> LimitOptions {
    let (fixed, queue) = (Algorithm::FixedWindow, Algorithm::LeakyQueue);
    let stagger = only_with_algorithm(fixed, algorithm, "stagger", fields.stagger, report);
    let guard = only_with_algorithm(fixed, algorithm, "guard", fields.guard, report);
    let max_delay = only_with_algorithm(queue, algorithm, "max_delay", fields.max_delay, report);
    LimitOptions {
        algorithm,
        precision,
        stagger: rule_options::STAGGER.read(stagger, report).unwrap_or_default(),
        guard: read_duration(guard, "guard", report).unwrap_or_default(),
        max_delay: read_duration(max_delay, "max_delay", report),
        lease_duration: None,
        ceilings: None,
    }
}

/// A field that only the algorithm `required` uses.
fn only_with_algorithm<'d>(
    required: Algorithm,
    algorithm: Algorithm,
    field: &str,
    node: Option<YamlNode<'d>>,
    report: &mut Reporter<'_>,
) -> Option<YamlNode<'d>> {
    if algorithm == required {
        return node;
    }
    let message = format!(
        "has `{field}` with algorithm {algorithm}, which has no use for it; remove it or write `algorithm: {required}`"
    );
    report.error(node?.line(), message);
    None
}

fn read_by(node: YamlNode<'_>, known: &mut KnownNames<'_>, report: &mut Reporter<'_>) -> By {
    if node.text() == Some(GLOBAL) {
        return By::Global;
    }
    let expected = "an attribute such as ip, a list of them, or global";
    let mut parts = Vec::new();
    for (text, line) in report.texts("by", node, expected) {
        let mut names: Vec<Box<str>> = Vec::new();
        for name in text.split('|') {
            let name = known.attribute_in_by(name.trim()).map_err(|wrong| format!("counts by {wrong}"));
            names.extend(report.check(line, name).map(|name| Box::from(&*name)));
        }
        if parts.contains(&names) {
            report.error(line, format!("counts by {} twice; keep one", quoted(text)));
        }
        parts.push(names);
    }
    By::All(parts)
}
