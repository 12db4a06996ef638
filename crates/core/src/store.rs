//! The port that a store of counters fills.
//!
//! Each verb is one atomic step. Limits travel by value, so that a store needs no rules: an override
//! from Envoy or the parameters of one `CL.THROTTLE` call are as good as a rule's. A breaker, a
//! fallback and a lease are each a `Store` around a `Store`. A store says by [`Outcome::at`] what
//! time it decided by: the injected clock's, or its own.
//!
//! `rule_options` is what rules ask of a store and stores can give; `shared_store` what a store tells that several
//! nodes share and that may fail; `reservation` and `reservation_ledger` are for costs known only at the end; `replies` holds
//! the port to one reply per set.

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
pub use self::shared_store::{
    Epoch, HashSlot, Heartbeat, NodeId, Probe, ShardId, Shards, StoreStatus,
};
use crate::algorithms::{CounterState, Figures, Limit, Verdict};
use crate::subject::{Fingerprint, RuleName};
use crate::units::{Cost, Nanos};

/// What a charge means for the request as a whole.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Role {
    /// Must pass, or the request is refused.
    Enforce,
    /// Only watched: charged when the request is admitted and it would itself admit; never refuses.
    Shadow,
    /// One of several budgets: the request is refused only when none of them has room.
    Quota,
}

/// One limit that a request touches.
#[derive(Clone, Debug)]
pub struct Charge<'a> {
    /// Whose counter.
    pub subject: Fingerprint,
    /// Which rule's counter.
    pub rule: &'a RuleName,
    /// Which of the rule's rates.
    pub rate: u8,
    /// The rate itself.
    pub limit: Cow<'a, Limit>,
    /// What this limit is charged.
    pub cost: Cost,
    /// What its verdict means.
    pub role: Role,
    /// What is asked of the store.
    pub options: &'a RuleOptions,
}

impl Charge<'_> {
    /// The bits that identify this counter in a store.
    pub fn counter(&self) -> u128 {
        self.rule.counter(self.subject, self.rate)
    }
}

/// What a charge set admits. It decides how long the store is waited for where no rule has a `budget`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum WorkKind {
    /// A request, whose caller waits for every decision.
    #[default]
    Request,
    /// Work that takes long, as that of a permit does. A wrong decision lasts as long as the work, so it is
    /// worth a longer wait.
    LongWork,
}

/// All limits one request must pass, decided together: all are charged or none is.
#[derive(Clone, Debug, Default)]
pub struct ChargeSet<'a> {
    /// The limits, rates of one rule side by side.
    pub charges: SmallVec<[Charge<'a>; 4]>,
    /// The longest the caller waits for the decision. It caps the budgets of the rules.
    pub max_wait: Option<Nanos>,
    /// What is admitted.
    pub work: WorkKind,
}

impl<'a> ChargeSet<'a> {
    /// A set of charges whose caller waits for as long as the rules allow.
    pub fn of(charges: impl IntoIterator<Item = Charge<'a>>) -> Self {
        ChargeSet {
            charges: charges.into_iter().collect(),
            ..ChargeSet::default()
        }
    }

    /// A set of one charge.
    pub fn of_one(charge: Charge<'a>) -> Self {
        ChargeSet {
            charges: smallvec![charge],
            ..ChargeSet::default()
        }
    }

    /// Some charges of this decision, for the same caller.
    #[must_use]
    pub fn subset(&self, charges: impl IntoIterator<Item = Charge<'a>>) -> Self {
        ChargeSet {
            max_wait: self.max_wait,
            work: self.work,
            charges: charges.into_iter().collect(),
        }
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

    /// Whether any of its counts must be safe before the decision is told. A set is decided in one
    /// step, so all of it waits then.
    pub fn requires_durability(&self) -> bool {
        let is_durable = |charge: &Charge<'_>| charge.options.durability.is_required();
        self.charges.iter().any(is_durable)
    }
}

/// How a decision was reached. Always reported.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// The one true counter was asked.
    Exact,
    /// The reply of the store was late: the newest state seen decided.
    Late,
    /// Units drawn in advance.
    Lease,
    /// A local count that is synchronised later.
    Lenient,
    /// Known to be over its limit.
    DenyCache,
    /// The store did not answer: a local share decided.
    Fallback,
    /// The store is full: subjects share counters.
    Overflow,
    /// Refused by the block list.
    BlockList,
    /// Passed by the allow list.
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

/// What one limit said, and how it stands after the decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LimitReading {
    /// Whether its own cost fitted.
    pub verdict: Verdict,
    /// After the charge if there was one; as found if there was none.
    pub figures: Figures,
}

/// A counter as a store holds it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CounterSnapshot {
    /// Its state after the decision.
    pub state: CounterState,
    /// Whether there was a record before it. That one is gone which should be there is how the loss
    /// of a store shows: so a refund and a reset leave the record until it would have expired, and no
    /// later write lets it expire before that.
    pub existed: bool,
}

