//! Accepts connections until shutdown. No error of a connection or of the operating system ends it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::identity::ClientIp;
use tidegate::observe::{Metrics, NetworkMetrics};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tracing::{debug, warn};

use super::connection::{self, ConnectionIo, HttpHandler};
use super::frame_scanner::MAX_UNFINISHED_HEADS;
use super::large_connections::LargeConnections;
use super::peer_limit::{ExceededCap, PeerCaps, PeerLimit, PeerPermit, peer_for};
use super::silent_connections::{EvictionScope, SilentConnections, SilentGuard};
use super::supervisor::{ConnectionContext, ConnectionLimits};
use super::tls::ListenerTls;
use super::unread_responses::{MAX_LISTENER_BYTES, UnreadResponses};
use super::waiting_streams::WaitingStreams;
use crate::config::{EndpointAddress, ListenAddress};
use crate::logging::RateLimitedLog;
use crate::net::ShutdownPhase;

/// How long to back off when the system has no more descriptors or memory: long enough for some to be freed, short
/// enough to go unnoticed afterwards.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// Connections that wait to be accepted: many clients reconnect at once after a restart of the proxy in front.
const BACKLOG: u32 = 1024;

/// Maximum connections of a small listener. Only operators and scrapers use one.
pub(crate) const SMALL_CONNECTIONS: usize = 64;

/// Maximum connections of a small listener per peer.
pub(crate) const SMALL_CONNECTIONS_PER_PEER: usize = 16;

/// How long a connection of a small listener may take until its first request has begun.
pub(crate) const SMALL_FIRST_REQUEST: Duration = Duration::from_secs(5);

/// An open listening socket.
#[derive(Debug)]
pub(crate) enum Listener {
    /// On an address.
    Tcp(TcpListener, EndpointAddress),
    /// On a socket in the file system, removed when closed.
    Unix(UnixListener, PathBuf),
}

/// The limits of a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListenerLimits {
    /// Maximum connections.
    pub(crate) connections: usize,
    /// Maximum connections of one peer, if that is configured.
    pub(crate) per_peer: Option<usize>,
    /// Limits of each connection.
    pub(crate) connection_limits: ConnectionLimits,
    /// What happens to a connection beyond these.
    pub(crate) when_full: WhenFull,
}

/// What a listener does when all of its connections, or all connections of one peer, are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenFull {
    /// The next connection waits, or is closed if its peer has reached its maximum.
    RejectNew,
    /// The connection that has been silent longest is closed.
    EvictSilent,
}

impl ListenerLimits {
    /// These limits for a small listener: admin or metrics.
    pub(crate) fn for_small_listener(self) -> Self {
        let per_peer = self.per_peer.unwrap_or(SMALL_CONNECTIONS_PER_PEER);
        ListenerLimits {
            connections: SMALL_CONNECTIONS,
            per_peer: Some(per_peer.min(SMALL_CONNECTIONS_PER_PEER)),
            connection_limits: ConnectionLimits { first_request: Some(SMALL_FIRST_REQUEST), ..self.connection_limits },
            when_full: WhenFull::EvictSilent,
        }
    }

    /// Connections that may be open for a moment: one more where another is evicted for it.
    fn max_open(self) -> usize {
        match self.when_full {
            WhenFull::RejectNew => self.connections,
            WhenFull::EvictSilent => self.connections + 1,
        }
    }
}

/// How a listener learns of the shutdown, and shows that it has not ended yet.
#[derive(Debug)]
pub(crate) struct ListenerShutdown {
    pub(crate) phase: watch::Receiver<ShutdownPhase>,
    /// Held while anything is open.
    pub(crate) in_flight: mpsc::Sender<()>,
}

/// The protocol of a listener.
pub(crate) trait ConnectionHandler: Clone + Send + Sync + 'static {
    /// Serves one connection to its end.
    fn serve<I: ConnectionIo>(
        self,
        io: I,
        peer: EndpointAddress,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send;

    /// Whether this peer is a trusted proxy. A trusted peer may use all connections.
    fn is_trusted(&self, peer: IpAddr) -> bool;
}

impl<H: HttpHandler> ConnectionHandler for H {
    fn serve<I: ConnectionIo>(
        self,
        io: I,
        peer: EndpointAddress,
        context: ConnectionContext,
    ) -> impl Future<Output = ()> + Send {
        connection::serve(io, peer, self, context)
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        HttpHandler::is_trusted(self, peer)
    }
}

impl Listener {
    /// Opens the listener, if it is enabled.
    pub(crate) async fn open(address: &ListenAddress) -> io::Result<Option<Self>> {
        match address {
            ListenAddress::Off => Ok(None),
            ListenAddress::Tcp(text) => {
                let listener = bind(text).await?;
                let local_address = EndpointAddress::Tcp(listener.local_addr()?);
                Ok(Some(Listener::Tcp(listener, local_address)))
            }
            ListenAddress::Unix(path) => {
                remove_stale_socket(path).await?;
                Ok(Some(Listener::Unix(UnixListener::bind(path)?, path.clone())))
            }
        }
    }

