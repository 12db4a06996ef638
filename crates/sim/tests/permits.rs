//! Limits on what is open at once, through everything that can happen to a store and to a holder: never
//! more than are stated, and no slot that nobody holds stays taken.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use tidegate::clock::ManualClock;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::rules::{SourceFile, parse};
use tidegate::{Acquired, Limiter, Permit, PermitRenewer, Policy, Request, Secret, Ticket};
use tidegate_core::store::{Source, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{
    Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel,
};
use tidegate_sim::{Rng, Variant};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const SECS: fn(u64) -> Nanos = Nanos::from_secs;
const MS: fn(u64) -> Nanos = Nanos::from_millis;
const DOWN: NetworkConditions = NetworkConditions {
    down: true,
    ..NetworkConditions::HEALTHY
};

type SharedNodeStore = Resilient<ModelShards, NodeRuntime>;

/// Nodes on one store, and a rule that lets `most` be open.
struct PermitTestbed<S: Store + 'static> {
    sim: Sim,
    model: SharedModel,
    nodes: Vec<PermitTestNode<S>>,
}

struct PermitTestNode<S: Store + 'static> {
    limiter: Arc<Limiter<S>>,
    renewer: PermitRenewer<S, NodeRuntime>,
}

impl PermitTestbed<SharedNodeStore> {
    fn new(nodes: usize, max_open: u32) -> Self {
        PermitTestbed::with_settings(1, nodes, max_open, &ResilienceSettings::default())
    }

    fn with_settings(
        seed: u64,
        nodes: usize,
        max_open: u32,
        settings: &ResilienceSettings,
    ) -> Self {
        PermitTestbed::with_rules(seed, nodes, &uploads(max_open), settings)
    }

    fn with_rules(seed: u64, nodes: usize, rules: &str, settings: &ResilienceSettings) -> Self {
        let scene = PermitTestbed::with(seed, nodes, rules, |model, link, runtime| {
            let cluster = Arc::new(ModelCluster::new([Arc::clone(model)]));
            let shards = ModelShards::new(&cluster, link);
            resilient(shards, runtime, settings.clone(), Arc::new(|_| {}))
        });
        scene.pass(MS(3_000)); // until the list of nodes is known to be complete
        scene
    }
}

impl<S: Store + 'static> PermitTestbed<S> {
    fn with(
        seed: u64,
        nodes: usize,
        rules: &str,
        store: impl Fn(&SharedModel, ModelLink, NodeRuntime) -> S,
    ) -> Self {
        let sim = Sim::new(seed);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let nodes = (0..nodes).map(|i| {
            let link = ModelLink::new(
                &sim,
                &model,
                i,
                Nanos::ZERO,
                Variant::Shipped,
                &Arc::default(),
            );
            let runtime = NodeRuntime::new(&sim, i, SECS(7), DATE);
            let store = store(&model, link, runtime.clone());
            let rules = parse(&[SourceFile {
                name: "rules.yaml",
                text: rules,
            }]);
            let policy = Policy::of(rules.expect("good rules"));
            let secret = Secret::from_bytes(b"0123456789abcdef").expect("a secret");
            let clock = Arc::new(ManualClock::at(DATE));
            let limiter = Arc::new(Limiter::new(store, policy, secret, clock));
            PermitTestNode {
                renewer: PermitRenewer::new(Arc::clone(&limiter), runtime),
                limiter,
            }
        });
        PermitTestbed {
            nodes: nodes.collect(),
            sim,
            model,
        }
    }

    fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }

    fn set_conditions(&self, conditions: NetworkConditions) {
        self.model.lock().set_conditions(conditions);
    }

    /// One more open request at a node, kept there.
    fn open(&self, node: usize) -> Option<Permit<S, NodeRuntime>> {
        let acquired = self.sim.block_on(self.nodes[node].renewer.acquire(ada()));
        match acquired.expect("an answer") {
            Acquired::Open { permit, .. } => Some(permit),
            Acquired::Full(full) => {
                assert_eq!(full.rule.as_str(), "uploads");
                None
            }
            Acquired::Denied(_) => panic!("no rate refuses"),
        }
    }

    /// Whether one more is open after so long; else it is not waited for any more.
    fn acquires_within(&self, node: usize, span: Nanos) -> bool {
        let mut acquiring = pin!(self.nodes[node].renewer.acquire(ada()));
        let mut waiting = pin!(self.sim.sleep(span));
        self.sim.block_on(poll_fn(|context| {
            match (
                acquiring.as_mut().poll(context),
                waiting.as_mut().poll(context),
            ) {
                (Poll::Ready(_), _) => Poll::Ready(true),
                (Poll::Pending, Poll::Ready(())) => Poll::Ready(false),
                (Poll::Pending, Poll::Pending) => Poll::Pending,
            }
        }))
    }

    /// As many more as there is room for, over all nodes in turn.
    fn fill(&self) -> Vec<Permit<S, NodeRuntime>> {
        let mut permits = Vec::new();
        loop {
            let before = permits.len();
            permits.extend((0..self.nodes.len()).filter_map(|node| self.open(node)));
            if permits.len() == before {
                return permits;
            }
        }
    }

    /// The same at one node.
    fn fill_node(&self, node: usize) -> Vec<Permit<S, NodeRuntime>> {
        std::iter::from_fn(|| self.open(node)).collect()
    }

    /// One that its holder does not keep: it dies at once.
    fn acquire_and_abandon(&self, node: usize) -> Option<Ticket> {
        let limiter = &self.nodes[node].limiter;
        let acquired = self.sim.block_on(limiter.acquire(ada(), SECS(10)));
        match acquired.expect("an answer") {
            Acquired::Open { permit, .. } => Some(permit),
            _ => None,
        }
    }
}

