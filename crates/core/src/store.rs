//! The port between decisions and counters: three traits, their arguments and their replies.
//!
//! [`Counters`] are charged, [`Permits`] are held, [`Reservations`] are settled later. A [`Store`] has all three. Each
//! verb is one atomic step. Limits travel by value, so a store needs no rules: an override from Envoy or the parameters
//! of one `CL.THROTTLE` call serve as well as a rule. [`Outcome::at`] is the time of the decision: that of the injected
//! clock, or the store's own.
//!
//! `traits` has the verbs, and enforces one reply per set. `transaction` defines the decision on a set. `probe` is the
//! status of a store that nodes share and that may fail. `reservation` and `reservation_ledger` serve costs that are
//! known only at the end.

mod failure;
mod probe;
mod reservation;
mod reservation_ledger;
mod restore_point;
mod traits;
mod transaction;

use std::borrow::Cow;
use std::num::NonZeroU64;

use smallvec::{SmallVec, smallvec};

pub use self::failure::{FailureCause, FailureKind};
pub use self::probe::{Epoch, HashSlot, Heartbeat, NodeId, Probe, ShardId, Shards, StoreStatus};
pub use self::reservation::{Correction, ReservationState, Reserve, Settle, Settled, Used};
pub use self::reservation_ledger::{ExpiredReservation, LedgerFullError, ReservationLedger};
pub use self::restore_point::{HeartbeatReply, RestorePoint};
pub use self::traits::{Counters, Permits, ReplyCountError, Reservations, Store};
pub use self::transaction::{ChargeIntent, ChargeTransaction, StagedCounter};
use crate::algorithms::{CounterState, Figures, Limit, Verdict};
pub use crate::rule_options::{
    Capabilities, Counting, Durability, OnStoreFailure, OnStoreLate, RuleOptions, StoreDurability,
};
pub use crate::source::Source;
use crate::subject::{Fingerprint, RuleName};
use crate::units::{Cost, Nanos};

/// What the verdict of a charge means for the whole request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Must pass, or the request is denied.
    Enforce,
    /// Observed only: charged when the request is admitted and this limit would admit it; never denies.
    Shadow,
    /// One of several budgets: the request is denied only when none of them has room.
    Quota,
}

/// A charge of one limit by one request.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// The subject of the counter.
    pub subject: Fingerprint,
    /// The rule of the counter.
    pub rule: &'a RuleName,
    /// The index of the limit among the rates of its rule: each has a counter of its own.
    pub rate: u8,
    /// The limit that the rate was compiled to.
    pub limit: Cow<'a, Limit>,
    /// The units to charge.
    pub cost: Cost,
    /// What its verdict means for the request.
    pub role: Role,
    /// The options of its rule.
    pub options: &'a RuleOptions,
}

impl Charge<'_> {
    /// The bits that identify this counter in a store.
    pub fn counter(&self) -> u128 {
        self.rule.counter(self.subject, self.rate)
    }
}

/// What a charge set admits. It decides how long a decision waits for the store where no rule has a `budget`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum WorkKind {
    /// A request, whose caller waits for every decision.
    #[default]
    Request,
    /// Long work, such as that under a permit. A wrong decision lasts as long as the work, so it is worth a longer
    /// wait.
    LongWork,
}

/// All limits of one request, decided together: all are charged or none is.
#[derive(Clone, Debug, Default)]
pub struct ChargeSet<'a> {
    /// The limits; rates of one rule are adjacent.
    pub charges: SmallVec<[Charge<'a>; 4]>,
    /// The longest the caller waits for the decision. It caps the budgets of the rules.
    pub max_wait: Option<Nanos>,
    /// The kind of work that is admitted.
    pub work: WorkKind,
}

impl<'a> ChargeSet<'a> {
    /// A set of charges whose caller waits for as long as the rules allow.
    pub fn of(charges: impl IntoIterator<Item = Charge<'a>>) -> Self {
        ChargeSet { charges: charges.into_iter().collect(), ..ChargeSet::default() }
    }

