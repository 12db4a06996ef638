//! Tidegate's Redis store: bare, and with the resilience stack.
//!
//! This file is the only one of the bench that calls that store.

use std::borrow::Cow;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bench_load::BenchError;
use bench_subjects::{Allowance, Key};
use tidegate::Secret;
use tidegate::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate::resilience::{ResilienceSettings, Resilient, resilient};
use tidegate::runtime::TokioRuntime;
use tidegate::store::{Charge, ChargeSet, Counters, Role, RuleOptions, Source, Store};
use tidegate::stores::redis::{RedisConfig, RedisStore};
use tidegate::units::{Cost, Nanos};
use tidegate_core::subject::{FingerprintKey, RuleName};

use crate::client::{CONNECTIONS, KEYS};

pub(crate) type BareStore = RedisStore;
pub(crate) type ResilientStore = Resilient<RedisStore, TokioRuntime>;

/// A store, and one token bucket for each key.
pub(crate) struct TidegateRedis<S> {
    store: S,
    limit: Limit,
    rule: RuleName,
    fingerprints: FingerprintKey,
    keys: Vec<Key>,
}

impl TidegateRedis<BareStore> {
    /// The store by itself.
    pub(crate) async fn bare(server: SocketAddr, allowance: Allowance) -> Result<Self, BenchError> {
        TidegateRedis::around(connect(server).await?, allowance)
    }
}

impl TidegateRedis<ResilientStore> {
    /// The store in its breaker, deadline, fallback, mirror and deny cache.
    ///
    /// The budget is a second instead of 5 ms: the node must not decide by itself because the machine paused.
    /// The cost of a deadline does not depend on its length.
    pub(crate) async fn guarded(server: SocketAddr, allowance: Allowance) -> Result<Self, BenchError> {
        let settings = ResilienceSettings { budget: Nanos::from_secs(1), ..ResilienceSettings::default() };
        let store = connect(server).await?;
        let store = resilient(store, TokioRuntime::new()?, settings, Arc::new(|_| ()));
        let tidegate = TidegateRedis::around(store, allowance)?;
        tidegate.until_exact().await?;
        Ok(tidegate)
    }

    /// A node decides by itself until it has reached its store.
    async fn until_exact(&self) -> Result<(), BenchError> {
        let begun = Instant::now();
        loop {
            match self.decide(0).await {
                Err(_) if begun.elapsed() < CONNECT_TIMEOUT => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                decided => return decided,
            }
        }
    }
}

/// The maximum time in which a node must reach its store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

impl<S: Store> TidegateRedis<S> {
    fn around(store: S, allowance: Allowance) -> Result<Self, BenchError> {
        let window = Nanos::from_secs(allowance.period_secs.into());
        let spec = Spec::new(Algorithm::TokenBucket, allowance.count.get().into(), window);
        let spec = spec.burst(allowance.burst.get().into());
        Ok(TidegateRedis {
            store,
            limit: Limit::compile(&spec, Precision::Double)?,
            rule: RuleName::new("bench"),
            fingerprints: Secret::random()?.fingerprint_key(),
            keys: (0..KEYS).map(Key::number).collect(),
        })
    }

    /// Charges one unit to the key of this number.
    pub(crate) async fn decide(&self, key: usize) -> Result<(), BenchError> {
        let charge = Charge {
            subject: self.fingerprints.fingerprint(self.keys[key].as_str().as_bytes()),
            rule: &self.rule,
            rate: 0,
            limit: Cow::Borrowed(&self.limit),
            cost: Cost::ONE,
            role: Role::Enforce,
            options: &RuleOptions::DEFAULT,
        };
        let set = ChargeSet::of([charge]);
        let outcome = self.store.charge(&set).await?;
        match (outcome.admitted, outcome.source) {
            (true, Source::Exact) => Ok(()),
            (admitted, source) => {
                let source = source.name();
                Err(format!("tidegate: admitted {admitted} by {source}, not by the store").into())
            }
        }
    }
}

async fn connect(server: SocketAddr) -> Result<RedisStore, BenchError> {
    let config = RedisConfig { connections: CONNECTIONS, ..RedisConfig::new(&format!("redis://{server}")) };
    let store = RedisStore::open(&config)?;
    store.ready().await;
    Ok(store)
}
