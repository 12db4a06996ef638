//! Counters in Redis or Valkey, shared by any number of nodes.
//!
//! Every verb is one script call and one atomic step, by the server's clock. A record holds all rates
//! of one rule for one subject, describes itself, and expires when it is as good as none. Keys:
//!
//! | key | what |
//! |---|---|
//! | `tg:{SUBJECT}:RULE` | a record |
//! | `tg:{SUBJECT}s:RULE` | slots that are held |
//! | `tg:{SUBJECT}r:ID` | a refund that was made |
//! | `tg:{SUBJECT}e:RULE` | estimates that wait to be settled |
//! | `tg:ctl:secret` | the deployment secret, or how to tell it; it stays |
//! | `tg:ctl:nodes` | the register of nodes; it stays |
//! | `tg:ctl:{TAG}:nodes` | the same for each primary of a cluster, in a slot it serves |
//!
//! All counters of a subject are in one slot of a cluster, and no call touches two slots.
//! A script answers with what it found and the time; the figures follow from that here.
//! Nothing is sent twice but a script that the server did not have. Knows nothing of budgets,
//! breakers and fallbacks: those are stores around this one.

mod access;
mod acknowledged;
mod address;
mod books;
mod call_id;
#[cfg(test)]
mod claims;
mod closing_error;
mod cluster;
mod console;
mod durable;
mod fault;
mod gate;
mod lane;
mod layout;
mod link;
mod liveness;
#[cfg(test)]
mod lockstep;
mod memo;
mod parts;
mod plain;
mod plan;
mod port;
mod probe;
mod redirect;
mod reign;
mod reply;
mod reservations;
mod route;
mod scripts;
mod secret;
mod sentinel;
#[cfg(test)]
mod settled;
mod way;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tidegate_core::store::{Charge, StoreError, Unacknowledged};
use tidegate_core::units::Nanos;

use super::record;

pub use self::console::{Console, Said, ScriptText, SignedIn};
pub use self::fault::{Action, Denied, Fault};
pub use self::layout::{Layout, Site, Witness};
pub use self::link::RedisConfig;
pub use self::parts::Redis;
pub use self::secret::{SecretError, SecretKept};

use self::durable::{Need, Safe};
use self::link::Call;
use self::memo::Memo;
use self::plan::{Plan, Spending};
use self::reply::Reply;
use self::scripts::{Loaded, Script};
use self::way::Way;

/// Counters in one server of Redis or Valkey, or in one primary of a cluster. Clones are handles to the
/// same.
#[derive(Clone)]
pub struct RedisStore {
    way: Way,
    memo: Arc<Memo>,
}

impl RedisStore {
    /// A store in one server. It begins to connect, and goes on until it does. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// When the address cannot be read, or is that of a cluster: a cluster is several stores.
    pub fn open(config: &RedisConfig) -> Result<Self, Fault> {
        Redis::open(config)?.only()
    }

    fn on(way: Way, memo: Arc<Memo>) -> Self {
        RedisStore { way, memo }
    }

    /// Why there is no connection, if there is none.
    pub fn last_fault(&self) -> Option<Fault> {
        self.way.last_fault()
    }

    /// Why durable charges are not acknowledged at present.
    pub fn unacknowledged(&self) -> Option<Unacknowledged> {
        self.way.unacknowledged()
    }

    /// Waits until the server can be asked. For start-up and tests: no verb waits for that.
    pub async fn ready(&self) {
        self.way.ready().await;
    }

    fn about_now(&self) -> Nanos {
        self.memo.last_seen()
    }

    /// Plans `charges`, runs `script` on the plan, and plans anew if the server says that its time is
    /// not in the windows it was told of: then it has done nothing.
    async fn run<T>(
        &self,
        script: Script,
        charges: &[Charge<'_>],
        spending: Spending,
        before: &[Vec<u8>],
        after: &[&[u8]],
        read: impl Fn(&Plan, Reply) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let (mut tries, need) = (0, Need::of(script, charges));
        loop {
            let plan = Plan::new(charges, spending, self.about_now());
            let plan = plan.map_err(|error| refused(script, error))?;
            let began = Instant::now();
            let (reply, safe) = self.ask(script, &plan, before, after, need).await?;
            tries += 1;
            if !reply.is_only_time() || tries == 3 {
                durable::confirm(&reply, &safe, began)?;
                return read(&plan, reply);
            }
        }
    }

    async fn ask(
        &self,
        script: Script,
        plan: &Plan,
        before: &[Vec<u8>],
        after: &[&[u8]],
        need: Option<Need>,
    ) -> Result<(Reply, Safe), StoreError> {
        let more: Vec<Vec<u8>>;
        let keys: &[Vec<u8>] = if before.is_empty() {
            &plan.keys
        } else {
            more = before.iter().chain(&plan.keys).cloned().collect();
            &more
        };
        let call = Call {
            script,
            keys,
            arguments: plan.arguments(after),
        };
        let began = Instant::now();
        let (answer, safe) = match need {
            None => (self.way.call(&call).await, Ok(())),
            Some(need) => {
                let sent = self.way.call_safely(&[call], need).await;
                let waited = Nanos::from(began.elapsed());
                let (mut answers, safe) = sent.map_err(|why| durable::unsafe_after(why, waited))?;
                let answer = answers.pop().unwrap_or(Err(Fault::not_connected(None)));
                (answer, safe)
            }
        };
        Ok((self.reply(script, keys, answer, began)?, safe))
    }

    /// Whatever refunds waits for the first heartbeat of a new run, which shows whether data was lost.
    fn require_met(&self, script: Script) -> Result<(), StoreError> {
        if self.memo.has_met(self.way.run()) {
            return Ok(());
        }
        Err(Fault::not_met().into_store_error(script.name, Nanos::ZERO))
    }

    fn reply(
        &self,
        script: Script,
        keys: &[Vec<u8>],
        answer: Result<redis::Value, Fault>,
        began: Instant,
    ) -> Result<Reply, StoreError> {
        let waited = Nanos::from(began.elapsed());
        let value =
            answer.map_err(|fault| fault.at_keys(keys).into_store_error(script.name, waited))?;
        let reply = Reply::read(value).map_err(|error| refused(script, error))?;
        self.memo.note_seen(reply.at);
        Ok(reply)
    }
}

/// The scripts as they are shipped.
fn shipped() -> Arc<[Loaded]> {
    scripts::ALL
        .map(|script| Loaded::new(script, script.text))
        .into()
}

/// What a script answered, or was to be asked, makes no sense.
fn refused(script: Script, source: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::Refused {
        command: script.name,
        source: Box::new(source),
    }
}

/// Never prints an address or a password.
impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("way", &self.way)
            .finish_non_exhaustive()
    }
}