fn uploads(max_open: u32) -> String {
    format!("version: 1\nrules: [{{ name: uploads, by: user, concurrent: {max_open} }}]")
}

fn ada() -> Request<'static> {
    Request::default().with("user", "ada")
}

fn lost<S: Store + 'static>(permits: &[Permit<S, NodeRuntime>]) -> usize {
    permits.iter().filter(|permit| permit.is_lost()).count()
}

#[test]
fn all_nodes_together_have_as_many_open_as_the_rule_says_for_as_long_as_they_like() {
    let scene = PermitTestbed::new(4, 10);
    let permits = scene.fill();
    assert_eq!(permits.len(), 10);
    for _ in 0..60 {
        scene.pass(SECS(1));
        assert!(scene.open(0).is_none(), "at {}", scene.sim.now());
        assert_eq!(lost(&permits), 0);
    }
    drop(permits);
    scene.pass(MS(100));
    assert_eq!(scene.fill().len(), 10, "all were given back, at once");
}

/// The rates of an acquire had 25 ms, as those of a check have, beside permits that had 250: with replies
/// that took longer, a rule with `on_store_late: deny` denied every acquire.
#[test]
fn the_rates_of_a_permit_wait_for_the_store_as_long_as_the_permit() {
    let rules = "version: 1\nrules:\n  - { name: uploads, by: user, concurrent: 2 }\n  \
                 - { name: paid, by: user, rate: 9/day, on_store_late: deny }\n";
    let scene = PermitTestbed::with_rules(1, 1, rules, &ResilienceSettings::default());
    let limiter = &scene.nodes[0].limiter;
    let round_trip = |millis: u64| {
        scene.set_conditions(NetworkConditions {
            min_latency: MS(millis / 2),
            ..NetworkConditions::HEALTHY
        });
    };
    let source = || {
        let acquired = scene.sim.block_on(limiter.acquire(ada(), SECS(10)));
        match acquired.expect("a decision") {
            Acquired::Open {
                permit, decision, ..
            } => {
                let released = scene.sim.block_on(limiter.release(&permit));
                released.expect("a reply");
                decision.source()
            }
            Acquired::Denied(decision) => decision.source(),
            Acquired::Full(full) => panic!("nothing else is open: {full:?}"),
        }
    };
    for millis in [10, 40, 60, 200] {
        round_trip(millis);
        assert_eq!(source(), Source::Exact, "{millis} ms");
    }
    let checked = scene.sim.block_on(limiter.check(ada()));
    let checked = checked.expect("a decision");
    assert_eq!(checked.source(), Source::Late, "a check waits no longer");
}

#[test]
fn slots_of_a_dead_holder_come_back_when_they_end_and_not_before() {
    let scene = PermitTestbed::new(2, 2);
    scene.acquire_and_abandon(0).expect("room");
    let renewed = scene.open(1).expect("room");
    scene.pass(MS(9_900));
    assert!(scene.open(0).is_none());
    scene.pass(MS(200));
    let next = scene.open(0).expect("the dead one's");
    assert!(scene.open(0).is_none() && !renewed.is_lost() && !next.is_lost());
}

