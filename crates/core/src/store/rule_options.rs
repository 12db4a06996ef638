//! The options of a rule for its store, and the capabilities of a store.
//!
//! Rules are parsed for a store: an option that the store cannot support is an error in the rules file, never found at
//! request time. Does not know the stores themselves.

use crate::algorithms::Precision;
use crate::units::Nanos;

/// What decides when the store fails.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreFailure {
    /// This node's share of the limit.
    #[default]
    Local,
    /// The full limit on each node.
    Allow,
    /// Deny.
    Deny,
}

/// What decides when the store is healthy and its reply is late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreLate {
    /// The newest known state, and this node's share of the units it leaves.
    #[default]
    Local,
    /// Deny, unless units that the store already counts cover the cost.
    Deny,
}

/// The failure that a count must survive before its decision is returned.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Durability {
    /// None: the decision is returned at once.
    #[default]
    None,
    /// The loss of the server with the count: a replica has it too.
    Replica,
    /// The loss of both servers' memories: the count is on the disks of the server and of a replica.
    ReplicaAof,
    /// A crash of this process or machine: the count is on the local disk.
    Disk,
}

impl Durability {
    /// Every level, least first.
    pub const ALL: [Durability; 4] = [Durability::None, Durability::Replica, Durability::ReplicaAof, Durability::Disk];

    /// The name in a rules file.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Replica => "replica",
            Durability::ReplicaAof => "replica+aof",
            Durability::Disk => "disk",
        }
    }

    /// Whether a decision must wait until its count is durable.
    pub const fn is_required(self) -> bool {
        !matches!(self, Durability::None)
    }
}

/// How a node counts the requests it admits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Counting {
    /// Each request is charged to the authoritative counter before it is admitted.
    #[default]
    Exact,
    /// From leased units: never over the limit, and no round trip under heavy traffic.
    Leased,
    /// By the last synced counts of the other nodes, which receive the counts of this node a moment later: over
    /// the limit by a documented bound.
    Lenient,
}

impl Counting {
    /// Every mode, in the order of the documentation.
    pub const ALL: [Counting; 3] = [Counting::Exact, Counting::Leased, Counting::Lenient];

    /// The name in a rules file.
    pub const fn name(self) -> &'static str {
        match self {
            Counting::Exact => "exact",
            Counting::Leased => "leased",
            Counting::Lenient => "lenient",
        }
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
