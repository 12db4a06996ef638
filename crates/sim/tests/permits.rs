//! Concurrency limits under every fault of a store and of a holder: never more permits than the limit, and no
//! permit stays taken without a holder.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::rules::{SourceFile, parse};
use tidegate::{Acquired, Limiter, Permit, PermitRenewer, Policy, Request, Secret, Ticket};
use tidegate_core::store::{Source, Store};
use tidegate_core::units::Nanos;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel, replicate};
use tidegate_sim::{Rng, Variant};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const SECS: fn(u64) -> Nanos = Nanos::from_secs;
const MS: fn(u64) -> Nanos = Nanos::from_millis;
const DOWN: NetworkConditions = NetworkConditions { down: true, ..NetworkConditions::HEALTHY };

type SharedNodeStore = Resilient<ModelShards, NodeRuntime>;

/// A wall clock that passes with the simulation.
struct SimClock(Sim);

impl Clock for SimClock {
    fn now(&self) -> Nanos {
        DATE.plus(self.0.now())
    }
}

/// Nodes on one store, and a rule with `max_open` permits.
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

    fn with_settings(seed: u64, nodes: usize, max_open: u32, settings: &ResilienceSettings) -> Self {
        PermitTestbed::with_rules(seed, nodes, &uploads(max_open), settings)
    }

    fn with_rules(seed: u64, nodes: usize, rules: &str, settings: &ResilienceSettings) -> Self {
        let setup = PermitTestbed::with(seed, nodes, rules, |model, link, runtime| {
            let cluster = Arc::new(ModelCluster::new([Arc::clone(model)]));
            let shards = ModelShards::new(&cluster, link);
            resilient(shards, runtime, settings.clone(), Arc::new(|_| {}))
        });
        setup.pass(MS(3_000)); // until the membership is complete
        setup
    }
}

