//! One connection, HTTP/1 or HTTP/2, and its requests.
//!
//! Kept true: a panic while handling one request is answered and counted, and neither the connection
//! nor the process ends by it. Its silence and its end are `watch`'s.

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

use crate::address::Place;
use crate::net::fair::Fair;
use crate::net::frame_scanner::FrameScanner;
use crate::net::header_blocks::AuthorityUse;
use crate::net::heads::{HeadError, HeldHead, HeldHeads};
use crate::net::linger::Lingering;
use crate::net::outgoing::Outgoing;
use crate::net::streams::{ConnectionWithStreams, StreamExecutor, StreamQueue};
use crate::net::unread::ConnectionUnread;
use crate::net::watch::{self, Activity, Guards, Keeping};

/// The most bytes of a request's head.
pub(crate) const LONGEST_HEAD: usize = 32 << 10;
/// The most streams that an HTTP/2 connection may have open.
pub(crate) const MOST_STREAMS: u32 = 128;
/// Streams that the client has reset and that wait to be taken up: whoever opens streams to reset them
/// at once has its connection ended.
pub(crate) const MOST_RESET: usize = 20;
/// Streams that may be reset because of what the client did.
pub(crate) const MOST_WRONG: usize = 1024;

/// An HTTP/1 connection holds one response at a time, or few small ones. Up to this size they are not counted,
/// which would cost an allocation each.
const MAX_UNCOUNTED: usize = 4 << 10;

/// An answer, whole.
pub(crate) type Answer = Response<Outgoing>;

/// What answers requests.
pub(crate) trait Handler: Clone + Send + Sync + 'static {
    /// Answers one request that came from `peer`. What its connection holds for the peer is in `unread`.
    fn handle(
        &self,
        peer: &Place,
        unread: &ConnectionUnread,
        request: Request<Incoming>,
    ) -> impl Future<Output = Answer> + Send;

    /// Answers a request whose handling panicked.
    fn panicked(&self) -> Answer;

    /// Whether this peer speaks for others, and may have as many connections as there are.
    fn trusts(&self, peer: IpAddr) -> bool;

    /// What it wants to be asked in.
    fn speaks(&self) -> Speaks {
        Speaks::Http
    }
}

/// What is spoken on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Speaks {
    /// HTTP/1 or HTTP/2, as its first bytes say.
    Http,
    /// HTTP/2 only.
    Http2,
}

struct Shared<H> {
    handler: H,
    peer: Place,
    activity: Activity,
    metrics: Arc<Metrics>,
    heads: Arc<HeldHeads>,
}

/// Serves one connection to its end.
pub(crate) async fn serve<I, H>(io: I, peer: Place, handler: H, keeping: Keeping, guards: Guards)
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    H: Handler,
{
    let shared = Arc::new(Shared {
        handler,
        peer,
        activity: Activity::default(),
        metrics: Arc::clone(&guards.metrics),
        heads: Arc::default(),
    });
    let counts = Arc::clone(&shared.activity.streams);
    let streams = StreamQueue::new(Arc::clone(&guards.waiting_streams), counts);
    let (requests, head_size) = (Arc::clone(&shared), streams.head_size());
    let service = service_fn(move |request: Request<Incoming>| {
        let held = requests.hold_head(&request);
        if let Ok(Some(head)) = &held {
            head_size.set(head.bytes());
        }
        // A request that is not served leaves memory here.
        let served = held.map(|head| (request, head));
        respond(Arc::clone(&requests), served)
    });
    let builder = builder(shared.handler.speaks(), streams.executor());
    let authority = match (&shared.peer, shared.handler.speaks()) {
        (Place::Unix(_), Speaks::Http2) => AuthorityUse::UnixSocket,
        _ => AuthorityUse::Unchanged,
    };
    let unfinished = Arc::clone(&guards.unfinished_heads);
    let frames = FrameScanner::new(authority, unfinished, Arc::clone(&shared.activity.streams));
    let io = Lingering::new(Fair::new(io, frames, Arc::clone(&shared.activity.unread)));
    let connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let together = pin!(ConnectionWithStreams::new(connection, streams));
    let ended = watch::over(
        together,
        |together: Pin<&mut ConnectionWithStreams<'_, _>>| {
            Connection::graceful_shutdown(together.connection());
        },
        &shared.activity,
        &shared.peer,
        keeping,
        guards,
    )
    .await;
    if let Some(Err(error)) = ended {
        debug!(%error, "connection ended badly");
    }
}

fn builder(speaks: Speaks, executor: StreamExecutor) -> Builder<StreamExecutor> {
    let mut builder = Builder::new(executor);
    if speaks == Speaks::Http2 {
        builder = builder.http2_only();
    }
    builder.http1().max_buf_size(LONGEST_HEAD);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(MOST_STREAMS)
        .max_header_list_size(LONGEST_HEAD as u32)
        .max_pending_accept_reset_streams(MOST_RESET)
        .max_local_error_reset_streams(MOST_WRONG)
        .initial_stream_window_size(64 << 10)
        // What a connection holds of bodies that nobody has looked at yet. Twice as much as a stream, so that one body
        // that waits for room does not hold up the others.
        .initial_connection_window_size(128 << 10)
        .max_send_buf_size(64 << 10);
    builder
}

