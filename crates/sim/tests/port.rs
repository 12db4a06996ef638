//! The model store and the fallback around it keep what every store promises.

#[path = "../../tidegate/tests/conformance/mod.rs"]
mod conformance;

use std::sync::Arc;

use conformance::Rig;
use parking_lot::Mutex;
use tidegate::resilience::{Fallback, Settings};
use tidegate_core::algorithms::Precision;
use tidegate_core::store::{NodeId, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Link, Model};

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
    let store = Fallback::new(link(&sim), runtime, NodeId(1), DATE, settings, watcher);
    sim.run_until(Nanos::from_millis(100));
    Simulated { sim, store }
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

mod behind_a_fallback {
    crate::every_claim!(claims! { crate::guarded });
}
