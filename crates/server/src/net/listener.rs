//! Takes connections until told to stop. No error of a connection or of the operating system ends it.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::identity::ClientIp;
use tidegate::observe::{Metrics, NetworkMetrics};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tracing::{debug, warn};

use super::connection::{self, Handler};
use super::frame_scanner::MAX_UNFINISHED;
use super::large_connections::LargeConnections;
use super::occasional::OccasionalLine;
use super::peers::{ExceededCap, PeerCaps, Peers, Seat, peer_of};
use super::silent_connections::{EvictionScope, SilentConnections, SilentPlace};
use super::tls::Tls;
use super::unread::{MAX_LISTENER_BYTES, UnreadResponses};
use super::waiting_streams::WaitingStreams;
use super::watch::{Guards, Keeping};
use crate::address::{Address, Place};
use crate::drain::Phase;

/// How long to wait when the system has no more descriptors or memory: long enough for some to be
/// freed, short enough that nobody notices once they are.
const BACK_OFF: Duration = Duration::from_millis(50);

/// Connections that wait to be taken: a herd of clients after a restart of what is before us.
const BACKLOG: u32 = 1024;

/// The connections of a small listener. Operators and scrapers have business there, and nobody else.
pub(crate) const SMALL_CONNECTIONS: usize = 64;

/// The connections of a small listener that one peer may have.
pub(crate) const SMALL_CONNECTIONS_PER_PEER: usize = 16;

/// How long a connection of a small listener may take until its first request has begun.
pub(crate) const SMALL_FIRST_REQUEST: Duration = Duration::from_secs(5);

/// An open door.
#[derive(Debug)]
pub(crate) enum Listener {
    /// On an address.
    Tcp(TcpListener, Place),
    /// On a socket in the file system, removed when closed.
    Unix(UnixListener, PathBuf),
}

/// What a listener keeps to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Connections at once.
    pub(crate) connections: usize,
    /// Connections at once of one peer, if that is configured.
    pub(crate) per_peer: Option<usize>,
    /// How each is kept.
    pub(crate) keeping: Keeping,
    /// What happens to a connection beyond these.
    pub(crate) when_full: WhenFull,
}

/// What a listener does when it has all connections that it may have, or that one peer may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WhenFull {
    /// The next connection waits, or is closed if its peer has all it may have.
    RefuseNew,
    /// The connection that has been silent longest is closed.
    EvictSilent,
}

impl Bounds {
    /// The same for a listener that few have business at.
    pub(crate) fn small(self) -> Self {
        let per_peer = self.per_peer.unwrap_or(SMALL_CONNECTIONS_PER_PEER);
        Bounds {
            connections: SMALL_CONNECTIONS,
            per_peer: Some(per_peer.min(SMALL_CONNECTIONS_PER_PEER)),
            keeping: Keeping {
                first_request: Some(SMALL_FIRST_REQUEST),
                ..self.keeping
            },
            when_full: WhenFull::EvictSilent,
        }
    }

    /// Connections that may be open for a moment: one more where another is evicted for it.
    fn permits(self) -> usize {
        match self.when_full {
            WhenFull::RefuseNew => self.connections,
            WhenFull::EvictSilent => self.connections + 1,
        }
    }
}

/// How a listener hears of the end, and shows that it is not there yet.
#[derive(Debug)]
pub(crate) struct Ending {
    /// How far along.
    pub(crate) phase: watch::Receiver<Phase>,
    /// Held while anything is open.
    pub(crate) busy: mpsc::Sender<()>,
}

/// What is spoken at a door.
pub(crate) trait Door: Clone + Send + Sync + 'static {
    /// Serves one connection to its end.
    fn serve<I>(
        self,
        io: I,
        peer: Place,
        keeping: Keeping,
        guards: Guards,
    ) -> impl Future<Output = ()> + Send
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Whether this peer speaks for others, and may have as many connections as there are.
    fn trusts(&self, peer: IpAddr) -> bool;
}

impl<H: Handler> Door for H {
    fn serve<I>(
        self,
        io: I,
        peer: Place,
        keeping: Keeping,
        guards: Guards,
    ) -> impl Future<Output = ()> + Send
    where
        I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        connection::serve(io, peer, self, keeping, guards)
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        Handler::trusts(self, peer)
    }
}

impl Listener {
    /// Opens the door, if there is to be one.
    pub(crate) async fn open(address: &Address) -> io::Result<Option<Self>> {
        match address {
            Address::Off => Ok(None),
            Address::Tcp(text) => {
                let listener = bind(text).await?;
                let place = Place::Tcp(listener.local_addr()?);
                Ok(Some(Listener::Tcp(listener, place)))
            }
            Address::Unix(path) => {
                clear(path).await?;
                Ok(Some(Listener::Unix(
                    UnixListener::bind(path)?,
                    path.clone(),
                )))
            }
        }
    }

