//! Single layers of the resilience stack, each in the situation for which it exists.

use std::borrow::Cow;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate::clock::ManualClock;
use tidegate::http::{BodyStyle, ResetStyle, ResponseContext, response};
use tidegate::resilience::{ResilienceSettings, Resilient, StoreEvent, resilient};
use tidegate::rules::{SourceFile, parse};
use tidegate::{DecisionKind, Limiter, Policy, Request, Secret};
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{
    Charge, ChargeSet, Counters, Durability, FailureCause, FailureKind, OnStoreFailure, OnStoreLate, Outcome, Refund,
    Refunded, Role, RuleOptions, Source, Store,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{DecideMode, Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const MS: fn(u64) -> Nanos = Nanos::from_millis;

/// One node, its store, and a counter.
struct LayerTestbed {
    sim: Sim,
    model: SharedModel,
    store: Resilient<ModelShards, NodeRuntime>,
    charges_sent: Arc<Mutex<Vec<tidegate_sim::model::LinkCharge>>>,
    events: Arc<Mutex<Vec<StoreEvent>>>,
    rule: RuleName,
    limit: Limit,
    options: RuleOptions,
}

fn limit(algorithm: Algorithm, count: u64, window: Nanos) -> Limit {
    let spec = Spec::new(algorithm, count, window);
    Limit::compile(&spec, Precision::Memory).expect("a valid rate")
}

impl LayerTestbed {
    fn new(options: RuleOptions, settings: ResilienceSettings) -> Self {
        let sim = Sim::new(1);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let (charges_sent, events) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
        let link = ModelLink::new(&sim, &model, 0, Nanos::ZERO, Variant::Shipped, &charges_sent);
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        let recorded = Arc::clone(&events);
        let watcher = Arc::new(move |event| {
            // `Unconfirmed` is reported for each call, the other events once for each change.
            if !matches!(event, StoreEvent::Unconfirmed { .. }) {
                recorded.lock().push(event);
            }
        });
        let cluster = Arc::new(ModelCluster::new([Arc::clone(&model)]));
        let shards = ModelShards::new(&cluster, link);
        let store = resilient(shards, runtime, settings, watcher);
        sim.run_until(MS(1_500)); // until the membership is complete
        LayerTestbed {
            sim,
            model,
            store,
            charges_sent,
            events,
            rule: RuleName::new("layers"),
            limit: limit(Algorithm::FixedWindow, 10, Nanos::from_secs(3_600)),
            options,
        }
    }

    fn set(&self, cost: u64) -> ChargeSet<'_> {
        let charge = Charge {
            subject: Fingerprint::new(42),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::new(cost).expect("a positive cost"),
            role: Role::Enforce,
            options: &self.options,
        };
        ChargeSet::of([charge])
    }

    fn charge(&self, cost: u64) -> Outcome {
        let set = self.set(cost);
        let outcome = self.sim.block_on(self.store.charge(&set));
        outcome.expect("decisions do not fail")
    }

    fn used_units(&self) -> u64 {
        let counter = self.set(1).charges[0].counter();
        let mut model = self.model.lock();
        let now = model.time(self.sim.now());
        model.counters.used(counter, &self.limit, now)
    }

    fn set_conditions(&self, conditions: NetworkConditions) {
        self.model.lock().set_conditions(conditions);
    }

    fn pass(&self, span: Nanos) {
        self.sim.run_until(self.sim.now().plus(span));
    }
}

fn slow(millis: u64) -> NetworkConditions {
    NetworkConditions { min_latency: MS(millis), ..NetworkConditions::HEALTHY }
}

/// The node decides at its deadline, and the late reply confirms the admission: nothing is refunded and
/// nothing charged again.
#[test]
fn a_late_reply_confirms_the_admission() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.set_conditions(slow(20));
    let before = setup.sim.now();
    let outcome = setup.charge(1);
    assert_eq!(setup.sim.now().since(before), MS(25));
    assert!(outcome.admitted && outcome.source == Source::Late);
    for _ in 0..10 {
        assert_eq!(setup.used_units(), 1);
        setup.pass(MS(40));
    }
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(MS(100));
    assert_eq!(setup.charge(1).source, Source::Exact);
    assert_eq!(setup.used_units(), 2);
}

