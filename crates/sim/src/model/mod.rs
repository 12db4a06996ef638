//! A store that can do everything a real one does to those who rely on it.
//!
//! [`Model`] is the store: counters, a clock of its own, a life, beats of nodes, and how it behaves at
//! the moment. A [`ModelLink`] is one node's way to it, and fills the port. Several of them are a [`ModelCluster`].

mod cluster;
mod counters;
mod lease_calls;
mod link;
mod permit_calls;
mod permits;
mod reservation_calls;
mod store_log;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::store::{Epoch, Heartbeat, HeartbeatReply, NodeId, RestorePoint, StoreStatus};
use tidegate_core::units::Nanos;

pub use self::cluster::{ModelCluster, ModelShards, hash_slot_of};
pub use self::counters::{DecideMode, ModelCounters};
pub use self::link::{CONNECTION_TIMEOUT, ModelLink, SentCharge};
use self::permits::ModelPermits;
pub use self::store_log::{
    CounterChange, OpKind, PermitEvent, PermitVerb, ReservationEvent, ReservationEventKind,
    StoreLog, StoreOp,
};
use crate::executor::Sim;

/// A beat lasts this long.
const HEARTBEAT_TTL: Nanos = Nanos::from_secs(3);

/// How the store and the way to it behave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkConditions {
    /// Nobody listens.
    pub down: bool,
    /// Everything is taken and nothing answered.
    pub hung: bool,
    /// One way takes at least this.
    pub min_latency: Nanos,
    /// And at most this more.
    pub jitter: Nanos,
    /// Of a thousand requests, how many are lost on the way.
    pub requests_lost: u32,
    /// Of a thousand answers, how many are.
    pub replies_lost: u32,
    /// Which replies are late.
    pub lateness: Lateness,
}

/// Replies that arrive late, of a store that is healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// Of a thousand replies, how many.
    pub per_mille: u32,
    /// By this at least.
    pub min: Nanos,
    /// By this at most.
    pub max: Nanos,
    /// Only those to this node, if it is named.
    pub node: Option<usize>,
}

impl Lateness {
    /// None are.
    pub const NONE: Lateness = Lateness {
        per_mille: 0,
        min: Nanos::ZERO,
        max: Nanos::ZERO,
        node: None,
    };
}

impl NetworkConditions {
    /// A store in the same zone.
    pub const HEALTHY: NetworkConditions = NetworkConditions {
        down: false,
        hung: false,
        min_latency: Nanos::new(100_000),
        jitter: Nanos::new(300_000),
        requests_lost: 0,
        replies_lost: 0,
        lateness: Lateness::NONE,
    };
}

/// A store of a simulation.
#[derive(Debug)]
pub struct Model {
    /// What it counts.
    pub counters: ModelCounters,
    /// How it behaves.
    pub conditions: NetworkConditions,
    /// Its clock is ahead of the simulation's by this.
    pub clock_offset: Nanos,
    /// And gains this many nanoseconds each second.
    pub drift: i64,
    store_epoch: u64,
    /// How many processes there were before.
    process: u64,
    heartbeats: BTreeMap<NodeId, (Heartbeat, Nanos)>,
    /// When its last heartbeat was, by its clock, and the last that its replica has.
    heartbeat: Nanos,
    replicated_heartbeat: Nanos,
    /// The last heartbeat that it found when it took over.
    found_heartbeat: Nanos,
    /// Another one if heartbeats are known to be lost.
    data_epoch: u64,
    restore_points: BTreeMap<NodeId, RestorePoint>,
    permits: ModelPermits,
    /// Whether a connection tells that the store behind it is another one.
    pub reports_epoch: bool,
    /// Whether the next charge finds no script.
    pub no_script: bool,
}

/// The store, shared by all links.
pub type SharedModel = Arc<Mutex<Model>>;

impl Model {
    /// A store whose clock reads `epoch` at the beginning.
    pub fn new(clock_offset: Nanos) -> Self {
        Model {
            counters: ModelCounters::default(),
            conditions: NetworkConditions::HEALTHY,
            clock_offset,
            drift: 0,
            store_epoch: 1,
            process: 0,
            heartbeats: BTreeMap::new(),
            heartbeat: Nanos::ZERO,
            replicated_heartbeat: Nanos::ZERO,
            found_heartbeat: Nanos::ZERO,
            data_epoch: 1,
            restore_points: BTreeMap::new(),
            permits: ModelPermits::default(),
            reports_epoch: true,
            no_script: true,
        }
    }

