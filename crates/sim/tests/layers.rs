//! Single layers, each brought into the situation it is for.

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
    Charge, ChargeSet, Durability, FailureCause, FailureKind, OnStoreFailure, OnStoreLate, Outcome,
    Refund, Refunded, Role, RuleOptions, Source, Store,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};
use tidegate_sim::Variant;
use tidegate_sim::executor::{NodeRuntime, Sim};
use tidegate_sim::model::{
    DecideMode, Model, ModelCluster, ModelLink, ModelShards, NetworkConditions, SharedModel,
};

const DATE: Nanos = Nanos::from_secs(1_700_000_000);
const MS: fn(u64) -> Nanos = Nanos::from_millis;

/// One node, its store, and a counter.
struct LayerTestbed {
    sim: Sim,
    model: SharedModel,
    store: Resilient<ModelShards, NodeRuntime>,
    charges_sent: Arc<Mutex<Vec<tidegate_sim::model::SentCharge>>>,
    events: Arc<Mutex<Vec<StoreEvent>>>,
    rule: RuleName,
    limit: Limit,
    options: RuleOptions,
}

fn limit(algorithm: Algorithm, count: u64, window: Nanos) -> Limit {
    let spec = Spec::new(algorithm, count, window);
    Limit::compile(&spec, Precision::Memory).expect("a fit rate")
}

impl LayerTestbed {
    fn new(options: RuleOptions, settings: ResilienceSettings) -> Self {
        let sim = Sim::new(1);
        let model = Arc::new(Mutex::new(Model::new(DATE)));
        let (charges_sent, events) = (Arc::default(), Arc::new(Mutex::new(Vec::new())));
        let link = ModelLink::new(
            &sim,
            &model,
            0,
            Nanos::ZERO,
            Variant::Shipped,
            &charges_sent,
        );
        let runtime = NodeRuntime::new(&sim, 0, Nanos::from_secs(7), DATE);
        let recorded = Arc::clone(&events);
        let watcher = Arc::new(move |event| {
            // It comes for each call, and the others once for each change.
            if !matches!(event, StoreEvent::Unconfirmed { .. }) {
                recorded.lock().push(event);
            }
        });
        let cluster = Arc::new(ModelCluster::new([Arc::clone(&model)]));
        let shards = ModelShards::new(&cluster, link);
        let store = resilient(shards, runtime, settings, watcher);
        sim.run_until(MS(1_500)); // until the list of nodes is known to be complete
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
            cost: Cost::new(cost).expect("a cost"),
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
    NetworkConditions {
        min_latency: MS(millis),
        ..NetworkConditions::HEALTHY
    }
}

/// The node answers at its deadline, and the late reply confirms what it admitted: nothing is given back and
/// nothing charged again.
#[test]
fn a_late_reply_confirms_what_was_admitted() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.set_conditions(slow(20));
    let before = bench.sim.now();
    let outcome = bench.charge(1);
    assert_eq!(bench.sim.now().since(before), MS(25));
    assert!(outcome.admitted && outcome.source == Source::Late);
    for _ in 0..10 {
        assert_eq!(bench.used_units(), 1);
        bench.pass(MS(40));
    }
    bench.set_conditions(NetworkConditions::HEALTHY);
    bench.pass(MS(100));
    assert_eq!(bench.charge(1).source, Source::Exact);
    assert_eq!(bench.used_units(), 2);
}

/// A store that is always late is called all the same, and its limit is used up exactly: what it charges for a
/// request that was denied meanwhile pays for the next one.
#[test]
fn a_store_that_is_always_late_admits_its_limit() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.events.lock().clear();
    bench.set_conditions(slow(20));
    let outcomes = (0..40).map(|_| bench.charge(1));
    let outcomes: Vec<Outcome> = outcomes.collect();
    let admitted = outcomes.iter().filter(|o| o.admitted).count();
    assert_eq!(admitted, 10, "{outcomes:?}");
    assert_eq!(*bench.events.lock(), [], "lateness opens no breaker");
    bench.pass(Nanos::from_secs(1));
    assert_eq!(bench.used_units(), 10);
}

/// For money: nothing is admitted on old news, and what the store charged pays.
#[test]
fn a_rule_that_denies_late_requests_admits_what_the_store_charged() {
    let options = RuleOptions {
        on_late: OnStoreLate::Deny,
        ..RuleOptions::DEFAULT
    };
    let bench = LayerTestbed::new(options, ResilienceSettings::default());
    bench.set_conditions(slow(20));
    let first = bench.charge(1);
    assert!(!first.admitted && first.source == Source::Late);
    bench.pass(MS(20));
    let second = bench.charge(1);
    assert!(second.admitted && second.source == Source::Late);
    bench.pass(MS(300));
    assert_eq!(bench.used_units(), 1, "the second charge was refunded");
}

