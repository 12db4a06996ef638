//! A node as a library: a limiter with a rules file, on the Redis store with the whole resilience stack.
//!
//! This file is the only one of this bench that calls Tidegate.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bench_load::{BenchError, LoadClient};
use bench_subjects::Key;
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::rules::SourceFile;
use tidegate::runtime::TokioRuntime;
use tidegate::store::{Capabilities, Source};
use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate::units::Nanos;
use tidegate::{Limiter, Policy, Request, Secret};

pub(crate) use tidegate::store::Counting;

/// The keys of a node, and one more by which it detects that it has reached its store.
pub(crate) const KEYS: usize = 10_000;

/// The rule of every key: `per_sec` per second, and the same burst.
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

/// The secret of the counters: nodes of one fleet share it, and no other node finds their counters.
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
    /// Opens a node and waits until it has reached its store.
    ///
    /// The budget is a second instead of 5 ms: the node must not decide by itself because the machine paused.
    /// The cost of a deadline does not depend on its length.
    pub(crate) async fn open(server: SocketAddr, rule: LeaseRule, secret: Secret) -> Result<Self, BenchError> {
        let settings = ResilienceSettings { budget: Nanos::from_secs(1), ..ResilienceSettings::default() };
        let store = RedisStore::open(&RedisConfig::new(&format!("redis://{server}")))?;
        store.ready().await;
        let store = resilient(store, TokioRuntime::new()?, settings, Arc::new(|_| ()));
        let file = SourceFile { name: "bench.yaml", text: &rule.text() };
        let policy = Policy::parse_for(&[file], Capabilities::SHARED)?;
        let node = LeaseNode {
            limiter: Limiter::builder().policy(policy).secret(secret).build_on(store)?,
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
                Err(_) if begun.elapsed() < CONNECT_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                decided => return decided.map(|_| ()),
            }
        }
    }

    /// Charges one unit to the key of this number. Returns whether it is admitted.
    ///
    /// # Errors
    ///
    /// When the node decided without its store: that is not under measurement.
    pub(crate) async fn check(&self, key: usize) -> Result<bool, BenchError> {
        let decision = self.limiter.check(self.request(key)).await?;
        self.decided.fetch_add(1, Ordering::Relaxed);
        match decision.source() {
            Source::Exact | Source::Lease | Source::Lenient | Source::DenyCache => Ok(decision.allowed()),
            source => Err(format!("decided by {}, without the store", source.name()).into()),
        }
    }

    /// Decisions so far.
    pub(crate) fn decided(&self) -> u64 {
        self.decided.load(Ordering::Relaxed)
    }

    /// The capacity of a key, as documented for clients.
    pub(crate) async fn capacity(&self) -> Result<u64, BenchError> {
        let inspections = self.limiter.view().inspect(self.request(KEYS)).await?;
        let first = inspections.first().ok_or("the rule applies to every key")?;
        Ok(first.capacity)
    }

    /// Returns its leases and syncs its admissions.
    pub(crate) async fn drain(&self) {
        self.limiter.store().drain().await;
    }

    fn request(&self, key: usize) -> Request<'_> {
        Request::default().with("user", self.users[key].as_str())
    }
}

/// The maximum time in which a node must reach its store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl LoadClient for LeaseNode {
    /// A denial is an error: all decisions under measurement are admitted.
    async fn decide(&self, key: usize) -> Result<(), BenchError> {
        if self.check(key).await? { Ok(()) } else { Err("denied, where all must be admitted".into()) }
    }
}