impl<S: Store + 'static> PermitTestbed<S> {
    fn with(seed: u64, nodes: usize, rules: &str, store: impl Fn(&SharedModel, ModelLink, NodeRuntime) -> S) -> Self {
        let sim = Sim::new(seed);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let nodes = (0..nodes).map(|i| {
            let link = ModelLink::new(&sim, &model, i, Nanos::ZERO, Variant::Shipped, &Arc::default());
            let runtime = NodeRuntime::new(&sim, i, SECS(7), DATE);
            let store = store(&model, link, runtime.clone());
            let rules = parse(&[SourceFile { name: "rules.yaml", text: rules }]);
            let policy = Policy::of(rules.expect("valid rules"));
            let secret = Secret::from_bytes(b"0123456789abcdef").expect("a secret");
            let builder = Limiter::builder().policy(policy).secret(secret).clock(SimClock(sim.clone()));
            let limiter = Arc::new(builder.build_on(store).expect("rules are given"));
            PermitTestNode { renewer: PermitRenewer::new(Arc::clone(&limiter), runtime), limiter }
        });
        PermitTestbed { nodes: nodes.collect(), sim, model }
    }

    fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }

    fn set_conditions(&self, conditions: NetworkConditions) {
        self.model.lock().set_conditions(conditions);
    }

    /// Opens one more request at a node, auto-renewed there.
    fn open(&self, node: usize) -> Option<Permit<S, NodeRuntime>> {
        let acquired = self.sim.block_on(self.nodes[node].renewer.acquire(ada()));
        match acquired.expect("a reply") {
            Acquired::Open { permit, .. } => Some(permit),
            Acquired::Full(full) => {
                assert_eq!(full.rule.as_str(), "uploads");
                None
            }
            Acquired::Denied(_) => panic!("denied by a rate"),
        }
    }

    /// Whether one more request is open after `span`; otherwise the acquire is cancelled.
    fn acquires_within(&self, node: usize, span: Nanos) -> bool {
        let mut acquiring = pin!(self.nodes[node].renewer.acquire(ada()));
        let mut waiting = pin!(self.sim.sleep(span));
        self.sim.block_on(poll_fn(|context| match (acquiring.as_mut().poll(context), waiting.as_mut().poll(context)) {
            (Poll::Ready(_), _) => Poll::Ready(true),
            (Poll::Pending, Poll::Ready(())) => Poll::Ready(false),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
        }))
    }

    /// As many more requests as possible, over all nodes in turn.
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

    /// A permit whose holder dies at once and never renews it.
    fn acquire_and_abandon(&self, node: usize) -> Option<Ticket> {
        let limiter = &self.nodes[node].limiter;
        let acquired = self.sim.block_on(limiter.acquire(ada(), Duration::from_secs(10)));
        match acquired.expect("a reply") {
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
fn all_nodes_together_hold_at_most_the_limit_for_any_length_of_time() {
    let setup = PermitTestbed::new(4, 10);
    let permits = setup.fill();
    assert_eq!(permits.len(), 10);
    for _ in 0..60 {
        setup.pass(SECS(1));
        assert!(setup.open(0).is_none(), "at {}", setup.sim.now());
        assert_eq!(lost(&permits), 0);
    }
    drop(permits);
    setup.pass(MS(100));
    assert_eq!(setup.fill().len(), 10, "all were released at once");
}

/// The rates of an acquire had a budget of 25 ms, as those of a check have, next to permits with 250 ms. With
/// slower replies a rule with `on_store_late: deny` denied every acquire.
#[test]
fn the_rates_of_a_permit_wait_for_the_store_as_long_as_the_permit() {
    let rules = "version: 1\nrules:\n  - { name: uploads, by: user, concurrent: 2 }\n  \
                 - { name: paid, by: user, rate: 9/day, on_store_late: deny }\n";
    let setup = PermitTestbed::with_rules(1, 1, rules, &ResilienceSettings::default());
    let limiter = &setup.nodes[0].limiter;
    let round_trip = |millis: u64| {
        setup.set_conditions(NetworkConditions { min_latency: MS(millis / 2), ..NetworkConditions::HEALTHY });
    };
    let source = || {
        let acquired = setup.sim.block_on(limiter.acquire(ada(), Duration::from_secs(10)));
        match acquired.expect("a decision") {
            Acquired::Open { permit, decision, .. } => {
                let released = setup.sim.block_on(limiter.release(&permit));
                released.expect("a reply");
                decision.source()
            }
            Acquired::Denied(decision) => decision.source(),
            Acquired::Full(full) => panic!("nothing else is open: {full:?}"),
        }
    };
    for millis in [10, 40, 60, 120] {
        round_trip(millis);
        assert_eq!(source(), Source::Exact, "{millis} ms");
    }
    let checked = setup.sim.block_on(limiter.check(ada()));
    let checked = checked.expect("a decision");
    assert_eq!(checked.source(), Source::Late, "a check waits no longer");
}

/// How long a call takes, and its result.
fn timed<T>(setup: &PermitTestbed<SharedNodeStore>, call: impl Future<Output = T>) -> (Nanos, T) {
    let began = setup.sim.now();
    let result = setup.sim.block_on(call);
    (setup.sim.now().since(began), result)
}

/// Each permit and the rates waited for the store for a budget of their own: with 16 rules and replies 400 ms late an
/// acquire took 4.3 s instead of 250 ms, and a renewal or a release 6.4 s instead of a second.
#[test]
fn all_store_calls_of_an_acquire_share_one_deadline() {
    for (budget, waits) in [("", MS(250)), (", budget: 100ms", MS(100))] {
        let concurrent = (0..16).map(|i| format!("  - {{ name: uploads-{i}, by: user, concurrent: 10 }}\n"));
        let concurrent: String = concurrent.collect();
        let rules = format!("version: 1\nrules:\n{concurrent}  - {{ name: paid, by: user, rate: 100/day{budget} }}\n");
        let setup = PermitTestbed::with_rules(1, 1, &rules, &ResilienceSettings::default());
        let limiter = &setup.nodes[0].limiter;
        let ticket = setup.acquire_and_abandon(0).expect("room");
        let late = NetworkConditions { min_latency: MS(200), jitter: Nanos::ZERO, ..NetworkConditions::HEALTHY };
        setup.set_conditions(late);
        let (took, acquired) = timed(&setup, limiter.acquire(ada(), Duration::from_secs(60)));
        let Ok(Acquired::Open { decision, .. }) = acquired else {
            panic!("within the share: {acquired:?}");
        };
        assert_eq!((took, decision.source()), (waits, Source::Late));
        let (took, renewed) = timed(&setup, limiter.renew(&ticket));
        assert_eq!((took, renewed.expect("a reply")), (MS(400), true));
        let (took, released) = timed(&setup, limiter.release(&ticket));
        released.expect("a reply");
        assert_eq!(took, MS(400));
    }
}

/// The releases of a denied acquire waited for the store for another second.
#[test]
fn a_denied_acquire_releases_its_permits_within_its_deadline() {
    let rules = "version: 1\nrules:\n  - { name: uploads, by: user, concurrent: 1 }\n  \
                 - { name: paid, by: user, concurrent: 1, on_store_failure: deny }\n";
    let setup = PermitTestbed::with_rules(1, 1, rules, &ResilienceSettings::default());
    setup.set_conditions(NetworkConditions { min_latency: MS(100), ..NetworkConditions::HEALTHY });
    let (took, acquired) = timed(&setup, setup.nodes[0].limiter.acquire(ada(), Duration::from_secs(60)));
    assert!(matches!(acquired, Ok(Acquired::Full(full)) if full.unavailable));
    assert_eq!(took, MS(250));
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(1));
    assert!(setup.acquire_and_abandon(0).is_some(), "both were released in the background");
}

#[test]
fn permits_of_a_dead_holder_are_free_when_they_expire_and_not_before() {
    let setup = PermitTestbed::new(2, 2);
    setup.acquire_and_abandon(0).expect("room");
    let renewed = setup.open(1).expect("room");
    setup.pass(MS(9_900));
    assert!(setup.open(0).is_none());
    setup.pass(MS(200));
    let next = setup.open(0).expect("the permit of the dead holder");
    assert!(setup.open(0).is_none() && !renewed.is_lost() && !next.is_lost());
}

#[test]
fn permits_of_a_dead_node_are_free_when_they_expire() {
    let setup = PermitTestbed::new(2, 4);
    let permits: Vec<_> = (0..4).map(|_| setup.open(0).expect("room")).collect();
    setup.pass(SECS(30));
    assert!(setup.open(1).is_none());
    setup.sim.kill(0);
    setup.pass(SECS(10));
    assert_eq!(setup.fill_node(1).len(), 4);
    drop(permits);
}

/// The store is unavailable for longer than permits last, and has none when it is back. The holders restore
/// them before new ones are granted.
#[test]
fn permits_outlive_an_outage_and_are_not_granted_again_afterwards() {
    let setup = PermitTestbed::new(4, 8);
    let before = setup.fill();
    assert_eq!(before.len(), 8);
    setup.set_conditions(DOWN);
    setup.pass(SECS(30));
    assert_eq!(lost(&before), 0, "held without the store");
    assert_eq!(setup.fill().len(), 0, "each node has more than its share");
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(3));
    assert_eq!(setup.fill().len(), 0);
    assert_eq!(lost(&before), 0);
    drop(before);
    setup.pass(SECS(1));
    assert_eq!(setup.fill().len(), 8);
}

