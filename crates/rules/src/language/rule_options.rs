//! Options of a rule: durability, counting mode, concurrency limit, and options that are one of a few words.
//!
//! A durability that the store cannot provide is an error, never a silent `none`. Only callers that report when a
//! request begins and ends, by acquire and release, can be counted by a concurrency limit; a `check` ignores it.

use std::fmt;

use super::diagnostics::quoted;
use super::fields::{Choices, Reporter, unknown_value};
use super::rule::{IfMissing, Mode};
use super::top_level::Defaults;
use super::yaml::YamlNode;
use tidegate_core::algorithms::{Algorithm, Precision};
use tidegate_core::rate::parse_positive_duration;
use tidegate_core::store::{Capabilities, Counting, Durability, OnStoreFailure, OnStoreLate, StoreDurability};
use tidegate_core::units::Nanos;

pub(crate) const ALGORITHM: Choices<Algorithm> = Choices {
    field: "algorithm",
    words: &{
        let mut words = [("", Algorithm::FixedWindow); Algorithm::ALL.len()];
        let mut at = 0;
        while at < words.len() {
            words[at] = (Algorithm::ALL[at].name(), Algorithm::ALL[at]);
            at += 1;
        }
        words
    },
};
pub(crate) const MODE: Choices<Mode> =
    Choices { field: "mode", words: &[("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)] };
pub(crate) const IF_MISSING: Choices<IfMissing> =
    Choices { field: "if_missing", words: &[("substitute", IfMissing::Substitute), ("skip", IfMissing::Skip)] };
pub(crate) const STAGGER: Choices<bool> = Choices { field: "stagger", words: &[("false", false), ("true", true)] };
pub(crate) const ON_STORE_FAILURE: Choices<OnStoreFailure> = Choices {
    field: "on_store_failure",
    words: &[("local", OnStoreFailure::Local), ("allow", OnStoreFailure::Allow), ("deny", OnStoreFailure::Deny)],
};
pub(crate) const ON_STORE_LATE: Choices<OnStoreLate> =
    Choices { field: "on_store_late", words: &[("local", OnStoreLate::Local), ("deny", OnStoreLate::Deny)] };
pub(crate) const DURABILITY: Choices<Durability> = Choices {
    field: "durability",
    words: &{
        let [none, replica, replica_aof, disk] = Durability::ALL;
        [(none.name(), none), (replica.name(), replica), (replica_aof.name(), replica_aof), (disk.name(), disk)]
    },
};

/// A write that another server acknowledges takes longer than a decision usually may.
const DURABLE_BUDGET: Nanos = Nanos::from_millis(50);

/// The durability of the rule at `rule`, from its own field or from the defaults of its file.
pub(crate) fn read_durability(
    own: Option<YamlNode<'_>>,
    defaults: Defaults,
    store: Capabilities,
    rule: YamlNode<'_>,
    report: &mut Reporter<'_>,
) -> Durability {
    let durability = match own {
        Some(_) => DURABILITY.read(own, report).unwrap_or_default(),
        None => defaults.durability,
    };
    if let Some(reason) = unsupported_reason(durability, store.durability) {
        let message = format!("has durability {}, but {reason}", durability.name());
        report.error(own.unwrap_or(rule).line(), message);
    }
    durability
}

/// Why the store cannot provide it, and what to write.
fn unsupported_reason(durability: Durability, store: StoreDurability) -> Option<&'static str> {
    match (durability, store) {
        (Durability::None, _) | (_, StoreDurability::Unknown) => None,
        (Durability::Disk, StoreDurability::Disk) => None,
        (Durability::Replica | Durability::ReplicaAof, StoreDurability::Replicas) => None,
        (Durability::Disk, StoreDurability::None) => Some(
            "counters are in memory and there is no folder for a journal; name one with \
             `--data-dir`, or write none",
        ),
        (Durability::Disk, StoreDurability::Replicas) => {
            Some("the store is a server of its own; write replica, replica+aof or none")
        }
        (Durability::Replica | Durability::ReplicaAof, StoreDurability::None | StoreDurability::Disk) => {
            Some("counters in memory have no replica; write disk or none")
        }
    }
}

/// A journal holds the same records as a script, so its counters are computed with the same precision.
pub(crate) fn precision(durability: Durability, store: Capabilities) -> Precision {
    match durability {
        Durability::Disk => Precision::Double,
        _ => store.precision,
    }
}

/// Default of `on_store_late`. A durable rule that denies without the store also denies on a late reply, because the
/// charge may not be safe yet.
pub(crate) fn default_on_late(durability: Durability, on_failure: OnStoreFailure) -> OnStoreLate {
    match on_failure {
        OnStoreFailure::Deny if durability.is_required() => OnStoreLate::Deny,
        _ => OnStoreLate::Local,
    }
}

/// Default of `budget`: how long a decision waits for the store.
pub(crate) fn default_budget(durability: Durability) -> Option<Nanos> {
    durability.is_required().then_some(DURABLE_BUDGET)
}

/// Default lifetime of a lease: twice the longest time over which a node plans its needs, and within the time in
/// which every node must see the counts of the others.
const DEFAULT_LEASE: Nanos = Nanos::from_millis(100);
/// A shorter lease would not outlast a few round trips.
const MIN_LEASE: Nanos = Nanos::from_millis(5);
/// A longer lease would keep units from other nodes for longer than any client waits.
const MAX_LEASE: Nanos = Nanos::from_secs(60);

/// Counting mode of a rule, and the lifetime of its leases.
#[derive(Clone, Copy, Default)]
pub(crate) struct CountingOptions {
    pub(crate) counting: Counting,
    pub(crate) lease_duration: Option<Nanos>,
}

/// The options of the rule that the counting mode must fit.
#[derive(Clone, Copy)]
pub(crate) struct CountingContext {
    pub(crate) algorithm: Algorithm,
    pub(crate) durability: Durability,
    pub(crate) store: Capabilities,
}

/// Reads `exact`, `leased`, `leased 250ms` or `lenient`.
pub(crate) fn read_counting(
    node: Option<YamlNode<'_>>,
    context: CountingContext,
    report: &mut Reporter<'_>,
) -> CountingOptions {
    let Some(node) = node else {
        return CountingOptions::default();
    };
    let Some(options) = parse_counting(node, report) else {
        return CountingOptions::default();
    };
    if let Some(message) = conflict(options.counting, context) {
        report.error(node.line(), message);
        return CountingOptions::default();
    }
    if context.store.is_shared() { options } else { CountingOptions::default() }
}

fn parse_counting(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<CountingOptions> {
    let text = report.text("counting", node, "exact, leased or lenient")?;
    let (word, span) = match text.split_once(' ') {
        Some((word, span)) => (word, Some(span.trim())),
        None => (text, None),
    };
    let known = Counting::ALL.into_iter().find(|c| c.name() == word);
    let lease_duration = match (known, span) {
        (Some(Counting::Leased), None) => Some(DEFAULT_LEASE),
        (Some(Counting::Leased), Some(span)) => Some(parse_lease(span, node, report)?),
        (Some(_), None) => None,
        (_, span) => {
            report.error(node.line(), invalid_counting(text, known.zip(span)));
            return None;
        }
    };
    Some(CountingOptions { counting: known?, lease_duration })
}

/// The error for a text that is not a counting mode, or for a mode with a duration that it does not take.
fn invalid_counting(text: &str, with_duration: Option<(Counting, &str)>) -> String {
    match with_duration {
        Some((counting, span)) => format!(
            "has counting {}, but only leased takes a duration such as {}; write {}",
            quoted(text),
            quoted(span),
            counting.name()
        ),
        None => unknown_value("counting", text, &Counting::ALL.map(Counting::name)),
    }
}

fn parse_lease(text: &str, node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Nanos> {
    let span = parse_positive_duration(text).ok();
    let fits = span.filter(|span| (MIN_LEASE..=MAX_LEASE).contains(span));
    if fits.is_none() {
        let message = format!(
            "has leases of {}; write a duration from 5ms to 1m, such as `counting: leased 100ms`",
            quoted(text)
        );
        report.error(node.line(), message);
    }
    fits
}

fn conflict(counting: Counting, context: CountingContext) -> Option<String> {
    let algorithm = context.algorithm;
    if counting != Counting::Exact && context.durability.is_required() {
        return Some(format!(
            "has counting {} with durability {}, which requires every count to be safe before its \
             request passes; write `counting: exact`, or `durability: none`",
            counting.name(),
            context.durability.name()
        ));
    }
    let ordered = matches!(algorithm, Algorithm::SlidingLog | Algorithm::LeakyQueue);
    (counting == Counting::Leased && ordered).then(|| {
        format!(
            "has counting leased with algorithm {algorithm}, which keeps requests in order and cannot \
             lease units in advance; write `counting: exact` or another algorithm"
        )
    })
}

/// How many requests of one subject may be in flight at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Concurrency {
    /// This many, on all nodes together.
    Fixed(u32),
    /// As many as this node can handle, estimated from how long requests take.
    Adaptive,
}

/// Prints the form of a rules file.
impl fmt::Display for Concurrency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Concurrency::Fixed(max) => max.fmt(f),
            Concurrency::Adaptive => f.write_str("adaptive"),
        }
    }
}

/// One permit takes about 120 bytes in the store, so this many permits of one subject take about a megabyte.
const MAX_CONCURRENT: u32 = 10_000;

/// Reads `50` or `adaptive`.
pub(crate) fn read_concurrency(node: YamlNode<'_>, report: &mut Reporter<'_>) -> Option<Concurrency> {
    let text = report.text("concurrent", node, "a number such as 50, or adaptive")?;
    let max = match text {
        "adaptive" => return Some(Concurrency::Adaptive),
        number => number.parse::<u32>().ok(),
    };
    let fits = max.filter(|max| (1..=MAX_CONCURRENT).contains(max));
    if fits.is_none() {
        let message = format!(
            "has concurrent {}; write how many requests may be open at once, from 1 to {MAX_CONCURRENT}, \
             or adaptive",
            quoted(text)
        );
        report.error(node.line(), message);
    }
    fits.map(Concurrency::Fixed)
}
