//! Lenient counting: decided here by what was last heard, told to the store a moment later, and never
//! further over the limit than it says.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Counting, Outcome, Role, RuleOptions, Source, Store,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{
    Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SentCharge,
};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const MS: fn(u64) -> Nanos = Nanos::from_millis;
const LENIENT: RuleOptions = RuleOptions {
    counting: Counting::Lenient,
    ..RuleOptions::DEFAULT
};

/// Some nodes and one store.
struct LenientTestbed {
    sim: Sim,
    nodes: Vec<Resilient<ModelShards, NodeRuntime>>,
    cluster: Arc<ModelCluster>,
    charges_sent: Arc<Mutex<Vec<SentCharge>>>,
    rule: RuleName,
    limit: Limit,
    other: RuleName,
}

impl LenientTestbed {
    /// With a limit of `count` in an hour.
    fn new(nodes: usize, count: u64) -> Self {
        let sim = Sim::new(1);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let cluster = Arc::new(ModelCluster::new([Arc::clone(&model)]));
        let charges_sent = Arc::<Mutex<Vec<SentCharge>>>::default();
        let node = |number| {
            let link = ModelLink::new(
                &sim,
                &model,
                number,
                Nanos::ZERO,
                Variant::Shipped,
                &charges_sent,
            );
            let shards = ModelShards::new(&cluster, link);
            let runtime = NodeRuntime::new(&sim, number, Nanos::from_secs(7), DATE);
            resilient(
                shards,
                runtime,
                ResilienceSettings::default(),
                Arc::new(|_| {}),
            )
        };
        let nodes = (0..nodes).map(node).collect();
        sim.run_until(MS(1_500));
        let spec = Spec::new(Algorithm::FixedWindow, count, Nanos::from_secs(3_600));
        LenientTestbed {
            nodes,
            cluster,
            charges_sent,
            rule: RuleName::new("lenient"),
            limit: Limit::compile(&spec, Precision::Memory).expect("a fit rate"),
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
            cost: Cost::new(cost).expect("a cost"),
            role: Role::Enforce,
            options: &LENIENT,
        }
    }