/// A store that is always late is still called, and its limit is used up exactly: a charge for a request that
/// was denied meanwhile pays for the next request.
#[test]
fn a_store_that_is_always_late_still_admits_its_limit() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.events.lock().clear();
    setup.set_conditions(slow(20));
    let outcomes = (0..40).map(|_| setup.charge(1));
    let outcomes: Vec<Outcome> = outcomes.collect();
    let admitted = outcomes.iter().filter(|o| o.admitted).count();
    assert_eq!(admitted, 10, "{outcomes:?}");
    assert_eq!(*setup.events.lock(), [], "lateness opens no breaker");
    setup.pass(Nanos::from_secs(1));
    assert_eq!(setup.used_units(), 10);
}

/// For money: nothing is admitted on an old state, and the units that the store charged pay.
#[test]
fn a_rule_that_denies_late_requests_admits_what_the_store_charged() {
    let options = RuleOptions { on_late: OnStoreLate::Deny, ..RuleOptions::DEFAULT };
    let setup = LayerTestbed::new(options, ResilienceSettings::default());
    setup.set_conditions(slow(20));
    let first = setup.charge(1);
    assert!(!first.admitted && first.source == Source::Late);
    setup.pass(MS(20));
    let second = setup.charge(1);
    assert!(second.admitted && second.source == Source::Late);
    setup.pass(MS(300));
    assert_eq!(setup.used_units(), 1, "the second charge was refunded");
}

/// The late reply to a write-back was ignored, and the pending units were charged over and over.
#[test]
fn a_write_back_with_a_late_reply_is_charged_once() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    assert_eq!(setup.charge(1).source, Source::Fallback);
    setup.set_conditions(slow(20));
    setup.pass(MS(900));
    assert_eq!(setup.used_units(), 1);
}

/// Silence is an outage: the breaker opens after a second and closes with the first reply.
#[test]
fn silence_opens_the_breaker_and_any_reply_closes_it() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.events.lock().clear();
    setup.set_conditions(NetworkConditions { hung: true, ..NetworkConditions::HEALTHY });
    setup.pass(MS(900));
    assert_eq!(setup.charge(1).source, Source::Late);
    setup.pass(MS(900));
    let opened = |event: &StoreEvent| match event {
        StoreEvent::BreakerOpened { cause } => cause.kind == FailureKind::Silent,
        _ => false,
    };
    assert!(setup.events.lock().iter().all(opened));
    assert_eq!(setup.charge(1).source, Source::Fallback);
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(MS(50));
    assert!(setup.events.lock().contains(&StoreEvent::BreakerClosed));
    setup.pass(MS(500));
    assert_eq!(setup.used_units(), 2);
    assert_eq!(setup.charge(1).source, Source::Exact);
}

/// The budget of the rule itself counts.
#[test]
fn a_rule_may_wait_longer() {
    let options = RuleOptions { budget: Some(MS(50)), ..RuleOptions::DEFAULT };
    let setup = LayerTestbed::new(options, ResilienceSettings::default());
    setup.set_conditions(slow(20));
    assert_eq!(setup.charge(1).source, Source::Exact);
}

