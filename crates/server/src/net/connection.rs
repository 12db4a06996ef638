//! One connection, HTTP/1 or HTTP/2, and its requests.
//!
//! Invariant: a panic while handling one request gets a response and is counted, and ends neither the connection nor
//! the process. Idle time and shutdown are handled by `supervisor`.

use std::future::{Future, poll_fn};
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::{HeaderValue, StatusCode, Version, header};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto::{Builder, Connection};
use tidegate::observe::Metrics;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::{debug, error};

use crate::config::EndpointAddress;
use crate::net::budgeted_io::BudgetedIo;
use crate::net::frame_scanner::FrameScanner;
use crate::net::header_blocks::AuthorityUse;
use crate::net::lingering_close::LingeringIo;
use crate::net::request_heads::{HeadError, HeadMemory, HeadReservation};
use crate::net::stream_queue::{ConnectionWithStreams, StreamExecutor, StreamQueue};
use crate::net::supervisor;
use crate::net::{Activity, ConnectionContext, ConnectionUnread, ResponseBody};

pub(crate) const MAX_HEAD_BYTES: usize = 32 << 10;
pub(crate) const MAX_STREAMS: u32 = 128;
/// Streams that the client has reset and that wait to be served. A client that opens streams to reset them at once has
/// its connection closed.
pub(crate) const MAX_PENDING_RESETS: usize = 20;
/// Streams that may be reset because of errors of the client.
pub(crate) const MAX_ERROR_RESETS: usize = 1024;

/// An HTTP/1 connection holds one response at a time, or few small ones. Up to this size they are not counted, which
/// would cost an allocation each.
const MAX_UNCOUNTED_RESPONSE: usize = 4 << 10;

/// The bytes of a connection, in plain text or decrypted.
pub(crate) trait ConnectionIo: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static> ConnectionIo for I {}

/// A complete response.
pub(crate) type HttpResponse = Response<ResponseBody>;

/// Handles the requests of a listener.
pub(crate) trait HttpHandler: Clone + Send + Sync + 'static {
    /// Handles one request from `peer`. The unread responses of its connection are in `unread`.
    fn handle(
        &self,
        peer: &EndpointAddress,
        unread: &ConnectionUnread,
        request: Request<Incoming>,
    ) -> impl Future<Output = HttpResponse> + Send;

    /// The response to a request whose handling panicked.
    fn panic_response(&self) -> HttpResponse;

    /// Whether this peer is a trusted proxy. A trusted peer may use all connections.
    fn is_trusted(&self, peer: IpAddr) -> bool;

    fn protocol(&self) -> HttpProtocol {
        HttpProtocol::Http
    }
}

/// The protocol of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HttpProtocol {
    /// HTTP/1 or HTTP/2, by its first bytes.
    Http,
    /// HTTP/2 only.
    Http2,
}

struct ConnectionState<H> {
    handler: H,
    peer: EndpointAddress,
    activity: Activity,
    metrics: Arc<Metrics>,
    heads: Arc<HeadMemory>,
}

pub(crate) async fn serve<I: ConnectionIo, H: HttpHandler>(
    io: I,
    peer: EndpointAddress,
    handler: H,
    context: ConnectionContext,
) {
    let state = Arc::new(ConnectionState {
        handler,
        peer,
        activity: Activity::default(),
        metrics: Arc::clone(&context.metrics),
        heads: Arc::default(),
    });
    let counts = Arc::clone(&state.activity.streams);
    let streams = StreamQueue::new(Arc::clone(&context.waiting_streams), counts);
    let (requests, head_size) = (Arc::clone(&state), streams.head_size());
    let service = service_fn(move |request: Request<Incoming>| {
        let counted = requests.count_head(&request);
        if let Ok(Some(head)) = &counted {
            head_size.set(head.bytes());
        }
        // Drops a rejected request, which frees its memory.
        let served = counted.map(|head| (request, head));
        respond(Arc::clone(&requests), served)
    });
    let builder = builder(state.handler.protocol(), streams.executor());
    let authority = match (&state.peer, state.handler.protocol()) {
        (EndpointAddress::Unix(_), HttpProtocol::Http2) => AuthorityUse::UnixSocket,
        _ => AuthorityUse::Unchanged,
    };
    let unfinished = Arc::clone(&context.unfinished_heads);
    let frames = FrameScanner::new(authority, unfinished, Arc::clone(&state.activity.streams));
    let io = LingeringIo::new(BudgetedIo::new(io, frames, Arc::clone(&state.activity.unread)));
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let connection_with_streams = pin!(ConnectionWithStreams::new(connection, streams));
    let finish = |connection_with_streams: Pin<&mut ConnectionWithStreams<'_, _>>| {
        Connection::graceful_shutdown(connection_with_streams.connection());
    };
    let supervised = supervisor::supervise(connection_with_streams, finish, &state.activity, &state.peer, context);
    if let Some(Err(error)) = supervised.await {
        debug!(%error, "connection failed");
    }
}

