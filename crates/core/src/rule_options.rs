//! The options of a rule for its store, and the capabilities of a store.
//!
//! Rules are parsed for a store: an option that the store cannot support is an error in the rules file, never found at
//! request time. Does not know the stores themselves.

use crate::algorithms::Precision;
use crate::units::Nanos;

crate::named_enum! {
    /// What decides when the store fails.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum OnStoreFailure {
        /// This node's share of the limit.
        #[default]
        Local = "local",
        /// The full limit on each node.
        Allow = "allow",
        /// Deny.
        Deny = "deny",
    }
}

crate::named_enum! {
    /// What decides when the store is healthy and its reply is late.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum OnStoreLate {
        /// The newest known state, and this node's share of the units it leaves.
        #[default]
        Local = "local",
        /// Deny, unless units that the store already counts cover the cost.
        Deny = "deny",
    }
}

crate::named_enum! {
    /// The failure that a count must survive before its decision is returned.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Durability {
        /// None: the decision is returned at once.
        #[default]
        None = "none",
        /// The loss of the server with the count: a replica has it too.
        Replica = "replica",
        /// The loss of both servers' memories: the count is on the disks of the server and of a replica.
        ReplicaAof = "replica+aof",
        /// A crash of this process or machine: the count is on the local disk.
        Disk = "disk",
    }
}

impl Durability {
    /// Whether a decision must wait until its count is durable.
    pub const fn is_required(self) -> bool {
        !matches!(self, Durability::None)
    }
}

crate::named_enum! {
    /// How a node counts the requests it admits.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Counting {
        /// Each request is charged to the authoritative counter before it is admitted.
        #[default]
        Exact = "exact",
        /// From leased units: never over the limit, and no round trip under heavy traffic.
        Leased = "leased",
        /// By the last synced counts of the other nodes, which receive the counts of this node a moment later: over
        /// the limit by a documented bound.
        Lenient = "lenient",
    }
}

/// The failure that counts of a store survive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreDurability {
    /// None: they are in the memory of this process.
    None,
    /// A crash, by a journal on the local disk.
    Disk,
    /// The loss of a server, by its replicas.
    Replicas,
    /// Not known: the rules are parsed without a store.
    Unknown,
}

/// The capabilities of the store that rules are parsed for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities {
    /// The arithmetic of the store.
    pub precision: Precision,
    /// The failure that its counts survive.
    pub durability: StoreDurability,
}

impl Capabilities {
    /// Counters in the memory of this process.
    pub const MEMORY: Capabilities = Capabilities { precision: Precision::Memory, durability: StoreDurability::None };
    /// Counters in the memory of this process, with a journal on disk.
    pub const JOURNAL: Capabilities = Capabilities { precision: Precision::Memory, durability: StoreDurability::Disk };
    /// Counters in a store that nodes share, that computes in doubles and has replicas.
    pub const SHARED: Capabilities =
        Capabilities { precision: Precision::Double, durability: StoreDurability::Replicas };
    /// No store yet: rules that are only inspected.
    pub const UNKNOWN: Capabilities =
        Capabilities { precision: Precision::Memory, durability: StoreDurability::Unknown };

    /// Whether several nodes may count there. On a store with one node, exact counting costs no round trip and every
    /// other mode is the same.
    pub const fn is_shared(self) -> bool {
        matches!(self.durability, StoreDurability::Replicas | StoreDurability::Unknown)
    }
}

/// The options of a rule for its store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RuleOptions {
    /// What decides when the store fails.
    pub on_failure: OnStoreFailure,
    /// What decides when its reply is late.
    pub on_late: OnStoreLate,
    /// How long a decision may wait for the store; `None` for the default.
    pub budget: Option<Nanos>,
    /// The failure that its counts must survive before a decision is returned.
    pub durability: Durability,
    /// How its requests are counted. The size and lifetime of leases belong to each limit:
    /// [`Limit::lease_ttl`](crate::algorithms::Limit::lease_ttl).
    pub counting: Counting,
    /// The number of attributes that identify a subject. More attributes make a subject narrower. Where a set cannot
    /// be charged in one step, the narrower subject is charged first.
    pub specificity: u8,
}

impl RuleOptions {
    /// The options of a limit without a rule.
    pub const DEFAULT: RuleOptions = RuleOptions {
        on_failure: OnStoreFailure::Local,
        on_late: OnStoreLate::Local,
        budget: None,
        durability: Durability::None,
        counting: Counting::Exact,
        specificity: 0,
    };
}