/// What a store answered to one charge set.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// Whether the request passes. If not, nothing was spent, and nothing written but a state that
    /// had to be moved because the clock was set back.
    pub admitted: bool,
    /// One per charge, in order.
    pub readings: SmallVec<[LimitReading; 4]>,
    /// Each counter as the store holds it after the decision, in order, from a store that may lose
    /// them; else empty.
    pub snapshots: Vec<CounterSnapshot>,
    /// The store's time at which this was decided.
    pub at: Nanos,
    /// How it was decided.
    pub source: Source,
    /// Whether a stored time had to be set back by more than the clock may err: an alarm.
    pub clock_stepped: bool,
}

/// What a store answered to a charge of one limit that stands alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SingleOutcome {
    /// Whether it passes.
    pub admitted: bool,
    /// What the limit said.
    pub reading: LimitReading,
    /// The store's time at which this was decided.
    pub at: Nanos,
    /// How it was decided.
    pub source: Source,
}

impl SingleOutcome {
    /// The answer to a set of one charge.
    pub fn of(outcome: &Outcome) -> Self {
        SingleOutcome {
            admitted: outcome.admitted,
            reading: outcome.readings[0],
            at: outcome.at,
            source: outcome.source,
        }
    }
}

/// Answers to charges that stand alone, in order. So many at a time need no allocation.
pub type SingleOutcomes = SmallVec<[Result<SingleOutcome, StoreError>; SINGLE_BATCH]>;

/// How many charges that stand alone are best decided at a time.
pub const SINGLE_BATCH: usize = 16;

/// A refund of one earlier outcome.
#[derive(Clone, Debug)]
pub struct Refund<'a> {
    /// Unique to the grant. A second refund with the same id does nothing.
    pub id: u128,
    /// The store's time of the charge.
    pub charged_at: Nanos,
    /// When the grant can no longer matter, and the id may be forgotten.
    pub expires_at: Nanos,
    /// What was charged.
    pub set: ChargeSet<'a>,
}

/// What became of a refund.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refunded {
    /// Given back, as far as the bounds allow.
    Done,
    /// This id was refunded before; nothing changed.
    Already,
    /// Too late to matter, or no room to remember the id; nothing changed.
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

/// Units taken from one limit in advance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseReply {
    /// How many, at most what was asked; zero if there were none.
    pub units: u64,
    /// How the limit stands now.
    pub figures: Figures,
    /// The counter as the store holds it now, from a store that may lose it.
    pub snapshot: Option<CounterSnapshot>,
    /// The store's time of the grant.
    pub at: Nanos,
}

/// A known state to be merged into the store, by maximum per limit.
#[derive(Clone, Debug)]
pub struct Restore<'a> {
    /// Whose state, under which limit. Cost and role do not matter.
    pub charge: Charge<'a>,
    /// The state, made under that limit.
    pub state: CounterState,
}

/// A slot of a limit on what is open at once. It expires by itself if its holder dies.
#[derive(Clone, Copy, Debug)]
pub struct PermitRequest<'a> {
    /// Whose slots.
    pub subject: Fingerprint,
    /// Which rule's.
    pub rule: &'a RuleName,
    /// Unique to the holder; holding again with the same one never ends it sooner.
    pub holder: u128,
    /// The most that may be open.
    pub max_permits: u32,
    /// How long the slot lasts unless renewed.
    pub ttl: Nanos,
    /// What is asked of the store.
    pub options: &'a RuleOptions,
}

impl PermitRequest<'_> {
    /// The bits that identify whose slots of which rule.
    pub fn counter(&self) -> u128 {
        self.rule.counter(self.subject, 0)
    }
}

/// The answer to a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PermitReply {
    /// Whether the holder has a slot.
    pub granted: bool,
    /// Slots open now, this one included.
    pub in_use: u32,
    /// How it was decided.
    pub source: Source,
}

/// How one subject stands under one limit, without touching it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inspection {
    /// Units in use, rounded up.
    pub used: u64,
    /// What the client would be told.
    pub figures: Figures,
    /// Whose counter it is: its own, or one that newcomers share because the store is full.
    pub source: Source,
}

