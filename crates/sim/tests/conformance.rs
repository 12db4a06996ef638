//! The model store passes the conformance tests of every store: bare, behind a fallback, and sharded.

#[path = "../../tidegate/tests/conformance/mod.rs"]
mod conformance;

use std::sync::Arc;

use conformance::Rig;
use parking_lot::Mutex;
use tidegate::resilience::{ResilienceSettings, ShardObserver, ShardedStore, StoreEvent};
use tidegate_core::algorithms::Precision;
use tidegate_core::store::{NodeId, ShardId, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Model, ModelCluster, ModelLink, ModelShards};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);

struct Simulated<S> {
    sim: Sim,
    store: S,
}

impl<S: Store> Rig for Simulated<S> {
    type Store = S;

    fn store(&self) -> &S {
        &self.store
    }

    fn advance(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }

    fn precision(&self) -> Precision {
        Precision::Memory
    }
}

fn link(sim: &Sim) -> ModelLink {
    let model = Arc::new(Mutex::new(Model::new(DATE)));
    ModelLink::new(sim, &model, 0, Nanos::ZERO, Variant::Shipped, &Arc::default())
}

fn bare() -> Simulated<ModelLink> {
    let sim = Sim::new(1);
    let store = link(&sim);
    Simulated { sim, store }
}

/// A node that has reached its store.
fn guarded() -> Simulated<ShardedStore<ModelShards, NodeRuntime>> {
    with_shards(1)
}

/// The same with a store of three shards. A charge set of several subjects spans several of them.
fn sharded() -> Simulated<ShardedStore<ModelShards, NodeRuntime>> {
    with_shards(3)
}

fn with_shards(count: usize) -> Simulated<ShardedStore<ModelShards, NodeRuntime>> {
    let sim = Sim::new(1);
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5), DATE);
    let models = (0..count).map(|_| Arc::new(Mutex::new(Model::new(DATE))));
    let cluster = Arc::new(ModelCluster::new(models));
    cluster.assign_all_slots();
    let shards = ModelShards::new(&cluster, link(&sim));
    // Hours pass in these tests.
    let settings = ResilienceSettings { ping_interval: Nanos::from_secs(60), ..ResilienceSettings::default() };
    let store = ShardedStore::new(shards, runtime, NodeId(1), settings, Arc::new(NoShardWatch));
    sim.run_until(Nanos::from_millis(100));
    Simulated { sim, store }
}

struct NoShardWatch;

impl ShardObserver for NoShardWatch {
    fn discovered(&self, _: ShardId) {}
    fn changed(&self, _: ShardId, _: StoreEvent) {}
    fn removed(&self, _: ShardId) {}
}

/// Runs each test on a store of its own, inside the simulation of that store.
macro_rules! conformance_tests {
    ($store:path; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            let simulated = $store();
            let sim = simulated.sim.clone();
            sim.block_on(crate::conformance::$test(&simulated));
        })*
    };
}

mod model {
    crate::every_conformance_test!(conformance_tests! { crate::bare });
}

/// All but one, of which `shards.rs` has its own version: across shards, a charge before a denial is refunded
/// a moment later.
macro_rules! sharded_tests {
    ($store:path; $($test:ident)*) => {
        $(sharded_test! { $store, $test })*
    };
}

macro_rules! sharded_test {
    ($store:path, a_denial_by_the_last_limit_leaves_the_others_unchanged) => {};
    ($store:path, $test:ident) => {
        conformance_tests! { $store; $test }
    };
}

mod behind_shards {
    crate::every_conformance_test!(sharded_tests! { crate::sharded });
}

mod behind_a_fallback {
    crate::every_conformance_test!(conformance_tests! { crate::guarded });
}