/// Permits that a node granted without the store are in the store afterwards until their release, even if
/// they are released during the outage.
#[test]
fn permits_acquired_without_the_store_are_restored_to_it() {
    let setup = PermitTestbed::new(4, 10);
    setup.set_conditions(DOWN);
    setup.pass(SECS(2));
    let mut permits = setup.fill();
    assert_eq!(permits.len(), 8, "the shares of all nodes");
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(3));
    let more = setup.fill();
    assert_eq!(more.len(), 2, "the rest of the limit");
    setup.set_conditions(DOWN);
    setup.pass(SECS(2));
    permits.truncate(3);
    setup.pass(SECS(1));
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(3));
    assert_eq!(setup.fill().len(), 5, "released during the outage");
    assert_eq!(lost(&permits) + lost(&more), 0);
}

/// A store that lost everything would grant all permits once more.
#[test]
fn a_store_that_lost_its_permits_is_restored_before_it_grants_new_ones() {
    for flushed in [false, true] {
        let setup = PermitTestbed::new(4, 40);
        let permits = setup.fill();
        assert_eq!(permits.len(), 40);
        if flushed {
            setup.model.lock().flush()
        } else {
            setup.model.lock().restart_empty()
        }
        for _ in 0..40 {
            let more = setup.fill();
            assert_eq!(more.len(), 0, "at {}", setup.sim.now());
            setup.pass(MS(100));
        }
        setup.pass(SECS(20));
        assert_eq!((setup.fill().len(), lost(&permits)), (0, 0));
        drop(permits);
        setup.pass(SECS(1));
        assert_eq!(setup.fill().len(), 40);
    }
}

