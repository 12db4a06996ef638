//! Leases with the whole resilience stack: they outlive an outage, and are restored after a loss of counts.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate_core::algorithms::Algorithm;
use tidegate_core::store::{Counters, Source};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::Nanos;
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel};

use super::recording_store::{DATE, MS, TestLimit, leased};

/// One node, its store, and a limit of a thousand per second.
struct LeaseStack {
    sim: Sim,
    model: SharedModel,
    store: Resilient<ModelShards, NodeRuntime>,
    own: TestLimit,
    admitted: Mutex<u64>,
}

impl LeaseStack {
    fn new() -> Self {
        let sim = Sim::new(1);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let sent = Arc::default();
        let link = ModelLink::new(&sim, &model, 0, Nanos::ZERO, Variant::Shipped, &sent);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        let cluster = Arc::new(ModelCluster::new([Arc::clone(&model)]));
        let shards = ModelShards::new(&cluster, link);
        let store = resilient(shards, runtime, ResilienceSettings::default(), Arc::new(|_| {}));
        sim.run_until(MS(1_500)); // until the membership is complete
        let spec = leased(Algorithm::FixedWindow, 100_000, Nanos::from_secs(100));
        LeaseStack { sim, model, store, own: TestLimit::new(1, &spec), admitted: Mutex::new(0) }
    }

    /// A request every half millisecond for a while. Returns the sources in the order of their first use.
    fn stream(&self, millis: u64) -> Vec<Source> {
        let mut sources = Vec::new();
        for _ in 0..2 * millis {
            let set = self.own.set(1);
            let outcome = self.sim.block_on(self.store.charge(&set));
            let outcome = outcome.expect("decisions do not fail");
            *self.admitted.lock() += u64::from(outcome.admitted);
            if !sources.contains(&outcome.source) {
                sources.push(outcome.source);
            }
            self.pass(Nanos::new(500_000));
        }
        sources
    }

    fn used_units(&self) -> u64 {
        let mut model = self.model.lock();
        let now = model.time(self.sim.now());
        let counter = self.own.charge(1).counter();
        model.counters.used(counter, &self.own.limit, now)
    }

    fn refunds(&self) -> u64 {
        let model = self.model.lock();
        model.counters.refunds(self.own.charge(1).counter())
    }

    fn set_conditions(&self, conditions: NetworkConditions) {
        self.model.lock().set_conditions(conditions);
    }

    fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}

const DOWN: NetworkConditions = NetworkConditions { down: true, ..NetworkConditions::HEALTHY };

#[test]
fn a_lease_decides_until_it_expires_during_an_outage_and_none_is_drawn() {
    let stack = LeaseStack::new();
    stack.stream(100);
    assert_eq!(stack.stream(1), [Source::Lease]);
    stack.set_conditions(DOWN);
    assert_eq!(stack.stream(1), [Source::Lease]);
    stack.pass(MS(120));
    let draws = stack.store.lease_stats().leases_drawn;
    let decided = stack.stream(100);
    assert!(!decided.contains(&Source::Lease), "{decided:?}");
    stack.set_conditions(NetworkConditions::HEALTHY);
    stack.pass(MS(5_000));
    assert_eq!(stack.store.lease_stats().leases_drawn, draws);
    let decided = stack.stream(100);
    assert!(decided.contains(&Source::Lease), "{decided:?}");
}

/// The store has charged the units and cannot be reached. Adding them to this node's share would admit units
/// that other nodes may have drawn.
#[test]
fn unused_units_stay_charged_during_an_outage() {
    let stack = LeaseStack::new();
    stack.stream(100);
    let held = stack.store.lease_stats().units_outstanding;
    assert!(held > 0);
    stack.set_conditions(DOWN);
    let large = stack.own.set(held + 1); // more than the lease: this node's share decides, and the units are pending
    let outcome = stack.sim.block_on(stack.store.charge(&large));
    assert_eq!(outcome.expect("a decision").source, Source::Fallback);
    stack.pass(MS(120));
    let leases = stack.store.lease_stats();
    assert_eq!((leases.units_returned, leases.units_lapsed), (0, held));
    stack.set_conditions(NetworkConditions::HEALTHY);
    stack.pass(MS(5_000));
    let admitted = *stack.admitted.lock() + held + 1;
    assert_eq!(stack.used_units(), admitted + held);
}

/// Only the node knows the units that were drawn and used after the last exact charge.
#[test]
fn drawn_leases_are_restored_to_a_store_that_lost_them_and_not_returned() {
    let stack = LeaseStack::new();
    stack.stream(100);
    assert_eq!(stack.stream(20), [Source::Lease]);
    let drawn = stack.used_units();
    assert!(stack.store.lease_stats().units_outstanding > 0);
    stack.model.lock().restart_empty();
    let another = TestLimit { subject: Fingerprint::new(2), ..stack.own.clone() };
    let noticed = stack.sim.block_on(stack.store.charge(&another.set(1)));
    assert_eq!(noticed.expect("a decision").source, Source::Fallback);
    stack.pass(MS(1_500)); // recovered, and all leases have expired
    let leases = stack.store.lease_stats();
    assert_eq!((leases.units_outstanding, leases.units_returned), (0, 0));
    assert!(leases.units_lapsed > 0);
    assert_eq!((stack.used_units(), stack.refunds()), (drawn, 0));
    assert!(stack.used_units() >= *stack.admitted.lock());
}

#[test]
fn after_a_loss_the_counter_is_never_below_the_admitted_units() {
    let stack = LeaseStack::new();
    for _ in 0..5 {
        stack.stream(100);
        stack.model.lock().restart_empty();
        stack.stream(1_500);
    }
    assert!(stack.store.lease_stats().leases_drawn > 100);
    stack.sim.block_on(stack.store.drain());
    stack.pass(MS(500)); // the pending units are written back
    let (used_units, admitted) = (stack.used_units(), *stack.admitted.lock());
    assert!(used_units >= admitted, "{used_units} for {admitted}");
    assert!(used_units <= admitted + 5 * 200, "{used_units} for {admitted}");
}

#[test]
fn a_store_that_is_too_slow_for_decisions_still_serves_leases() {
    let stack = LeaseStack::new();
    stack.stream(100);
    stack.set_conditions(NetworkConditions {
        min_latency: MS(20), // a round trip exceeds the budget
        ..NetworkConditions::HEALTHY
    });
    let before = stack.store.lease_stats().units_drawn;
    stack.stream(30);
    stack.pass(MS(50));
    let leases = stack.store.lease_stats();
    assert!(leases.units_drawn > before, "{leases:?}");
}

/// A request that waits for a draw and then calls the store has one budget for both.
#[test]
fn a_request_that_waited_for_a_draw_is_decided_within_its_budget() {
    let stack = LeaseStack::new();
    stack.stream(100);
    stack.set_conditions(NetworkConditions {
        min_latency: MS(20), // a round trip exceeds the budget
        ..NetworkConditions::HEALTHY
    });
    let mut longest = Nanos::ZERO;
    for _ in 0..2_000 {
        let (set, began) = (stack.own.set(1), stack.sim.now());
        let outcome = stack.sim.block_on(stack.store.charge(&set));
        outcome.expect("decisions do not fail");
        longest = longest.max(stack.sim.now().since(began));
        stack.pass(Nanos::new(100_000));
    }
    assert_eq!(longest, MS(25));
}