    /// Opens the listener. A socket in the file system is accessible to this user alone from its first moment.
    pub(crate) async fn open_private(address: &ListenAddress) -> io::Result<Option<Self>> {
        let ListenAddress::Unix(path) = address else {
            return Self::open(address).await;
        };
        remove_stale_socket(path).await?;
        let listener = bind_private(path)?;
        Ok(Some(Listener::Unix(listener, path.clone())))
    }

    /// The address it is bound to.
    pub(crate) fn local_address(&self) -> EndpointAddress {
        match self {
            Listener::Tcp(_, address) => address.clone(),
            Listener::Unix(_, path) => EndpointAddress::Unix(path.clone()),
        }
    }

    /// Serves until shutdown, in plain text or only over `tls`.
    pub(crate) async fn serve<D: ConnectionHandler>(
        self,
        handler: D,
        limits: ListenerLimits,
        mut shutdown: ListenerShutdown,
        metrics: Arc<Metrics>,
        tls: Option<Arc<ListenerTls>>,
    ) {
        let permits = Arc::new(Semaphore::new(limits.max_open()));
        let admission = ConnectionAdmission::new(limits, self.local_address());
        let waiting_streams = WaitingStreams::new(WaitingStreams::MAX_BYTES, Arc::clone(&metrics));
        let unfinished_heads = Arc::new(Semaphore::new(MAX_UNFINISHED_HEADS));
        let unread = UnreadResponses::new(MAX_LISTENER_BYTES, Arc::clone(&metrics));
        let large = Arc::new(LargeConnections::default());
        loop {
            let permit = tokio::select! {
                permit = admission.acquire_permit(&permits) => permit,
                () = wait_closing(&mut shutdown.phase) => break,
            };
            let context = ConnectionContext {
                limits: limits.connection_limits,
                _permit: permit,
                peer_permit: None,
                _in_flight: shutdown.in_flight.clone(),
                phase: shutdown.phase.clone(),
                metrics: Arc::clone(&metrics),
                waiting_streams: Arc::clone(&waiting_streams),
                unfinished_heads: Arc::clone(&unfinished_heads),
                unread: Arc::clone(&unread),
                silent: None,
                large: Arc::clone(&large),
            };
            let accepted = tokio::select! {
                accepted = self.accept(handler.clone(), context, &admission, &tls) => accepted,
                () = wait_closing(&mut shutdown.phase) => break,
            };
            if let Err(error) = accepted {
                metrics.accept_errors.inc();
                if is_connection_error(&error) {
                    debug!(%error, "connection lost before it was accepted");
                } else {
                    warn!(%error, "cannot accept connections, backing off");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
            }
        }
        if let Listener::Unix(_, path) = &self {
            // An error means that the file was removed before.
            let _ = std::fs::remove_file(path);
        }
    }

    async fn accept<D: ConnectionHandler>(
        &self,
        handler: D,
        mut context: ConnectionContext,
        admission: &ConnectionAdmission,
        tls: &Option<Arc<ListenerTls>>,
    ) -> io::Result<()> {
        match self {
            Listener::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                let untrusted = (!handler.is_trusted(peer.ip())).then(|| peer_for(peer.ip()));
                if untrusted.is_some() {
                    context.peer_permit = admission.acquire_peer_permit(peer.ip(), &context.metrics.network);
                    if context.peer_permit.is_none() {
                        return Ok(()); // dropping the stream closes it
                    }
                }
                context.silent = admission.register(untrusted);
                stream.set_nodelay(true)?;
                let peer = EndpointAddress::Tcp(peer);
                tokio::spawn(handshake_and_serve(stream, peer, handler, context, tls.clone()));
            }
            Listener::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                context.silent = admission.register(None);
                let peer = EndpointAddress::Unix(path.clone());
                tokio::spawn(handshake_and_serve(stream, peer, handler, context, tls.clone()));
            }
        }
        Ok(())
    }
}

/// The caps of a listener, and the log lines about connections that exceed them.
struct ConnectionAdmission {
    local_address: EndpointAddress,
    caps: PeerCaps,
    peer_limit: Arc<PeerLimit>,
    max_connections: usize,
    /// Exists if silent connections are evicted.
    silent_connections: Option<Arc<SilentConnections>>,
    peer_cap_log: RateLimitedLog,
    listener_cap_log: RateLimitedLog,
    full_log: RateLimitedLog,
}

impl ConnectionAdmission {
    fn new(limits: ListenerLimits, local_address: EndpointAddress) -> Self {
        let caps = PeerCaps::of(limits.connections, limits.per_peer);
        ConnectionAdmission {
            local_address,
            caps,
            peer_limit: PeerLimit::new(caps),
            max_connections: limits.connections,
            silent_connections: (limits.when_full == WhenFull::EvictSilent).then(Arc::default),
            peer_cap_log: RateLimitedLog::new(),
            listener_cap_log: RateLimitedLog::new(),
            full_log: RateLimitedLog::new(),
        }
    }

