//! What a rule asks of the store that keeps its counts, and what a store can give.
//!
//! Rules are read for a store: what it cannot give is a fault of the rules file, never found out by a
//! request. Which store it is, is not known here.

use crate::algorithms::Precision;
use crate::units::Nanos;

/// What decides when the store does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreFailure {
    /// A local share of the limit.
    #[default]
    Local,
    /// The full limit on each node.
    Allow,
    /// Refuse.
    Deny,
}

/// What decides when the store is healthy and its reply is late.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum OnStoreLate {
    /// The newest state seen and this node's part of what it leaves.
    #[default]
    Local,
    /// Deny, unless units pay that the store counts already.
    Deny,
}

/// What a count is safe from before its decision is told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Durability {
    /// Nothing: the decision is told at once.
    #[default]
    None,
    /// The loss of the server that keeps it: a replica has it too.
    Replica,
    /// The loss of both servers' memories: it is on the disk of the server and of a replica.
    ReplicaAof,
    /// A crash of this process or machine: it is on the disk here.
    Disk,
}

impl Durability {
    /// Every one, least first.
    pub const ALL: [Durability; 4] = [
        Durability::None,
        Durability::Replica,
        Durability::ReplicaAof,
        Durability::Disk,
    ];

    /// As a rules file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Durability::None => "none",
            Durability::Replica => "replica",
            Durability::ReplicaAof => "replica+aof",
            Durability::Disk => "disk",
        }
    }

    /// Whether a decision must wait until its count is safe.
    pub const fn is_required(self) -> bool {
        !matches!(self, Durability::None)
    }
}

/// How a node counts what it admits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Counting {
    /// Each request is charged to the one true counter before it is admitted.
    #[default]
    Exact,
    /// From units that were charged in advance: never over the limit, and no round trip where there is
    /// much traffic.
    Leased,
    /// By what the node last heard of the others, who hear of it a moment later: over the limit by a
    /// bound that is told.
    Lenient,
}

impl Counting {
    /// Every one, in the order the documentation has them.
    pub const ALL: [Counting; 3] = [Counting::Exact, Counting::Leased, Counting::Lenient];

    /// As a rules file writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Counting::Exact => "exact",
            Counting::Leased => "leased",
            Counting::Lenient => "lenient",
        }
    }
}

/// What a store can keep counts safe from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StoreDurability {
    /// Nothing: they are in the memory of this process.
    None,
    /// A crash, by a journal on the disk here.
    Disk,
    /// The loss of a server, by its replicas.
    Replicas,
    /// Not known: the rules are read without a store.
    Unknown,
}

/// What a store can do for the rules that are read for it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Capabilities {
    /// How it computes.
    pub precision: Precision,
    /// What it keeps counts safe from.
    pub durability: StoreDurability,
}

impl Capabilities {
    /// Counters in the memory of this process.
    pub const MEMORY: Capabilities = Capabilities {
        precision: Precision::Memory,
        durability: StoreDurability::None,
    };
    /// The same with a journal on disk.
    pub const JOURNAL: Capabilities = Capabilities {
        precision: Precision::Memory,
        durability: StoreDurability::Disk,
    };
    /// Counters in Redis or Valkey.
    pub const SCRIPTS: Capabilities = Capabilities {
        precision: Precision::Script,
        durability: StoreDurability::Replicas,
    };
    /// No store yet: rules that are only looked at.
    pub const UNKNOWN: Capabilities = Capabilities {
        precision: Precision::Memory,
        durability: StoreDurability::Unknown,
    };

    /// Whether several nodes may count there. Where only one does, exact counting costs no round trip
    /// and every other way is the same.
    pub const fn is_shared(self) -> bool {
        matches!(
            self.durability,
            StoreDurability::Replicas | StoreDurability::Unknown
        )
    }
}

/// What a rule asks of the store that keeps its counts.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct RuleOptions {
    /// What decides when the store does not.
    pub on_failure: OnStoreFailure,
    /// What decides when its reply is late.
    pub on_late: OnStoreLate,
    /// How long a decision may wait for the store, if not as long as usual.
    pub budget: Option<Nanos>,
    /// What its counts must be safe from before a decision is told.
    pub durability: Durability,
    /// How its requests are counted. What is drawn in advance, and for how long, is a matter of each
    /// limit: [`Limit::lease_ttl`](crate::algorithms::Limit::lease_ttl).
    pub counting: Counting,
    /// How many attributes name a subject: of two, the one named by more is the narrower. Where a set
    /// cannot be charged in one step, the narrower is charged first.
    pub specificity: u8,
}

impl RuleOptions {
    /// What a limit without a rule asks.
    pub const DEFAULT: RuleOptions = RuleOptions {
        on_failure: OnStoreFailure::Local,
        on_late: OnStoreLate::Local,
        budget: None,
        durability: Durability::None,
        counting: Counting::Exact,
        specificity: 0,
    };
}