    /// The same, but a socket in the file system is for this user alone from its first moment.
    pub(crate) async fn open_private(address: &Address) -> io::Result<Option<Self>> {
        let Address::Unix(path) = address else {
            return Self::open(address).await;
        };
        clear(path).await?;
        let listener = bind_private(path)?;
        Ok(Some(Listener::Unix(listener, path.clone())))
    }

    /// Where it really listens.
    pub(crate) fn place(&self) -> Place {
        match self {
            Listener::Tcp(_, place) => place.clone(),
            Listener::Unix(_, path) => Place::Unix(path.clone()),
        }
    }

    /// Serves until the end, in the open or only to those who speak `tls`.
    pub(crate) async fn serve<D: Door>(
        self,
        door: D,
        bounds: Bounds,
        mut ending: Ending,
        metrics: Arc<Metrics>,
        tls: Option<Arc<Tls>>,
    ) {
        let room = Arc::new(Semaphore::new(bounds.permits()));
        let gate = PeerGate::new(bounds, self.place());
        let waiting_streams = WaitingStreams::new(WaitingStreams::MAX_BYTES, Arc::clone(&metrics));
        let unfinished_heads = Arc::new(Semaphore::new(MAX_UNFINISHED));
        let unread = UnreadResponses::new(MAX_LISTENER_BYTES, Arc::clone(&metrics));
        let large = Arc::new(LargeConnections::default());
        loop {
            let permit = tokio::select! {
                permit = gate.room_in(&room) => permit,
                () = closing(&mut ending.phase) => break,
            };
            let guards = Guards {
                _room: permit,
                seat: None,
                _busy: ending.busy.clone(),
                phase: ending.phase.clone(),
                metrics: Arc::clone(&metrics),
                waiting_streams: Arc::clone(&waiting_streams),
                unfinished_heads: Arc::clone(&unfinished_heads),
                unread: Arc::clone(&unread),
                silent: None,
                large: Arc::clone(&large),
            };
            let accepted = tokio::select! {
                accepted = self.accept(door.clone(), bounds.keeping, guards, &gate, &tls) => accepted,
                () = closing(&mut ending.phase) => break,
            };
            if let Err(error) = accepted {
                metrics.accept_errors.inc();
                if is_of_one_connection(&error) {
                    debug!(%error, "connection lost before it was taken");
                } else {
                    warn!(%error, "cannot take connections, waiting");
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
        if let Listener::Unix(_, path) = &self {
            // Somebody may have removed it before; then there is nothing left to do.
            let _ = std::fs::remove_file(path);
        }
    }

    async fn accept<D: Door>(
        &self,
        door: D,
        keeping: Keeping,
        mut guards: Guards,
        gate: &PeerGate,
        tls: &Option<Arc<Tls>>,
    ) -> io::Result<()> {
        match self {
            Listener::Tcp(listener, _) => {
                let (stream, peer) = listener.accept().await?;
                let untrusted = (!door.trusts(peer.ip())).then(|| peer_of(peer.ip()));
                if untrusted.is_some() {
                    guards.seat = gate.seat(peer.ip(), &guards.metrics.network);
                    if guards.seat.is_none() {
                        return Ok(()); // which closes it
                    }
                }
                guards.silent = gate.place(untrusted);
                stream.set_nodelay(true)?;
                let peer = Place::Tcp(peer);
                tokio::spawn(welcome(stream, peer, door, keeping, guards, tls.clone()));
            }
            Listener::Unix(listener, path) => {
                let (stream, _) = listener.accept().await?;
                guards.silent = gate.place(None);
                let peer = Place::Unix(path.clone());
                tokio::spawn(welcome(stream, peer, door, keeping, guards, tls.clone()));
            }
        }
        Ok(())
    }
}

/// The caps of a listener, and the log lines about connections that exceed them.
struct PeerGate {
    place: Place,
    caps: PeerCaps,
    peers: Arc<Peers>,
    max_connections: usize,
    /// Exists if silent connections are evicted.
    silent: Option<Arc<SilentConnections>>,
    peer_line: OccasionalLine,
    listener_line: OccasionalLine,
    full_line: OccasionalLine,
}

impl PeerGate {
    fn new(bounds: Bounds, place: Place) -> Self {
        let caps = PeerCaps::of(bounds.connections, bounds.per_peer);
        PeerGate {
            place,
            caps,
            peers: Peers::new(caps),
            max_connections: bounds.connections,
            silent: (bounds.when_full == WhenFull::EvictSilent).then(Arc::default),
            peer_line: OccasionalLine::new(),
            listener_line: OccasionalLine::new(),
            full_line: OccasionalLine::new(),
        }
    }

    /// Waits until the listener may have one more connection, of whatever peer.
    async fn room_in(&self, room: &Arc<Semaphore>) -> OwnedSemaphorePermit {
        if room.available_permits() == 0
            && let Some(times) = self.full_line.count()
        {
            warn!(address = %self.place, times, "all connections are in use, the next one waits");
        }
        let permit = Arc::clone(room).acquire_owned();
        permit.await.expect("never closed")
    }

    /// A place among the connections of a small listener. If all are taken, another one is evicted. If a
    /// request is in flight on every one of them, this is one more, and the next one waits.
    fn place(&self, untrusted: Option<ClientIp>) -> Option<SilentPlace> {
        let silent = self.silent.as_ref()?;
        if silent.open() >= self.max_connections {
            silent.evict(EvictionScope::Listener);
        }
        Some(SilentConnections::enter(silent, untrusted))
    }

    /// A seat for a connection of a peer that is not trusted, unless that exceeds a cap.
    fn seat(&self, peer: IpAddr, metrics: &NetworkMetrics) -> Option<Seat> {
        let exceeded = match self.peers.seat(peer) {
            Ok(seat) => return Some(seat),
            Err(exceeded) => exceeded,
        };
        if let Some(silent) = &self.silent {
            let scope = match exceeded {
                ExceededCap::Peer => EvictionScope::Peer(peer_of(peer)),
                ExceededCap::Listener => EvictionScope::Untrusted,
            };
            if silent.evict(scope).is_some() {
                return Some(self.peers.seat_after_eviction(peer_of(peer)));
            }
        }
        let (counter, line, max) = match exceeded {
            ExceededCap::Peer => (
                &metrics.refused_by_peer_cap,
                &self.peer_line,
                self.caps.each,
            ),
            ExceededCap::Listener => {
                let counter = &metrics.refused_by_listener_cap;
                (counter, &self.listener_line, self.caps.all)
            }
        };
        counter.inc();
        if let Some(refused) = line.count() {
            let what = match exceeded {
                ExceededCap::Peer => "connection refused, its peer has all it may have",
                ExceededCap::Listener => {
                    "connection refused, the rest is reserved for trusted peers"
                }
            };
            warn!(address = %self.place, %peer, max, refused, "{what}");
        }
        None
    }
}

/// Serves one connection, once it is known to be who it must be.
async fn welcome<I, D>(
    io: I,
    peer: Place,
    door: D,
    keeping: Keeping,
    mut guards: Guards,
    tls: Option<Arc<Tls>>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    D: Door,
{
    let Some(tls) = tls else {
        return door.serve(io, peer, keeping, guards).await;
    };
    let greeted = tokio::select! {
        greeted = tls.greet(io) => greeted,
        () = closing(&mut guards.phase) => return,
    };
    match greeted {
        // On the heap, so that those in the open do not carry the room for it.
        Ok(io) => Box::pin(door.serve(io, peer, keeping, guards)).await,
        Err(error) => {
            guards.metrics.accept_errors.inc();
            debug!(%peer, %error, "no TLS with this peer");
        }
    }
}

/// Removes the socket that a killed process left behind, and nothing else: what is not a socket, or
/// is one that somebody listens at, is refused.
async fn clear(path: &Path) -> io::Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let in_the_way = |what: &str| Err(io::Error::new(io::ErrorKind::AlreadyExists, what));
    if !found.file_type().is_socket() {
        return in_the_way(
            "there is a file that is not a socket; remove it or choose another path",
        );
    }
    match UnixStream::connect(path).await {
        Ok(_) => in_the_way("another process listens there"),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path)
        }
        Err(error) => Err(error),
    }
}

/// Binds a socket that nobody else can connect to. Between `bind` and a change of its mode others could,
/// so that happens in a folder that only this user may enter. A link then puts it into its place.
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let parent = path.parent().unwrap_or(Path::new(""));
    // A short name: the whole path of a socket has 107 bytes.
    let folder = parent.join(format!(".tg{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
    let hidden = folder.join("s");
    let bound = UnixListener::bind(&hidden).and_then(|listener| {
        std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o600))?;
        std::fs::hard_link(&hidden, path)?;
        Ok(listener)
    });
    // What is left of it is harmless, and an error above is the one to report.
    let _ = std::fs::remove_file(&hidden);
    let _ = std::fs::remove_dir(&folder);
    bound
}

/// The first of the addresses that `text` stands for that can be had.
async fn bind(text: &str) -> io::Result<TcpListener> {
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
    for address in tokio::net::lookup_host(text).await? {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4()?,
            SocketAddr::V6(_) => TcpSocket::new_v6()?,
        };
        // A restart must not wait for the connections of the process before it to be forgotten.
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn closing(phase: &mut watch::Receiver<Phase>) {
    // An error means that whoever ends the service is gone, which is the end as well.
    let _ = phase.wait_for(|phase| *phase == Phase::Closing).await;
}

/// Whether only the connection being taken failed, so that the next can be tried at once.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{
        ConnectionAborted, ConnectionRefused, ConnectionReset, InvalidInput, NotConnected,
    };
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | NotConnected | InvalidInput
    )
}

#[cfg(test)]
mod tests;
