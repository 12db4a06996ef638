//! Keys under limits that the caller supplies, on a manual clock, as `CL.THROTTLE` uses them.

mod common;

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use common::{START, rules};
use tidegate::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate::clock::ManualClock;
use tidegate::observe::{MemoryFacts, Metrics, StoreFacts};
use tidegate::request::Edge;
use tidegate::store::{SingleOutcome, SingleOutcomes};
use tidegate::stores::memory::MemoryStore;
use tidegate::units::{Cost, Nanos};
use tidegate::{KeyAction, KeyCharge, KeyFamily, Limiter, LimiterBuilder, Retry, Verdict};

struct KeyedFixture {
    limiter: Limiter<MemoryStore<ManualClock>>,
    clock: ManualClock,
    metrics: Arc<Metrics>,
    family: KeyFamily,
}

fn bucket(capacity: u64, count: u64, period_secs: u64) -> Limit {
    let period = Nanos::from_secs(period_secs);
    let spec = Spec::new(Algorithm::TokenBucket, count, period).burst(capacity);
    Limit::compile(&spec, Precision::Memory).expect("exact")
}

impl KeyedFixture {
    fn new() -> Self {
        KeyedFixture::of(|builder| builder)
    }

    fn of(changed: impl Fn(LimiterBuilder<ManualClock>) -> LimiterBuilder<ManualClock>) -> Self {
        let clock = ManualClock::at(START);
        let metrics = Arc::new(Metrics::default());
        let builder = Limiter::builder().yaml("version: 1\nrules: []\n").clock(clock.clone());
        KeyedFixture {
            limiter: changed(builder).observer(Arc::clone(&metrics) as _).build().expect("valid rules"),
            clock,
            metrics,
            family: KeyFamily::new("cl.throttle"),
        }
    }

    fn at(&self, millis: u64) {
        self.clock.set(START.plus(Nanos::from_millis(millis)));
    }

    fn each(&self, calls: &[KeyCharge<'_>]) -> Vec<SingleOutcome> {
        let mut results = SingleOutcomes::new();
        let charging = self.limiter.charge_keys(Edge::Resp, calls, &mut results);
        let polled = now_or_never(charging);
        assert_eq!(polled, Poll::Ready(()), "memory never waits");
        results.into_iter().map(Result::unwrap).collect()
    }

    fn keyed<'a>(&'a self, key: &'a str, limit: &'a Limit, quantity: u64) -> KeyCharge<'a> {
        KeyCharge {
            family: &self.family,
            key: key.as_bytes(),
            limit,
            action: Cost::new(quantity).map_or(KeyAction::Peek, KeyAction::Charge),
        }
    }

    fn one(&self, limit: &Limit, quantity: u64) -> SingleOutcome {
        self.each(&[self.keyed("k", limit, quantity)])[0]
    }

    /// The number of single requests of `tries` that pass now.
    fn admitted(&self, limit: &Limit, tries: usize) -> usize {
        (0..tries).filter(|_| self.one(limit, 1).admitted).count()
    }

    fn metric(&self, labels: &str) -> bool {
        let page = (self.metrics).expose("0", &StoreFacts::Memory(MemoryFacts::default()));
        page.contains(labels)
    }
}

fn now_or_never<T>(work: impl Future<Output = T>) -> Poll<T> {
    pin!(work).poll(&mut Context::from_waker(Waker::noop()))
}

fn figures(result: &SingleOutcome) -> (bool, u64, u64) {
    let figures = result.reading.figures;
    let reset_ms = figures.reset_after.millis_up();
    (result.admitted, figures.remaining, reset_ms)
}

/// The table of redis-cell's own tests: one a second, limit 5.
#[test]
fn the_published_steps_of_redis_cell_are_reproduced() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(5, 1, 1));
    let steps: [(u64, u64, (bool, u64, u64)); 14] = [
        (0, 6, (false, 5, 0)),
        (0, 1, (true, 4, 1_000)),
        (0, 1, (true, 3, 2_000)),
        (0, 1, (true, 2, 3_000)),
        (0, 1, (true, 1, 4_000)),
        (0, 1, (true, 0, 5_000)),
        (0, 1, (false, 0, 5_000)),
        (3_000, 1, (true, 2, 3_000)),
        (3_100, 1, (true, 1, 3_900)),
        (8_000, 1, (true, 4, 1_000)),
        (9_500, 1, (true, 4, 1_000)),
        (9_500, 0, (true, 4, 1_000)),
        (9_500, 2, (true, 2, 3_000)),
        (9_500, 5, (false, 2, 3_000)),
    ];
    for (millis, quantity, want) in steps {
        fixture.at(millis);
        let result = fixture.one(&limit, quantity);
        assert_eq!(figures(&result), want, "{quantity} at {millis} ms");
    }
}

