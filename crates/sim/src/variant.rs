//! Mistakes that a limiter could have, each made by the link between a node and its store or by the
//! way a node is set up. The checkers must see every one of them.

/// A deliberate mistake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Variant {
    /// None: the shipped code as it is.
    Shipped,
    /// What is pushed after an outage includes this node's part of what the store already had.
    PushesTheSeed,
    /// Remembered states are added up instead of merged by maximum.
    MergesBySum,
    /// A refund whose answer may be lost is sent again as another.
    RetriesRefunds,
    /// Requests probe a store that is known to be away.
    ProbesWithRequests,
    /// A refused request renews the record it was refused by.
    RefusalRefreshes,
    /// The node's clock decides instead of the store's.
    NodeClock,
    /// After a loss, the counts of windows long past are put into the present one.
    CarriesWindows,
    /// A script that was missing is loaded and run, and so is the request that missed it.
    ChargesTwiceOnNoScript,
    /// What was admitted in an outage is never charged.
    NeverPushes,
    /// What is remembered is never put back.
    NeverSeeds,
    /// Each node believes it is alone.
    IgnoresPeers,
    /// Each node believes it has three times as many peers.
    ImaginesPeers,
    /// Decisions wait for the store ten times as long as they may.
    WaitsTooLong,
    /// Refusals are remembered for twice as long as they last.
    RemembersTooLong,
    /// What was charged for a request that is refused by its next limit is kept.
    NeverTakesBack,
    /// The widest limit is charged first.
    WideFirst,
    /// A part that takes over is believed as it is.
    BelievesNewParts,
}
