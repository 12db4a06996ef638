//! Load shedding before a limit is used up: how much of it each priority may use, and when requests are delayed.
//!
//! Fractions of a limit are thousandths, parsed from decimals without a float, so that a ceiling is the same whole
//! number on every node.

use std::fmt;

use super::diagnostics::quoted;
use super::fields::{MappingFields, Reporter, mapping_fields, read_duration};
use super::yaml::{YamlNode, YamlValue};
use crate::request::Priority;
use tidegate_core::algorithms::Algorithm;
use tidegate_core::units::Nanos;

mapping_fields!(CeilingFields { critical, normal, sheddable });

mapping_fields!(SoftLimitFields { from, max_delay });

/// A fraction of a limit, in thousandths: more than 0, at most 1,000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Permille(u32);

impl Permille {
    /// The whole limit.
    pub const ALL: Permille = Permille(1_000);

    /// This fraction of `capacity`, rounded down to whole units.
    pub fn of(self, capacity: u64) -> u64 {
        let units = u128::from(capacity) * u128::from(self.0) / 1_000;
        u64::try_from(units).unwrap_or(capacity)
    }

    /// Parses a decimal with up to three places.
    fn parse(text: &str) -> Option<Permille> {
        let (whole, decimals) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > 3 {
            return None;
        }
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 1)?;
        let decimals: u32 = format!("{decimals:0<3}").parse().ok()?;
        let thousandths = 1_000 * whole + decimals;
        (1..=1_000).contains(&thousandths).then_some(Permille(thousandths))
    }
}

/// Prints the form of a rules file: `0.95`.
impl fmt::Display for Permille {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, decimals) = (self.0 / 1_000, self.0 % 1_000);
        let decimals = format!("{decimals:03}");
        match decimals.trim_end_matches('0') {
            "" => whole.fmt(f),
            decimals => write!(f, "{whole}.{decimals}"),
        }
    }
}

/// How much of a limit requests of each priority may use. Invariant: a higher priority may use no less than a lower
/// one. In the order of [`Priority::ALL`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PriorityCeilings([Permille; 3]);

impl Default for PriorityCeilings {
    fn default() -> Self {
        PriorityCeilings([Permille::ALL, Permille(950), Permille(800)])
    }
}

impl PriorityCeilings {
    /// The fraction that requests of `priority` may use.
    pub fn of(&self, priority: Priority) -> Permille {
        self.0[priority as usize]
    }

    /// The units of `capacity` that requests of `priority` may use.
    pub fn units(&self, priority: Priority, capacity: u64) -> u64 {
        self.of(priority).of(capacity)
    }
}

/// Delays before denials: from a fraction of the limit on, longer and longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SoftLimit {
    threshold: Permille,
    max_delay: Nanos,
}

/// Default fraction in use at which delays begin.
const DEFAULT_SOFT_THRESHOLD: Permille = Permille(800);
/// No client waits longer, and no operator means to make one wait longer.
const MAX_SOFT_DELAY: Nanos = Nanos::from_secs(3_600);

impl SoftLimit {
    /// The fraction of the limit in use at which delays begin; less than all of it.
    pub fn threshold(&self) -> Permille {
        self.threshold
    }

    /// The delay when all of the limit is in use.
    pub fn max_delay(&self) -> Nanos {
        self.max_delay
    }

    /// Delay of a request that leaves `remaining` of `capacity`: 0 where delays begin, the maximum when nothing is
    /// left, in proportion in between, rounded up.
    pub fn delay(&self, capacity: u64, remaining: u64) -> Nanos {
        let (capacity, threshold) = (u128::from(capacity.max(1)), u128::from(self.threshold.0));
        let used = capacity.saturating_sub(u128::from(remaining));
        let beyond = (used * 1_000).saturating_sub(threshold * capacity);
        // An hour, a capacity and a thousand have 116 bits together.
        let delay = u128::from(self.max_delay.get()) * beyond;
        let delay = delay.div_ceil((1_000 - threshold) * capacity);
        Nanos::new(u64::try_from(delay).unwrap_or(u64::MAX))
    }
}

