//! The model store, the fallback around it and several of both keep what every store promises.

#[path = "../../tidegate/tests/conformance/mod.rs"]
mod conformance;

use std::sync::Arc;

use conformance::Rig;
use parking_lot::Mutex;
use tidegate::resilience::{
    FallbackStore, ResilienceSettings, ShardObserver, ShardedStore, StoreEvent,
};
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
    ModelLink::new(
        sim,
        &model,
        0,
        Nanos::ZERO,
        Variant::Shipped,
        &Arc::default(),
    )
}

fn bare() -> Simulated<ModelLink> {
    let sim = Sim::new(1);
    let store = link(&sim);
    Simulated { sim, store }
}

/// A node that has met its store.
fn guarded() -> Simulated<FallbackStore<ModelLink, NodeRuntime>> {
    let sim = Sim::new(1);
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5), DATE);
    let settings = ResilienceSettings {
        // Hours pass in these claims.
        ping_interval: Nanos::from_secs(60),
        ..ResilienceSettings::default()
    };
    let watcher = Arc::new(|_| {});
    let store = FallbackStore::new(link(&sim), runtime, NodeId(1), settings, watcher);
    sim.run_until(Nanos::from_millis(100));
    Simulated { sim, store }
}

/// The same of a store in three parts. Charges of several subjects are in several of them.
fn in_parts() -> Simulated<ShardedStore<ModelShards, NodeRuntime>> {
    let sim = Sim::new(1);
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5), DATE);
    let models = [(); 3].map(|()| Arc::new(Mutex::new(Model::new(DATE))));
    let cluster = Arc::new(ModelCluster::new(models));
    cluster.assign_all_slots();
    let shards = ModelShards::new(&cluster, link(&sim));
    let settings = ResilienceSettings {
        ping_interval: Nanos::from_secs(60),
        ..ResilienceSettings::default()
    };
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

/// Runs each claim on a rig of its own, inside that rig's simulation.
macro_rules! claims {
    ($rig:path; $($claim:ident)*) => {
        $(#[test]
        fn $claim() {
            let rig = $rig();
            let sim = rig.sim.clone();
            sim.block_on(crate::conformance::$claim(&rig));
        })*
    };
}

mod model {
    crate::every_conformance_test!(claims! { crate::bare });
}

/// All but one, of which `spread.rs` has its own version: across parts, what was charged before a
/// refusal is given back a moment later.
macro_rules! claims_in_parts {
    ($rig:path; $($claim:ident)*) => {
        $(claim_in_parts! { $rig, $claim })*
    };
}

macro_rules! claim_in_parts {
    ($rig:path, a_refusal_by_the_last_limit_leaves_the_others_as_they_were) => {};
    ($rig:path, $claim:ident) => {
        claims! { $rig; $claim }
    };
}

mod spread {
    crate::every_conformance_test!(claims_in_parts! { crate::in_parts });
}

mod behind_a_fallback {
    crate::every_conformance_test!(claims! { crate::guarded });
}