    /// The store's time when the simulation's is `now`.
    pub fn time(&self, now: Nanos) -> Nanos {
        let gained = i128::from(now.get()) * i128::from(self.drift) / 1_000_000_000;
        let gained = i64::try_from(gained).unwrap_or(0);
        Nanos::new(
            self.clock_offset
                .plus(now)
                .get()
                .saturating_add_signed(gained),
        )
    }

    /// Behaves like this from now on. A process that goes down does not come back; another does.
    pub fn set_conditions(&mut self, conditions: NetworkConditions) {
        self.process += u64::from(conditions.down);
        self.conditions = conditions;
    }

    /// Starts again with nothing.
    pub fn restart_empty(&mut self) {
        self.flush();
        self.no_script = true;
    }

    /// FLUSHALL: the process goes on, its memory is empty.
    pub fn flush(&mut self) {
        self.counters.clear();
        self.permits = ModelPermits::default();
        self.heartbeats.clear();
        self.found_heartbeat = Nanos::ZERO;
        self.data_epoch += 1;
        self.store_epoch += 1;
    }

    /// A replica takes over that has not heard of the last writes; how many.
    pub fn fail_over(&mut self) -> usize {
        self.store_epoch += 1;
        self.found_heartbeat = self.replicated_heartbeat;
        self.data_epoch += u64::from(self.lacks_heartbeats());
        self.no_script = true;
        self.permits.fail_over();
        self.counters.fail_over()
    }

    /// A replica that takes over under a name of its own; what it has not heard of is lost.
    pub fn replica(&self) -> Model {
        let mut counters = self.counters.clone();
        counters.fail_over();
        let mut permits = self.permits.clone();
        permits.fail_over();
        Model {
            counters,
            conditions: NetworkConditions::HEALTHY,
            store_epoch: self.store_epoch + 1,
            found_heartbeat: self.replicated_heartbeat,
            data_epoch: self.data_epoch + u64::from(self.lacks_heartbeats()),
            restore_points: self.restore_points.clone(),
            heartbeats: BTreeMap::new(),
            permits,
            no_script: true,
            ..*self
        }
    }

    /// The last heartbeat that a replica finds if it takes over now. Zero if it lacks one that was acknowledged.
    pub(crate) fn replica_heartbeat(&self) -> Nanos {
        if self.lacks_heartbeats() {
            Nanos::ZERO
        } else {
            self.replicated_heartbeat
        }
    }

    /// Whether the replica lacks a heartbeat that was acknowledged.
    fn lacks_heartbeats(&self) -> bool {
        self.replicated_heartbeat < self.heartbeat
    }

    fn record_heartbeat(&mut self, heartbeat: Heartbeat, now: Nanos) -> StoreStatus {
        let at = self.time(now);
        self.heartbeat = at;
        let reply = HeartbeatReply {
            epoch: Epoch(self.store_epoch),
            data_epoch: self.data_epoch,
            at,
            last_saved_heartbeat: self.found_heartbeat,
        };
        let point = self.restore_points.entry(heartbeat.node).or_default();
        let whole_until = point.record(heartbeat.restored, &reply);
        self.heartbeats.insert(heartbeat.node, (heartbeat, now));
        self.heartbeats
            .retain(|_, (_, seen_at)| now.since(*seen_at) < HEARTBEAT_TTL);
        StoreStatus {
            epoch: Epoch(self.store_epoch),
            at,
            complete_until: whole_until,
            heartbeats: self
                .heartbeats
                .values()
                .map(|(heartbeat, _)| *heartbeat)
                .collect(),
        }
    }
}

/// A replica that hears of every write `lag` later.
pub async fn replicate(sim: Sim, model: SharedModel, lag: Nanos) {
    loop {
        let (counts, permits, heartbeat) = {
            let model = model.lock();
            let (counts, permits) = (model.counters.unreplicated(), model.permits.unreplicated());
            (counts, permits, model.heartbeat)
        };
        sim.sleep(lag).await;
        let mut model = model.lock();
        model.counters.mark_replicated(counts);
        model.permits.mark_replicated(permits);
        model.replicated_heartbeat = heartbeat;
    }
}
