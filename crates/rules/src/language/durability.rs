//! Durability of a rule's counts, and whether the store of the rules can provide it.
//!
//! A durability that the store cannot provide is an error, never a silent `none`.

use super::fields::Reporter;
use super::scalar_fields::read_choice;
use super::top_level::Defaults;
use super::yaml::YamlNode;
use tidegate_core::algorithms::Precision;
use tidegate_core::store::{Capabilities, Durability, OnStoreFailure, OnStoreLate, StoreDurability};
use tidegate_core::units::Nanos;

pub(crate) const DURABILITIES: [(&str, Durability); 4] = {
    let [none, replica, replica_aof, disk] = Durability::ALL;
    [(none.name(), none), (replica.name(), replica), (replica_aof.name(), replica_aof), (disk.name(), disk)]
};

/// A write that another server acknowledges takes longer than a decision usually may.
const DEFAULT_BUDGET: Nanos = Nanos::from_millis(50);

/// The durability of the rule at `rule`, from its own field or from the defaults of its file.
pub(crate) fn read(
    own: Option<YamlNode<'_>>,
    defaults: Defaults,
    store: Capabilities,
    rule: YamlNode<'_>,
    report: &mut Reporter<'_>,
) -> Durability {
    let durability = match own {
        Some(_) => read_choice(&own, "durability", &DURABILITIES, report),
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
        Durability::Disk => Precision::Script,
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
    durability.is_required().then_some(DEFAULT_BUDGET)
}
