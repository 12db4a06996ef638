//! Recorders of a run: snapshots of the stores, and the events that nodes report about them.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::resilience::{ShardObserver, StoreEvent};
use tidegate_core::store::ShardId;
use tidegate_core::units::Nanos;

use crate::executor::Sim;
use crate::history::{History, StoreSnapshot};
use crate::model::ModelCluster;
use crate::world::World;

/// Takes a snapshot of the stores periodically.
pub(crate) async fn sample_counters(world: World) {
    loop {
        world.sim.sleep(Nanos::from_millis(130)).await;
        let at = world.sim.now();
        let shards = 0..world.scenario.shards;
        let store_times: Vec<Nanos> = shards.map(|shard| world.store_time(shard)).collect();
        let used = world.counters.iter().enumerate().map(|(i, counter)| {
            let limit = world.scenario.limit(i);
            let shard = world.cluster.shard_of(counter.subject);
            let model = world.cluster.model(shard);
            let mut model = model.lock();
            model.counters.used(counter.bits, &limit, store_times[shard])
        });
        let snapshot = StoreSnapshot { at, store_time: store_times[0], used: used.collect(), store_times };
        world.history.lock().snapshots.push(snapshot);
    }
}

/// Records the events that a node reports about its shards, by shard index.
pub(crate) struct EventRecorder {
    pub(crate) sim: Sim,
    pub(crate) node: usize,
    pub(crate) history: Arc<Mutex<History>>,
    /// The index of each shard that was ever discovered, and whether its breaker is open.
    pub(crate) shards: Mutex<Vec<(ShardId, usize, bool)>>,
    pub(crate) cluster: Arc<ModelCluster>,
}

impl EventRecorder {
    fn record(&self, shard: usize, event: StoreEvent) {
        let mut history = self.history.lock();
        history.events.push((self.sim.now(), self.node, event));
        history.event_shards.push(shard);
    }
}

impl ShardObserver for EventRecorder {
    fn discovered(&self, shard_id: ShardId) {
        let shard = self.cluster.shard_index(shard_id).unwrap_or(0);
        self.shards.lock().push((shard_id, shard, false));
    }

    fn changed(&self, shard_id: ShardId, event: StoreEvent) {
        let shard = {
            let mut shards = self.shards.lock();
            let Some((_, shard, open)) = shards.iter_mut().find(|(id, _, _)| *id == shard_id) else {
                return;
            };
            match event {
                StoreEvent::BreakerOpened { .. } => *open = true,
                StoreEvent::BreakerClosed => *open = false,
                _ => {}
            }
            *shard
        };
        self.record(shard, event);
    }

    /// The breaker of a removed shard no longer matters.
    fn removed(&self, shard_id: ShardId) {
        let mut shards = self.shards.lock();
        let Some(at) = shards.iter().position(|(id, _, _)| *id == shard_id) else {
            return;
        };
        let (_, shard, open) = shards.remove(at);
        drop(shards);
        if open {
            self.record(shard, StoreEvent::BreakerClosed);
        }
    }
}
