//! Finds the primary through sentinels.
//!
//! All sentinels are queried at once, and the majority of those that reply decides: one stale or lying sentinel
//! cannot win over two. Their publications are only hints to query them again, so a lying publication changes
//! nothing either. Queries run one after another, so that no older result overtakes a newer one. A new connection
//! must still check that the server reports itself as a primary.

mod votes;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::votes::Votes;
use super::access::{Access, RedisAddress};
use super::error::RedisStoreError;
use super::reply_parts::{list, text};

/// The interval of queries without a hint: a hint may be lost.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest pause between two queries when there are many hints.
const MIN_POLL_GAP: Duration = Duration::from_millis(20);

/// The address of the primary that a sentinel replies with; none if it knows none of that name.
pub(super) type SentinelReply = Result<Option<RedisAddress>, RedisStoreError>;

/// The sentinels that watch one primary.
pub(super) struct Sentinels {
    each: Vec<Arc<Sentinel>>,
    servers: Access,
    known: watch::Sender<Option<RedisAddress>>,
    polling: Mutex<()>,
    hint: Arc<Notify>,
}

impl Sentinels {
    /// Sentinels that know the primary as `name`. Each has `patience` to reply.
    pub(super) fn new(
        addresses: &[RedisAddress],
        name: &str,
        sentinels: &Access,
        servers: &Access,
        patience: Duration,
    ) -> Self {
        let hint = Arc::new(Notify::new());
        let mut each: Vec<Arc<Sentinel>> = Vec::with_capacity(addresses.len());
        for address in addresses {
            // A sentinel that is listed twice has one vote.
            if each.iter().all(|known| known.address != *address) {
                each.push(Arc::new(Sentinel {
                    address: address.clone(),
                    access: sentinels.clone(),
                    name: name.to_owned(),
                    patience,
                    connection: Mutex::new(None),
                    hint: Arc::clone(&hint),
                }));
            }
        }
        Sentinels { each, servers: servers.clone(), known: watch::Sender::new(None), polling: Mutex::new(()), hint }
    }

    /// Rejects a configuration that could never connect.
    pub(super) fn check(&self) -> Result<(), RedisStoreError> {
        for one in &self.each {
            one.access.client(&one.address)?;
            self.servers.client(&one.address)?;
        }
        Ok(())
    }

    /// The access to the servers that the sentinels name.
    pub(super) fn servers(&self) -> &Access {
        &self.servers
    }

    /// The result of the last query.
    pub(super) fn last_known(&self) -> Option<RedisAddress> {
        self.known.borrow().clone()
    }

    /// Completes when the sentinels have elected another address than this one. Cancel-safe.
    pub(super) async fn changed_from(&self, address: Option<&RedisAddress>) {
        let mut known = self.known.subscribe();
        let elsewhere = |known: &Option<RedisAddress>| known.is_some() && known.as_ref() != address;
        // `self` owns the sender, so waiting never fails.
        let _known = known.wait_for(elsewhere).await;
    }

    /// Queries all sentinels for the primary.
    pub(super) async fn find(&self) -> Result<RedisAddress, RedisStoreError> {
        let _in_order = self.polling.lock().await;
        let address = self.poll().await?;
        self.known.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&address);
            *known = Some(address.clone());
            changed
        });
        Ok(address)
    }

    /// The reply of each sentinel, in configuration order, and the elected address.
    pub(super) async fn query_each(
        &self,
    ) -> (Vec<(RedisAddress, SentinelReply)>, Result<RedisAddress, RedisStoreError>) {
        let query = |one: &Arc<Sentinel>| {
            let one = Arc::clone(one);
            tokio::spawn(async move { one.query().await })
        };
        let queries: Vec<_> = self.each.iter().map(query).collect();
        let (mut replies, mut votes) = (Vec::new(), Votes::of(self.each.len()));
        for (one, query) in self.each.iter().zip(queries) {
            let reply = query.await.unwrap_or(Err(RedisStoreError::NOT_CONNECTED));
            votes.cast(reply.clone());
            replies.push((one.address.clone(), reply));
        }
        (replies, votes.result())
    }

    async fn poll(&self) -> Result<RedisAddress, RedisStoreError> {
        let mut queries = JoinSet::new();
        for one in &self.each {
            let one = Arc::clone(one);
            queries.spawn(async move { one.query().await });
        }
        let mut votes = Votes::of(self.each.len());
        while let Some(reply) = queries.join_next().await {
            votes.cast(reply.unwrap_or(Err(RedisStoreError::NOT_CONNECTED)));
            if let Some(address) = votes.majority() {
                // The rest need not be waited for, but may finish connecting.
                queries.detach_all();
                return Ok(address);
            }
        }
        votes.result()
    }
}

/// Queries the sentinels at every hint and every `POLL_INTERVAL`.
pub(super) async fn watch_primary(sentinels: Arc<Sentinels>) {
    loop {
        let _hint_or_time = timeout(POLL_INTERVAL, sentinels.hint.notified()).await;
        // An error changes nothing. A connection attempt runs the query, too, and reports its error.
        let _address = sentinels.find().await;
        sleep(MIN_POLL_GAP).await;
    }
}

struct Sentinel {
    address: RedisAddress,
    access: Access,
    name: String,
    patience: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
    hint: Arc<Notify>,
}

impl Sentinel {
    async fn query(&self) -> SentinelReply {
        let reply = timeout(self.patience, async {
            // Taken out while in use: a connection that never replies is dropped.
            let mut cached = self.connection.lock().await;
            if let Some(mut connection) = cached.take()
                && let Ok(reply) = self.query_command().query_async(&mut connection).await
            {
                *cached = Some(connection);
                return Ok(reply);
            }
            let mut connection = self.connect().await?;
            let reply = self.query_command().query_async(&mut connection).await;
            let reply = reply.map_err(|error| self.to_error(&error))?;
            *cached = Some(connection);
            Ok(reply)
        });
        let timed_out = |_| Err(RedisStoreError::from_sentinel(&RedisStoreError::NOT_CONNECTED));
        Ok(parse_address(&reply.await.unwrap_or_else(timed_out)?))
    }

    fn query_command(&self) -> redis::Cmd {
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        command
    }

    async fn connect(&self) -> Result<MultiplexedConnection, RedisStoreError> {
        let client = self.access.client(&self.address)?;
        let info = client.get_connection_info().clone();
        // Only RESP3 allows commands and pushed messages on one connection.
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let client = redis::Client::open(info).map_err(|error| self.to_error(&error))?;
        let hint = Arc::clone(&self.hint);
        let on_push = move |push: PushInfo| {
            if push.kind == PushKind::Message {
                hint.notify_one();
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience))
            .set_push_sender(on_push);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(|error| self.to_error(&error))?;
        // A sentinel that rejects the subscription is still polled every `POLL_INTERVAL`.
        let _may_listen = connection.subscribe("+switch-master").await;
        Ok(connection)
    }

    fn to_error(&self, error: &RedisError) -> RedisStoreError {
        RedisStoreError::from_sentinel(&RedisStoreError::from_redis(error, self.access.secret()))
    }
}

/// The address in a sentinel's reply: a host and a port.
fn parse_address(reply: &Value) -> Option<RedisAddress> {
    match list(reply)? {
        [host, port] => Some(RedisAddress::Tcp { host: text(host)?.to_owned(), port: text(port)?.parse().ok()? }),
        _ => None,
    }
}