impl<H> Shared<H> {
    /// Counts the head of an HTTP/2 request.
    fn hold_head(&self, request: &Request<Incoming>) -> Result<Option<HeldHead>, HeadError> {
        if request.version() < Version::HTTP_2 {
            return Ok(None);
        }
        HeldHeads::hold(&self.heads, request).map(Some)
    }
}

/// Responds to a request, or to one whose head is more than is held in memory.
async fn respond<H: Handler>(
    shared: Arc<Shared<H>>,
    served: Result<(Request<Incoming>, Option<HeldHead>), HeadError>,
) -> Result<Answer, h2::Error> {
    let error = match served {
        Ok((request, _head)) => return Ok(answer(&shared, request).await),
        Err(error) => error,
    };
    shared.metrics.network.heads_refused.inc();
    match error {
        HeadError::TooManyFields => {
            let mut response = Response::new(Bytes::new().into());
            *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
            shared.activity.unread.count_bare();
            Ok(response)
        }
        // The client may send it again: nothing of it was done.
        HeadError::TooManyBytes => Err(h2::Reason::REFUSED_STREAM.into()),
    }
}

async fn answer<H: Handler>(shared: &Shared<H>, request: Request<Incoming>) -> Answer {
    let _under_way = shared.activity.begin();
    let version = request.version();
    let unread = &shared.activity.unread;
    let work = pin!(shared.handler.handle(&shared.peer, unread, request));
    let mut answer = caught(work).await.unwrap_or_else(|| {
        shared.metrics.panics.inc();
        error!("handling a request panicked");
        shared.handler.panicked()
    });
    if version < Version::HTTP_2 && shared.activity.is_leaving() {
        answer
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if version >= Version::HTTP_2 || answer.body().len() > MAX_UNCOUNTED {
        answer.body_mut().count_in(unread);
    }
    answer
}

/// What `work` gives, or nothing if it panicked. It is not polled again after that.
///
/// It is borrowed: an async function has room for its arguments beside that for what it makes of them, and
/// every idle connection has the room for a request.
pub(crate) async fn caught<F: Future>(mut work: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(
        |cx| match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Ready(output)) => Poll::Ready(Some(output)),
            Ok(Poll::Pending) => Poll::Pending,
            Err(_) => Poll::Ready(None),
        },
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drain::Phase;
    use crate::net::unread::{MAX_LISTENER_BYTES, UnreadResponses};
    use crate::net::waiting_streams::WaitingStreams;
    use crate::net::watch::Age;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
    use tokio::sync::{Semaphore, mpsc, watch};
    use tokio::time::Instant;

    #[derive(Clone)]
    struct Fragile(Speaks);

    impl Handler for Fragile {
        async fn handle(
            &self,
            _: &Place,
            _: &ConnectionUnread,
            request: Request<Incoming>,
        ) -> Answer {
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

        fn panicked(&self) -> Answer {
            let mut answer = Response::new(Bytes::from("sorry").into());
            *answer.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            answer
        }

        fn trusts(&self, _: IpAddr) -> bool {
            false
        }

        fn speaks(&self) -> Speaks {
            self.0
        }
    }

    struct Served {
        client: DuplexStream,
        metrics: Arc<Metrics>,
        phase: watch::Sender<Phase>,
        done: tokio::task::JoinHandle<()>,
    }

    fn served() -> Served {
        served_until(None)
    }

    fn served_until(age: Option<Age>) -> Served {
        served_in(Speaks::Http, age)
    }

    fn served_in(speaks: Speaks, age: Option<Age>) -> Served {
        let (client, server) = tokio::io::duplex(4096);
        let metrics = Arc::new(Metrics::default());
        let phase = watch::Sender::new(Phase::Serving);
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        let guards = Guards {
            _room: room,
            seat: None,
            _busy: mpsc::channel(1).0,
            phase: phase.subscribe(),
            metrics: Arc::clone(&metrics),
            waiting_streams: WaitingStreams::new(WaitingStreams::MAX_BYTES, Arc::clone(&metrics)),
            unfinished_heads: Arc::new(Semaphore::new(1)),
            unread: UnreadResponses::new(MAX_LISTENER_BYTES, Arc::clone(&metrics)),
            silent: None,
            large: Arc::default(),
        };
        let peer = Place::Unix("test".into());
        let keeping = Keeping {
            idle: Duration::from_secs(60),
            age,
            first_request: None,
        };
        let done = tokio::spawn(serve(server, peer, Fragile(speaks), keeping, guards));
        Served {
            client,
            metrics,
            phase,
            done,
        }
    }

    async fn ask(client: &mut DuplexStream, path: &str) -> String {
        let answer = try_ask(client, path).await;
        answer.expect("a connection that is open")
    }

    /// The answer, unless the connection is closed.
    async fn try_ask(client: &mut DuplexStream, path: &str) -> Option<String> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n");
        client.write_all(request.as_bytes()).await.ok()?;
        let mut seen = String::new();
        while !(seen.ends_with("fine") || seen.ends_with("sorry")) {
            let mut buffer = [0; 1024];
            let read = client.read(&mut buffer).await.ok()?;
            if read == 0 {
                return None;
            }
            seen.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
        }
        Some(seen)
    }

    #[tokio::test]
    async fn a_panic_is_one_answer_and_the_connection_goes_on() {
        let mut served = served();
        assert!(
            ask(&mut served.client, "/panic")
                .await
                .starts_with("HTTP/1.1 500")
        );
        assert!(
            ask(&mut served.client, "/")
                .await
                .starts_with("HTTP/1.1 200")
        );
        assert_eq!(served.metrics.panics.get(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn silence_and_trickling_headers_are_cut_off_but_a_busy_client_is_not() {
        let mut served = served();
        for _ in 0..10 {
            tokio::time::sleep(Duration::from_secs(55)).await;
            ask(&mut served.client, "/").await;
        }
        let begun = Instant::now();
        for _ in 0..100 {
            if served.client.write_all(b"x").await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        served.done.await.unwrap();
        assert!(
            begun.elapsed() >= Duration::from_secs(45),
            "{:?}",
            begun.elapsed()
        );
        assert!(
            begun.elapsed() <= Duration::from_secs(91),
            "{:?}",
            begun.elapsed()
        );
        assert_eq!(served.metrics.connections_timed_out.get(), 1);
        assert_eq!(served.metrics.connections.get(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_old_is_asked_to_close_however_busy() {
        let mut served = served_until(Some(Age {
            most: Duration::from_secs(100),
            grace: Duration::from_secs(10),
        }));
        let begun = Instant::now();
        while try_ask(&mut served.client, "/").await.is_some() {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        served.done.await.unwrap();
        let age = begun.elapsed().as_secs();
        assert!((89..=112).contains(&age), "{age}");
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_is_old_is_cut_off_when_its_grace_has_passed() {
        let mut served = served_until(Some(Age {
            most: Duration::from_secs(20),
            grace: Duration::from_secs(10),
        }));
        // A body that never comes keeps the request under way.
        let head = b"POST /stuck HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n";
        served.client.write_all(head).await.unwrap();
        let begun = Instant::now();
        (&mut served.done).await.unwrap();
        let age = begun.elapsed().as_secs();
        assert!((27..=33).contains(&age), "{age}");
    }

    #[tokio::test]
    async fn one_that_leaves_says_so_in_its_answers_and_then_closes() {
        let mut served = served();
        assert!(
            !ask(&mut served.client, "/")
                .await
                .contains("connection: close")
        );
        served.phase.send_replace(Phase::Leaving);
        tokio::task::yield_now().await;
        assert!(
            ask(&mut served.client, "/")
                .await
                .contains("connection: close")
        );
        served.done.await.unwrap();
    }

    #[tokio::test]
    async fn closing_ends_an_idle_connection_at_once() {
        let mut served = served();
        ask(&mut served.client, "/").await;
        served.phase.send_replace(Phase::Closing);
        served.done.await.unwrap();
    }

    /// A peer that never speaks, or never confirms that it has seen the end, made every end of the service last as long as
    /// it may.
    #[tokio::test(start_paused = true)]
    async fn closing_cuts_off_peers_that_do_not_react() {
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
        for (speaks, sent) in [
            (Speaks::Http2, &b""[..]),
            (Speaks::Http2, PREFACE),
            (Speaks::Http, PREFACE),
            (Speaks::Http, b""),
        ] {
            let mut served = served_in(speaks, None);
            served.client.write_all(sent).await.unwrap();
            // Until it has been read.
            tokio::time::sleep(Duration::from_secs(1)).await;
            let begun = Instant::now();
            served.phase.send_replace(Phase::Closing);
            served.done.await.unwrap();
            assert!(begun.elapsed() <= Duration::from_secs(2), "{speaks:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn closing_waits_for_a_request_in_flight() {
        let mut served = served();
        let head = b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n";
        served.client.write_all(head).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        served.phase.send_replace(Phase::Closing);
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert!(!served.done.is_finished());
        let mut response = String::new();
        served.client.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200") && response.ends_with("fine"));
        served.done.await.unwrap();
    }

    /// It was never asked to close, because the change came before it looked.
    #[tokio::test(start_paused = true)]
    async fn one_that_comes_while_the_service_closes_is_closed() {
        let served = served();
        // The task has not run yet.
        served.phase.send_replace(Phase::Closing);
        let begun = Instant::now();
        served.done.await.unwrap();
        assert!(begun.elapsed() <= Duration::from_secs(2));
    }
}
