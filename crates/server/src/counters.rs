//! Where this process keeps its counters: in its own memory, or in a store that nodes share.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::{Clock, SystemClock};
use tidegate::observe::{MemoryFacts, SharedSeries, StoreFacts};
use tidegate::resilience::{self, Event, Resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::stores::memory::MemoryStore;
use tidegate::stores::redis::{Fault, RedisConfig, RedisStore, SecretError};
use tidegate::{Limiter, Secret};
use tidegate_core::store::{
    Charge, ChargeSet, Granted, Held, Hold, Inspection, Outcome, Refund, Refunded, Seed, Store,
    StoreError,
};
use tokio::sync::Notify;
use tracing::{error, info, warn};

/// How long to wait before the store is asked for the secret again.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// The counters.
#[expect(clippy::large_enum_variant, reason = "a process has one of it")]
pub(crate) enum Counters {
    Memory(MemoryStore<SystemClock>),
    Shared(Shared),
}

/// Counters in a store that nodes share.
pub(crate) struct Shared {
    store: Resilient<RedisStore, TokioRuntime>,
    /// The same without what is around it.
    bare: RedisStore,
    series: Arc<SharedSeries>,
    /// Rung when the store has lost something.
    lost: Arc<Notify>,
}

/// Why a shared store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("--store: {0}")]
    Address(#[from] Fault),
    #[error("no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl Counters {
    pub(crate) fn in_memory(clock: SystemClock, cap: u64) -> Self {
        Counters::Memory(MemoryStore::with_cap(clock, cap))
    }

    /// Counters in the Redis or Valkey at `url`. Nothing is counted there before [`join`] has learnt the
    /// secret of the others.
    pub(crate) fn shared(
        url: &str,
        settings: resilience::Settings,
        clock: SystemClock,
    ) -> Result<Self, Unusable> {
        let bare = RedisStore::open(&RedisConfig::new(url))?;
        bare.lock();
        let series = Arc::<SharedSeries>::default();
        let lost = Arc::<Notify>::default();
        let (counted, rung) = (Arc::clone(&series), Arc::clone(&lost));
        let store = resilience::resilient(
            bare.clone(),
            TokioRuntime::new()?,
            clock.wall(),
            settings,
            Arc::new(move |event| {
                tell(event);
                counted.notice(event);
                if event == Event::Lost {
                    rung.notify_one();
                }
            }),
        );
        Ok(Counters::Shared(Shared {
            store,
            bare,
            series,
            lost,
        }))
    }

    /// Whether a decision is there without waiting.
    pub(crate) fn never_wait(&self) -> bool {
        matches!(self, Counters::Memory(_))
    }

    /// Frees some of what has nothing left to tell.
    pub(crate) fn sweep(&self, tables: usize) {
        if let Counters::Memory(store) = self {
            store.sweep(tables);
        }
    }

    pub(crate) fn facts(&self) -> StoreFacts<'_> {
        match self {
            Counters::Shared(shared) => StoreFacts::Shared(&shared.series),
            Counters::Memory(store) => {
                let stats = store.stats();
                StoreFacts::Memory(MemoryFacts {
                    keys: stats.keys,
                    bytes: stats.bytes,
                    cap_bytes: stats.cap,
                    overflowed: stats.overflow,
                    swept: stats.swept,
                    converted: stats.converted,
                    clock_steps: stats.clock_steps,
                })
            }
        }
    }
}

/// Says once what changed.
fn tell(event: Event) {
    match event {
        Event::BreakerOpened => {
            warn!("the store does not answer; this node decides by its share of each limit");
        }
        Event::BreakerClosed => info!("the store answers again"),
        Event::Lost => warn!("the store has lost counts, or another took over; putting them back"),
        Event::Seeded { counters, .. } => info!(counters, "put back what this node remembers"),
        Event::Exact => info!("decisions are exact"),
        Event::Pushed { counters, units } => {
            info!(
                counters,
                units, "charged what was admitted without the store"
            );
        }
    }
}

/// Learns the secret of the nodes that share the store, or gives them `own`, and begins to count
/// there. Until then this node decides by its share of each limit. Whether it counts there now.
pub(crate) async fn join(limiter: &Limiter<Counters>, own: Option<&Secret>) -> Option<Secret> {
    let Counters::Shared(shared) = limiter.store() else {
        return None;
    };
    let secret = shared.agreed(|| shared.bare.share_secret(own)).await?;
    limiter.use_secret(secret.clone());
    shared.bare.unlock();
    Some(secret)
}

/// Puts the secret back whenever the store has lost it, or a newcomer would count under another.
pub(crate) async fn keep_secret(limiter: &Limiter<Counters>, mut secret: Secret, given: bool) {
    let Counters::Shared(shared) = limiter.store() else {
        return;
    };
    loop {
        shared.lost.notified().await;
        let agreed = shared
            .agreed(|| shared.bare.restore_secret(&secret, given))
            .await;
        let Some(theirs) = agreed else { return };
        limiter.use_secret(theirs.clone());
        secret = theirs;
    }
}

impl Shared {
    /// Asks for the secret until the store answers; nothing if this node must not count there.
    async fn agreed<F>(&self, ask: impl Fn() -> F) -> Option<Secret>
    where
        F: Future<Output = Result<Secret, SecretError>>,
    {
        loop {
            self.bare.ready().await;
            match ask().await {
                Ok(secret) => return Some(secret),
                Err(SecretError::Store(_)) => tokio::time::sleep(ASK_AGAIN).await,
                Err(refusal) => {
                    error!("{refusal}; until then this node decides by its share of each limit");
                    self.bare.lock();
                    return None;
                }
            }
        }
    }
}

/// One verb, on whichever store it is.
macro_rules! either {
    ($self:ident, $store:ident => $answer:expr) => {
        match $self {
            Counters::Memory($store) => $answer.await,
            Counters::Shared(shared) => {
                let $store = &shared.store;
                $answer.await
            }
        }
    };
}

type Answer<T> = Result<T, StoreError>;

impl Store for Counters {
    async fn charge(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        either!(self, store => store.charge(set))
    }

    async fn charge_each(&self, sets: &[&ChargeSet<'_>]) -> Vec<Answer<Outcome>> {
        either!(self, store => store.charge_each(sets))
    }

    async fn peek(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        either!(self, store => store.peek(set))
    }

    async fn refund(&self, refund: &Refund<'_>) -> Answer<Refunded> {
        either!(self, store => store.refund(refund))
    }

    async fn grant(&self, charge: &Charge<'_>) -> Answer<Granted> {
        either!(self, store => store.grant(charge))
    }

    async fn force(&self, set: &ChargeSet<'_>) -> Answer<Outcome> {
        either!(self, store => store.force(set))
    }

    async fn seed(&self, seeds: &[Seed<'_>]) -> Answer<()> {
        either!(self, store => store.seed(seeds))
    }

    async fn hold(&self, hold: &Hold<'_>) -> Answer<Held> {
        either!(self, store => store.hold(hold))
    }

    async fn release(&self, hold: &Hold<'_>) -> Answer<()> {
        either!(self, store => store.release(hold))
    }

    async fn inspect(&self, set: &ChargeSet<'_>) -> Answer<Vec<Option<Inspection>>> {
        either!(self, store => store.inspect(set))
    }

    async fn reset(&self, set: &ChargeSet<'_>) -> Answer<u64> {
        either!(self, store => store.reset(set))
    }
}
