//! Where the primary is, as the sentinels say.
//!
//! All are asked at once, and the word of most of those that answer counts: one that is stale or lies
//! cannot win over two. What they publish is only a hint to ask them again, so a liar's hint moves
//! nothing either. Questions are asked one after another, so that no older answer overtakes a newer.
//! Who connects must still see that the server calls itself a primary.

mod votes;

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Mutex, Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use self::votes::Votes;
use super::access::{Access, Place};
use super::fault::Fault;

/// How often the sentinels are asked though nothing happened: a hint may be lost.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How far apart they are asked when there are many hints.
const ASK_APART: Duration = Duration::from_millis(20);

/// Where a sentinel says the primary is; nothing if it knows none of that name.
pub(super) type Answer = Result<Option<Place>, Fault>;

/// The sentinels that watch one primary.
pub(super) struct Sentinels {
    each: Vec<Arc<Sentinel>>,
    servers: Access,
    known: watch::Sender<Option<Place>>,
    asking: Mutex<()>,
    hint: Arc<Notify>,
}

impl Sentinels {
    /// Sentinels that know the primary as `name`; each has `patience` to answer.
    pub(super) fn new(
        at: &[Place],
        name: &str,
        sentinels: &Access,
        servers: &Access,
        patience: Duration,
    ) -> Self {
        let hint = Arc::new(Notify::new());
        let mut each: Vec<Arc<Sentinel>> = Vec::with_capacity(at.len());
        for place in at {
            // One that is written twice has one voice.
            if each.iter().all(|known| known.place != *place) {
                each.push(Arc::new(Sentinel {
                    place: place.clone(),
                    access: sentinels.clone(),
                    name: name.to_owned(),
                    patience,
                    connection: Mutex::new(None),
                    hint: Arc::clone(&hint),
                }));
            }
        }
        Sentinels {
            each,
            servers: servers.clone(),
            known: watch::Sender::new(None),
            asking: Mutex::new(()),
            hint,
        }
    }

    /// Refuses what could never be connected to.
    pub(super) fn check(&self) -> Result<(), Fault> {
        for one in &self.each {
            one.access.client(&one.place)?;
            self.servers.client(&one.place)?;
        }
        Ok(())
    }

    /// How the servers are entered that the sentinels tell of.
    pub(super) fn servers(&self) -> &Access {
        &self.servers
    }

    /// What most of them said last.
    pub(super) fn known(&self) -> Option<Place> {
        self.known.borrow().clone()
    }

    /// Done when most of them say another place than this one. Cancel-safe.
    pub(super) async fn left(&self, place: Option<&Place>) {
        let mut known = self.known.subscribe();
        let elsewhere = |known: &Option<Place>| known.is_some() && known.as_ref() != place;
        // The sender is ours and outlives this, so there is always an answer.
        let _known = known.wait_for(elsewhere).await;
    }

    /// Asks them all where the primary is.
    pub(super) async fn find(&self) -> Result<Place, Fault> {
        let _in_order = self.asking.lock().await;
        let place = self.poll().await?;
        self.known.send_if_modified(|known| {
            let news = known.as_ref() != Some(&place);
            *known = Some(place.clone());
            news
        });
        Ok(place)
    }

    /// What each of them says, in the order they were written, and what that comes to.
    pub(super) async fn hear(&self) -> (Vec<(Place, Answer)>, Result<Place, Fault>) {
        let ask = |one: &Arc<Sentinel>| {
            let one = Arc::clone(one);
            tokio::spawn(async move { one.ask().await })
        };
        let asked: Vec<_> = self.each.iter().map(ask).collect();
        let (mut heard, mut votes) = (Vec::new(), Votes::of(self.each.len()));
        for (one, asked) in self.each.iter().zip(asked) {
            let answer = asked.await;
            let answer = answer.unwrap_or_else(|_| Err(Fault::not_connected(None)));
            votes.cast(answer.clone());
            heard.push((one.place.clone(), answer));
        }
        (heard, votes.counted())
    }

    async fn poll(&self) -> Result<Place, Fault> {
        let mut asked = JoinSet::new();
        for one in &self.each {
            let one = Arc::clone(one);
            asked.spawn(async move { one.ask().await });
        }
        let mut votes = Votes::of(self.each.len());
        while let Some(answer) = asked.join_next().await {
            votes.cast(answer.unwrap_or_else(|_| Err(Fault::not_connected(None))));
            if let Some(place) = votes.settled() {
                // The others need not be waited for, but may finish connecting.
                asked.detach_all();
                return Ok(place);
            }
        }
        votes.counted()
    }
}

/// Asks again and again where the primary is: at every hint, and now and then.
pub(super) async fn look_out(sentinels: Arc<Sentinels>) {
    loop {
        let _hint_or_time = timeout(ASK_EVERY, sentinels.hint.notified()).await;
        // No answer is no news. Who wants to connect asks too, and tells why there is none.
        let _place = sentinels.find().await;
        sleep(ASK_APART).await;
    }
}

struct Sentinel {
    place: Place,
    access: Access,
    name: String,
    patience: Duration,
    connection: Mutex<Option<MultiplexedConnection>>,
    hint: Arc<Notify>,
}

impl Sentinel {
    async fn ask(&self) -> Answer {
        let answer = timeout(self.patience, async {
            // Taken out while it is used: one that never answers is not kept.
            let mut kept = self.connection.lock().await;
            if let Some(mut connection) = kept.take()
                && let Ok(answer) = self.question().query_async(&mut connection).await
            {
                *kept = Some(connection);
                return Ok(answer);
            }
            let mut connection = self.connect().await?;
            let answer = self.question().query_async(&mut connection).await;
            let answer = answer.map_err(|error| self.fault(&error))?;
            *kept = Some(connection);
            Ok(answer)
        });
        let silent = || Fault::of_sentinel(&Fault::not_connected(None));
        Ok(placed(&answer.await.unwrap_or_else(|_| Err(silent()))?))
    }

    fn question(&self) -> redis::Cmd {
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        question
    }

    async fn connect(&self) -> Result<MultiplexedConnection, Fault> {
        let client = self.access.client(&self.place)?;
        let info = client.get_connection_info().clone();
        // Only so can one connection be asked and told.
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let client = redis::Client::open(info).map_err(|error| self.fault(&error))?;
        let hint = Arc::clone(&self.hint);
        let heard = move |push: PushInfo| {
            if push.kind == PushKind::Message {
                hint.notify_one();
            }
            Ok::<(), ()>(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience))
            .set_push_sender(heard);
        let connection = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connection.await.map_err(|error| self.fault(&error))?;
        // One that does not let us listen is asked all the same, and often enough.
        let _may_listen = connection.subscribe("+switch-master").await;
        Ok(connection)
    }

    fn fault(&self, error: &RedisError) -> Fault {
        Fault::of_sentinel(&Fault::of(error, self.access.secret()))
    }
}

/// A place, from the host and port that a sentinel answered with.
fn placed(answer: &Value) -> Option<Place> {
    let Value::Array(parts) = answer else {
        return None;
    };
    let text = |part: &Value| redis::from_redis_value_ref::<String>(part).ok();
    match parts.as_slice() {
        [host, port] => Some(Place::Port {
            host: text(host)?,
            port: text(port)?.parse().ok()?,
        }),
        _ => None,
    }
}
