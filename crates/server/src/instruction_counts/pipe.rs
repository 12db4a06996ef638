//! A running service whose connections are pipes in memory.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::observe::Metrics;
use tidegate_core::algorithms::Precision;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use super::counted_section;
use crate::app::public_listener::PublicListener;
use crate::app::start::build_decider;
use crate::config::{EndpointAddress, SettingsLayer};
use crate::decider::Decider;
use crate::edges::envoy::serve::{EnvoyEdge, EnvoyListener};
use crate::edges::resp::serve::RespListener;
use crate::net::unread_responses::{MAX_LISTENER_BYTES, UnreadResponses};
use crate::net::waiting_streams::WaitingStreams;
use crate::net::{ConnectionContext, ConnectionHandler, ConnectionLimits, ShutdownHandle, ShutdownWaiter};
use crate::state::NodeIdentity;

const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/instruction_counts/rules.yaml");

/// More than a request or response of any path takes.
const PIPE_BYTES: usize = 256 << 10;

/// A service with counters in memory and the rules of this folder.
pub(super) struct InMemoryService {
    decider: Arc<Decider>,
    metrics: Arc<Metrics>,
    envoy: Arc<EnvoyEdge>,
    drain: ShutdownHandle,
    _idle: ShutdownWaiter,
    runtime: Runtime,
}

impl InMemoryService {
    pub(super) fn start() -> Self {
        let layer = SettingsLayer { rules: Some(Path::new(RULES).to_owned()), ..SettingsLayer::default() };
        let settings = layer.resolve().expect("settings that fit together");
        let (drain, idle) = ShutdownHandle::new();
        let identity = NodeIdentity::open(None).expect("the system has randomness");
        let decider = build_decider(&settings, None, &identity, &drain);
        let Ok((decider, control)) = decider else { panic!("the rules of this folder cannot be read") };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let decider = Arc::new(decider);
        InMemoryService {
            envoy: Arc::new(EnvoyEdge::new(Arc::clone(&decider), settings.envoy.clone())),
            decider,
            metrics: control.metrics,
            drain,
            _idle: idle,
            runtime: builder.enable_all().build().expect("a runtime"),
        }
    }

    /// A connection to the public HTTP listener.
    pub(super) fn http(&self) -> DuplexStream {
        self.connect(PublicListener::new(&self.decider, &self.envoy))
    }

    /// A connection to the gRPC listener.
    pub(super) fn grpc(&self) -> DuplexStream {
        self.connect(EnvoyListener(Arc::clone(&self.envoy)))
    }

    /// A connection to the listener for Redis clients.
    pub(super) fn resp(&self) -> DuplexStream {
        let decider = Arc::clone(&self.decider);
        self.connect(RespListener::new(decider, None, Precision::Memory))
    }

    fn connect(&self, handler: impl ConnectionHandler) -> DuplexStream {
        let (client, server) = tokio::io::duplex(PIPE_BYTES);
        let metrics = Arc::clone(&self.metrics);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned();
        let context = ConnectionContext {
            limits: ConnectionLimits { idle: Duration::from_secs(60), age: None, first_request: None },
            _permit: permit.expect("a free permit"),
            peer_permit: None,
            _in_flight: self.drain.in_flight_guard(),
            phase: self.drain.subscribe(),
            metrics: Arc::clone(&metrics),
            waiting_streams: WaitingStreams::new(WaitingStreams::MAX_BYTES, Arc::clone(&metrics)),
            unfinished_heads: Arc::new(Semaphore::new(1)),
            unread: UnreadResponses::new(MAX_LISTENER_BYTES, metrics),
            silent: None,
            large: Arc::default(),
        };
        let peer = EndpointAddress::Tcp(SocketAddr::from(([127, 0, 0, 1], 40_000)));
        let _served = self.runtime.spawn(handler.serve(server, peer, context));
        client
    }

    /// Runs `work` to its end, with the connections beside it.
    pub(super) fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Runs `work` where callgrind counts, with the connections beside it.
    pub(super) fn count(&self, work: impl AsyncFnOnce()) {
        let mut work = Some(work);
        counted_section(&mut || {
            if let Some(work) = work.take() {
                self.runtime.block_on(work());
            }
        });
    }
}

/// Sends a request and reads its response. The service writes a response before it waits for the next request, so
/// that one read finds all of it.
pub(super) async fn exchange<'b>(pipe: &mut DuplexStream, request: &[u8], response: &'b mut [u8]) -> &'b [u8] {
    pipe.write_all(request).await.expect("an open pipe");
    let read = pipe.read(response).await.expect("an open pipe");
    &response[..read]
}