/// The late reply to a debt was taken for none, and the debt charged over and over.
#[test]
fn a_debt_that_is_answered_late_is_charged_once() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.set_conditions(NetworkConditions {
        down: true,
        ..NetworkConditions::HEALTHY
    });
    assert_eq!(bench.charge(1).source, Source::Fallback);
    bench.set_conditions(slow(20));
    bench.pass(MS(900));
    assert_eq!(bench.used_units(), 1);
}

/// Silence is an outage: the breaker opens after a second and closes with the first reply.
#[test]
fn silence_opens_the_breaker_and_any_reply_closes_it() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.events.lock().clear();
    bench.set_conditions(NetworkConditions {
        hung: true,
        ..NetworkConditions::HEALTHY
    });
    bench.pass(MS(900));
    assert_eq!(bench.charge(1).source, Source::Late);
    bench.pass(MS(900));
    let opened = |event: &StoreEvent| match event {
        StoreEvent::BreakerOpened { cause } => cause.kind == FailureKind::Silent,
        _ => false,
    };
    assert!(bench.events.lock().iter().all(opened));
    assert_eq!(bench.charge(1).source, Source::Fallback);
    bench.set_conditions(NetworkConditions::HEALTHY);
    bench.pass(MS(50));
    assert!(bench.events.lock().contains(&StoreEvent::BreakerClosed));
    bench.pass(MS(500));
    assert_eq!(bench.used_units(), 2);
    assert_eq!(bench.charge(1).source, Source::Exact);
}

/// A rule's own budget is the one that counts.
#[test]
fn a_rule_may_wait_longer() {
    let options = RuleOptions {
        budget: Some(MS(50)),
        ..RuleOptions::DEFAULT
    };
    let bench = LayerTestbed::new(options, ResilienceSettings::default());
    bench.set_conditions(slow(20));
    assert_eq!(bench.charge(1).source, Source::Exact);
}

/// A set is answered as a whole: beside a durable rule one that does not say waits with it, but one that
/// says so does not.
#[test]
fn a_set_waits_as_long_as_its_durable_rule_may() {
    let waits = |durability, other: Option<Nanos>| {
        let bench = LayerTestbed::new(
            RuleOptions {
                budget: Some(MS(50)),
                durability,
                ..RuleOptions::DEFAULT
            },
            ResilienceSettings::default(),
        );
        bench.set_conditions(slow(20));
        let other = RuleOptions {
            budget: other,
            ..RuleOptions::DEFAULT
        };
        let mut set = bench.set(1);
        let beside = Charge {
            subject: Fingerprint::new(7),
            options: &other,
            ..set.charges[0].clone()
        };
        set.charges.push(beside);
        let outcome = bench.sim.block_on(bench.store.charge(&set));
        outcome.expect("decisions do not fail").source
    };
    assert_eq!(waits(Durability::Replica, None), Source::Exact);
    assert_eq!(waits(Durability::None, None), Source::Late);
    assert_eq!(waits(Durability::Replica, Some(MS(30))), Source::Late);
}