#[test]
fn a_node_that_dies_gives_its_slots_back_by_their_end() {
    let scene = PermitTestbed::new(2, 4);
    let permits: Vec<_> = (0..4).map(|_| scene.open(0).expect("room")).collect();
    scene.pass(SECS(30));
    assert!(scene.open(1).is_none());
    scene.sim.kill(0);
    scene.pass(SECS(10));
    assert_eq!(scene.fill_node(1).len(), 4);
    drop(permits);
}

/// The store is away for longer than slots last, and knows of none when it is back: those who hold them
/// have told it before it is asked for new ones.
#[test]
fn slots_outlive_an_outage_and_nobody_takes_their_place_afterwards() {
    let scene = PermitTestbed::new(4, 8);
    let before = scene.fill();
    assert_eq!(before.len(), 8);
    scene.set_conditions(DOWN);
    scene.pass(SECS(30));
    assert_eq!(lost(&before), 0, "kept without the store");
    assert_eq!(scene.fill().len(), 0, "each node has more than its share");
    scene.set_conditions(NetworkConditions::HEALTHY);
    scene.pass(SECS(3));
    assert_eq!(scene.fill().len(), 0);
    assert_eq!(lost(&before), 0);
    drop(before);
    scene.pass(SECS(1));
    assert_eq!(scene.fill().len(), 8);
}

/// What a node gave without the store is in it afterwards, until it is given back: also if it is given
/// back while nobody can be told.
#[test]
fn permits_acquired_without_the_store_are_restored_to_it() {
    let scene = PermitTestbed::new(4, 10);
    scene.set_conditions(DOWN);
    scene.pass(SECS(2));
    let mut permits = scene.fill();
    assert_eq!(permits.len(), 8, "the share of all nodes");
    scene.set_conditions(NetworkConditions::HEALTHY);
    scene.pass(SECS(3));
    let more = scene.fill();
    assert_eq!(more.len(), 2, "the rest of the limit");
    scene.set_conditions(DOWN);
    scene.pass(SECS(2));
    permits.truncate(3);
    scene.pass(SECS(1));
    scene.set_conditions(NetworkConditions::HEALTHY);
    scene.pass(SECS(3));
    assert_eq!(scene.fill().len(), 5, "given back while the store was away");
    assert_eq!(lost(&permits) + lost(&more), 0);
}

/// A store that lost everything would find room for all of them once more.
#[test]
fn a_store_that_lost_its_slots_has_them_again_before_it_gives_new_ones() {
    for flushed in [false, true] {
        let scene = PermitTestbed::new(4, 40);
        let permits = scene.fill();
        assert_eq!(permits.len(), 40);
        match flushed {
            true => scene.model.lock().flush(),
            false => scene.model.lock().restart_empty(),
        }
        for _ in 0..40 {
            let more = scene.fill();
            assert_eq!(more.len(), 0, "at {}", scene.sim.now());
            scene.pass(MS(100));
        }
        scene.pass(SECS(20));
        assert_eq!((scene.fill().len(), lost(&permits)), (0, 0));
        drop(permits);
        scene.pass(SECS(1));
        assert_eq!(scene.fill().len(), 40);
    }
}

/// While a store is away nodes give what is their share, beside what was open before: no more.
#[test]
fn an_outage_adds_the_share_at_most() {
    let scene = PermitTestbed::new(4, 40);
    let before = scene.fill_node(0);
    assert_eq!(before.len(), 40, "all at one node");
    scene.set_conditions(DOWN);
    scene.pass(SECS(2));
    let during = scene.fill();
    assert_eq!(during.len(), 24, "the shares of the other three");
    scene.set_conditions(NetworkConditions::HEALTHY);
    scene.pass(SECS(5));
    assert_eq!(scene.fill().len(), 0);
    drop(before);
    scene.pass(SECS(1));
    assert_eq!(scene.fill().len(), 16);
}

/// Without anything around the store, so that it is known who knows what.
fn bare(max_open: u32) -> PermitTestbed<ModelLink> {
    PermitTestbed::with(1, 2, &uploads(max_open), |_, link, _| link)
}