/// What happens to the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StoreIncident {
    /// A replica that has everything takes over.
    FailedOver,
    Flushed,
    RestartedEmpty,
}

/// Jobs, never more than one at a time, acquire a permit at one node and release it at the next. Then the store has an
/// incident. Returns the number of permits that are free 2.5 seconds later, long before the permits of the jobs expire.
fn free_after_incident(incident: StoreIncident, rest: Nanos, paused: Option<usize>) -> usize {
    let setup = PermitTestbed::new(3, 5);
    setup.sim.spawn(None, replicate(setup.sim.clone(), Arc::clone(&setup.model), MS(1)));
    let _in_use = setup.open(0).expect("room");
    for job in 0..40 {
        let ticket = setup.acquire_and_abandon(job % 3).expect("room");
        let releasing = setup.nodes[(job + 1) % 3].limiter.release(&ticket);
        setup.sim.block_on(releasing).expect("a reply");
    }
    setup.pass(rest);
    if let Some(node) = paused {
        setup.sim.pause(node, setup.sim.now().plus(MS(1_500)));
    }
    match incident {
        StoreIncident::FailedOver => drop(setup.model.lock().fail_over()),
        StoreIncident::Flushed => setup.model.lock().flush(),
        StoreIncident::RestartedEmpty => setup.model.lock().restart_empty(),
    }
    setup.pass(MS(2_500));
    setup.fill().len()
}

/// Every node restored all permits that it had granted and that were released at another node meanwhile. Users without
/// any open request were denied until the TTL of these permits was over.
#[test]
fn permits_released_at_another_node_do_not_come_back_after_an_incident() {
    for incident in [StoreIncident::FailedOver, StoreIncident::Flushed, StoreIncident::RestartedEmpty] {
        for rest in [Nanos::ZERO, MS(2_000)] {
            assert_eq!(free_after_incident(incident, rest, None), 4, "{incident:?} after {rest}");
        }
    }
}

/// The other nodes trust the store after a second without the node that granted the permits.
#[test]
fn a_node_that_restores_late_brings_back_no_released_permits() {
    assert_eq!(free_after_incident(StoreIncident::Flushed, Nanos::ZERO, Some(1)), 4);
}

/// The node that had released a permit synced that before the node that had granted it synced the grant: the permit came
/// back until its TTL was over.
#[test]
fn permits_granted_and_released_without_the_store_do_not_come_back_after_it() {
    for seed in 0..8 {
        let setup = PermitTestbed::with_settings(seed, 3, 9, &ResilienceSettings::default());
        setup.set_conditions(DOWN);
        setup.pass(SECS(2));
        for node in 0..3 {
            let ticket = setup.acquire_and_abandon(node).expect("a share");
            let releasing = setup.nodes[(node + 1) % 3].limiter.release(&ticket);
            setup.sim.block_on(releasing).expect("recorded");
        }
        setup.set_conditions(NetworkConditions::HEALTHY);
        setup.pass(SECS(4));
        assert_eq!(setup.fill().len(), 9, "seed {seed}");
    }
}

/// During an outage nodes grant at most their shares, in addition to the permits from before.
#[test]
fn an_outage_adds_at_most_the_shares() {
    let setup = PermitTestbed::new(4, 40);
    let before = setup.fill_node(0);
    assert_eq!(before.len(), 40, "all at one node");
    setup.set_conditions(DOWN);
    setup.pass(SECS(2));
    let during = setup.fill();
    assert_eq!(during.len(), 24, "the shares of the other three");
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(5));
    assert_eq!(setup.fill().len(), 0);
    drop(before);
    setup.pass(SECS(1));
    assert_eq!(setup.fill().len(), 16);
}

