//! Deliberate mistakes of a limiter. The link between a node and its store makes them, or the setup of a node
//! does. The checkers must find every one.

use tidegate_core::algorithms::Spec;
use tidegate_core::units::Nanos;

use crate::scenario::compile;

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// No mistake: the shipped code.
    Shipped,
    /// The write-back after an outage includes this node's part of the units that the store already had.
    WritesBackRestored,
    /// Remembered states are merged by sum instead of by maximum.
    MergesBySum,
    /// A refund whose reply may be lost is retried as a new refund.
    RetriesRefunds,
    /// Requests probe a store that is known to be unavailable.
    ProbesWithRequests,
    /// A denied request renews the record that denied it.
    DenialRefreshes,
    /// The node's clock decides instead of the store's.
    NodeClock,
    /// After a loss, counts of past windows are restored into the current window.
    CarriesWindows,
    /// After NOSCRIPT, the script is loaded and run, and the request that failed is charged, too.
    ChargesTwiceOnNoScript,
    /// Admissions of an outage are never written back.
    NeverWritesBack,
    /// Remembered states are never restored.
    NeverRestores,
    /// Each node assumes that it is alone.
    IgnoresPeers,
    /// Each node assumes three times as many peers.
    ImaginesPeers,
    /// Decisions wait for the store for ten times their budget.
    WaitsTooLong,
    /// Denials are cached for twice as long as they last.
    RemembersTooLong,
    /// A request that a later limit denies is not refunded.
    NeverRefunds,
    /// The widest limit is charged first.
    WideFirst,
    /// A promoted shard is trusted without a restore.
    TrustsNewShards,
    /// A burst is not shortened by the units that leases may hold.
    NeverShortens,
    /// The lifetime of a lease is counted from the reply, not from the request.
    ExpiresFromReply,
    /// Units are used long after their lease has expired.
    SpendsExpired,
    /// A lease continues after the end of the window in which it was charged.
    OutlastsWindows,
    /// A node invents leases while the store is unavailable.
    LeasesWithoutStore,
    /// Leases are granted and not charged.
    LeasesUncharged,
    /// More units are used than were drawn.
    LeasesMore,
    /// Returned units are used nevertheless.
    UsesReturnedLease,
    /// Drawn leases are not remembered for a restore.
    ForgetsLeases,
    /// Lenient counts are synced to the store twice.
    SyncsTwice,
    /// Replies to lenient syncs are ignored.
    IgnoresSyncReplies,
    /// A refund returns all units, however long ago they were charged.
    RefundsInFull,
    /// A settled reservation stays open.
    SettlesTwice,
    /// An unsettled estimate is never refunded.
    NeverReturns,
    /// An estimate is refunded while its call is still in flight.
    ReturnsEarly,
    /// A settlement after the refund of the estimate is charged nothing.
    ForgivesLate,
    /// Units used beyond an estimate are not charged.
    ForgivesDebt,
    /// A permit lasts until it is released.
    PermitsNeverExpire,
    /// A renewal acquires a released permit again.
    RenewsReleased,
    /// A release also frees another holder's permit.
    ReleasesAnother,
    /// A released permit stays held.
    ReleasesNothing,
    /// A permit is released only once, although another node may have restored it since.
    ReleasesOnce,
    /// A late reply is treated as lost.
    LosesLateReplies,
    /// A restarted node forgets what its shares admitted, except for what it still has to write back.
    ForgetsShares,
    /// A restarted node forgets the permits that it granted without the store.
    ForgetsPermits,
}

impl Variant {
    /// The rate that nodes apply, for the variants in which it differs from the rate as written.
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