    /// The same beside an exact limit of the same size.
    fn both(&self, cost: u64, exact: u64) -> ChargeSet<'_> {
        let beside = Charge {
            rule: &self.other,
            cost: Cost::new(exact).expect("a cost"),
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

    /// Units in use of a rule, by the books of the store.
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
    let rig = LenientTestbed::new(1, 1_000);
    assert_eq!(rig.charge(0, 1).source, Source::Exact);
    let before = rig.charges_sent.lock().len();
    for _ in 0..100 {
        let outcome = rig.charge(0, 1);
        assert!(outcome.admitted);
        assert_eq!(outcome.source, Source::Lenient);
    }
    assert_eq!(rig.charges_sent.lock().len(), before);
    assert_eq!(rig.used_units(&rig.rule), 1);
    rig.pass(60);
    assert_eq!(rig.used_units(&rig.rule), 101);
}

#[test]
fn what_one_node_admits_is_known_to_all_within_a_hundred_milliseconds() {
    let rig = LenientTestbed::new(3, 100);
    for node in 0..3 {
        rig.charge(node, 1);
    }
    assert!(rig.charge(0, 97).admitted, "nothing else is known of");
    let deadline = rig.sim.now().plus(MS(100));
    while rig.sim.now() < deadline {
        rig.pass(5);
        for node in 1..3 {
            rig.nodes[node].overshoot(); // reading it changes nothing
        }
        // Asking for more than there is keeps the views awake without admitting anything.
        assert!(!rig.charge(1, 101).admitted);
    }
    for node in 0..3 {
        assert!(!rig.charge(node, 1).admitted, "node {node}");
    }
}

#[test]
fn an_idle_counter_is_not_synced() {
    let rig = LenientTestbed::new(1, 100);
    rig.charge(0, 1);
    rig.pass(500);
    let before = rig.charges_sent.lock().len();
    rig.pass(5_000);
    assert_eq!(rig.charges_sent.lock().len(), before);
    // Cold keys cost what exact ones do: one call for each request.
    for _ in 0..10 {
        assert_eq!(rig.charge(0, 1).source, Source::Exact);
        rig.pass(200);
    }
    assert_eq!(rig.used_units(&rig.rule), 11);
}

#[test]
fn the_reported_bound_can_be_reached() {
    let rig = LenientTestbed::new(4, 100);
    for node in [0, 1, 2, 3, 0, 1, 2, 3] {
        rig.charge(node, 1);
    }
    rig.pass(46); // everyone has heard of everyone
    let bound = rig.nodes[0].overshoot()["lenient"].worst_case;
    let mut admitted = 8;
    // All at once, before anybody hears of anybody.
    for _ in 0..200 {
        for node in 0..4 {
            admitted += u64::from(rig.charge(node, 1).admitted);
        }
    }
    let over = admitted - 100;
    assert!(over <= bound, "{over} over, where {bound} may be");
    assert!(
        over >= bound * 9 / 10,
        "{over} over: the bound of {bound} cannot be reached"
    );
    rig.pass(100);
    assert_eq!(
        rig.used_units(&rig.rule),
        200,
        "debt is kept up to twice the limit"
    );
}

#[test]
fn the_bound_shrinks_as_the_limit_is_used_up() {
    let rig = LenientTestbed::new(4, 1_000);
    rig.charge(0, 100);
    rig.charge(0, 100);
    rig.pass(46);
    let overshoot = rig.nodes[0].overshoot()["lenient"].at_current_rate;
    assert!(
        (600..=700).contains(&overshoot),
        "{overshoot}: a pause's 100, more than two pauses long, on each of three others"
    );
    assert!(rig.charge(0, 790).admitted);
    rig.pass(46);
    assert!(rig.charge(0, 1).admitted);
    rig.pass(46);
    let overshoot = rig.nodes[0].overshoot()["lenient"].at_current_rate;
    assert!(overshoot <= 3 * 9, "{overshoot}: nine are left");
}

#[test]
fn a_refusal_elsewhere_takes_it_back() {
    let rig = LenientTestbed::new(1, 100);
    rig.charge_set(0, &rig.both(1, 1));
    let outcome = rig.charge_set(0, &rig.both(10, 100));
    assert!(!outcome.admitted);
    assert!(
        rig.charge_set(0, &rig.both(99, 1)).admitted,
        "all but the first is still there"
    );
    rig.pass(60);
    assert_eq!(rig.used_units(&rig.rule), 100);
    assert_eq!(rig.used_units(&rig.other), 2);
}

#[test]
fn a_refusal_here_charges_nothing_elsewhere() {
    let rig = LenientTestbed::new(1, 100);
    rig.charge_set(0, &rig.both(99, 1));
    rig.charge_set(0, &rig.both(1, 1));
    let outcome = rig.charge_set(0, &rig.both(1, 1));
    assert!(!outcome.admitted);
    assert_eq!(outcome.source, Source::Lenient);
    assert!(
        outcome.readings[0].verdict.allows(),
        "the exact limit has room"
    );
    assert!(!outcome.readings[1].verdict.allows());
    rig.pass(60);
    assert_eq!(rig.used_units(&rig.other), 2);
}

#[test]
fn without_the_store_the_share_decides_and_nothing_is_lost() {
    let rig = LenientTestbed::new(1, 1_000);
    rig.charge(0, 1);
    assert!(rig.charge(0, 50).admitted);
    rig.set_conditions(NetworkConditions {
        down: true,
        ..NetworkConditions::HEALTHY
    });
    rig.pass(200);
    assert_eq!(rig.charge(0, 1).source, Source::Fallback);
    rig.set_conditions(NetworkConditions::HEALTHY);
    rig.pass(3_000);
    assert_eq!(rig.charge(0, 1).source, Source::Exact);
    assert_eq!(rig.used_units(&rig.rule), 53);
}

#[test]
fn draining_syncs_everything() {
    let rig = LenientTestbed::new(1, 1_000);
    rig.charge(0, 1);
    rig.charge(0, 30);
    rig.sim.block_on(rig.nodes[0].drain());
    assert_eq!(rig.used_units(&rig.rule), 31);
    assert_eq!(rig.charge(0, 1).source, Source::Exact);
}

/// A node ended while what it had just sent was still on its way, and it was never counted.
#[test]
fn draining_waits_for_a_sync_in_flight() {
    for micros in (0..60_000).step_by(500) {
        let rig = LenientTestbed::new(1, 1_000);
        rig.charge(0, 1);
        rig.charge(0, 30);
        rig.set_conditions(NetworkConditions {
            min_latency: MS(2),
            ..NetworkConditions::HEALTHY
        });
        let then = rig.sim.now().plus(Nanos::new(micros * 1_000));
        rig.sim.run_until(then);
        rig.sim.block_on(rig.nodes[0].drain());
        assert_eq!(rig.used_units(&rig.rule), 31, "after {micros} µs");
    }
}

/// A word from the store used to make a view fresh again while what it had admitted was not told: others
/// did not hear of it for as long as telling took.
#[test]
fn nothing_is_decided_here_while_the_others_are_kept_waiting() {
    let rig = LenientTestbed::new(1, 1_000_000);
    rig.charge(0, 1);
    rig.charge(0, 1);
    rig.set_conditions(NetworkConditions {
        min_latency: MS(30), // slower than a pause leaves room for, and no failure yet
        ..NetworkConditions::HEALTHY
    });
    let (mut unsynced, mut last_sync) = (1, rig.sim.now());
    for _ in 0..400 {
        rig.pass(1);
        let outcome = rig.charge(0, 1);
        match outcome.source {
            Source::Lenient => unsynced += 1,
            _ => (unsynced, last_sync) = (0, rig.sim.now()),
        }
        let waited = rig.sim.now().since(last_sync);
        assert!(
            unsynced == 0 || waited <= MS(110),
            "{unsynced} untold for {waited}"
        );
    }
}