/// Without any layer around the store, so that each party's knowledge is certain.
fn bare(max_open: u32) -> PermitTestbed<ModelLink> {
    PermitTestbed::with(1, 2, &uploads(max_open), |_, link, _| link)
}

#[test]
fn a_permit_that_could_not_be_renewed_is_lost_until_one_is_free_again() {
    let setup = bare(1);
    let permit = setup.open(0).expect("room");
    setup.set_conditions(DOWN);
    setup.pass(SECS(9));
    assert!(!permit.is_lost(), "it lasts its whole lifetime");
    setup.pass(SECS(2));
    assert!(permit.is_lost());
    setup.set_conditions(NetworkConditions::HEALTHY);
    let other = setup.open(1).expect("the permit is free");
    setup.pass(SECS(20));
    assert!(permit.is_lost() && !other.is_lost());
    drop(other);
    setup.pass(SECS(10));
    assert!(!permit.is_lost(), "held again");
    assert!(setup.open(1).is_none());
}

/// A live holder is open, and is counted again as soon as a permit is free.
#[test]
fn a_permit_that_an_operator_freed_is_acquired_again_when_one_is_free() {
    let setup = PermitTestbed::new(2, 1);
    let permit = setup.open(0).expect("room");
    setup.pass(SECS(20));
    let freed = setup.nodes[1].limiter.view();
    let freed = setup.sim.block_on(freed.reset(ada())).expect("a reply");
    assert_eq!(freed, 1);
    let other = setup.open(1).expect("the permit is free");
    setup.pass(SECS(4));
    assert!(permit.is_lost() && !other.is_lost());
    drop(other);
    setup.pass(SECS(4));
    assert!(!permit.is_lost());
    assert!(setup.open(0).is_none());
}

#[test]
fn a_reset_without_a_reply_frees_nothing() {
    let setup = PermitTestbed::new(2, 10);
    let limiter = &setup.nodes[0].limiter;
    let before = setup.acquire_and_abandon(0).expect("room");
    setup.set_conditions(DOWN);
    setup.pass(SECS(1));
    let without = setup.acquire_and_abandon(0).expect("a share");
    let freed = setup.sim.block_on(limiter.view().reset(ada()));
    assert!(freed.is_err());
    for ticket in [&before, &without] {
        let held = setup.sim.block_on(limiter.renew(ticket));
        assert!(held.expect("this node knows the permit"));
    }
}

/// A renewal in flight during the release of its permit must not acquire it again; nor must a node that finds
/// that the store has lost it.
#[test]
fn a_released_permit_is_never_acquired_again() {
    let times = (3_200..3_700).step_by(20);
    for (late_ms, is_lost) in times.flat_map(|ms| [(ms, false), (ms, true)]) {
        let setup = bare(1);
        let slow = NetworkConditions { min_latency: MS(50), ..NetworkConditions::HEALTHY };
        let permit = setup.open(0).expect("room");
        if is_lost {
            setup.model.lock().restart_empty();
        }
        setup.set_conditions(slow);
        setup.pass(MS(late_ms));
        drop(permit);
        setup.pass(SECS(1));
        assert!(setup.open(1).is_some(), "dropped after {late_ms} ms");
    }
    let setup = bare(1);
    let ticket = setup.acquire_and_abandon(0).expect("room");
    let limiter = &setup.nodes[1].limiter;
    assert!(setup.sim.block_on(limiter.renew(&ticket)).expect("a reply"));
    setup.sim.block_on(limiter.release(&ticket)).expect("a reply");
    assert!(!setup.sim.block_on(limiter.renew(&ticket)).expect("a reply"));
    assert!(setup.open(0).is_some());
}

/// A store in another region: replies are later than a check waits, and acquires wait for them.
#[test]
fn a_far_store_grants_the_whole_limit() {
    let setup = PermitTestbed::new(2, 10);
    setup.set_conditions(NetworkConditions { min_latency: MS(40), ..NetworkConditions::HEALTHY });
    let permits: Vec<_> = (0..30).filter_map(|i| setup.open(i % 2)).collect();
    assert_eq!(permits.len(), 10);
}

