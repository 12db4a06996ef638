//! Lenient counting: decided by the last synced state, synced to the store a moment later, and never over the
//! limit by more than the reported bound.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Counters, Counting, Outcome, Role, RuleOptions, Source};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{LinkCharge, Model, ModelCluster, ModelLink, ModelShards, NetworkConditions};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const MS: fn(u64) -> Nanos = Nanos::from_millis;
const LENIENT: RuleOptions = RuleOptions { counting: Counting::Lenient, ..RuleOptions::DEFAULT };

/// Several nodes and one store.
struct LenientTestbed {
    sim: Sim,
    nodes: Vec<Resilient<ModelShards, NodeRuntime>>,
    cluster: Arc<ModelCluster>,
    charges_sent: Arc<Mutex<Vec<LinkCharge>>>,
    rule: RuleName,
    limit: Limit,
    other: RuleName,
}

impl LenientTestbed {
    /// With a limit of `count` per hour.
    fn new(nodes: usize, count: u64) -> Self {
        let sim = Sim::new(1);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let cluster = Arc::new(ModelCluster::new([Arc::clone(&model)]));
        let charges_sent = Arc::<Mutex<Vec<LinkCharge>>>::default();
        let node = |number| {
            let link = ModelLink::new(&sim, &model, number, Nanos::ZERO, Variant::Shipped, &charges_sent);
            let shards = ModelShards::new(&cluster, link);
            let runtime = NodeRuntime::new(&sim, number, Nanos::from_secs(7), DATE);
            resilient(shards, runtime, ResilienceSettings::default(), Arc::new(|_| {}))
        };
        let nodes = (0..nodes).map(node).collect();
        sim.run_until(MS(1_500));
        let spec = Spec::new(Algorithm::FixedWindow, count, Nanos::from_secs(3_600));
        LenientTestbed {
            nodes,
            cluster,
            charges_sent,
            rule: RuleName::new("lenient"),
            limit: Limit::compile(&spec, Precision::Memory).expect("a valid rate"),
            other: RuleName::new("other"),
            sim,
        }
    }

    fn one(&self, cost: u64) -> Charge<'_> {
        Charge {
            subject: Fingerprint::new(1),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a positive cost"),
            role: Role::Enforce,
            options: &LENIENT,
        }
    }

    /// The same with an exact limit of the same size in the set.
    fn both(&self, cost: u64, exact: u64) -> ChargeSet<'_> {
        let beside = Charge {
            rule: &self.other,
            cost: Cost::new(exact).expect("a positive cost"),
            options: &RuleOptions::DEFAULT,
            ..self.one(cost)
        };
        ChargeSet::of([beside, self.one(cost)])
    }

    fn charge(&self, node: usize, cost: u64) -> Outcome {
        self.charge_set(node, &ChargeSet::of_one(self.one(cost)))
    }

    fn charge_set(&self, node: usize, set: &ChargeSet<'_>) -> Outcome {
        let outcome = self.sim.block_on(self.nodes[node].charge(set));
        outcome.expect("decisions do not fail")
    }

    fn pass(&self, millis: u64) {
        self.sim.run_until(self.sim.now().plus(MS(millis)));
    }

    /// Units in use of a rule, in the store.
    fn used_units(&self, rule: &RuleName) -> u64 {
        let model = self.cluster.model(0);
        let mut model = model.lock();
        let now = model.time(self.sim.now());
        let counter = rule.counter(Fingerprint::new(1), 0);
        model.counters.used(counter, &self.limit, now)
    }

    fn set_conditions(&self, conditions: NetworkConditions) {
        self.cluster.model(0).lock().set_conditions(conditions);
    }
}

#[test]
fn the_first_request_calls_the_store_and_the_next_ones_do_not() {
    let setup = LenientTestbed::new(1, 1_000);
    assert_eq!(setup.charge(0, 1).source, Source::Exact);
    let before = setup.charges_sent.lock().len();
    for _ in 0..100 {
        let outcome = setup.charge(0, 1);
        assert!(outcome.admitted);
        assert_eq!(outcome.source, Source::Lenient);
    }
    assert_eq!(setup.charges_sent.lock().len(), before);
    assert_eq!(setup.used_units(&setup.rule), 1);
    setup.pass(60);
    assert_eq!(setup.used_units(&setup.rule), 101);
}