const EXPECTED_CEILINGS: &str = "true, or parts of the limit such as { sheddable: 0.8 }";

/// Reads `priority`: `true` for the default ceilings, or a mapping of those that differ from them.
pub(crate) fn read_ceilings(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<PriorityCeilings> {
    if !matches!(node.kind(), YamlValue::Map(_)) {
        let text = report.text("priority", node, EXPECTED_CEILINGS)?;
        if !matches!(text, "true" | "false") {
            let message = format!("has priority {}, which sets no ceilings; write {EXPECTED_CEILINGS}", quoted(text));
            report.error(node.line(), message);
        }
        return (text == "true").then(PriorityCeilings::default);
    }
    let fields = CeilingFields::read(node, "has a `priority` that", report)?;
    let mut ceilings = PriorityCeilings::default();
    for (priority, node) in Priority::ALL.into_iter().zip([fields.critical, fields.normal, fields.sheddable]) {
        if let Some(node) = node {
            ceilings.0[priority as usize] = read_permille(node, priority, report)?;
        }
    }
    for pair in Priority::ALL.windows(2) {
        let (more, less) = (pair[0].name(), pair[1].name());
        let (above, below) = (ceilings.of(pair[0]), ceilings.of(pair[1]));
        if above < below {
            let message = format!(
                "has priority {more} at {above} and {less} at {below}, so that the lower priority may use more; write \
                 {more} at {below} or above"
            );
            report.error(node.line(), message);
            return None;
        }
    }
    Some(ceilings)
}

fn read_permille(node: YamlNode<'_>, priority: Priority, report: &mut Reporter<'_>) -> Option<Permille> {
    let field = format!("priority {}", priority.name());
    report.parse(&field, node, "a part of the limit such as 0.95", |text| {
        Permille::parse(text).ok_or_else(|| {
            format!(
                "has {field} {}, which is no part of a limit; write a number above 0 up to 1 with up to three places, \
                 such as 0.95",
                quoted(text)
            )
        })
    })
}

/// Reads `soft`.
pub(crate) fn read_soft_limit(
    node: YamlNode<'_>,
    algorithm: Algorithm,
    report: &mut Reporter<'_>,
) -> Option<SoftLimit> {
    if !matches!(node.kind(), YamlValue::Map(_)) {
        let text = report.text("soft", node, "a mapping such as { max_delay: 1s }")?;
        let message = format!("has soft {}; write a mapping such as {{ max_delay: 1s }}", quoted(text));
        report.error(node.line(), message);
        return None;
    }
    let fields = SoftLimitFields::read(node, "has a `soft` that", report)?;
    if algorithm == Algorithm::LeakyQueue {
        let message = "has `soft` with algorithm leaky-queue, which delays by itself; remove it or \
                       write another algorithm";
        report.error(node.line(), message);
        return None;
    }
    let threshold = match fields.from {
        Some(node) => read_threshold(node, report)?,
        None => DEFAULT_SOFT_THRESHOLD,
    };
    if fields.max_delay.is_none() {
        report.error(node.line(), "has `soft` without a `max_delay`; write one such as { max_delay: 1s }");
    }
    let max_delay = read_duration(fields.max_delay, "soft max_delay", report)?;
    if max_delay > MAX_SOFT_DELAY {
        let message = format!("has soft max_delay {max_delay}, which is above the maximum of 1h; write 1h or less");
        report.error(node.line(), message);
        return None;
    }
    Some(SoftLimit { threshold, max_delay })
}

fn read_threshold(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Permille> {
    report.parse("soft from", node, "a part of the limit such as 0.8", |text| {
        Permille::parse(text).filter(|part| *part < Permille::ALL).ok_or_else(|| {
            format!(
                "has soft from {}, which is no part of a limit below all of it; write a number above 0 and below 1 \
                 with up to three places, such as 0.8",
                quoted(text)
            )
        })
    })
}
