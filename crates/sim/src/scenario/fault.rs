//! The faults of a run, and which of them affect counts, clocks and nodes.

/// A fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SimFault {
    /// No fault.
    None,
    /// The store is killed and comes back with its data.
    Kill,
    /// The store is killed and comes back empty.
    KillEmpty,
    /// The store restarts within milliseconds, empty.
    Restart,
    /// The store accepts requests and replies to none.
    Hang,
    /// The store replies too late.
    Slow,
    /// All messages to the store are lost.
    BlackHole,
    /// Some requests and some replies are lost, some are late.
    Gray,
    /// The store loses all data between two requests.
    Flush,
    /// A replica that lacks the last writes is promoted.
    Failover,
    /// The same, and the replica's clock differs by seconds.
    FailoverSkewed,
    /// The store's clock steps two hours ahead.
    StepForward,
    /// The store's clock steps two hours back.
    StepBack,
    /// The store's clock runs a tenth too fast or too slow.
    Drift,
    /// A node is paused.
    Pause,
    /// A node dies and another starts in its place.
    NodeDeath,
    /// A node dies together with the store.
    DeathWithStore,
    /// The store starts after the nodes.
    LateStore,
    /// Several of these faults.
    Chaos,
    /// Subjects move from one shard to another, with their counts.
    Move,
    /// Some replies are late, by one to ten budgets.
    LateReplies,
    /// The store stalls again and again, for 50 to 500 ms.
    Stalls,
    /// Every reply to one node is late.
    SlowNode,
    /// Some replies are late, and connections break meanwhile.
    LateAndLost,
    /// A node drains and returns its leases, and another starts in its place.
    Drain,
    /// Several outages of the store, and restarts of nodes between and during them. Nodes save their state on disk.
    OutagesAndRestarts,
}

impl SimFault {
    /// Every fault of a single store.
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

    /// Every fault of runs in which nodes hold unused leases.
    pub const WITH_DRAIN: [SimFault; 20] = {
        let mut faults = [SimFault::Drain; 20];
        let mut i = 0;
        while i < SimFault::ALL.len() {
            faults[i] = SimFault::ALL[i];
            i += 1;
        }
        faults
    };

    /// Every fault with late replies of a healthy store.
    pub const LATENESS: [SimFault; 4] =
        [SimFault::LateReplies, SimFault::Stalls, SimFault::SlowNode, SimFault::LateAndLost];

    /// Every fault of one shard.
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

    /// Whether the store may lose counts.
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

    /// Whether the store's clock steps.
    pub fn steps_clock(self) -> bool {
        matches!(self, SimFault::StepForward | SimFault::StepBack | SimFault::FailoverSkewed)
    }

    /// Whether the store is unavailable from the beginning of the fault to its end.
    pub fn is_outage(self) -> bool {
        matches!(self, SimFault::Kill | SimFault::KillEmpty | SimFault::Hang | SimFault::Slow | SimFault::BlackHole)
    }

    /// Whether the store is healthy and its replies are late.
    pub fn is_lateness(self) -> bool {
        SimFault::LATENESS.contains(&self)
    }

    /// Whether a node is paused or dies.
    pub fn hits_a_node(self) -> bool {
        matches!(
            self,
            SimFault::Pause | SimFault::NodeDeath | SimFault::DeathWithStore | SimFault::Drain | SimFault::Chaos
        )
    }
}