#[test]
fn all_nodes_see_an_admission_within_a_hundred_milliseconds() {
    let setup = LenientTestbed::new(3, 100);
    for node in 0..3 {
        setup.charge(node, 1);
    }
    assert!(setup.charge(0, 97).admitted, "the node knows of no other admission");
    let deadline = setup.sim.now().plus(MS(100));
    while setup.sim.now() < deadline {
        setup.pass(5);
        for node in 1..3 {
            setup.nodes[node].overshoot(); // reading it changes nothing
        }
        // A cost above the limit keeps the views active and admits nothing.
        assert!(!setup.charge(1, 101).admitted);
    }
    for node in 0..3 {
        assert!(!setup.charge(node, 1).admitted, "node {node}");
    }
}

#[test]
fn an_idle_counter_is_not_synced() {
    let setup = LenientTestbed::new(1, 100);
    setup.charge(0, 1);
    setup.pass(500);
    let before = setup.charges_sent.lock().len();
    setup.pass(5_000);
    assert_eq!(setup.charges_sent.lock().len(), before);
    // Cold keys cost the same as exact ones: one call per request.
    for _ in 0..10 {
        assert_eq!(setup.charge(0, 1).source, Source::Exact);
        setup.pass(200);
    }
    assert_eq!(setup.used_units(&setup.rule), 11);
}

#[test]
fn the_reported_bound_can_be_reached() {
    let setup = LenientTestbed::new(4, 100);
    for node in [0, 1, 2, 3, 0, 1, 2, 3] {
        setup.charge(node, 1);
    }
    setup.pass(46); // all nodes are synced
    let bound = setup.nodes[0].overshoot()["lenient"].worst_case;
    let mut admitted = 8;
    // All at once, before the next sync.
    for _ in 0..200 {
        for node in 0..4 {
            admitted += u64::from(setup.charge(node, 1).admitted);
        }
    }
    let over = admitted - 100;
    assert!(over <= bound, "{over} over, the bound is {bound}");
    assert!(over >= bound * 9 / 10, "{over} over: the bound of {bound} cannot be reached");
    setup.pass(100);
    assert_eq!(setup.used_units(&setup.rule), 200, "debt is kept up to twice the limit");
}

#[test]
fn the_bound_shrinks_as_the_limit_is_used_up() {
    let setup = LenientTestbed::new(4, 1_000);
    setup.charge(0, 100);
    setup.charge(0, 100);
    setup.pass(46);
    let overshoot = setup.nodes[0].overshoot()["lenient"].at_current_rate;
    assert!(
        (600..=700).contains(&overshoot),
        "{overshoot}: 100 per sync interval, for more than two intervals, on each of three other nodes"
    );
    assert!(setup.charge(0, 790).admitted);
    setup.pass(46);
    assert!(setup.charge(0, 1).admitted);
    setup.pass(46);
    let overshoot = setup.nodes[0].overshoot()["lenient"].at_current_rate;
    assert!(overshoot <= 3 * 9, "{overshoot}: nine are left");
}

#[test]
fn a_denial_by_the_exact_limit_refunds_the_lenient_one() {
    let setup = LenientTestbed::new(1, 100);
    setup.charge_set(0, &setup.both(1, 1));
    let outcome = setup.charge_set(0, &setup.both(10, 100));
    assert!(!outcome.admitted);
    assert!(setup.charge_set(0, &setup.both(99, 1)).admitted, "only the first request is charged");
    setup.pass(60);
    assert_eq!(setup.used_units(&setup.rule), 100);
    assert_eq!(setup.used_units(&setup.other), 2);
}

