//! The port between decisions and counters: the [`Store`] trait, its arguments and its replies.
//!
//! Each verb is one atomic step. Limits travel by value, so a store needs no rules: an override from Envoy or the
//! parameters of one `CL.THROTTLE` call serve as well as a rule. A breaker, a fallback and a lease are each a `Store`
//! around a `Store`. [`Outcome::at`] is the time of the decision: that of the injected clock, or the store's own.
//!
//! `rule_options` holds the settings of a rule and the capabilities of a store. `shared_store` is the status of a
//! store that nodes share and that may fail. `reservation` and `reservation_ledger` serve costs that are known only at
//! the end. `replies` enforces one reply per set.

mod delegate;
mod failure;
mod replies;
mod reservation;
mod reservation_ledger;
mod restore_point;
mod rule_options;
mod run_id;
mod shared_store;

use std::borrow::Cow;
use std::future::Future;

use smallvec::{SmallVec, smallvec};

pub use self::failure::{FailureCause, FailureKind};
pub use self::replies::{ReplyCountError, one_reply_per_set};
pub use self::reservation::{Correction, ReservationState, Reserve, Settle, Settled, Used};
pub use self::reservation_ledger::{ExpiredReservation, LedgerFullError, ReservationLedger};
pub use self::restore_point::{HeartbeatReply, RestorePoint};
pub use self::rule_options::{
    Capabilities, Counting, Durability, OnStoreFailure, OnStoreLate, RuleOptions, StoreDurability,
};
pub use self::run_id::RunId;
pub use self::shared_store::{Epoch, HashSlot, Heartbeat, NodeId, Probe, ShardId, Shards, StoreStatus};
use crate::algorithms::{CounterState, Figures, Limit, Verdict};
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
    /// The index of the rate in its rule.
    pub rate: u8,
    /// The rate itself.
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
}

impl ChargeSet<'_> {
    /// Whether a request with these verdicts, one per charge in order, is admitted.
    pub fn admits(&self, allows: impl Fn(usize) -> bool) -> bool {
        let (mut quotas, mut quotas_allowing) = (0, 0);
        for (i, charge) in self.charges.iter().enumerate() {
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

    /// Whether any of its counts must be durable before the decision is returned. A set is decided in one step, so all
    /// of it waits then.
    pub fn requires_durability(&self) -> bool {
        let is_durable = |charge: &Charge<'_>| charge.options.durability.is_required();
        self.charges.iter().any(is_durable)
    }
}

/// How a decision was reached. Always reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// By the authoritative counter.
    Exact,
    /// The reply of the store was late: the newest known state decided.
    Late,
    /// By leased units.
    Lease,
    /// By a local count that is synced later.
    Lenient,
    /// The deny cache knows the limit is exhausted.
    DenyCache,
    /// The store did not reply: this node's share decided.
    Fallback,
    /// The store is full: subjects share counters.
    Overflow,
    /// Denied by the block list.
    BlockList,
    /// Allowed by the allow list.
    AllowList,
    /// No rule applies.
    None,
}

impl Source {
    /// Every source.
    pub const ALL: [Source; 10] = [
        Source::Exact,
        Source::Late,
        Source::Lease,
        Source::Lenient,
        Source::DenyCache,
        Source::Fallback,
        Source::Overflow,
        Source::BlockList,
        Source::AllowList,
        Source::None,
    ];

    /// The name on the wire and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Source::Exact => "exact",
            Source::Late => "late",
            Source::Lease => "lease",
            Source::Lenient => "lenient",
            Source::DenyCache => "deny-cache",
            Source::Fallback => "fallback",
            Source::Overflow => "overflow",
            Source::BlockList => "block-list",
            Source::AllowList => "allow-list",
            Source::None => "none",
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
    /// Whether a stored time had to be set back by more than the allowed clock error: an alarm.
    pub clock_stepped: bool,
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
        SingleOutcome {
            admitted: outcome.admitted,
            reading: outcome.readings[0],
            at: outcome.at,
            source: outcome.source,
        }
    }
}

/// Replies to charges that stand alone, in order. Up to [`SINGLE_BATCH`] of them need no allocation.
pub type SingleOutcomes = SmallVec<[Result<SingleOutcome, StoreError>; SINGLE_BATCH]>;

