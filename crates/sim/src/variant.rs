//! Mistakes that a limiter could have, each made by the link between a node and its store or by the
//! way a node is set up. The checkers must see every one of them.

use tidegate_core::algorithms::Spec;
use tidegate_core::units::Nanos;

use crate::scenario::compile;

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// None: the shipped code as it is.
    Shipped,
    /// What is pushed after an outage includes this node's part of what the store already had.
    WritesBackRestored,
    /// Remembered states are added up instead of merged by maximum.
    MergesBySum,
    /// A refund whose answer may be lost is sent again as another.
    RetriesRefunds,
    /// Requests probe a store that is known to be away.
    ProbesWithRequests,
    /// A refused request renews the record it was refused by.
    DenialRefreshes,
    /// The node's clock decides instead of the store's.
    NodeClock,
    /// After a loss, the counts of windows long past are put into the present one.
    CarriesWindows,
    /// A script that was missing is loaded and run, and so is the request that missed it.
    ChargesTwiceOnNoScript,
    /// What was admitted in an outage is never charged.
    NeverWritesBack,
    /// What is remembered is never put back.
    NeverRestores,
    /// Each node believes it is alone.
    IgnoresPeers,
    /// Each node believes it has three times as many peers.
    ImaginesPeers,
    /// Decisions wait for the store ten times as long as they may.
    WaitsTooLong,
    /// Refusals are remembered for twice as long as they last.
    RemembersTooLong,
    /// What was charged for a request that is refused by its next limit is kept.
    NeverRefunds,
    /// The widest limit is charged first.
    WideFirst,
    /// A part that takes over is believed as it is.
    TrustsNewShards,
    /// A burst is not shortened by what leases may hold.
    NeverShortens,
    /// The life of a lease is counted from the answer, not from the question.
    ExpiresFromReply,
    /// Units are used long after their lease is over.
    SpendsExpired,
    /// A lease goes on when the window ends in which it was charged.
    OutlastsWindows,
    /// Units are drawn from nobody, because the store does not answer.
    LeasesWithoutStore,
    /// Units are told of and not charged.
    LeasesUncharged,
    /// More units are used than were drawn.
    LeasesMore,
    /// Units that were given back are used all the same.
    UsesReturnedLease,
    /// What was drawn is not remembered, in case the store forgets it.
    ForgetsLeases,
    /// What a node counted for itself is told to the store twice.
    SyncsTwice,
    /// What the store answers to it is not heard.
    IgnoresSyncReplies,
    /// A refund gives back everything, however long ago it was charged.
    RefundsInFull,
    /// A reservation that was settled is still open.
    SettlesTwice,
    /// An estimate that nobody settles never comes back.
    NeverReturns,
    /// An estimate comes back when a call is still under way.
    ReturnsEarly,
    /// Who settles after the estimate came back is charged nothing.
    ForgivesLate,
    /// What was used beyond an estimate is not charged.
    ForgivesDebt,
    /// A slot lasts until it is given back.
    PermitsNeverExpire,
    /// A renewal takes a slot again that was given back.
    RenewsReleased,
    /// Who gives a slot back frees another's too.
    ReleasesAnother,
    /// A slot that is given back lasts on.
    ReleasesNothing,
    /// A late reply is taken for none.
    LosesLateReplies,
}

impl Variant {
    /// The rate that nodes go by, where the mistake is that they go by another than was written.
    pub(crate) fn misread(self, spec: &Spec) -> Spec {
        let mut spec = spec.clone();
        let lease = spec.lease_ttl.and_then(|_| compile(&spec).lease_ttl());
        let Some(lasts) = lease else {
            return spec;
        };
        let longer = match self {
            Variant::ExpiresFromReply => Nanos::from_millis(60),
            Variant::SpendsExpired => lasts.plus(lasts),
            Variant::NeverShortens => Nanos::ZERO,
            _ => return spec,
        };
        let flows_in = |span: Nanos| {
            let units = u128::from(spec.count) * u128::from(span.get());
            let window = u128::from(spec.window.length().get());
            u64::try_from(units.div_ceil(window)).unwrap_or(u64::MAX)
        };
        let more = match self {
            Variant::NeverShortens => flows_in(lasts),
            _ => flows_in(longer),
        };
        if spec.algorithm.takes_burst() {
            spec.burst = Some(spec.burst.unwrap_or(spec.count) + more);
        }
        spec.lease_ttl = Some(lasts.plus(longer));
        spec
    }
}