#[test]
fn a_denial_by_the_lenient_limit_charges_no_exact_one() {
    let setup = LenientTestbed::new(1, 100);
    setup.charge_set(0, &setup.both(99, 1));
    setup.charge_set(0, &setup.both(1, 1));
    let outcome = setup.charge_set(0, &setup.both(1, 1));
    assert!(!outcome.admitted);
    assert_eq!(outcome.source, Source::Lenient);
    assert!(outcome.readings[0].verdict.allows(), "the exact limit has room");
    assert!(!outcome.readings[1].verdict.allows());
    setup.pass(60);
    assert_eq!(setup.used_units(&setup.other), 2);
}

#[test]
fn without_the_store_the_share_decides_and_no_unit_is_lost() {
    let setup = LenientTestbed::new(1, 1_000);
    setup.charge(0, 1);
    assert!(setup.charge(0, 50).admitted);
    setup.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    setup.pass(200);
    assert_eq!(setup.charge(0, 1).source, Source::Fallback);
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(3_000);
    assert_eq!(setup.charge(0, 1).source, Source::Exact);
    assert_eq!(setup.used_units(&setup.rule), 53);
}

#[test]
fn draining_syncs_everything() {
    let setup = LenientTestbed::new(1, 1_000);
    setup.charge(0, 1);
    setup.charge(0, 30);
    setup.sim.block_on(setup.nodes[0].drain());
    assert_eq!(setup.used_units(&setup.rule), 31);
    assert_eq!(setup.charge(0, 1).source, Source::Exact);
}

/// A node stopped while its last sync was in flight, and the units were never counted.
#[test]
fn draining_waits_for_a_sync_in_flight() {
    for micros in (0..60_000).step_by(500) {
        let setup = LenientTestbed::new(1, 1_000);
        setup.charge(0, 1);
        setup.charge(0, 30);
        setup.set_conditions(NetworkConditions { min_latency: MS(2), ..NetworkConditions::HEALTHY });
        let then = setup.sim.now().plus(Nanos::new(micros * 1_000));
        setup.sim.run_until(then);
        setup.sim.block_on(setup.nodes[0].drain());
        assert_eq!(setup.used_units(&setup.rule), 31, "after {micros} µs");
    }
}

/// A sync reply used to make a view fresh again although its own admissions were not synced. The other nodes
/// did not see them for as long as the sync took.
#[test]
fn a_view_with_unsynced_units_stops_deciding() {
    let setup = LenientTestbed::new(1, 1_000_000);
    setup.charge(0, 1);
    setup.charge(0, 1);
    setup.set_conditions(NetworkConditions {
        min_latency: MS(30), // longer than a sync interval, and no failure yet
        ..NetworkConditions::HEALTHY
    });
    let (mut unsynced, mut last_sync) = (1, setup.sim.now());
    for _ in 0..400 {
        setup.pass(1);
        let outcome = setup.charge(0, 1);
        match outcome.source {
            Source::Lenient => unsynced += 1,
            _ => (unsynced, last_sync) = (0, setup.sim.now()),
        }
        let waited = setup.sim.now().since(last_sync);
        assert!(unsynced == 0 || waited <= MS(110), "{unsynced} not synced for {waited}");
    }
}

/// A view that admits nothing has nothing to charge, so its sync only reads. The record of an emptied store was taken
/// for a counter of which nothing is used, and the node admitted by it until a sync with units noticed the loss.
#[test]
fn a_sync_that_only_reads_notices_that_the_store_was_emptied() {
    let setup = LenientTestbed::new(1, 100);
    setup.cluster.model(0).lock().reports_epoch = false;
    setup.charge(0, 50);
    setup.charge(0, 50);
    for _ in 0..20 {
        setup.pass(10);
        assert!(!setup.charge(0, 1).admitted, "used up");
    }
    setup.cluster.model(0).lock().flush();
    for _ in 0..60 {
        setup.pass(10);
        assert!(!setup.charge(0, 1).admitted, "at {}", setup.sim.now());
    }
    assert_eq!(setup.used_units(&setup.rule), 100, "restored");
}
