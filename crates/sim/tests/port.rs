//! The model store, the fallback around it and several of both keep what every store promises.

#[path = "../../tidegate/tests/conformance/mod.rs"]
mod conformance;

use std::sync::Arc;

use conformance::Rig;
use parking_lot::Mutex;
use tidegate::resilience::{Event, Fallback, PartWatch, Settings, Spread};
use tidegate_core::algorithms::Precision;
use tidegate_core::store::{NodeId, PartId, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Cluster, Divided, Link, Model};

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

fn link(sim: &Sim) -> Link {
    let model = Arc::new(Mutex::new(Model::new(DATE)));
    Link::new(
        sim,
        &model,
        0,
        Nanos::ZERO,
        Variant::Shipped,
        &Arc::default(),
    )
}

fn bare() -> Simulated<Link> {
    let sim = Sim::new(1);
    let store = link(&sim);
    Simulated { sim, store }
}

/// A node that has met its store.
fn guarded() -> Simulated<Fallback<Link, NodeRuntime>> {
    let sim = Sim::new(1);
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5), DATE);
    let settings = Settings {
        // Hours pass in these claims.
        ping_every: Nanos::from_secs(60),
        ..Settings::default()
    };
    let watcher = Arc::new(|_| {});
    let store = Fallback::new(link(&sim), runtime, NodeId(1), settings, watcher);
    sim.run_until(Nanos::from_millis(100));
    Simulated { sim, store }
}

/// The same of a store in three parts. Charges of several subjects are in several of them.
fn in_parts() -> Simulated<Spread<Divided, NodeRuntime>> {
    let sim = Sim::new(1);
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5), DATE);
    let models = [(); 3].map(|()| Arc::new(Mutex::new(Model::new(DATE))));
    let cluster = Arc::new(Cluster::new(models));
    cluster.deal();
    let way = Divided::new(&cluster, link(&sim));
    let settings = Settings {
        ping_every: Nanos::from_secs(60),
        ..Settings::default()
    };
    let store = Spread::new(way, runtime, NodeId(1), settings, Arc::new(Nobody));
    sim.run_until(Nanos::from_millis(100));
    Simulated { sim, store }
}

struct Nobody;

impl PartWatch for Nobody {
    fn met(&self, _: PartId) {}
    fn told(&self, _: PartId, _: Event) {}
    fn gone(&self, _: PartId) {}
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
    crate::every_claim!(claims! { crate::bare });
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
    crate::every_claim!(claims_in_parts! { crate::in_parts });
}

mod behind_a_fallback {
    crate::every_claim!(claims! { crate::guarded });
}