    /// A set of one charge.
    pub fn of_one(charge: Charge<'a>) -> Self {
        ChargeSet { charges: smallvec![charge], ..ChargeSet::default() }
    }

    /// A set of some of these charges, for the same caller.
    #[must_use]
    pub fn subset(&self, charges: impl IntoIterator<Item = Charge<'a>>) -> Self {
        ChargeSet { max_wait: self.max_wait, work: self.work, charges: charges.into_iter().collect() }
    }

    /// Whether a request with these verdicts, one per charge in order, is admitted.
    pub fn admits(&self, allows: impl Fn(usize) -> bool) -> bool {
        admits(&self.charges, allows)
    }

    /// Whether any of its counts must be durable before the decision is returned. A set is decided in one step, so all
    /// of it waits then.
    pub fn requires_durability(&self) -> bool {
        let is_durable = |charge: &Charge<'_>| charge.options.durability.is_required();
        self.charges.iter().any(is_durable)
    }

    /// Why the request is denied if its counts cannot be made durable: the first charge whose rule denies then. `None`
    /// if no rule does.
    pub fn denial_if_not_durable(&self) -> Option<Degraded> {
        let denies = |charge: &Charge<'_>| {
            let options = charge.options;
            options.durability.is_required()
                && charge.role != Role::Shadow
                && options.on_failure == OnStoreFailure::Deny
        };
        self.charges.iter().position(denies).map(Degraded::denied_by)
    }
}

/// Whether a request with these verdicts, one per charge in order, is admitted.
fn admits(charges: &[Charge<'_>], allows: impl Fn(usize) -> bool) -> bool {
    let (mut quotas, mut quotas_allowing) = (0, 0);
    for (i, charge) in charges.iter().enumerate() {
        match charge.role {
            Role::Enforce if !allows(i) => return false,
            Role::Quota => {
                quotas += 1;
                quotas_allowing += u32::from(allows(i));
            }
            Role::Enforce | Role::Shadow => {}
        }
    }
    quotas == 0 || quotas_allowing > 0
}

/// Why an outcome is worse than the one of a store that works. The greater reason is the worse one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Degraded {
    /// The store decided, and the counts may not survive what a rule requires them to survive.
    NotDurable,
    /// The store was unavailable, and what this node knows decided.
    StoreUnavailable,
    /// Denied by a rule with [`OnStoreFailure::Deny`], because the store was unavailable or could not make the counts
    /// durable. The client has done nothing wrong. The reading of the charge may allow: it says whether the cost fits.
    DeniedByPolicy {
        /// The position of the charge whose rule denies; 0 for a permit.
        charge: u16,
    },
}

impl Degraded {
    /// Denied by the rule of the charge at this position.
    pub fn denied_by(charge: usize) -> Self {
        Degraded::DeniedByPolicy { charge: u16::try_from(charge).unwrap_or(u16::MAX) }
    }

    /// The same reason for a set in which the charge at `i` is at `position(i)`.
    #[must_use]
    pub fn at(self, position: impl FnOnce(usize) -> usize) -> Self {
        match self {
            Degraded::DeniedByPolicy { charge } => Degraded::denied_by(position(usize::from(charge))),
            other => other,
        }
    }
}

/// The verdict of one limit and its figures after the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReading {
    /// Whether its own cost fitted.
    pub verdict: Verdict,
    /// After the charge; without a charge, as found.
    pub figures: Figures,
}

/// A counter as a store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterSnapshot {
    /// The state after the decision.
    pub state: CounterState,
    /// Whether a record existed before the decision. A missing record that should exist reveals that the store lost
    /// counts. So a refund and a reset leave the record until it would have expired, and no later write lets it expire
    /// before that.
    pub existed: bool,
}

