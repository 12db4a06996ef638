//! The whole stack on real threads, around a store that comes and goes: every request is decided, and
//! no more is admitted than the limit and the share. No claim here depends on how fast anything is.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate::clock::{Clock, SystemClock};
use tidegate::resilience::{Event, Settings, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::pass_on;
use tidegate_core::store::{
    Beat, Charge, ChargeSet, Granted, Life, Outcome, PartId, Parts, Probe, Refund, Refunded,
    Reserve, Role, Seed, Settle, Settled, Store, StoreError, Terms, Vitals,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

type Answer<T> = Result<T, StoreError>;

/// A memory store that refuses connections while it is away.
#[derive(Clone)]
struct Fickle {
    memory: Arc<MemoryStore<SystemClock>>,
    away: Arc<AtomicBool>,
}

impl Fickle {
    fn here<T>(&self, answer: T) -> Answer<T> {
        match self.away.load(Ordering::Acquire) {
            false => Ok(answer),
            true => Err(StoreError::Unavailable {
                waited: Nanos::ZERO,
                source: "away".into(),
            }),
        }
    }
}

impl Store for Fickle {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        tokio::task::yield_now().await;
        self.here(())?;
        self.memory.charge(set).await
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.memory.peek(set).await
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        self.here(())?;
        self.memory.refund(refund).await
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        self.memory.grant(charge).await
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        self.here(())?;
        self.memory.force(set).await
    }

    async fn reserve(&self, reserve: &Reserve<'_>) -> Answer<Outcome> {
        self.here(())?;
        self.memory.reserve(reserve).await
    }

    async fn settle(&self, settle: &Settle<'_>) -> Answer<Settled> {
        self.here(())?;
        self.memory.settle(settle).await
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        self.here(())?;
        self.memory.seed(seeds).await
    }

    pass_on!(self => self.memory; hold, renew, release, inspect, reset);
}

impl Probe for Fickle {
    async fn beat(&self, beat: Beat) -> Answer<Vitals> {
        self.here(Vitals {
            life: Life(1),
            at: self.memory.clock().now(),
            whole_until: Nanos::ZERO,
            beats: vec![beat],
        })
    }

    fn life(&self) -> Option<Life> {
        Some(Life(1))
    }
}

impl Parts for Fickle {
    type Part = Fickle;

    fn part_of(&self, _: Fingerprint) -> PartId {
        PartId(0)
    }

    fn part(&self, id: PartId) -> Option<Fickle> {
        (id == PartId(0)).then(|| self.clone())
    }

    fn ids(&self) -> Vec<PartId> {
        vec![PartId(0)]
    }
}

const TASKS: u64 = 8;
const EACH: u64 = 2_000;
const LIMIT: u64 = 3_000;

#[test]
fn a_store_that_comes_and_goes_fails_no_decision_and_admits_no_more_than_told() {
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_time()
        .build()
        .expect("a runtime");
    tokio.block_on(async {
        let (away, clock) = (Arc::new(AtomicBool::new(false)), SystemClock::new());
        let fickle = Fickle {
            memory: Arc::new(MemoryStore::new(clock)),
            away: Arc::clone(&away),
        };
        let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
        let watcher = Arc::new(move |event| {
            if event == Event::Exact {
                let _at_the_end_nobody_waits = exact.send(());
            }
        });
        let settings = Settings {
            ping_every: Nanos::from_millis(2),
            ..Settings::default()
        };
        let runtime = TokioRuntime::new().expect("randomness");
        let store = resilient(fickle, runtime, settings, watcher);
        let store = Arc::new(store);
        ready.recv().await.expect("the node meets its store");
        let admitted = Arc::new(AtomicU64::new(0));
        let mut tasks = Vec::new();
        for _ in 0..TASKS {
            let (store, admitted) = (Arc::clone(&store), Arc::clone(&admitted));
            let away = Arc::clone(&away);
            tasks.push(tokio::spawn(async move {
                let rule = RuleName::new("threads");
                let year = Nanos::from_secs(3_600 * 24 * 365);
                let spec = Spec::new(Algorithm::SlidingLog, LIMIT, year);
                let limit = Limit::compile(&spec, Precision::Memory).expect("a fit rate");
                for i in 0..EACH {
                    if i % 100 == 50 {
                        away.fetch_xor(true, Ordering::AcqRel); // whoever comes by
                    }
                    let charge = Charge {
                        subject: Fingerprint::new(1),
                        rule: &rule,
                        rate: 0,
                        limit: Cow::Borrowed(&limit),
                        cost: Cost::ONE,
                        role: Role::Enforce,
                        terms: &Terms::USUAL,
                    };
                    let set = ChargeSet::of([charge]);
                    let outcome = store.charge(&set).await.expect("no decision fails");
                    admitted.fetch_add(u64::from(outcome.admitted), Ordering::AcqRel);
                }
            }));
        }
        for task in tasks {
            task.await.expect("no task panics");
        }
        let admitted = admitted.load(Ordering::Acquire);
        let most = LIMIT + LIMIT * 4 / 5;
        assert!(admitted <= most, "{admitted} of {most}");
        assert!(admitted >= LIMIT / 10, "{admitted}");
    });
}
