//! Who has to go before a limit is used up: how much of it each priority may use, and from where on
//! requests are slowed down.
//!
//! Parts of a limit are thousandths, read from decimals without a float, so that a ceiling is the same
//! whole number on every node.

use std::fmt;

use super::choices::{FLAGS, span};
use super::fault::shown;
use super::slots::{Report, Slots, slots};
use super::yaml::{Kind, Node};
use crate::algorithms::Algorithm;
use crate::request::Priority;
use crate::units::Nanos;

slots!(CeilingSlots {
    critical: "critical",
    normal: "normal",
    sheddable: "sheddable",
});

slots!(SoftSlots {
    from: "from",
    max_delay: "max_delay",
});

/// A part of a limit, in thousandths; more than none and no more than all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Part(u32);

impl Part {
    /// All of it.
    pub const ALL: Part = Part(1_000);

    /// The whole units of `capacity` that it comes to.
    pub fn of(self, capacity: u64) -> u64 {
        let units = u128::from(capacity) * u128::from(self.0) / 1_000;
        u64::try_from(units).unwrap_or(capacity)
    }

    /// Reads a decimal with up to three places.
    fn read(text: &str) -> Option<Part> {
        let (whole, places) = text.split_once('.').unwrap_or((text, "0"));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(whole) || !digits(places) || places.len() > 3 {
            return None;
        }
        let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 1)?;
        let places: u32 = format!("{places:0<3}").parse().ok()?;
        let thousandths = 1_000 * whole + places;
        (1..=1_000)
            .contains(&thousandths)
            .then_some(Part(thousandths))
    }
}

/// As a rules file writes it: `0.95`.
impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, places) = (self.0 / 1_000, self.0 % 1_000);
        let places = format!("{places:03}");
        match places.trim_end_matches('0') {
            "" => whole.fmt(f),
            places => write!(f, "{whole}.{places}"),
        }
    }
}

/// How much of a limit requests of each priority may use. Who matters more may use no less.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Ceilings {
    critical: Part,
    normal: Part,
    sheddable: Part,
}

impl Default for Ceilings {
    fn default() -> Self {
        Ceilings {
            critical: Part::ALL,
            normal: Part(950),
            sheddable: Part(800),
        }
    }
}

impl Ceilings {
    /// How much requests of `priority` may use.
    pub fn of(&self, priority: Priority) -> Part {
        match priority {
            Priority::Critical => self.critical,
            Priority::Normal => self.normal,
            Priority::Sheddable => self.sheddable,
        }
    }

    /// The units of `capacity` that they may use.
    pub fn units(&self, priority: Priority, capacity: u64) -> u64 {
        self.of(priority).of(capacity)
    }
}

/// Delay before refusal: from a part of the limit on, longer and longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Soft {
    from: Part,
    max_delay: Nanos,
}

/// Where delays begin if a rule does not say.
const USUAL_FROM: Part = Part(800);
/// Nobody waits longer, and nobody means to.
const LONGEST_DELAY: Nanos = Nanos::from_secs(3_600);

impl Soft {
    /// How much of the limit is in use where delays begin; less than all of it.
    pub fn begins(&self) -> Part {
        self.from
    }

    /// The delay when all of it is in use.
    pub fn max_delay(&self) -> Nanos {
        self.max_delay
    }

    /// How long a request waits that leaves `remaining` of `capacity`: nothing where delays begin, all
    /// when nothing is left, in proportion in between, rounded up.
    pub fn delay(&self, capacity: u64, remaining: u64) -> Nanos {
        let (capacity, from) = (u128::from(capacity.max(1)), u128::from(self.from.0));
        let used = capacity.saturating_sub(u128::from(remaining));
        let beyond = (used * 1_000).saturating_sub(from * capacity);
        // An hour, a capacity and a thousand have 116 bits together.
        let delay = u128::from(self.max_delay.get()) * beyond;
        let delay = delay.div_ceil((1_000 - from) * capacity);
        Nanos::new(u64::try_from(delay).unwrap_or(u64::MAX))
    }
}