/// The reply of a store to one charge set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether the request passes. If not, nothing is charged, and nothing is written except a state that had to be
    /// moved because the clock was set back.
    pub admitted: bool,
    /// One per charge, in order.
    pub readings: SmallVec<[LimitReading; 4]>,
    /// Each counter as the store holds it after the decision, in order. Empty for a store that cannot lose counters.
    pub snapshots: Vec<CounterSnapshot>,
    /// The store's time of the decision.
    pub at: Nanos,
    /// How it was decided.
    pub source: Source,
    /// Why it is worse than an outcome of a store that works; `None` if it is not.
    pub degraded: Option<Degraded>,
    /// Whether a stored time had to be set back by more than the allowed clock error: an alarm.
    pub clock_stepped: bool,
}

impl Outcome {
    /// A reply without anything unusual: no snapshots, not degraded.
    pub fn new(admitted: bool, readings: SmallVec<[LimitReading; 4]>, at: Nanos, source: Source) -> Self {
        Outcome { admitted, readings, snapshots: Vec::new(), at, source, degraded: None, clock_stepped: false }
    }
}

/// The reply of a store to a charge that stands alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SingleOutcome {
    /// Whether it passes.
    pub admitted: bool,
    /// The verdict and figures of the limit.
    pub reading: LimitReading,
    /// The store's time of the decision.
    pub at: Nanos,
    /// How it was decided.
    pub source: Source,
}

impl SingleOutcome {
    /// The reply to a set of one charge.
    pub fn of(outcome: &Outcome) -> Self {
        let Outcome { admitted, ref readings, at, source, .. } = *outcome;
        SingleOutcome { admitted, reading: readings[0], at, source }
    }
}

/// Replies to charges that stand alone, in order. Up to [`SINGLE_BATCH`] of them need no allocation.
pub type SingleOutcomes = SmallVec<[Result<SingleOutcome, StoreError>; SINGLE_BATCH]>;

/// The best number of charges that stand alone to decide at a time.
pub const SINGLE_BATCH: usize = 16;

/// One run of one in-memory store. Random at the creation of the store, so that a receipt from an earlier run or from
/// another node can be recognized.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RunId(NonZeroU64);

impl RunId {
    /// A run with these bits; `None` for zero.
    pub const fn new(bits: u64) -> Option<Self> {
        match NonZeroU64::new(bits) {
            Some(bits) => Some(RunId(bits)),
            None => None,
        }
    }

    /// Its bits, never zero.
    pub const fn bits(self) -> u64 {
        self.0.get()
    }
}

/// A refund of one earlier outcome.
#[derive(Clone, Debug)]
pub struct Refund<'a> {
    /// Unique to the charge. A second refund with the same id does nothing.
    pub id: u128,
    /// The store's time of the charge.
    pub charged_at: Nanos,
    /// When the charge can no longer matter, and the id may be evicted.
    pub expires_at: Nanos,
    /// The charges to refund.
    pub set: ChargeSet<'a>,
}

/// The result of a refund.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refunded {
    /// Refunded, as far as the bounds allow.
    Done,
    /// This id was refunded before; nothing changed.
    Already,
    /// Too late to matter, or no room for the id; nothing changed.
    Lapsed,
    /// The charge was counted by another run or another node, whose counts are not here; nothing changed.
    Unknown,
}

impl Refunded {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        match self {
            Refunded::Done => "done",
            Refunded::Already => "already",
            Refunded::Lapsed => "lapsed",
            Refunded::Unknown => "unknown",
        }
    }
}

/// The reply to a draw: a lease of one limit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseReply {
    /// The leased units, at most the requested cost; zero if there were none.
    pub units: u64,
    /// The limit after the draw.
    pub figures: Figures,
    /// The counter as the store holds it now; `None` from a store that cannot lose it.
    pub snapshot: Option<CounterSnapshot>,
    /// The store's time of the draw.
    pub at: Nanos,
}

