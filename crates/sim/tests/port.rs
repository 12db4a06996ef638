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
    let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(5));
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

macro_rules! all_claims {
    ($rig:path) => {
        claims! {
            $rig;
            each_algorithm_admits_its_limit_and_no_more
            a_reading_stands_after_the_charge_or_as_found
            a_refusal_by_the_last_limit_leaves_the_others_as_they_were
            a_shadow_never_refuses_and_is_charged_only_with_the_request
            quotas_refuse_only_when_none_has_room
            a_counter_named_twice_is_charged_twice
            a_peek_answers_like_a_charge_and_spends_nothing
            a_cost_above_the_capacity_fits_never
            a_batch_is_decided_in_order
            a_refund_gives_back_once
            a_refund_is_capped_by_what_has_not_drained
            a_grant_takes_what_there_is
            a_forced_charge_is_a_debt
            a_seed_raises_a_counter_and_never_lowers_it
            slots_are_held_renewed_released_and_expire
            inspection_shows_use_and_reset_forgets_it
            a_changed_limit_keeps_what_was_used
        }
    };
}

mod model {
    all_claims!(crate::bare);
}

mod behind_a_fallback {
    all_claims!(crate::guarded);
}