#[test]
fn a_slot_that_could_not_be_renewed_is_lost_until_there_is_room_again() {
    let scene = bare(1);
    let permit = scene.open(0).expect("room");
    scene.set_conditions(DOWN);
    scene.pass(SECS(9));
    assert!(!permit.is_lost(), "it lasts as long as it was said to");
    scene.pass(SECS(2));
    assert!(permit.is_lost());
    scene.set_conditions(NetworkConditions::HEALTHY);
    let other = scene.open(1).expect("the place is free");
    scene.pass(SECS(20));
    assert!(permit.is_lost() && !other.is_lost());
    drop(other);
    scene.pass(SECS(10));
    assert!(!permit.is_lost(), "found again");
    assert!(scene.open(1).is_none());
}

/// A program that lives on is open, and is counted again as soon as there is room.
#[test]
fn a_slot_that_an_operator_has_freed_is_taken_again_when_there_is_room() {
    let scene = PermitTestbed::new(2, 1);
    let permit = scene.open(0).expect("room");
    scene.pass(SECS(20));
    let freed = scene.nodes[1].limiter.view();
    let freed = scene.sim.block_on(freed.reset(ada())).expect("an answer");
    assert_eq!(freed, 1);
    let other = scene.open(1).expect("the place is free");
    scene.pass(SECS(4));
    assert!(permit.is_lost() && !other.is_lost());
    drop(other);
    scene.pass(SECS(4));
    assert!(!permit.is_lost());
    assert!(scene.open(0).is_none());
}

#[test]
fn a_reset_that_the_store_does_not_answer_frees_nothing() {
    let scene = PermitTestbed::new(2, 10);
    let limiter = &scene.nodes[0].limiter;
    let before = scene.acquire_and_abandon(0).expect("room");
    scene.set_conditions(DOWN);
    scene.pass(SECS(1));
    let without = scene.acquire_and_abandon(0).expect("a share");
    let freed = scene.sim.block_on(limiter.view().reset(ada()));
    assert!(freed.is_err());
    for ticket in [&before, &without] {
        let held = scene.sim.block_on(limiter.renew(ticket));
        assert!(held.expect("it is known here"));
    }
}

/// A renewal that is under way when its slot is given back must not take it again; nor must whoever
/// finds that the store has lost it.
#[test]
fn a_slot_that_was_given_back_is_never_taken_again() {
    let times = (3_200..3_700).step_by(20);
    for (late_ms, is_lost) in times.flat_map(|ms| [(ms, false), (ms, true)]) {
        let scene = bare(1);
        let slow = NetworkConditions {
            min_latency: MS(50),
            ..NetworkConditions::HEALTHY
        };
        let permit = scene.open(0).expect("room");
        if is_lost {
            scene.model.lock().restart_empty();
        }
        scene.set_conditions(slow);
        scene.pass(MS(late_ms));
        drop(permit);
        scene.pass(SECS(1));
        assert!(scene.open(1).is_some(), "dropped after {late_ms} ms");
    }
    let scene = bare(1);
    let ticket = scene.acquire_and_abandon(0).expect("room");
    let limiter = &scene.nodes[1].limiter;
    assert!(
        scene
            .sim
            .block_on(limiter.renew(&ticket))
            .expect("an answer")
    );
    scene
        .sim
        .block_on(limiter.release(&ticket))
        .expect("an answer");
    assert!(
        !scene
            .sim
            .block_on(limiter.renew(&ticket))
            .expect("an answer")
    );
    assert!(scene.open(0).is_some());
}

/// A store in another region: replies are later than a check waits for, and slots wait for them.
#[test]
fn a_store_that_is_far_away_gives_as_many_as_the_rule_says() {
    let scene = PermitTestbed::new(2, 10);
    scene.set_conditions(NetworkConditions {
        min_latency: MS(40),
        ..NetworkConditions::HEALTHY
    });
    let permits: Vec<_> = (0..30).filter_map(|i| scene.open(i % 2)).collect();
    assert_eq!(permits.len(), 10);
}

/// Whoever stops waiting knows of no slot, so nobody would give it back: it was taken for as long as it
/// lasts. Here for every moment of the way to the store and back.
#[test]
fn whoever_stops_waiting_leaves_no_slot_taken() {
    let patient = ResilienceSettings {
        budget: SECS(5),
        ..ResilienceSettings::default()
    };
    let slow = NetworkConditions {
        min_latency: MS(50),
        ..NetworkConditions::HEALTHY
    };
    let left = |waited: Nanos| {
        let (bare, whole) = (bare(1), PermitTestbed::with_settings(1, 2, 1, &patient));
        bare.set_conditions(slow);
        whole.set_conditions(slow);
        assert!(!bare.acquires_within(0, waited) && !whole.acquires_within(0, waited));
        for pause in [MS(300), SECS(1)] {
            bare.pass(pause);
            whole.pass(pause);
        }
        let after = (bare.open(1).is_some(), whole.open(1).is_some());
        assert_eq!(after, (true, true), "left after {waited}");
    };
    (5..100).step_by(5).map(MS).for_each(left);
}

