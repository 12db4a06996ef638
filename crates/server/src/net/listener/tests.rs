//! Tests that connect to a listener.

use super::*;
use crate::net::{ConnectionUnread, HttpResponse};
use bytes::Bytes;
use hyper::Request;
use hyper::body::Incoming;
use std::net::Ipv4Addr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const TRUSTED: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 9));

/// Responds to every request, and trusts only one address of this machine.
#[derive(Clone)]
struct TrustingHandler;

impl HttpHandler for TrustingHandler {
    async fn handle(&self, _: &EndpointAddress, _: &ConnectionUnread, _: Request<Incoming>) -> HttpResponse {
        HttpResponse::new(Bytes::from("fine").into())
    }

    fn panic_response(&self) -> HttpResponse {
        HttpResponse::new(Bytes::from("sorry").into())
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        peer == TRUSTED
    }
}

/// Whether a connection gets a response rather than being closed.
async fn is_served(stream: &mut TcpStream) -> bool {
    let sent = stream.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    let read = stream.read(&mut [0; 1024]).await;
    sent.is_ok() && read.is_ok_and(|read| read > 0)
}

struct RunningListener {
    address: SocketAddr,
    metrics: Arc<Metrics>,
    phase: watch::Sender<ShutdownPhase>,
    task: tokio::task::JoinHandle<()>,
}

async fn start_listener(connections: usize, per_peer: Option<usize>) -> RunningListener {
    let limits = ListenerLimits {
        connections,
        per_peer,
        connection_limits: ConnectionLimits { idle: Duration::from_secs(600), age: None, first_request: None },
        when_full: WhenFull::RejectNew,
    };
    start_listener_with(limits).await
}

async fn start_listener_with(limits: ListenerLimits) -> RunningListener {
    let listen_address = "127.0.0.1:0".parse().unwrap();
    let listener = Listener::open(&listen_address).await.unwrap().unwrap();
    let EndpointAddress::Tcp(address) = listener.local_address() else {
        panic!("not a TCP listener");
    };
    let phase = watch::Sender::new(ShutdownPhase::Serving);
    let shutdown = ListenerShutdown { phase: phase.subscribe(), in_flight: mpsc::channel(1).0 };
    let metrics = Arc::new(Metrics::default());
    let task = tokio::spawn(listener.serve(TrustingHandler, limits, shutdown, Arc::clone(&metrics), None));
    RunningListener { address, metrics, phase, task }
}

/// A connection that is served, or `None` if it is closed at once. That may be before `connect` returns.
async fn served_from(source: [u8; 4], address: SocketAddr) -> Option<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    let mut stream = socket.connect(address).await.ok()?;
    is_served(&mut stream).await.then_some(stream)
}

#[tokio::test]
async fn a_peer_gets_its_maximum_and_further_connections_are_closed() {
    let RunningListener { address, metrics, phase, task } = start_listener(100, Some(2)).await;
    let mut inside = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        assert!(is_served(&mut stream).await);
        inside.push(stream);
    }
    for _ in 0..3 {
        assert!(served_from([127, 0, 0, 1], address).await.is_none());
    }
    assert_eq!(metrics.network.rejected_by_peer_cap.get(), 3);
    assert_eq!(metrics.accept_errors.get(), 0);
    assert!(is_served(&mut inside[0]).await, "open connections stay");
    drop(inside.pop());
    // The permit is free once the server has seen the connection close.
    while served_from([127, 0, 0, 1], address).await.is_none() {}
    phase.send_replace(ShutdownPhase::Closing);
    task.await.unwrap();
}

/// A few peers took all connections, and trusted proxies waited until one of them closed.
#[tokio::test]
async fn greedy_peers_leave_connections_for_trusted_ones() {
    let RunningListener { address, metrics, phase: _still_serving, .. } = start_listener(16, None).await;
    let mut taken = Vec::new();
    let mut rejected = 0;
    for peer in 1..=8 {
        for _ in 0..4 {
            match served_from([127, 0, 0, peer], address).await {
                Some(stream) => taken.push(stream),
                None => rejected += 1,
            }
        }
    }
    // Two are reserved, and each peer has a quarter of the rest.
    assert_eq!((taken.len(), rejected), (14, 18));
    let network = &metrics.network;
    assert_eq!(network.rejected_by_peer_cap.get(), 4);
    assert_eq!(network.rejected_by_listener_cap.get(), 14);
    let mut trusted = Vec::new();
    for _ in 0..2 {
        trusted.push(served_from([127, 0, 0, 9], address).await.unwrap());
    }
    // One more waits, and is served when any other closes.
    let waiting = tokio::spawn(served_from([127, 0, 0, 9], address));
    drop(taken.pop());
    assert!(waiting.await.unwrap().is_some());
}

fn small(connections: usize, per_peer: usize) -> ListenerLimits {
    let connection_limits = ConnectionLimits { idle: Duration::from_secs(600), age: None, first_request: None };
    ListenerLimits { connections, per_peer: Some(per_peer), connection_limits, when_full: WhenFull::EvictSilent }
}