/// The best number of charges that stand alone to decide at a time.
pub const SINGLE_BATCH: usize = 16;

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
        match self {
            StoreError::Unavailable { source, .. } => source.is::<NotJoinedError>(),
            StoreError::Rejected { .. } => false,
        }
    }

    /// Whether the store itself is healthy and only the durability of a charge is missing. A breaker does not count
    /// it: rules without a durability requirement continue.
    pub fn is_unacknowledged(&self) -> bool {
        match self {
            StoreError::Unavailable { source, .. } => source.is::<UnacknowledgedError>(),
            StoreError::Rejected { .. } => false,
        }
    }
}

/// The result of a call to a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A store of counters. Every verb is atomic.
pub trait Store: Send + Sync {
    /// The run that bounds the lifetime of counts with these options; `None` for counts that nodes share and that
    /// outlive a process. A charge can be refunded only in the run that counted it.
    fn run_id(&self, _options: &RuleOptions) -> Option<RunId> {
        None
    }

    /// Charges every limit of one request in a single step: all are charged or none is.
    fn charge(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Charges several requests, each on its own, in order. One clock reading may serve them all. There is one reply
    /// for each set; callers enforce that with [`one_reply_per_set`].
    fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> impl Future<Output = Vec<StoreResult<Outcome>>> + Send {
        async move {
            let mut outcomes = Vec::with_capacity(sets.len());
            for set in sets {
                outcomes.push(self.charge(set).await);
            }
            outcomes
        }
    }

    /// Charges limits that stand alone, each on its own, in order, and appends the results to `replies`.
    fn charge_singles(&self, charges: &[Charge<'_>], replies: &mut SingleOutcomes) -> impl Future<Output = ()> + Send {
        async move {
            let sets = charges.iter().cloned().map(ChargeSet::of_one);
            let sets: Vec<ChargeSet<'_>> = sets.collect();
            let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
            let outcomes = one_reply_per_set(sets.len(), self.charge_each(&sets).await);
            let outcomes = outcomes.into_iter();
            replies.extend(outcomes.map(|outcome| Ok(SingleOutcome::of(&outcome?))));
        }
    }

    /// The result that `charge` would have, without charging.
    fn peek(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Refunds an earlier charge, once, as far as the bounds allow.
    fn refund(&self, refund: &Refund<'_>) -> impl Future<Output = StoreResult<Refunded>> + Send;

    /// Draws a lease from one limit: up to the charge's cost and to half of what is left, rounded up, so that other
    /// nodes find some; or an eighth of the cost if that is more and available, so that the limit is exhausted in a
    /// few draws.
    fn draw(&self, charge: &Charge<'_>) -> impl Future<Output = StoreResult<LeaseReply>> + Send;

    /// Charges even beyond the limit: debt, for costs known only afterwards.
    fn force(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Charges an estimate like `charge`, and remembers it until it is settled. Expired estimates of the same rule and
    /// subject are refunded first, even if this one does not fit.
    fn reserve(&self, reserve: &Reserve<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Corrects an estimate to the units used, once: a lower use is refunded as far as the bounds allow, a higher use
    /// becomes debt. It may be sent again when the reply is lost.
    fn settle(&self, settle: &Settle<'_>) -> impl Future<Output = StoreResult<Settled>> + Send;

    /// Merges known states, by maximum per limit.
    fn restore(&self, restores: &[Restore<'_>]) -> impl Future<Output = StoreResult<()>> + Send;

    /// Acquires a permit, or renews it.
    fn acquire(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Renews a permit. Acquires none: a permit that was released or has expired stays so, however late a renewal
    /// arrives.
    fn renew(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Releases a permit. Releasing a permit that is not held does nothing.
    fn release(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<()>> + Send;

    /// The state of each counter; `None` for a subject never seen or fully refilled.
    fn inspect(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Vec<Option<Inspection>>>> + Send;

    /// Removes all state of some rules and subjects: the counters, their open reservations, and the permits of every
    /// holder. The set names each rule by charges of all its rates. Returns the number of counters and permits
    /// removed.
    fn reset(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<u64>> + Send;

    /// Evicts some expired counters. Called a few times per second; a store that does this by itself does nothing.
    fn evict_expired(&self) {}
}