/// A charge set gets one reply. Next to a durable rule, a rule without a budget of its own waits as long; a
/// rule with a budget does not.
#[test]
fn a_charge_set_waits_as_long_as_its_durable_rule_allows() {
    let waits = |durability, other: Option<Nanos>| {
        let setup = LayerTestbed::new(
            RuleOptions { budget: Some(MS(50)), durability, ..RuleOptions::DEFAULT },
            ResilienceSettings::default(),
        );
        setup.set_conditions(slow(20));
        let other = RuleOptions { budget: other, ..RuleOptions::DEFAULT };
        let mut set = setup.set(1);
        let beside = Charge { subject: Fingerprint::new(7), options: &other, ..set.charges[0].clone() };
        set.charges.push(beside);
        let outcome = setup.sim.block_on(setup.store.charge(&set));
        outcome.expect("decisions do not fail").source
    };
    assert_eq!(waits(Durability::Replica, None), Source::Exact);
    assert_eq!(waits(Durability::None, None), Source::Late);
    assert_eq!(waits(Durability::Replica, Some(MS(30))), Source::Late);
}

#[test]
fn requests_beyond_the_bulkhead_are_decided_at_once() {
    let settings = ResilienceSettings { max_in_flight: 2, ..ResilienceSettings::default() };
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, settings);
    setup.set_conditions(NetworkConditions { hung: true, ..NetworkConditions::HEALTHY });
    let set = setup.set(1);
    let (first, second) = (setup.store.charge(&set), setup.store.charge(&set));
    let third = async {
        let began = setup.sim.now();
        let outcome = setup.store.charge(&set).await.expect("a decision");
        assert_eq!(outcome.source, Source::Late);
        setup.sim.now().since(began)
    };
    let waited = setup.sim.block_on(async {
        let mut first = std::pin::pin!(first);
        let mut second = std::pin::pin!(second);
        std::future::poll_fn(|context| {
            let in_flight = first.as_mut().poll(context).is_pending();
            assert!(in_flight && second.as_mut().poll(context).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        third.await
    });
    assert_eq!(waited, Nanos::ZERO);
}

#[test]
fn without_the_store_a_rule_with_deny_denies_and_one_with_allow_has_its_whole_limit() {
    for (on_failure, admitted) in [(OnStoreFailure::Deny, 0), (OnStoreFailure::Local, 8), (OnStoreFailure::Allow, 10)] {
        let options = RuleOptions { on_failure, ..RuleOptions::DEFAULT };
        let setup = LayerTestbed::new(options, ResilienceSettings::default());
        setup.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
        let outcomes: Vec<Outcome> = (0..20).map(|_| setup.charge(1)).collect();
        let passed = outcomes.iter().filter(|outcome| outcome.admitted).count();
        assert_eq!(passed, admitted, "{on_failure:?}");
        let local = outcomes.iter().all(|outcome| outcome.source == Source::Fallback);
        assert!(local, "{on_failure:?}");
    }
}

/// The client did nothing wrong, and the response shows that.
#[test]
fn a_rule_that_denies_without_its_store_responds_with_503() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    let text = "version: 1\nrules:\n  - { name: login, by: user, rate: 5/minute, \
                on_store_failure: deny }\n";
    let rules = parse(&[SourceFile { name: "layers.yaml", text }]);
    let policy = Policy::of(rules.expect("valid rules"));
    let secret = Secret::from_bytes(&[7; 16]).expect("a secret");
    let builder = Limiter::builder().policy(policy).secret(secret).clock(ManualClock::at(DATE));
    let limiter = builder.build_on(setup.store).expect("rules are given");
    let request = Request::default().with("user", "ada");
    let decision = setup.sim.block_on(limiter.check(request));
    let decision = decision.expect("decisions do not fail");
    assert_eq!(decision.kind(), DecisionKind::Unavailable);
    let context = ResponseContext {
        id: "1",
        wall: DATE,
        reset: ResetStyle::Epoch,
        body: BodyStyle::Problem,
        receipt: None,
        reservation: None,
    };
    let response = response(&decision, &context);
    assert_eq!(response.status.as_u16(), 503);
    let body = String::from_utf8_lossy(&response.body).into_owned();
    assert!(body.contains("#temporary-reduced-capacity"), "{body}");
}

#[test]
fn the_breaker_reports_each_change_once_and_sends_no_request_while_open() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.events.lock().clear();
    setup.set_conditions(NetworkConditions { down: true, ..NetworkConditions::HEALTHY });
    for _ in 0..9 {
        setup.charge(1);
    }
    // The first request is admitted and keeps the counter local: only that one was sent.
    assert_eq!(setup.charges_sent.lock().len(), 1);
    setup.pass(Nanos::from_secs(3));
    let cause = FailureCause::new(FailureKind::Other, "connection refused");
    let opened = StoreEvent::BreakerOpened { cause };
    assert_eq!(*setup.events.lock(), std::slice::from_ref(&opened));
    setup.set_conditions(NetworkConditions::HEALTHY);
    setup.pass(Nanos::from_secs(1));
    let events = setup.events.lock().clone();
    let written_back = StoreEvent::WrittenBack { counters: 1, units: 8 };
    assert_eq!(events, [opened, StoreEvent::BreakerClosed, written_back]);
    assert_eq!(setup.used_units(), 8);
}

