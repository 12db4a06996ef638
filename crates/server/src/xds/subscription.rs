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
use super::client::{AdsStream, AdsStreamError};
use super::wire::{DiscoveryRequest, DiscoveryResponse, RESOURCE_TYPE};
use crate::protobuf::ProtobufError;

/// The kind and the bytes of each resource that is to be in force.
pub(crate) type Resources<'a> = [(&'a str, &'a [u8])];
/// Puts resources in force, or says every fault of theirs.
pub(crate) type ApplyResources = Arc<dyn Fn(&Resources<'_>) -> Result<(), String> + Send + Sync>;
/// Hears what happens.
pub(crate) type XdsEventHandler = Arc<dyn Fn(XdsEvent<'_>) + Send + Sync>;

/// What happens between us and a control plane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum XdsEvent<'a> {
    /// There is a connection.
    Connected,
    /// What it sent is in force.
    Applied { version: &'a str },
    /// What it sent is not.
    Rejected { version: &'a str, why: &'a str },
    /// There is no stream any more, and the next try comes.
    Disconnected { why: &'a str, wait_ms: u64 },
}

/// Follows a control plane until dropped.
#[derive(Debug)]
pub(crate) struct XdsSubscription {
    task: AbortHandle,
    responded: watch::Receiver<bool>,
}

impl XdsSubscription {
    /// Begins, in the background. To be called inside the runtime.
    pub(crate) fn start(
        plane: ControlPlane,
        apply: ApplyResources,
        on_event: XdsEventHandler,
    ) -> Self {
        let (first, responded) = watch::channel(false);
        let runner = XdsSubscriptionTask {
            plane,
            apply,
            on_event,
            first_response: first,
            version: String::new(),
        };
        let task = tokio::spawn(runner.run()).abort_handle();
        XdsSubscription { task, responded }
    }

    /// Waits until the plane has sent something, be it good or bad.
    pub(crate) async fn wait_for_first_response(&self) {
        // An end of the task cannot be waited for longer than it lasts.
        let _ = self.responded.clone().wait_for(|answered| *answered).await;
    }
}

impl Drop for XdsSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the task owns.
struct XdsSubscriptionTask {
    plane: ControlPlane,
    apply: ApplyResources,
    on_event: XdsEventHandler,
    first_response: watch::Sender<bool>,
    /// Of what is in force. It outlives a stream: a plane need not send again what we have.
    version: String,
}

/// Why a stream is over.
#[derive(Debug, thiserror::Error)]
enum XdsError {
    #[error(transparent)]
    Stream(#[from] AdsStreamError),
    #[error("it sent what is no answer: {0}")]
    Malformed(#[from] ProtobufError),
}

impl XdsSubscriptionTask {
    async fn run(mut self) {
        let mut failures = 0;
        loop {
            let Err(error) = self.run_stream(&mut failures).await;
            let wait = self.plane.backoff.wait(failures, random_fraction());
            failures += 1;
            let why = error.to_string();
            let wait_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
            (self.on_event)(XdsEvent::Disconnected { why: &why, wait_ms });
            tokio::time::sleep(wait).await;
        }
    }

    /// One stream, to its end. `failures` is set back by the first answer.
    async fn run_stream(
        &mut self,
        failures: &mut u32,
    ) -> Result<std::convert::Infallible, XdsError> {
        let first_request = DiscoveryRequest {
            version: &self.version,
            nonce: "",
            rejection: None,
        };
        let first_request = first_request.encode(Some(&self.plane.node));
        let on_connect = || (self.on_event)(XdsEvent::Connected);
        let mut stream = AdsStream::open(&self.plane, &first_request, on_connect).await?;
        loop {
            let message = stream.receive().await?;
            let request = self.handle_response(&message).await?;
            *failures = 0;
            stream.send(&request);
            self.first_response.send_replace(true);
        }
    }

    /// Hands an answer over, and gives what to say to it.
    async fn handle_response(&mut self, message: &Bytes) -> Result<Vec<u8>, XdsError> {
        let response = DiscoveryResponse::decode(message)?;
        let applied = match response.type_url {
            RESOURCE_TYPE => self.apply_resources(message.clone()).await,
            kind => Err(format!("`{}` was not asked for", kind.escape_default())),
        };
        let version = response.version;
        match &applied {
            Ok(()) => self.version = version.to_owned(),
            Err(why) => (self.on_event)(XdsEvent::Rejected { version, why }),
        }
        let request = DiscoveryRequest {
            version: &self.version,
            nonce: response.nonce,
            rejection: applied.as_ref().err().map(String::as_str),
        };
        Ok(request.encode(None))
    }

    /// Off the threads that answer requests: ten thousand limits take their time.
    async fn apply_resources(&self, message: Bytes) -> Result<(), String> {
        let (apply, on_event) = (Arc::clone(&self.apply), Arc::clone(&self.on_event));
        let applied = spawn_blocking(move || {
            let response =
                DiscoveryResponse::decode(&message).map_err(|error| error.to_string())?;
            apply(&response.resources)?;
            // Lint looks at all of them.
            on_event(XdsEvent::Applied {
                version: response.version,
            });
            Ok(())
        });
        applied.await.unwrap_or_else(|_| {
            Err("the loader panicked on these resources: please report it".to_owned())
        })
    }
}

/// Between 0 and 1. Without randomness all nodes wait as long as they may.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}