/// A crowd that is refused while the store is away must not fill what a node remembers of slots.
#[test]
fn refusals_without_the_store_are_not_remembered() {
    let settings = ResilienceSettings {
        max_mirrored: 50,
        ..ResilienceSettings::default()
    };
    let scene = PermitTestbed::with_settings(1, 1, 10, &settings);
    scene.set_conditions(DOWN);
    scene.pass(SECS(2));
    let mut permits = scene.fill();
    assert_eq!(permits.len(), 8);
    for _ in 0..200 {
        assert!(scene.open(0).is_none());
    }
    permits.truncate(4);
    scene.pass(MS(10));
    assert_eq!(scene.fill().len(), 4);
}

#[test]
fn without_the_store_a_refusal_says_so() {
    let scene = PermitTestbed::new(1, 1);
    scene.set_conditions(DOWN);
    scene.pass(SECS(2));
    let _slot = scene.open(0).expect("one node holds the one unit");
    let full = scene.sim.block_on(scene.nodes[0].renewer.acquire(ada()));
    let Ok(Acquired::Full(full)) = full else {
        panic!("one is open");
    };
    assert_eq!((full.source, full.unavailable), (Source::Fallback, false));
    assert_eq!((full.open, full.max_permits), (1, 1));
}

/// What chance makes of it. `cargo test -p tidegate-sim --test slots chance` runs all seeds.
#[test]
fn whatever_chance_does_the_bounds_hold_and_every_slot_comes_back() {
    for seed in 0..200 {
        by_chance(seed);
    }
}

/// Callers come and go on four nodes while the store is away, hangs, loses answers or everything. Never
/// more than the limit and the share are in; when all has been well for a while, nobody gets in above the
/// limit; and in the end all of it can be had.
fn by_chance(seed: u64) {
    const MAX_OPEN: usize = 20;
    let scene =
        PermitTestbed::with_settings(seed, 4, MAX_OPEN as u32, &ResilienceSettings::default());
    let mut random = Rng::new(seed);
    let mut permits = Vec::new();
    let mut trouble = scene.sim.now();
    for _ in 0..150 {
        match random.below(10) {
            0 => {
                let hung = NetworkConditions {
                    hung: true,
                    ..NetworkConditions::HEALTHY
                };
                let lossy = NetworkConditions {
                    replies_lost: 200,
                    ..NetworkConditions::HEALTHY
                };
                scene.set_conditions(random.pick(&[DOWN, hung, lossy]));
                scene.pass(MS(random.below(15_000)));
            }
            1 => scene.set_conditions(NetworkConditions::HEALTHY),
            2 if scene.model.lock().conditions == NetworkConditions::HEALTHY => {
                scene.model.lock().restart_empty();
                trouble = scene.sim.now();
                scene.pass(SECS(2));
            }
            3..6 if !permits.is_empty() => {
                let at = random.below(permits.len() as u64) as usize;
                drop(permits.swap_remove(at));
            }
            _ => {
                let well = scene.sim.now().since(trouble) > SECS(8) && permits.len() >= MAX_OPEN;
                let more = scene.open(random.below(4) as usize);
                assert!(!(well && more.is_some()), "seed {seed}: above the limit");
                permits.extend(more);
            }
        }
        if scene.model.lock().conditions != NetworkConditions::HEALTHY {
            trouble = scene.sim.now();
        }
        let open = permits.len() - lost(&permits);
        assert!(open <= MAX_OPEN * 18 / 10, "seed {seed}: {open} are in");
        scene.pass(MS(random.below(500)));
    }
    scene.set_conditions(NetworkConditions::HEALTHY);
    scene.pass(SECS(8));
    let (held, away) = (permits.len(), lost(&permits));
    assert_eq!(away, 0, "seed {seed}: lost though their nodes live");
    assert_eq!(
        scene.fill().len(),
        MAX_OPEN.saturating_sub(held),
        "seed {seed}"
    );
    permits.clear();
    scene.pass(SECS(2));
    assert_eq!(scene.fill().len(), MAX_OPEN, "seed {seed}");
    scene.sim.clear();
}
