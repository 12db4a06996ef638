//! Keeps what a control plane says in force, for as long as it is held.
//!
//! One task: meet the plane, ask, hear, hand over, say what became of it; and after a loss all over
//! again, with pauses that grow. Kept true: each answer is acknowledged or refused, in order, and the
//! version we claim is always that of what is in force. It does not know what a resource means.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};

use super::ControlPlane;
use super::client::{Lost, Stream};
use super::wire::{Answer, Ask, RESOURCE};
use crate::protobuf::Malformed;

/// The kind and the bytes of each resource that is to be in force.
pub(crate) type Resources<'a> = [(&'a str, &'a [u8])];
/// Puts resources in force, or says every fault of theirs.
pub(crate) type Take = Arc<dyn Fn(&Resources<'_>) -> Result<(), String> + Send + Sync>;
/// Hears what happens.
pub(crate) type Tell = Arc<dyn Fn(News<'_>) + Send + Sync>;

/// What happens between us and a control plane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News<'a> {
    /// There is a connection.
    Met,
    /// What it sent is in force.
    Taken { version: &'a str },
    /// What it sent is not.
    Refused { version: &'a str, why: &'a str },
    /// There is no stream any more, and the next try comes.
    Lost { why: &'a str, wait_ms: u64 },
}

/// Follows a control plane until dropped.
#[derive(Debug)]
pub(crate) struct Following {
    task: AbortHandle,
    answered: watch::Receiver<bool>,
}

impl Following {
    /// Begins, in the background. To be called inside the runtime.
    pub(crate) fn start(plane: ControlPlane, take: Take, tell: Tell) -> Self {
        let (first, answered) = watch::channel(false);
        let follower = Follower {
            plane,
            take,
            tell,
            first,
            version: String::new(),
        };
        let task = tokio::spawn(follower.run()).abort_handle();
        Following { task, answered }
    }

    /// Waits until the plane has sent something, be it good or bad.
    pub(crate) async fn answered(&self) {
        // An end of the task cannot be waited for longer than it lasts.
        let _ = self.answered.clone().wait_for(|answered| *answered).await;
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the task owns.
struct Follower {
    plane: ControlPlane,
    take: Take,
    tell: Tell,
    first: watch::Sender<bool>,
    /// Of what is in force. It outlives a stream: a plane need not send again what we have.
    version: String,
}

/// Why a stream is over.
#[derive(Debug, thiserror::Error)]
enum Over {
    #[error(transparent)]
    Lost(#[from] Lost),
    #[error("it sent what is no answer: {0}")]
    Garbled(#[from] Malformed),
}

impl Follower {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let Err(over) = self.talk(&mut failures).await;
            let wait = self.plane.backoff.wait(failures, chance());
            failures += 1;
            let why = over.to_string();
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            (self.tell)(News::Lost { why: &why, wait_ms });
            tokio::time::sleep(wait).await;
        }
    }

    /// One stream, to its end. `failures` is set back by the first answer.
    async fn talk(&mut self, failures: &mut u32) -> Result<std::convert::Infallible, Over> {
        let hello = Ask {
            version: &self.version,
            nonce: "",
            refusal: None,
        };
        let hello = hello.write(Some(&self.plane.node));
        let met = || (self.tell)(News::Met);
        let mut stream = Stream::open(&self.plane, &hello, met).await?;
        loop {
            let message = stream.hear().await?;
            let reply = self.hear(&message).await?;
            *failures = 0;
            stream.say(&reply);
            self.first.send_replace(true);
        }
    }

    /// Hands an answer over, and gives what to say to it.
    async fn hear(&mut self, message: &Bytes) -> Result<Vec<u8>, Over> {
        let answer = Answer::read(message)?;
        let taken = match answer.kind {
            RESOURCE => self.hand_over(message.clone()).await,
            kind => Err(format!("`{}` was not asked for", kind.escape_default())),
        };
        let version = answer.version;
        match &taken {
            Ok(()) => self.version = version.to_owned(),
            Err(why) => (self.tell)(News::Refused { version, why }),
        }
        let ask = Ask {
            version: &self.version,
            nonce: answer.nonce,
            refusal: taken.as_ref().err().map(String::as_str),
        };
        Ok(ask.write(None))
    }

    /// Off the threads that answer requests: ten thousand limits take their time.
    async fn hand_over(&self, message: Bytes) -> Result<(), String> {
        let (take, tell) = (Arc::clone(&self.take), Arc::clone(&self.tell));
        let taken = spawn_blocking(move || {
            let answer = Answer::read(&message).map_err(|error| error.to_string())?;
            take(&answer.resources)?;
            // Lint looks at all of them.
            tell(News::Taken {
                version: answer.version,
            });
            Ok(())
        });
        taken.await.unwrap_or_else(|_| {
            Err("the loader panicked on these resources: please report it".to_owned())
        })
    }
}

/// Between 0 and 1. Without randomness all nodes wait as long as they may.
fn chance() -> f64 {
    getrandom::u32().map_or(1.0, |drawn| f64::from(drawn) / f64::from(u32::MAX))
}