const CEILINGS: &str = "true, or parts of the limit such as { sheddable: 0.8 }";

/// Reads `priority`: `true` for the usual ceilings, or those that are not as usual.
pub(crate) fn ceilings(node: Node<'_>, report: &mut Report<'_>) -> Option<Ceilings> {
    if !matches!(node.kind(), Kind::Map(_)) {
        let text = report.text("priority", node, CEILINGS)?;
        let flag = FLAGS.iter().find(|(name, _)| *name == text);
        if flag.is_none() {
            let message = format!(
                "has priority {}, which is no ceilings; write {CEILINGS}",
                shown(text)
            );
            report.fault(node.line(), message);
        }
        return flag.and_then(|(_, on)| on.then(Ceilings::default));
    }
    let slots = CeilingSlots::read(node, "has a `priority` that", report)?;
    let usual = Ceilings::default();
    let ceilings = Ceilings {
        critical: part(slots.critical, "critical", usual.critical, report)?,
        normal: part(slots.normal, "normal", usual.normal, report)?,
        sheddable: part(slots.sheddable, "sheddable", usual.sheddable, report)?,
    };
    for [more, less] in [
        [Priority::Critical, Priority::Normal],
        [Priority::Normal, Priority::Sheddable],
    ] {
        let [above, below] = [more, less].map(|priority| ceilings.of(priority));
        if above < below {
            let (more, less) = (more.name(), less.name());
            let message = format!(
                "has priority {more} at {above} and {less} at {below}, so that who matters less may \
                 use more; write {more} at {below} or above"
            );
            report.fault(node.line(), message);
            return None;
        }
    }
    Some(ceilings)
}

fn part(node: Option<Node<'_>>, name: &str, usual: Part, report: &mut Report<'_>) -> Option<Part> {
    let Some(node) = node else { return Some(usual) };
    let field = format!("priority {name}");
    let text = report.text(&field, node, "a part of the limit such as 0.95")?;
    let part = Part::read(text);
    if part.is_none() {
        let message = format!(
            "has {field} {}, which is no part of a limit; write a number above 0 up to 1 with up to \
             three places, such as 0.95",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    part
}

/// Reads `soft`.
pub(crate) fn soft(node: Node<'_>, algorithm: Algorithm, report: &mut Report<'_>) -> Option<Soft> {
    if !matches!(node.kind(), Kind::Map(_)) {
        let text = report.text("soft", node, "a mapping such as { max_delay: 1s }")?;
        let message = format!(
            "has soft {}; write a mapping such as {{ max_delay: 1s }}",
            shown(text)
        );
        report.fault(node.line(), message);
        return None;
    }
    let slots = SoftSlots::read(node, "has a `soft` that", report)?;
    if algorithm == Algorithm::LeakyQueue {
        let message = "has `soft` with algorithm leaky-queue, which delays by itself; remove it or \
                       write another algorithm";
        report.fault(node.line(), message);
        return None;
    }
    let from = match slots.from {
        Some(node) => begins(node, report)?,
        None => USUAL_FROM,
    };
    if slots.max_delay.is_none() {
        let message = "has `soft` without a `max_delay`; write one such as { max_delay: 1s }";
        report.fault(node.line(), message);
    }
    let max_delay = span(&slots.max_delay, "soft max_delay", report)?;
    if max_delay > LONGEST_DELAY {
        let message =
            format!("has soft max_delay {max_delay}, which nobody waits; write 1h or less");
        report.fault(node.line(), message);
        return None;
    }
    Some(Soft { from, max_delay })
}

fn begins(node: Node<'_>, report: &mut Report<'_>) -> Option<Part> {
    let text = report.text("soft from", node, "a part of the limit such as 0.8")?;
    let part = Part::read(text).filter(|part| *part < Part::ALL);
    if part.is_none() {
        let message = format!(
            "has soft from {}, which is no part of a limit below all of it; write a number above 0 and \
             below 1 with up to three places, such as 0.8",
            shown(text)
        );
        report.fault(node.line(), message);
    }
    part
}
