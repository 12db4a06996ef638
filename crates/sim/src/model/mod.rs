//! A model of a store, with every fault of a real one.
//!
//! [`Model`] is the store: counters, a clock, an epoch, heartbeats of nodes, and the current network
//! conditions. A [`ModelLink`] is one node's link to it and implements the store traits. Several models form
//! a [`ModelCluster`].

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
pub use self::link::{CONNECTION_TIMEOUT, LinkCharge, ModelLink};
use self::permits::ModelPermits;
pub use self::store_log::{
    CounterChange, OpKind, PermitEvent, PermitVerb, ReservationEvent, ReservationEventKind, StoreLog, StoreOp,
};
use crate::executor::Sim;

/// The time to live of a heartbeat.
const HEARTBEAT_TTL: Nanos = Nanos::from_secs(3);

/// The behaviour of the store and of the network to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NetworkConditions {
    /// Connections are refused.
    pub down: bool,
    /// Requests are accepted and get no reply.
    pub hung: bool,
    /// The minimum one-way latency.
    pub min_latency: Nanos,
    /// The maximum additional one-way latency.
    pub jitter: Nanos,
    /// Requests lost, per mille.
    pub requests_lost: u32,
    /// Replies lost, per mille.
    pub replies_lost: u32,
    /// Which replies are late.
    pub lateness: Lateness,
}

/// Late replies of a healthy store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lateness {
    /// Late replies, per mille.
    pub per_mille: u32,
    /// The minimum delay.
    pub min: Nanos,
    /// The maximum delay.
    pub max: Nanos,
    /// Only replies to this node are late, if it is set.
    pub node: Option<usize>,
}

impl Lateness {
    /// No reply is late.
    pub const NONE: Lateness = Lateness { per_mille: 0, min: Nanos::ZERO, max: Nanos::ZERO, node: None };
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

/// The store of a simulation.
#[derive(Debug)]
pub struct Model {
    /// The counters.
    pub counters: ModelCounters,
    /// The current network conditions.
    pub conditions: NetworkConditions,
    /// How far the store's clock is ahead of the simulation's.
    pub clock_offset: Nanos,
    /// The drift of the store's clock, in nanoseconds per second.
    pub drift: i64,
    store_epoch: u64,
    /// The number of earlier processes.
    process: u64,
    heartbeats: BTreeMap<NodeId, (Heartbeat, Nanos)>,
    /// The last heartbeat, by the store's clock, and the last one that the replica has.
    heartbeat: Nanos,
    replicated_heartbeat: Nanos,
    /// The last heartbeat in the data at the time of promotion.
    found_heartbeat: Nanos,
    /// Changes when heartbeats are known to be lost.
    data_epoch: u64,
    restore_points: BTreeMap<NodeId, RestorePoint>,
    permits: ModelPermits,
    /// Whether a connection shows that the store has a new epoch.
    pub reports_epoch: bool,
    /// Whether the next charge finds its script missing.
    pub no_script: bool,
}

/// A store that all links share.
pub type SharedModel = Arc<Mutex<Model>>;

impl Model {
    /// A store whose clock reads `clock_offset` at the start of the run.
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
        Nanos::new(self.clock_offset.plus(now).get().saturating_add_signed(gained))
    }

    /// Sets the network conditions. A process that goes down does not come back: the next one is a new
    /// process.
    pub fn set_conditions(&mut self, conditions: NetworkConditions) {
        self.process += u64::from(conditions.down);
        self.conditions = conditions;
    }

    /// Restarts with no data.
    pub fn restart_empty(&mut self) {
        self.flush();
        self.no_script = true;
    }

    /// FLUSHALL: the process continues, its memory is empty.
    pub fn flush(&mut self) {
        self.counters.clear();
        self.permits = ModelPermits::default();
        self.heartbeats.clear();
        self.found_heartbeat = Nanos::ZERO;
        self.data_epoch += 1;
        self.store_epoch += 1;
    }

    /// Promotes a replica that lacks the last writes and returns their number.
    pub fn fail_over(&mut self) -> usize {
        self.store_epoch += 1;
        self.found_heartbeat = self.replicated_heartbeat;
        self.data_epoch += u64::from(self.lacks_heartbeats());
        self.no_script = true;
        self.permits.fail_over();
        self.counters.fail_over()
    }

    /// A replica that is promoted under an id of its own. The writes that it lacks are lost.
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

    /// The last heartbeat that a replica would find if it were promoted now. Zero if it lacks an acknowledged
    /// one.
    pub(crate) fn replica_heartbeat(&self) -> Nanos {
        if self.lacks_heartbeats() { Nanos::ZERO } else { self.replicated_heartbeat }
    }

    /// Whether the replica lacks an acknowledged heartbeat.
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
        let complete_until = point.record(heartbeat.restored, &reply);
        self.heartbeats.insert(heartbeat.node, (heartbeat, now));
        self.heartbeats.retain(|_, (_, seen_at)| now.since(*seen_at) < HEARTBEAT_TTL);
        StoreStatus {
            epoch: Epoch(self.store_epoch),
            at,
            complete_until,
            heartbeats: self.heartbeats.values().map(|(heartbeat, _)| *heartbeat).collect(),
        }
    }
}

/// A replica that receives every write `lag` later.
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
