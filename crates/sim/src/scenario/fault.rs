//! What can go wrong in a run, and what of it concerns counts, clocks and nodes.

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimFault {
    /// Nothing.
    None,
    /// The store is killed and comes back with all it had.
    Kill,
    /// The store is killed and comes back empty.
    KillEmpty,
    /// The store is back within milliseconds, and empty.
    Restart,
    /// The store takes everything and answers nothing.
    Hang,
    /// The store answers too late.
    Slow,
    /// Everything sent to the store is lost.
    BlackHole,
    /// Some requests and some answers are lost, some are late.
    Gray,
    /// The store forgets everything between two requests.
    Flush,
    /// A replica takes over that has not heard the last of it.
    Failover,
    /// The same, and the replica's clock differs by seconds.
    FailoverSkewed,
    /// The store's clock is set two hours ahead.
    StepForward,
    /// The store's clock is set two hours back.
    StepBack,
    /// The store's clock runs a tenth too fast or too slow.
    Drift,
    /// A node is stopped for a while.
    Pause,
    /// A node dies and another starts in its place.
    NodeDeath,
    /// A node dies with the store.
    DeathWithStore,
    /// The store comes up after the nodes.
    LateStore,
    /// Several of all these.
    Chaos,
    /// Subjects move from one part of the store to another, with their counts.
    Move,
    /// Some replies are late, by one budget to ten.
    LateReplies,
    /// The store stops again and again, for 50 to 500 ms.
    Stalls,
    /// Every reply to one node is late.
    SlowNode,
    /// Some replies are late, and connections are lost among them.
    LateAndLost,
    /// A node is told to go, gives back what it holds, and another starts in its place.
    Drain,
}

impl SimFault {
    /// Every kind that can happen to a single store.
    pub const ALL: [SimFault; 19] = [
        SimFault::None,
        SimFault::Kill,
        SimFault::KillEmpty,
        SimFault::Restart,
        SimFault::Hang,
        SimFault::Slow,
        SimFault::BlackHole,
        SimFault::Gray,
        SimFault::Flush,
        SimFault::Failover,
        SimFault::FailoverSkewed,
        SimFault::StepForward,
        SimFault::StepBack,
        SimFault::Drift,
        SimFault::Pause,
        SimFault::NodeDeath,
        SimFault::DeathWithStore,
        SimFault::LateStore,
        SimFault::Chaos,
    ];

    /// What can happen where nodes hold units that they have not used.
    pub const WITH_DRAIN: [SimFault; 20] = {
        let mut faults = [SimFault::Drain; 20];
        let mut i = 0;
        while i < SimFault::ALL.len() {
            faults[i] = SimFault::ALL[i];
            i += 1;
        }
        faults
    };

    /// Every kind of lateness of a healthy store.
    pub const LATENESS: [SimFault; 4] = [
        SimFault::LateReplies,
        SimFault::Stalls,
        SimFault::SlowNode,
        SimFault::LateAndLost,
    ];

    /// What can happen to one part of a store.
    pub const OF_A_SHARD: [SimFault; 11] = [
        SimFault::None,
        SimFault::Kill,
        SimFault::KillEmpty,
        SimFault::Restart,
        SimFault::Hang,
        SimFault::Slow,
        SimFault::BlackHole,
        SimFault::Flush,
        SimFault::Failover,
        SimFault::Move,
        SimFault::NodeDeath,
    ];

    /// Whether the store may forget.
    pub fn loses_counts(self) -> bool {
        matches!(
            self,
            SimFault::KillEmpty
                | SimFault::Restart
                | SimFault::Flush
                | SimFault::Failover
                | SimFault::FailoverSkewed
                | SimFault::DeathWithStore
                | SimFault::Chaos
        )
    }

    /// Whether the store's clock jumps.
    pub fn steps_clock(self) -> bool {
        matches!(
            self,
            SimFault::StepForward | SimFault::StepBack | SimFault::FailoverSkewed
        )
    }

    /// Whether the store is away from the beginning of the fault to its end.
    pub fn is_outage(self) -> bool {
        matches!(
            self,
            SimFault::Kill
                | SimFault::KillEmpty
                | SimFault::Hang
                | SimFault::Slow
                | SimFault::BlackHole
        )
    }

    /// Whether the store is healthy and its replies are late.
    pub fn is_lateness(self) -> bool {
        SimFault::LATENESS.contains(&self)
    }

    /// Whether a node stops or dies.
    pub fn hits_a_node(self) -> bool {
        matches!(
            self,
            SimFault::Pause
                | SimFault::NodeDeath
                | SimFault::DeathWithStore
                | SimFault::Drain
                | SimFault::Chaos
        )
    }
}
