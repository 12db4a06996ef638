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
use tidegate_core::rule_options::{Capabilities, Counting, Durability, OnStoreFailure, OnStoreLate, StoreDurability};
use tidegate_core::units::Nanos;

pub(crate) const ALGORITHM: Choices<Algorithm> =
    Choices { field: "algorithm", values: &Algorithm::ALL, name: Algorithm::name };
pub(crate) const MODE: Choices<Mode> = Choices { field: "mode", values: &Mode::ALL, name: Mode::name };
pub(crate) const IF_MISSING: Choices<IfMissing> =
    Choices { field: "if_missing", values: &IfMissing::ALL, name: IfMissing::name };
pub(crate) const STAGGER: Choices<bool> =
    Choices { field: "stagger", values: &[false, true], name: |stagger| if stagger { "true" } else { "false" } };
pub(crate) const ON_STORE_FAILURE: Choices<OnStoreFailure> =
    Choices { field: "on_store_failure", values: &OnStoreFailure::ALL, name: OnStoreFailure::name };
pub(crate) const ON_STORE_LATE: Choices<OnStoreLate> =
    Choices { field: "on_store_late", values: &OnStoreLate::ALL, name: OnStoreLate::name };
pub(crate) const DURABILITY: Choices<Durability> =
    Choices { field: "durability", values: &Durability::ALL, name: Durability::name };

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
        report.error(own.unwrap_or(rule).line(), format!("has durability {}, but {reason}", durability.name()));
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
            "counters are in memory and there is no folder for a journal; name one with `--data-dir`, or write none",
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
type CountingOptions = (Counting, Option<Nanos>);

/// Reads `exact`, `leased`, `leased 250ms` or `lenient`, and checks that the algorithm, the durability and the store
/// allow it.
pub(crate) fn read_counting(
    node: Option<YamlNode<'_>>,
    algorithm: Algorithm,
    durability: Durability,
    store: Capabilities,
    report: &mut Reporter<'_>,
) -> CountingOptions {
    let options = node.and_then(|node| {
        report.parse("counting", node, "exact, leased or lenient", |text| {
            let options = parse_counting(text)?;
            check_counting(options.0, algorithm, durability).map(|()| options)
        })
    });
    options.filter(|_| store.is_shared()).unwrap_or_default()
}

fn parse_counting(text: &str) -> Result<CountingOptions, String> {
    let (word, span) = match text.split_once(' ') {
        Some((word, span)) => (word, Some(span.trim())),
        None => (text, None),
    };
    let Some(counting) = Counting::ALL.into_iter().find(|known| known.name() == word) else {
        return Err(unknown_value("counting", text, &Counting::ALL.map(Counting::name)));
    };
    let lease_duration = match (counting, span) {
        (Counting::Leased, None) => Some(DEFAULT_LEASE),
        (Counting::Leased, Some(span)) => Some(parse_lease(span)?),
        (_, None) => None,
        (_, Some(span)) => {
            let (text, span) = (quoted(text), quoted(span));
            return Err(format!(
                "has counting {text}, but only leased takes a duration such as {span}; write {}",
                counting.name()
            ));
        }
    };
    Ok((counting, lease_duration))
}

fn parse_lease(text: &str) -> Result<Nanos, String> {
    let span = parse_positive_duration(text).ok().filter(|span| (MIN_LEASE..=MAX_LEASE).contains(span));
    span.ok_or_else(|| {
        let text = quoted(text);
        format!("has leases of {text}; write a duration from 5ms to 1m, such as `counting: leased 100ms`")
    })
}

fn check_counting(counting: Counting, algorithm: Algorithm, durability: Durability) -> Result<(), String> {
    if counting != Counting::Exact && durability.is_required() {
        return Err(format!(
            "has counting {} with durability {}, which requires every count to be safe before its request passes; \
             write `counting: exact`, or `durability: none`",
            counting.name(),
            durability.name()
        ));
    }
    if counting == Counting::Leased && matches!(algorithm, Algorithm::SlidingLog | Algorithm::LeakyQueue) {
        return Err(format!(
            "has counting leased with algorithm {algorithm}, which keeps requests in order and cannot lease units in \
             advance; write `counting: exact` or another algorithm"
        ));
    }
    Ok(())
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
    report.parse("concurrent", node, "a number such as 50, or adaptive", |text| {
        if text == "adaptive" {
            return Ok(Concurrency::Adaptive);
        }
        let max = text.parse().ok().filter(|max| (1..=MAX_CONCURRENT).contains(max));
        max.map(Concurrency::Fixed).ok_or_else(|| {
            format!(
                "has concurrent {}; write how many requests may be open at once, from 1 to {MAX_CONCURRENT}, or adaptive",
                quoted(text)
            )
        })
    })
}