#[test]
fn a_batch_gets_all_replies_with_and_without_the_store() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    let sets = [4, 9, 4].map(|cost| setup.set(cost));
    let decide = || {
        let results = setup.sim.block_on(setup.store.charge_each(&sets.each_ref()));
        let outcomes = results.into_iter().map(|result| result.expect("a decision"));
        outcomes.map(|o| (o.admitted, o.source)).collect::<Vec<_>>()
    };
    let exact = [true, false, true].map(|admitted| (admitted, Source::Exact));
    assert_eq!(decide(), exact);
    setup.set_conditions(NetworkConditions { hung: true, ..NetworkConditions::HEALTHY });
    let began = setup.sim.now();
    // Two of ten are left, too few to admit on an old state; the denial is cached.
    let late = (false, Source::Late);
    assert_eq!(decide(), [late, (false, Source::DenyCache), late]);
    assert_eq!(setup.sim.now().since(began), MS(25));
}

#[test]
fn a_store_that_lost_its_counts_is_restored_by_this_node() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    assert!(setup.charge(7).admitted);
    setup.model.lock().flush();
    let after = setup.charge(1);
    assert_eq!(after.source, Source::Fallback, "the store is not trusted");
    setup.pass(MS(300));
    assert!(setup.events.lock().contains(&StoreEvent::CountsLost));
    assert!(setup.used_units() >= 7, "{}", setup.used_units());
    assert_eq!(setup.charge(1).source, Source::Exact);
}

/// Another node was the first to reach the emptied store, so there is a record again, with a smaller count.
/// The units it admits until the loss is detected were in no node's mirror, and were lost when states were
/// merged by maximum.
#[test]
fn admissions_of_an_emptied_store_before_the_loss_is_detected_are_charged() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.model.lock().reports_epoch = false;
    assert!(setup.charge(5).admitted);
    {
        let mut model = setup.model.lock();
        model.flush();
        let now = model.time(setup.sim.now());
        let others = setup.set(1);
        assert!(model.counters.decide(&others, DecideMode::Charge, now).admitted);
    }
    assert_eq!(setup.charge(1).source, Source::Exact);
    setup.pass(MS(300));
    assert!(setup.events.lock().contains(&StoreEvent::CountsLost));
    assert_eq!(setup.used_units(), 6);
}

/// The same with a store that has a smaller count because of a refund: then nothing is pending.
#[test]
fn an_admission_after_a_refund_is_charged_once() {
    let setup = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    setup.model.lock().reports_epoch = false;
    assert!(setup.charge(5).admitted);
    {
        let mut model = setup.model.lock();
        let now = model.time(setup.sim.now());
        let refund = Refund { id: 1, charged_at: now, expires_at: now.plus(Nanos::from_secs(60)), set: setup.set(4) };
        assert_eq!(model.counters.refund(&refund, now), Refunded::Done);
    }
    assert_eq!(setup.charge(1).source, Source::Exact);
    setup.pass(MS(300));
    assert_eq!(setup.charge(1).source, Source::Exact);
    assert_eq!(setup.used_units(), 3);
}