/// Silent clients took the 16 connections of their address or all 64, and scrapers were closed or waited.
#[tokio::test]
async fn silent_connections_of_a_small_listener_are_evicted() {
    let RunningListener { address, metrics, phase: _still_serving, .. } = start_listener_with(small(8, 3)).await;
    let connect = async |source: [u8; 4]| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((source, 0).into()).unwrap();
        socket.connect(address).await.unwrap()
    };
    let mut busy = served_from([127, 0, 0, 1], address).await.unwrap();
    let mut silent = Vec::new();
    for _ in 0..20 {
        silent.push(connect([127, 0, 0, 1]).await);
        assert!(is_served(&mut busy).await, "an active connection stays");
    }
    // The share of the peer is full, and its next request is served all the same.
    assert!(served_from([127, 0, 0, 1], address).await.is_some());
    for peer in 2..=5 {
        for _ in 0..3 {
            silent.push(connect([127, 0, 0, peer]).await);
        }
    }
    // Now all connections that peers may have are taken, and then all there are.
    assert!(served_from([127, 0, 0, 6], address).await.is_some());
    for _ in 0..20 {
        silent.push(connect([127, 0, 0, 9]).await);
    }
    assert!(served_from([127, 0, 0, 9], address).await.is_some());
    assert_eq!(metrics.network.rejected_by_peer_cap.get(), 0);
    assert_eq!(metrics.network.rejected_by_listener_cap.get(), 0);
    while metrics.connections.get() > 8 {
        tokio::task::yield_now().await;
    }
    assert!(metrics.network.silent_evicted.get() >= 40);
}

/// Requests with unread responses do not protect a connection.
#[tokio::test]
async fn connections_with_unread_responses_are_evicted() {
    let serving = start_listener_with(small(4, 4)).await;
    let mut strangers = Vec::new();
    for _ in 0..8 {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        let requests = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".repeat(10_000);
        // Bytes that do not fit at once are not sent.
        let sent = stream.write(&requests).await;
        assert!(sent.is_ok_and(|sent| sent > 0));
        strangers.push(stream);
    }
    for _ in 0..10 {
        assert!(served_from([127, 0, 0, 1], serving.address).await.is_some());
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_of_a_small_listener_without_a_request_is_closed_soon() {
    let mut limits = small(4, 4);
    limits.connection_limits.first_request = Some(SMALL_FIRST_REQUEST);
    let serving = start_listener_with(limits).await;
    let mut used = served_from([127, 0, 0, 1], serving.address).await.unwrap();
    let mut silent = TcpStream::connect(serving.address).await.unwrap();
    silent.write_all(b"GET / HTT").await.unwrap();
    assert!(matches!(silent.read(&mut [0; 9]).await, Ok(0) | Err(_)));
    assert!(is_served(&mut used).await, "it has sent a request");
    assert_eq!(serving.metrics.connections_timed_out.get(), 1);
}

#[tokio::test]
async fn only_a_socket_without_a_listener_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let address = ListenAddress::Unix(path.clone());
    std::fs::write(&path, "precious").unwrap();
    assert!(Listener::open(&address).await.is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    std::fs::remove_file(&path).unwrap();
    let first = Listener::open(&address).await.unwrap().unwrap();
    assert!(Listener::open(&address).await.is_err(), "a process listens there");
    drop(first);
    assert!(path.exists(), "as a killed process leaves it");
    assert!(Listener::open(&address).await.is_ok());
}

/// The socket was open to all users until its mode was changed.
#[tokio::test]
async fn a_private_socket_is_never_open_to_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("admin.sock");
    let address = ListenAddress::Unix(path.clone());
    let mode = |path: &Path| {
        let found = std::fs::metadata(path).ok()?;
        Some(found.permissions().mode() & 0o777)
    };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| {
            let mut seen = std::collections::BTreeSet::new();
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                seen.extend(mode(&path));
            }
            seen
        });
        let runtime = tokio::runtime::Handle::current();
        for _ in 0..200 {
            let open = || runtime.block_on(Listener::open_private(&address));
            let listener = std::thread::scope(|scope| scope.spawn(open).join().unwrap());
            assert!(listener.unwrap().is_some());
            assert_eq!(mode(&path), Some(0o600));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert_eq!(seen, [0o600].into());
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "nothing else is left behind");
    // The socket accepts connections, and an existing file is not removed.
    let first = Listener::open_private(&address).await.unwrap().unwrap();
    assert!(UnixStream::connect(&path).await.is_ok());
    assert!(Listener::open_private(&address).await.is_err());
    drop(first);
}

/// The process of a container has the same id at every start, so the admin listener never opened again.
#[tokio::test]
async fn a_private_socket_opens_where_a_killed_process_left_its_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join(format!(".tg{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    drop(UnixListener::bind(folder.join("s")).unwrap());
    let path = dir.path().join("admin.sock");
    let address = ListenAddress::Unix(path.clone());
    let _listening = Listener::open_private(&address).await.unwrap().unwrap();
    assert!(UnixStream::connect(&path).await.is_ok());
    assert!(!folder.exists());
}
