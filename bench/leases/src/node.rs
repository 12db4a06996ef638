//! A node as a library: a limiter by rules, on the Redis store with everything around it.
//!
//! This file is the only one of this bench that calls Tidegate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench_load::{BenchError, LoadClient};
use bench_subjects::Key;
use tidegate::clock::SystemClock;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::rules::SourceFile;
use tidegate::runtime::TokioRuntime;
use tidegate::store::{Capabilities, Source};
use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate::units::Nanos;
use tidegate::{Limiter, Policy, Request, Secret};

pub(crate) use tidegate::store::Counting;

/// Keys that a node is asked about, and one more by which it finds out that it has met its store.
pub(crate) const KEYS: usize = 10_000;

/// The rule of every key: so many a second, and as many at once.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseRule {
    pub(crate) counting: Counting,
    pub(crate) per_sec: u64,
}

impl LeaseRule {
    fn text(self) -> String {
        let (per_sec, counting) = (self.per_sec, self.counting.name());
        format!(
            "version: 1\nrules: [{{ name: bench, by: user, rate: {per_sec}/second burst {per_sec}, \
             counting: {counting} }}]\n"
        )
    }
}

/// Whose counters they are: nodes of one fleet have the same, and nobody else finds them.
pub(crate) fn secret() -> Result<Secret, BenchError> {
    Ok(Secret::random()?)
}

/// One node.
pub(crate) struct LeaseNode {
    limiter: Limiter<Resilient<RedisStore, TokioRuntime>>,
    users: Vec<Key>,
    decided: AtomicU64,
}

impl LeaseNode {
    /// Opens a node and waits until it has met its store.
    ///
    /// The budget is a second instead of 5 ms: the node must not decide by itself because the machine
    /// paused. What a deadline costs does not depend on how far off it is.
    pub(crate) async fn open(
        server: SocketAddr,
        rule: LeaseRule,
        secret: Secret,
    ) -> Result<Self, BenchError> {
        let settings = ResilienceSettings {
            budget: Nanos::from_secs(1),
            ..ResilienceSettings::default()
        };
        let store = RedisStore::open(&RedisConfig::new(&format!("redis://{server}")))?;
        store.ready().await;
        let store = resilient(store, TokioRuntime::new()?, settings, Arc::new(|_| ()));
        let file = SourceFile {
            name: "bench.yaml",
            text: &rule.text(),
        };
        let policy = Policy::parse_for(&[file], Capabilities::SCRIPTS)?;
        let node = LeaseNode {
            limiter: Limiter::new(store, policy, secret, Arc::new(SystemClock::new())),
            users: (0..=KEYS).map(Key::number).collect(),
            decided: AtomicU64::new(0),
        };
        node.wait_for_store().await?;
        Ok(node)
    }

    async fn wait_for_store(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            match self.check(KEYS).await {
                Err(_) if begun.elapsed() < PATIENCE => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                decided => return decided.map(|_| ()),
            }
        }
    }

    /// Asks for one unit of the key of this number. Whether it is given.
    ///
    /// # Errors
    /// When the node decided without its store: that is not what is measured.
    pub(crate) async fn check(&self, key: usize) -> Result<bool, BenchError> {
        let decision = self.limiter.check(self.request(key)).await?;
        self.decided.fetch_add(1, Ordering::Relaxed);
        match decision.source() {
            Source::Exact | Source::Lease | Source::Lenient | Source::DenyCache => {
                Ok(decision.allowed())
            }
            source => Err(format!("decided by {}, without the store", source.name()).into()),
        }
    }

    /// Decisions so far.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// The most that a key can hold, as clients are told.
    pub(crate) async fn capacity(&self) -> Result<u64, BenchError> {
        let standings = self.limiter.view().inspect(self.request(KEYS)).await?;
        let first = standings.first().ok_or("the rule applies to every key")?;
        Ok(first.capacity)
    }

    /// Gives back what it drew in advance, and tells what it admitted.
    pub(crate) async fn drain(&self) {
        self.limiter.store().drain().await;
    }

    fn request(&self, key: usize) -> Request<'_> {
        Request::default().with("user", self.users[key].as_str())
    }
}

/// How long a node may take to meet its store.
const PATIENCE: Duration = Duration::from_secs(10);

impl LoadClient for LeaseNode {
    /// A refusal is an error: where time is taken, all are admitted.
    async fn decide(&self, key: usize) -> Result<(), BenchError> {
        match self.check(key).await? {
            true => Ok(()),
            false => Err("refused, where all should pass".into()),
        }
    }
}