#[test]
fn what_is_beyond_the_bulkhead_is_decided_at_once() {
    let settings = ResilienceSettings {
        max_in_flight: 2,
        ..ResilienceSettings::default()
    };
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, settings);
    bench.set_conditions(NetworkConditions {
        hung: true,
        ..NetworkConditions::HEALTHY
    });
    let set = bench.set(1);
    let (first, second) = (bench.store.charge(&set), bench.store.charge(&set));
    let third = async {
        let began = bench.sim.now();
        let outcome = bench.store.charge(&set).await.expect("a decision");
        assert_eq!(outcome.source, Source::Late);
        bench.sim.now().since(began)
    };
    let waited = bench.sim.block_on(async {
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
fn a_rule_that_refuses_without_its_store_does_and_one_that_allows_has_all_of_its_limit() {
    for (on_failure, admitted) in [
        (OnStoreFailure::Deny, 0),
        (OnStoreFailure::Local, 8),
        (OnStoreFailure::Allow, 10),
    ] {
        let options = RuleOptions {
            on_failure,
            ..RuleOptions::DEFAULT
        };
        let bench = LayerTestbed::new(options, ResilienceSettings::default());
        bench.set_conditions(NetworkConditions {
            down: true,
            ..NetworkConditions::HEALTHY
        });
        let outcomes: Vec<Outcome> = (0..20).map(|_| bench.charge(1)).collect();
        let passed = outcomes.iter().filter(|outcome| outcome.admitted).count();
        assert_eq!(passed, admitted, "{on_failure:?}");
        let local = outcomes
            .iter()
            .all(|outcome| outcome.source == Source::Fallback);
        assert!(local, "{on_failure:?}");
    }
}

/// The client did nothing wrong and is told so.
#[test]
fn a_rule_that_refuses_without_its_store_says_503_on_the_wire() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.set_conditions(NetworkConditions {
        down: true,
        ..NetworkConditions::HEALTHY
    });
    let text = "version: 1\nrules:\n  - { name: login, by: user, rate: 5/minute, \
                on_store_failure: deny }\n";
    let rules = parse(&[SourceFile {
        name: "layers.yaml",
        text,
    }]);
    let policy = Policy::of(rules.expect("good rules"));
    let secret = Secret::from_bytes(&[7; 16]).expect("a secret");
    let limiter = Limiter::new(bench.store, policy, secret, Arc::new(ManualClock::at(DATE)));
    let request = Request::default().with("user", "ada");
    let decision = bench.sim.block_on(limiter.check(request));
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
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.events.lock().clear();
    bench.set_conditions(NetworkConditions {
        down: true,
        ..NetworkConditions::HEALTHY
    });
    for _ in 0..9 {
        bench.charge(1);
    }
    // The first is admitted and keeps the counter local: only it was sent.
    assert_eq!(bench.charges_sent.lock().len(), 1);
    bench.pass(Nanos::from_secs(3));
    let cause = FailureCause::new(FailureKind::Other, "connection refused");
    let opened = StoreEvent::BreakerOpened { cause };
    assert_eq!(*bench.events.lock(), std::slice::from_ref(&opened));
    bench.set_conditions(NetworkConditions::HEALTHY);
    bench.pass(Nanos::from_secs(1));
    let events = bench.events.lock().clone();
    let pushed = StoreEvent::WrittenBack {
        counters: 1,
        units: 8,
    };
    assert_eq!(events, [opened, StoreEvent::BreakerClosed, pushed]);
    assert_eq!(bench.used_units(), 8);
}

#[test]
fn a_batch_is_answered_as_a_whole_with_and_without_the_store() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    let sets = [4, 9, 4].map(|cost| bench.set(cost));
    let decide = || {
        let results = bench
            .sim
            .block_on(bench.store.charge_each(&sets.each_ref()));
        let outcomes = results
            .into_iter()
            .map(|result| result.expect("a decision"));
        outcomes.map(|o| (o.admitted, o.source)).collect::<Vec<_>>()
    };
    let exact = [true, false, true].map(|admitted| (admitted, Source::Exact));
    assert_eq!(decide(), exact);
    bench.set_conditions(NetworkConditions {
        hung: true,
        ..NetworkConditions::HEALTHY
    });
    let began = bench.sim.now();
    // Two of ten are left, too few to admit on old news; what was denied is remembered.
    let late = (false, Source::Late);
    assert_eq!(decide(), [late, (false, Source::DenyCache), late]);
    assert_eq!(bench.sim.now().since(began), MS(25));
}

#[test]
fn a_store_that_forgot_is_given_back_what_this_node_remembers() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    assert!(bench.charge(7).admitted);
    bench.model.lock().flush();
    let after = bench.charge(1);
    assert_eq!(after.source, Source::Fallback, "it is not believed");
    bench.pass(MS(300));
    assert!(bench.events.lock().contains(&StoreEvent::CountsLost));
    assert!(bench.used_units() >= 7, "{}", bench.used_units());
    assert_eq!(bench.charge(1).source, Source::Exact);
}

/// Another node was the first to meet the emptied store, so there is a record again, only of less. What it
/// admits until the loss is known was in nobody's memory, and lost when memories were merged by maximum.
#[test]
fn what_an_emptied_store_admits_before_that_is_known_is_charged_too() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.model.lock().reports_epoch = false;
    assert!(bench.charge(5).admitted);
    {
        let mut model = bench.model.lock();
        model.flush();
        let now = model.time(bench.sim.now());
        let others = bench.set(1);
        assert!(
            model
                .counters
                .decide(&others, DecideMode::Charge, now)
                .admitted
        );
    }
    assert_eq!(bench.charge(1).source, Source::Exact);
    bench.pass(MS(300));
    assert!(bench.events.lock().contains(&StoreEvent::CountsLost));
    assert_eq!(bench.used_units(), 6);
}

/// The same with a store that holds less because something was given back: then nothing is owed.
#[test]
fn what_a_store_admits_after_a_refund_is_charged_once() {
    let bench = LayerTestbed::new(RuleOptions::DEFAULT, ResilienceSettings::default());
    bench.model.lock().reports_epoch = false;
    assert!(bench.charge(5).admitted);
    {
        let mut model = bench.model.lock();
        let now = model.time(bench.sim.now());
        let refund = Refund {
            id: 1,
            charged_at: now,
            expires_at: now.plus(Nanos::from_secs(60)),
            set: bench.set(4),
        };
        assert_eq!(model.counters.refund(&refund, now), Refunded::Done);
    }
    assert_eq!(bench.charge(1).source, Source::Exact);
    bench.pass(MS(300));
    assert_eq!(bench.charge(1).source, Source::Exact);
    assert_eq!(bench.used_units(), 3);
}