#[test]
fn a_cost_that_can_never_fit_is_distinguished_from_one_that_must_wait() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(5, 1, 1));
    let retry = |quantity| match fixture.one(&limit, quantity).reading.verdict {
        Verdict::Deny { retry } => Some(retry),
        Verdict::Allow { .. } => None,
    };
    assert_eq!(retry(6), Some(Retry::Never));
    assert_eq!(retry(5), None);
    assert_eq!(retry(2), Some(Retry::After(Nanos::from_secs(2))));
}

/// throttlecrab lets 17 pass here: time without requests is saved up beyond the burst.
#[test]
fn idle_time_is_not_saved_up_beyond_the_burst() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(10, 1, 1));
    assert_eq!(fixture.admitted(&limit, 1), 1);
    fixture.at(8_000);
    assert_eq!(fixture.admitted(&limit, 30), 10);
    fixture.at(9_000);
    assert_eq!(fixture.admitted(&limit, 30), 1);
}

#[test]
fn a_batch_is_decided_in_order_with_peeks_between_charges() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(3, 1, 60));
    let quantities = [0, 1, 0, 2, 0, 1];
    let calls: Vec<_> = quantities.map(|q| fixture.keyed("k", &limit, q)).into();
    let remaining: Vec<_> = fixture.each(&calls).iter().map(figures).map(|t| t.1).collect();
    assert_eq!(remaining, [3, 2, 2, 0, 0, 0]);
    let others: Vec<String> = (0..100).map(|i| format!("other {i}")).collect();
    let calls: Vec<_> = others.iter().map(|k| fixture.keyed(k, &limit, 1)).collect();
    assert!(fixture.each(&calls).iter().all(|result| result.admitted));
}

#[test]
fn families_and_keys_have_counters_of_their_own() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(1, 1, 60));
    let other = KeyFamily::new("throttle");
    let long = "x".repeat(16_384);
    let longer = format!("{long}y");
    for key in ["k", "", &long, &longer] {
        for family in [&fixture.family, &other] {
            let keyed = KeyCharge { family, ..fixture.keyed(key, &limit, 1) };
            let results = fixture.each(&[keyed, keyed]);
            assert!(results[0].admitted && !results[1].admitted);
        }
    }
}

/// redis-cell reads the old arrival time under the new rate, and may deny for long (its issue 54).
#[test]
fn units_used_are_kept_when_the_limit_changes() {
    let fixture = KeyedFixture::new();
    let (small, large) = (bucket(10, 1, 60), bucket(100, 10, 60));
    assert_eq!(fixture.admitted(&small, 20), 10);
    assert_eq!(fixture.one(&large, 0).reading.figures.remaining, 90);
    assert!(fixture.one(&large, 90).admitted);
    assert!(!fixture.one(&large, 1).admitted);
}

#[test]
fn charges_are_counted_under_the_name_of_their_family_and_peeks_are_not() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(2, 1, 60));
    fixture.one(&limit, 0);
    assert_eq!(fixture.admitted(&limit, 5), 2);
    let labels = r#"{rule="cl.throttle",edge="resp",outcome="#;
    assert!(fixture.metric(&format!(r#"{labels}"allow",source="exact"}} 2"#)));
    assert!(fixture.metric(&format!(r#"{labels}"deny",source="exact"}} 3"#)));
}

#[test]
fn a_rule_with_the_name_of_a_family_does_not_duplicate_its_series() {
    let (fixture, limit) = (KeyedFixture::new(), bucket(2, 1, 60));
    let named = rules("version: 1\nrules: [{ name: cl.throttle, by: user, rate: 5/hour }]\n");
    let named = Arc::new(named);
    fixture.metrics.load(&named);
    fixture.one(&limit, 1);
    fixture.metrics.load(&named);
    let page = (fixture.metrics).expose("0", &StoreFacts::Memory(MemoryFacts::default()));
    let labels = r#"rule="cl.throttle",edge="resp",outcome="allow",source="exact"} 1"#;
    assert_eq!(page.matches(labels).count(), 1, "{page}");
}

#[test]
fn in_shadow_mode_no_charge_is_denied() {
    let (fixture, limit) = (KeyedFixture::of(LimiterBuilder::shadow), bucket(1, 1, 60));
    assert_eq!(fixture.admitted(&limit, 3), 3);
    let labels = r#"{rule="cl.throttle",edge="resp",outcome="shadow_deny",source="exact"} 2"#;
    assert!(fixture.metric(labels));
}
