//! The condition of the store as plain data: the store fills it in, and the admin listener shows it.

use std::time::Instant;

use tidegate_core::store::{FailureCause, FailureKind};

/// The condition of a store. Contains no address, user or secret.
pub(crate) struct StoreCondition {
    /// The kind of store.
    pub(crate) kind: &'static str,
    /// Whether the store makes the decisions, not this node's share.
    pub(crate) is_exact: bool,
    /// The current outage, if there is one.
    pub(crate) outage: Option<CurrentOutage>,
    /// Where counts with `durability` are not as safe as their rules require (`disk` or `replica`, as in
    /// `tidegate_durability_failing`), and why. Contains no address, user or path.
    pub(crate) durability: Option<(&'static str, String)>,
    /// The number of calls that failed since the start, by kind.
    pub(crate) errors: Vec<(FailureKind, u64)>,
}

/// An outage in progress.
#[derive(Clone, Debug)]
pub(crate) struct CurrentOutage {
    pub(crate) since: Instant,
    /// The last reported cause.
    pub(crate) cause: FailureCause,
}