fn builder(protocol: HttpProtocol, executor: StreamExecutor) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(executor);
    if protocol == HttpProtocol::Http2 {
        builder = builder.http2_only();
    }
    builder.http1().max_buf_size(MAX_HEAD_BYTES);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(MAX_HEAD_BYTES as u32)
        .max_pending_accept_reset_streams(MAX_PENDING_RESETS)
        .max_local_error_reset_streams(MAX_ERROR_RESETS)
        .initial_stream_window_size(64 << 10)
        // Memory for bodies of a connection that no handler has read yet. Twice the window of a stream, so that one
        // body that waits for a permit does not block the others.
        .initial_connection_window_size(128 << 10)
        .max_send_buf_size(64 << 10);
    builder
}

impl<H> ConnectionState<H> {
    /// Counts the head of an HTTP/2 request.
    fn count_head(&self, request: &Request<Incoming>) -> Result<Option<HeadReservation>, HeadError> {
        if request.version() < Version::HTTP_2 {
            return Ok(None);
        }
        HeadMemory::reserve(&self.heads, request).map(Some)
    }
}

/// Responds to a request, or rejects it if its head takes too much memory.
async fn respond<H: HttpHandler>(
    state: Arc<ConnectionState<H>>,
    served: Result<(Request<Incoming>, Option<HeadReservation>), HeadError>,
) -> Result<HttpResponse, h2::Error> {
    let error = match served {
        Ok((request, _head)) => return Ok(respond_caught(&state, request).await),
        Err(error) => error,
    };
    state.metrics.network.heads_rejected.inc();
    match error {
        HeadError::TooManyFields => {
            let mut response = Response::new(Bytes::new().into());
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            state.activity.unread.count_bodiless();
            Ok(response)
        }
        // The client may send the request again: nothing of it was done.
        HeadError::TooManyBytes => Err(h2::Reason::REFUSED_STREAM.into()),
    }
}

async fn respond_caught<H: HttpHandler>(state: &ConnectionState<H>, request: Request<Incoming>) -> HttpResponse {
    let _in_flight = state.activity.begin();
    let version = request.version();
    let unread = &state.activity.unread;
    let work = pin!(state.handler.handle(&state.peer, unread, request));
    let mut response = catch_panic(work).await.unwrap_or_else(|| {
        state.metrics.panics.inc();
        error!("request handler panicked");
        state.handler.panic_response()
    });
    if version < Version::HTTP_2 && state.activity.is_leaving() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if version >= Version::HTTP_2 || response.body().len() > MAX_UNCOUNTED_RESPONSE {
        response.body_mut().count_unread(unread);
    }
    response
}

