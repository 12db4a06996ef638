//! Keeps the configuration of a control plane active, until it is dropped.
//!
//! One task: connect, subscribe, receive, apply, acknowledge or reject. After a disconnect it starts again, with
//! growing back-off. Invariant: each response is acknowledged or rejected, in order, and the version in our requests is
//! always that of the active configuration. Does not know what a resource means.

use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::{AbortHandle, spawn_blocking};

use super::client::{AdsStream, AdsStreamError};
use super::wire::{DiscoveryRequest, DiscoveryResponse, RESOURCE_TYPE};
use crate::config::ControlPlane;
use crate::protobuf::ProtobufError;

/// The type and the bytes of each resource to apply.
pub(crate) type Resources<'a> = [(&'a str, &'a [u8])];
/// Applies resources, or returns all of their errors.
pub(crate) type ApplyResources = Arc<dyn Fn(&Resources<'_>) -> Result<(), String> + Send + Sync>;
/// Called with every event.
pub(crate) type XdsEventHandler = Arc<dyn Fn(XdsEvent<'_>) + Send + Sync>;

/// An event on the connection to a control plane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum XdsEvent<'a> {
    /// The connection is established.
    Connected,
    /// The resources are active.
    Applied { version: &'a str },
    /// The resources were rejected.
    Rejected { version: &'a str, why: &'a str },
    /// The stream has ended. The next attempt follows after `wait_ms`.
    Disconnected { why: &'a str, wait_ms: u64 },
}

/// Follows a control plane until dropped.
#[derive(Debug)]
pub(crate) struct XdsSubscription {
    task: AbortHandle,
    responded: watch::Receiver<bool>,
}

impl XdsSubscription {
    /// Starts the background task. Must be called inside the runtime.
    pub(crate) fn start(plane: ControlPlane, apply: ApplyResources, on_event: XdsEventHandler) -> Self {
        let (first, responded) = watch::channel(false);
        let runner = XdsSubscriptionTask { plane, apply, on_event, first_response: first, version: String::new() };
        let task = tokio::spawn(runner.run()).abort_handle();
        XdsSubscription { task, responded }
    }

    /// Waits until the control plane has sent a response, valid or not.
    pub(crate) async fn wait_for_first_response(&self) {
        // An error means that the task has ended: then there is nothing to wait for.
        let _ = self.responded.clone().wait_for(|responded| *responded).await;
    }
}

impl Drop for XdsSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The state of the task.
struct XdsSubscriptionTask {
    plane: ControlPlane,
    apply: ApplyResources,
    on_event: XdsEventHandler,
    first_response: watch::Sender<bool>,
    /// The version of the active configuration. It outlives a stream: a control plane need not send again what the node
    /// has.
    version: String,
}

/// Why a stream has ended.
#[derive(Debug, thiserror::Error)]
enum XdsError {
    #[error(transparent)]
    Stream(#[from] AdsStreamError),
    #[error("it sent an invalid response: {0}")]
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

    /// Runs one stream to its end. The first response resets `failures`.
    async fn run_stream(&mut self, failures: &mut u32) -> Result<std::convert::Infallible, XdsError> {
        let first_request = DiscoveryRequest { version: &self.version, nonce: "", rejection: None };
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

    /// Applies a response and returns the request that acknowledges or rejects it.
    async fn handle_response(&mut self, message: &Bytes) -> Result<Vec<u8>, XdsError> {
        let response = DiscoveryResponse::decode(message)?;
        let applied = match response.type_url {
            RESOURCE_TYPE => self.apply_resources(message.clone()).await,
            kind => Err(format!("`{}` is not the requested type", kind.escape_default())),
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

    /// Runs off the threads that serve requests: ten thousand limits take their time.
    async fn apply_resources(&self, message: Bytes) -> Result<(), String> {
        let (apply, on_event) = (Arc::clone(&self.apply), Arc::clone(&self.on_event));
        let applied = spawn_blocking(move || {
            let response = DiscoveryResponse::decode(&message).map_err(|error| error.to_string())?;
            apply(&response.resources)?;
            // Called on this thread, because lint checks all rules.
            on_event(XdsEvent::Applied { version: response.version });
            Ok(())
        });
        applied.await.unwrap_or_else(|_| Err("the loader panicked on these resources; please report it".to_owned()))
    }
}

/// Between 0 and 1. Without randomness all nodes wait the maximum.
fn random_fraction() -> f64 {
    getrandom::u32().map_or(1.0, |random| f64::from(random) / f64::from(u32::MAX))
}
