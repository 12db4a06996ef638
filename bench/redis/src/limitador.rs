//! `limitador` on its Redis storage: it reads a counter, then increments it, in two calls.

use std::collections::HashMap;
use std::net::SocketAddr;

use bench_load::BenchError;
use bench_subjects::{Allowance, Key};
use limitador::AsyncRateLimiter;
use limitador::limit::{Limit, Namespace};
use limitador::storage::redis::AsyncRedisStorage;

use crate::client::KEYS;

const NAMESPACE: &str = "bench";

/// One limit qualified by the variable `key`.
pub(crate) struct LimitadorRedis {
    limiter: AsyncRateLimiter,
    namespace: Namespace,
    keys: Vec<Key>,
}

impl LimitadorRedis {
    /// Connects.
    pub(crate) async fn open(server: SocketAddr, allowance: Allowance) -> Result<Self, BenchError> {
        let storage = AsyncRedisStorage::new(&format!("redis://{server}")).await?;
        let limiter = AsyncRateLimiter::new_with_storage(Box::new(storage));
        let (count, period_secs) = (allowance.burst.get().into(), allowance.period_secs.into());
        let always: [&str; 0] = [];
        limiter.add_limit(Limit::new(NAMESPACE, count, period_secs, always, ["key"]));
        Ok(LimitadorRedis { limiter, namespace: NAMESPACE.into(), keys: (0..KEYS).map(Key::number).collect() })
    }

    /// Charges one unit to the key of this number.
    pub(crate) async fn decide(&self, key: usize) -> Result<(), BenchError> {
        let values = HashMap::from([("key".to_owned(), self.keys[key].as_str().to_owned())]);
        // With the counters loaded, as its later versions always do.
        let limiter = &self.limiter;
        let result = limiter.check_rate_limited_and_update(&self.namespace, &values, 1, true);
        if result.await?.limited { Err("limitador denied".into()) } else { Ok(()) }
    }
}