/// Why a store gave no answer. A refusal is not an error: it travels in an [`Outcome`].
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer in time; the charge may or may not have been applied. A breaker counts it.
    #[error("the store did not answer within {waited}")]
    Unavailable {
        /// How long was waited.
        waited: Nanos,
        /// What went wrong below.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The store answered and refused our command: our bug. Retrying cannot help.
    #[error("the store refused `{command}`")]
    Rejected {
        /// What was sent.
        command: &'static str,
        /// What it said.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Why a charge is not as safe as its rule asks, in words. The store answers and is well.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct UnacknowledgedError(pub String);

/// The store was not called, because this node has not joined it yet: the first connection is being made, or
/// the node does not know yet how counters are named. It passes by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this node has not joined the store yet")]
pub struct NotJoinedError;

impl StoreError {
    /// Whether the store was not called, because this node has only begun to join it. That says nothing about
    /// the store, and is no failure.
    pub fn is_not_joined(&self) -> bool {
        match self {
            StoreError::Unavailable { source, .. } => source.is::<NotJoinedError>(),
            StoreError::Rejected { .. } => false,
        }
    }

    /// Whether the store itself is well, and only what makes a charge safe is missing. A breaker does
    /// not count that: rules that ask for no safety go on.
    pub fn is_unacknowledged(&self) -> bool {
        match self {
            StoreError::Unavailable { source, .. } => source.is::<UnacknowledgedError>(),
            StoreError::Rejected { .. } => false,
        }
    }
}

/// The result of a call to a store.
pub type StoreResult<T> = Result<T, StoreError>;

/// A place that keeps counters. Every verb is atomic.
pub trait Store: Send + Sync {
    /// The run that counts with these terms end with; `None` for counts that nodes share and that outlive
    /// a process. A charge can be refunded only in the run that counted it.
    fn run_id(&self, _options: &RuleOptions) -> Option<RunId> {
        None
    }

    /// Charges every limit of one request in a single step: all are spent or none is.
    fn charge(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Charges several requests, each on its own, in order. One clock reading may serve them all. There is
    /// one reply for each set; callers rely on it through [`one_reply_per_set`].
    fn charge_each(
        &self,
        sets: &[&ChargeSet<'_>],
    ) -> impl Future<Output = Vec<StoreResult<Outcome>>> + Send {
        async move {
            let mut outcomes = Vec::with_capacity(sets.len());
            for set in sets {
                outcomes.push(self.charge(set).await);
            }
            outcomes
        }
    }

    /// Charges limits that stand alone, each on its own, in order, and adds what they said to `replies`.
    fn charge_singles(
        &self,
        charges: &[Charge<'_>],
        replies: &mut SingleOutcomes,
    ) -> impl Future<Output = ()> + Send {
        async move {
            let sets = charges.iter().cloned().map(ChargeSet::of_one);
            let sets: Vec<ChargeSet<'_>> = sets.collect();
            let sets: Vec<&ChargeSet<'_>> = sets.iter().collect();
            let outcomes = one_reply_per_set(sets.len(), self.charge_each(&sets).await);
            let outcomes = outcomes.into_iter();
            replies.extend(outcomes.map(|outcome| Ok(SingleOutcome::of(&outcome?))));
        }
    }

    /// What `charge` would answer, without spending.
    fn peek(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Gives back an earlier charge, once, as far as the bounds allow.
    fn refund(&self, refund: &Refund<'_>) -> impl Future<Output = StoreResult<Refunded>> + Send;

    /// Takes units of one limit in advance, up to the charge's cost and to half of what is left, rounded
    /// up, so that others find some; or an eighth of the cost if that is more and there, so that the end is
    /// reached in a few steps.
    fn draw(&self, charge: &Charge<'_>) -> impl Future<Output = StoreResult<LeaseReply>> + Send;

    /// Charges whether it fits or not: debt, for costs known only afterwards.
    fn force(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Charges an estimate like `charge`, and remembers it until it is settled. Estimates of the same
    /// rule and subject that nobody settled in time come back first, whether this one fits or not.
    fn reserve(&self, reserve: &Reserve<'_>) -> impl Future<Output = StoreResult<Outcome>> + Send;

    /// Corrects an estimate to what was used, once: less is given back as far as the bounds allow, more
    /// is a debt. It may be sent again when the answer is lost.
    fn settle(&self, settle: &Settle<'_>) -> impl Future<Output = StoreResult<Settled>> + Send;

    /// Merges known states, by maximum per limit.
    fn restore(&self, restores: &[Restore<'_>]) -> impl Future<Output = StoreResult<()>> + Send;

    /// Takes or renews a slot of what may be open at once.
    fn acquire(
        &self,
        permit: &PermitRequest<'_>,
    ) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Lets a slot last on. Takes none: what was given back or has expired stays so, however late a
    /// renewal comes.
    fn renew(
        &self,
        permit: &PermitRequest<'_>,
    ) -> impl Future<Output = StoreResult<PermitReply>> + Send;

    /// Gives a slot back. Giving back what is not held does nothing.
    fn release(&self, permit: &PermitRequest<'_>) -> impl Future<Output = StoreResult<()>> + Send;

    /// How each counter stands; nothing for a subject never seen or fully refilled.
    fn inspect(
        &self,
        set: &ChargeSet<'_>,
    ) -> impl Future<Output = StoreResult<Vec<Option<Inspection>>>> + Send;

    /// Forgets all that is known of some rules and subjects, which charges of all rates of a rule name: the
    /// counters, the reservations that are open of them, and the slots, whoever holds them. How many
    /// counters and slots there were.
    fn reset(&self, set: &ChargeSet<'_>) -> impl Future<Output = StoreResult<u64>> + Send;
}