/// A cancelled caller does not know of its permit and could not release it: it stayed taken for its lifetime.
/// Checked here at every moment of the round trip.
#[test]
fn a_cancelled_acquire_leaves_no_permit_taken() {
    let patient = ResilienceSettings { budget: SECS(5), ..ResilienceSettings::default() };
    let slow = NetworkConditions { min_latency: MS(50), ..NetworkConditions::HEALTHY };
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

/// Denials during an outage must not fill the node's table of permits.
#[test]
fn denials_without_the_store_take_no_table_entry() {
    let settings = ResilienceSettings { max_mirrored: 50, ..ResilienceSettings::default() };
    let setup = PermitTestbed::with_settings(1, 1, 10, &settings);
    setup.set_conditions(DOWN);
    setup.pass(SECS(2));
    let mut permits = setup.fill();
    assert_eq!(permits.len(), 8);
    for _ in 0..200 {
        assert!(setup.open(0).is_none());
    }
    permits.truncate(4);
    setup.pass(MS(10));
    assert_eq!(setup.fill().len(), 4);
}

#[test]
fn a_denial_without_the_store_has_the_source_fallback() {
    let setup = PermitTestbed::new(1, 1);
    setup.set_conditions(DOWN);
    setup.pass(SECS(2));
    let _permit = setup.open(0).expect("one node has the one unit");
    let full = setup.sim.block_on(setup.nodes[0].renewer.acquire(ada()));
    let Ok(Acquired::Full(full)) = full else {
        panic!("one is open");
    };
    assert_eq!((full.source, full.unavailable), (Source::Fallback, false));
    assert_eq!((full.open, full.max_permits), (1, 1));
}

/// Random schedules. `cargo test -p tidegate-sim --test permits random` runs all seeds.
#[test]
fn random_schedules_keep_the_bounds_and_free_every_permit() {
    for seed in 0..200 {
        run_random_schedule(seed);
    }
}

/// Callers come and go on four nodes while the store is unavailable, hangs, loses replies or everything.
/// Invariants: at most the limit plus the shares are open; after a while without a fault, no permit is
/// granted over the limit; at the end the whole limit is free.
fn run_random_schedule(seed: u64) {
    const MAX_OPEN: usize = 20;
    let setup = PermitTestbed::with_settings(seed, 4, MAX_OPEN as u32, &ResilienceSettings::default());
    let mut random = Rng::new(seed);
    let mut permits = Vec::new();
    let mut trouble = setup.sim.now();
    for _ in 0..150 {
        match random.below(10) {
            0 => {
                let hung = NetworkConditions { hung: true, ..NetworkConditions::HEALTHY };
                let lossy = NetworkConditions { replies_lost: 200, ..NetworkConditions::HEALTHY };
                setup.set_conditions(random.pick(&[DOWN, hung, lossy]));
                setup.pass(MS(random.below(15_000)));
            }
            1 => setup.set_conditions(NetworkConditions::HEALTHY),
            2 if setup.model.lock().conditions == NetworkConditions::HEALTHY => {
                setup.model.lock().restart_empty();
                trouble = setup.sim.now();
                setup.pass(SECS(2));
            }
            3..6 if !permits.is_empty() => {
                let at = random.below(permits.len() as u64) as usize;
                drop(permits.swap_remove(at));
            }
            _ => {
                let well = setup.sim.now().since(trouble) > SECS(8) && permits.len() >= MAX_OPEN;
                let more = setup.open(random.below(4) as usize);
                assert!(!(well && more.is_some()), "seed {seed}: over the limit");
                permits.extend(more);
            }
        }
        if setup.model.lock().conditions != NetworkConditions::HEALTHY {
            trouble = setup.sim.now();
        }
        let open = permits.len() - lost(&permits);
        assert!(open <= MAX_OPEN * 18 / 10, "seed {seed}: {open} are open");
        setup.pass(MS(random.below(500)));
    }
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(SECS(8));
    let (held, lost_count) = (permits.len(), lost(&permits));
    assert_eq!(lost_count, 0, "seed {seed}: lost although their nodes live");
    assert_eq!(setup.fill().len(), MAX_OPEN.saturating_sub(held), "seed {seed}");
    permits.clear();
    setup.pass(SECS(2));
    assert_eq!(setup.fill().len(), MAX_OPEN, "seed {seed}");
    setup.sim.clear();
}