    /// Waits until the listener may have one more connection, of any peer.
    async fn acquire_permit(&self, permits: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        if permits.available_permits() == 0
            && let Some(times) = self.full_log.count()
        {
            warn!(address = %self.local_address, times, "all connections are in use, the next one waits");
        }
        let permit = Arc::clone(permits).acquire_owned();
        permit.await.expect("the semaphore is never closed")
    }

    /// Registers a connection of a small listener. If the table is full, another connection is evicted. If a request is
    /// in flight on every one of them, this is one more, and the next one waits.
    fn register(&self, untrusted: Option<ClientIp>) -> Option<SilentGuard> {
        let silent_connections = self.silent_connections.as_ref()?;
        if silent_connections.open() >= self.max_connections {
            silent_connections.evict(EvictionScope::Listener);
        }
        Some(SilentConnections::register(silent_connections, untrusted))
    }

    /// A permit for a connection of a peer that is not trusted, unless that exceeds a cap.
    fn acquire_peer_permit(&self, peer: IpAddr, metrics: &NetworkMetrics) -> Option<PeerPermit> {
        let exceeded = match self.peer_limit.acquire(peer) {
            Ok(permit) => return Some(permit),
            Err(exceeded) => exceeded,
        };
        if let Some(silent_connections) = &self.silent_connections {
            let scope = match exceeded {
                ExceededCap::Peer => EvictionScope::Peer(peer_for(peer)),
                ExceededCap::Listener => EvictionScope::Untrusted,
            };
            if silent_connections.evict(scope).is_some() {
                return Some(self.peer_limit.acquire_after_eviction(peer_for(peer)));
            }
        }
        let (counter, log_limit, max, what) = match exceeded {
            ExceededCap::Peer => {
                let what = "connection closed, its peer has reached its maximum";
                (&metrics.rejected_by_peer_cap, &self.peer_cap_log, self.caps.each, what)
            }
            ExceededCap::Listener => {
                let what = "connection closed, the remaining ones are reserved for trusted peers";
                (&metrics.rejected_by_listener_cap, &self.listener_cap_log, self.caps.all, what)
            }
        };
        counter.inc();
        if let Some(rejected) = log_limit.count() {
            warn!(address = %self.local_address, %peer, max, rejected, "{what}");
        }
        None
    }
}

/// Serves one connection, after its TLS handshake if there is one.
async fn handshake_and_serve<I: ConnectionIo, D: ConnectionHandler>(
    io: I,
    peer: EndpointAddress,
    handler: D,
    mut context: ConnectionContext,
    tls: Option<Arc<ListenerTls>>,
) {
    let Some(tls) = tls else {
        return handler.serve(io, peer, context).await;
    };
    let handshake = tokio::select! {
        accepted = tls.accept(io) => accepted,
        () = wait_closing(&mut context.phase) => return,
    };
    match handshake {
        // On the heap, so that plain connections do not carry its size.
        Ok(io) => Box::pin(handler.serve(io, peer, context)).await,
        Err(error) => {
            context.metrics.accept_errors.inc();
            debug!(%peer, %error, "TLS handshake failed");
        }
    }
}

/// Removes the socket that a killed process left behind, and nothing else. A file that is not a socket, and a socket on
/// which a process listens, are errors.
async fn remove_stale_socket(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let already_exists = |what: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    if !found.file_type().is_socket() {
        return already_exists("the path is a file that is not a socket; remove it or choose another path");
    }
    match UnixStream::connect(path).await {
        Ok(_) => already_exists("another process listens there"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        Err(error) => Err(error),
    }
}

/// Binds a socket that no other user can connect to. Between `bind` and a change of its mode others could, so that
/// happens in a folder that only this user may enter. A hard link then moves it to its path.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let parent = path.parent().unwrap_or(Path::new(""));
    // A short name: the whole path of a socket has at most 107 bytes.
    let folder = parent.join(format!(".tg{}", std::process::id()));
    let hidden = folder.join("s");
    // A killed process with the same id left it behind. It is created anew, because its mode is unknown.
    if std::fs::symlink_metadata(&folder).is_ok_and(|found| found.is_dir()) {
        let _ = std::fs::remove_file(&hidden);
        let _ = std::fs::remove_dir(&folder);
    }
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let bound = UnixListener::bind(&hidden).and_then(|listener| {
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
        std::fs::hard_link(&hidden, path)?;
        Ok(listener)
    });
    // A leftover is harmless, and an error above is the one to report.
    let _ = std::fs::remove_file(&hidden);
    let _ = std::fs::remove_dir(&folder);
    bound
}

/// Binds the first usable address that `text` resolves to.
async fn bind(text: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name resolves to no address");
    for address in tokio::net::lookup_host(text).await? {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restart must not wait until the kernel forgets the connections of the previous process.
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn wait_closing(phase: &mut watch::Receiver<ShutdownPhase>) {
    // An error means that the sender is gone, which is a shutdown as well.
    let _ = phase.wait_for(|phase| *phase == ShutdownPhase::Closing).await;
}

/// Whether only the accepted connection failed, so that the next can be accepted at once.
fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | NotConnected | InvalidInput)
}

#[cfg(test)]
mod tests;