/// A known state to be merged into the store, by maximum per limit.
#[derive(Clone, Debug)]
pub struct Restore<'a> {
    /// The subject and limit of the state. Cost and role do not matter.
    pub charge: Charge<'a>,
    /// The state, computed under that limit.
    pub state: CounterState,
}

/// A restored state was not made by its limit's algorithm. Nothing was merged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a restored state is not of its limit's algorithm")]
pub struct RestoreStateError;

impl Restore<'_> {
    /// Fails if a state was not made by its limit's algorithm.
    pub fn check_all(restores: &[Restore<'_>]) -> Result<(), RestoreStateError> {
        let matches = |restore: &Restore<'_>| restore.charge.limit.accepts(&restore.state);
        if restores.iter().all(matches) { Ok(()) } else { Err(RestoreStateError) }
    }
}

/// A permit of a concurrency limit, to be acquired, renewed or released. It expires by itself if its holder dies.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest<'a> {
    /// The subject that holds permits.
    pub subject: Fingerprint,
    /// The rule with the concurrency limit.
    pub rule: &'a RuleName,
    /// Unique to the holder. A second acquire by the same holder never shortens the permit.
    pub holder: u128,
    /// The maximum number of permits in use.
    pub max_permits: u32,
    /// How long the permit lasts unless renewed.
    pub ttl: Nanos,
    /// The options of the rule.
    pub options: &'a RuleOptions,
    /// The longest the caller waits for the reply. It caps the budget of the rule.
    pub max_wait: Option<Nanos>,
}

impl PermitRequest<'_> {
    /// The bits that identify the permits of this subject and rule in a store.
    pub fn counter(&self) -> u128 {
        self.rule.counter(self.subject, 0)
    }
}

/// The reply to a permit request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitReply {
    /// Whether the holder has a permit.
    pub granted: bool,
    /// Permits in use now, this one included.
    pub in_use: u32,
    /// How it was decided.
    pub source: Source,
    /// Why it is worse than a reply of a store that works; `None` if it is not.
    pub degraded: Option<Degraded>,
}

/// The state of one subject under one limit, read without a charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Units in use, rounded up.
    pub used: u64,
    /// The figures that a client would receive.
    pub figures: Figures,
    /// The counter that was read: the subject's own, or one that new subjects share because the store is full.
    pub source: Source,
}

/// Why a store gave no result. A denial is not an error: it travels in an [`Outcome`].
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No reply in time; the charge may or may not have been applied. A breaker counts it.
    #[error("the store did not reply within {waited}")]
    Unavailable {
        /// How long the caller waited.
        waited: Nanos,
        /// The underlying error.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store replied and rejected the command: our bug. Retrying cannot help.
    #[error("the store rejected `{command}`")]
    Rejected {
        /// The command that was sent.
        command: &'static str,
        /// The error that the store returned.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a charge is not as durable as its rule requires. The store itself replies and is healthy.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnacknowledgedError(pub String);

/// The store was not called, because this node has not joined it yet: the first connection is being made, or the node
/// does not know the naming of counters yet. The condition ends by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this node has not joined the store yet")]
pub struct NotJoinedError;

impl StoreError {
    /// Whether the store was not called, because this node is still joining it. It is no failure, and no evidence
    /// about the health of the store.
    pub fn is_not_joined(&self) -> bool {
        self.is_unavailable_by::<NotJoinedError>()
    }

    /// Whether the store itself is healthy and only the durability of a charge is missing. A breaker does not count
    /// it: rules without a durability requirement continue.
    pub fn is_unacknowledged(&self) -> bool {
        self.is_unavailable_by::<UnacknowledgedError>()
    }

    fn is_unavailable_by<E: std::error::Error + 'static>(&self) -> bool {
        matches!(self, StoreError::Unavailable { source, .. } if source.is::<E>())
    }
}

/// The result of a call to a store.
pub type StoreResult<T> = Result<T, StoreError>;