/// The output of `work`, or `None` if it panicked. It is not polled again after that.
///
/// The work is borrowed: an async function reserves space for its arguments beside the space for its own state, and
/// every idle connection has the space for a request.
pub(crate) async fn catch_panic<F: Future>(mut work: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(_) => Poll::Ready(None),
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::listener_options::ConnectionAge;
    use crate::net::shutdown_phase::ShutdownPhase;
    use crate::net::supervisor::ConnectionLimits;
    use crate::net::unread_responses::{MAX_LISTENER_BYTES, UnreadResponses};
    use crate::net::waiting_streams::WaitingStreams;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::{Semaphore, mpsc, watch};
    use tokio::time::Instant;

    #[derive(Clone)]
    struct PanickingHandler(HttpProtocol);

    impl HttpHandler for PanickingHandler {
        async fn handle(&self, _: &EndpointAddress, _: &ConnectionUnread, request: Request<Incoming>) -> HttpResponse {
            tokio::task::yield_now().await;
            assert!(request.uri().path() != "/panic", "on purpose");
            if request.uri().path() == "/stuck" {
                std::future::pending::<()>().await;
            }
            if request.uri().path() == "/slow" {
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
            Response::new(Bytes::from("fine").into())
        }

        fn panic_response(&self) -> HttpResponse {
            let mut response = Response::new(Bytes::from("sorry").into());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        }

        fn is_trusted(&self, _: IpAddr) -> bool {
            false
        }

        fn protocol(&self) -> HttpProtocol {
            self.0
        }
    }

    struct ServedConnection {
        client: DuplexStream,
        metrics: Arc<Metrics>,
        phase: watch::Sender<ShutdownPhase>,
        done: tokio::task::JoinHandle<()>,
    }

    fn served() -> ServedConnection {
        served_until(None)
    }

    fn served_until(age: Option<ConnectionAge>) -> ServedConnection {
        served_in(HttpProtocol::Http, age)
    }

    fn served_in(protocol: HttpProtocol, age: Option<ConnectionAge>) -> ServedConnection {
        let (client, server) = tokio::io::duplex(4096);
        let metrics = Arc::new(Metrics::default());
        let phase = watch::Sender::new(ShutdownPhase::Serving);
        let permit = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let context = ConnectionContext {
            limits: ConnectionLimits { idle: Duration::from_secs(60), age, first_request: None },
            _permit: permit,
            peer_permit: None,
            _in_flight: mpsc::channel(1).0,
            phase: phase.subscribe(),
            metrics: Arc::clone(&metrics),
            waiting_streams: WaitingStreams::new(WaitingStreams::MAX_BYTES, Arc::clone(&metrics)),
            unfinished_heads: Arc::new(Semaphore::new(1)),
            unread: UnreadResponses::new(MAX_LISTENER_BYTES, Arc::clone(&metrics)),
            silent: None,
            large: Arc::default(),
        };
        let peer = EndpointAddress::Unix("test".into());
        let done = tokio::spawn(serve(server, peer, PanickingHandler(protocol), context));
        ServedConnection { client, metrics, phase, done }
    }

    async fn get(client: &mut DuplexStream, path: &str) -> String {
        let response = try_get(client, path).await;
        response.expect("the connection is open")
    }

    /// The response, unless the connection is closed.
    async fn try_get(client: &mut DuplexStream, path: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.ok()?;
        let mut received = String::new();
        while !(received.ends_with("fine") || received.ends_with("sorry")) {
            let mut buffer = [0; 1024];
            let read = client.read(&mut buffer).await.ok()?;
            if read == 0 {
                return None;
            }
            received.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        Some(received)
    }

    #[tokio::test]
    async fn a_panic_is_one_response_and_the_connection_continues() {
        let mut served = served();
        assert!(get(&mut served.client, "/panic").await.starts_with("HTTP/1.1 500"));
        assert!(get(&mut served.client, "/").await.starts_with("HTTP/1.1 200"));
        assert_eq!(served.metrics.panics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn idle_and_trickling_connections_are_closed_but_a_busy_one_is_not() {
        let mut served = served();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(55)).await;
            get(&mut served.client, "/").await;
        }
        let begun = Instant::now();
        for _ in 0..100 {
            if served.client.write_all(b"x").await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        served.done.await.unwrap();
        assert!(begun.elapsed() >= Duration::from_secs(45), "{:?}", begun.elapsed());
        assert!(begun.elapsed() <= Duration::from_secs(91), "{:?}", begun.elapsed());
        assert_eq!(served.metrics.connections_timed_out.get(), 1);
        assert_eq!(served.metrics.connections.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_past_its_age_is_closed_gracefully_however_busy() {
        let mut served =
            served_until(Some(ConnectionAge { max: Duration::from_secs(100), grace: Duration::from_secs(10) }));
        let begun = Instant::now();
        while try_get(&mut served.client, "/").await.is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        served.done.await.unwrap();
        let age = begun.elapsed().as_secs();
        assert!((89..=112).contains(&age), "{age}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_aged_connection_is_closed_after_its_grace() {
        let mut served =
            served_until(Some(ConnectionAge { max: Duration::from_secs(20), grace: Duration::from_secs(10) }));
        // A body that never arrives keeps the request in flight.
        let head = b"POST /stuck HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n";
        served.client.write_all(head).await.unwrap();
        let begun = Instant::now();
        (&mut served.done).await.unwrap();
        let age = begun.elapsed().as_secs();
        assert!((27..=33).contains(&age), "{age}");
    }

    #[tokio::test]
    async fn a_draining_connection_sends_connection_close_and_then_closes() {
        let mut served = served();
        assert!(!get(&mut served.client, "/").await.contains("connection: close"));
        served.phase.send_replace(ShutdownPhase::Draining);
        tokio::task::yield_now().await;
        assert!(get(&mut served.client, "/").await.contains("connection: close"));
        served.done.await.unwrap();
    }

    #[tokio::test]
    async fn closing_ends_an_idle_connection_at_once() {
        let mut served = served();
        get(&mut served.client, "/").await;
        served.phase.send_replace(ShutdownPhase::Closing);
        served.done.await.unwrap();
    }

    /// A peer that never sent anything, or never confirmed the end, made every shutdown last as long as its timeout.
    #[tokio::test(start_paused = true)]
    async fn closing_ends_connections_of_peers_that_do_not_react() {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (protocol, sent) in [
            (HttpProtocol::Http2, &b""[..]),
            (HttpProtocol::Http2, PREFACE),
            (HttpProtocol::Http, PREFACE),
            (HttpProtocol::Http, b""),
        ] {
            let mut served = served_in(protocol, None);
            served.client.write_all(sent).await.unwrap();
            // Until the server has read it.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let begun = Instant::now();
            served.phase.send_replace(ShutdownPhase::Closing);
            served.done.await.unwrap();
            assert!(begun.elapsed() <= Duration::from_secs(2), "{protocol:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_a_request_in_flight() {
        let mut served = served();
        let head = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
        served.client.write_all(head).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        served.phase.send_replace(ShutdownPhase::Closing);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!served.done.is_finished());
        let mut response = String::new();
        served.client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("fine"));
        served.done.await.unwrap();
    }

    /// Such a connection was never shut down, because the phase changed before it looked.
    #[tokio::test(start_paused = true)]
    async fn a_connection_accepted_while_the_service_closes_is_closed() {
        let served = served();
        // The task has not run yet.
        served.phase.send_replace(ShutdownPhase::Closing);
        let begun = Instant::now();
        served.done.await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(2));
    }
}
