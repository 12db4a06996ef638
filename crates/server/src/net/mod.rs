//! Connections: accepted, bounded, supervised and shut down. Knows HTTP, but no request; other protocols belong to
//! their edges.
//!
//! | resource | bound | beyond it |
//! |---|---|---|
//! | connections | `--max-connections`, and the limit on open files | the next one waits in the backlog |
//! | connections of a small listener | [`listener::SMALL_CONNECTIONS`], [`listener::SMALL_CONNECTIONS_PER_PEER`] | the connection that has been silent longest is closed |
//! | first request of a connection of a small listener | [`listener::SMALL_FIRST_REQUEST`] | closed |
//! | connections of all peers that are not trusted | seven eighths of `--max-connections` | the next one is closed |
//! | connections of one such peer | `--max-connections-per-peer` | the next one is closed |
//! | idle or trickling input, unread responses | `--idle-timeout` | closed |
//! | header bytes and fields of a request | [`connection::MAX_HEAD_BYTES`], [`request_heads::MAX_FIELDS`] | 431 |
//! | heads of an HTTP/2 connection | [`request_heads::MAX_CONNECTION_BYTES`] | the stream is refused |
//! | HTTP/2 connections of a listener that wait for the rest of a head | [`frame_scanner::MAX_UNFINISHED_HEADS`] | the connection ends |
//! | HTTP/2 streams of a listener that wait | [`WaitingStreams::MAX_BYTES`](waiting_streams::WaitingStreams::MAX_BYTES) | the stream that has waited longest is reset |
//! | evicted streams of a connection | [`ConnectionStreams::MAX_EVICTED`](waiting_streams::ConnectionStreams::MAX_EVICTED) | the connection ends |
//! | connections of a listener that have had more than 32 streams at once | [`LargeKind::MAX_WITH_STREAMS`](large_connections::LargeKind::MAX_WITH_STREAMS) | the connection that has been silent longest gets `GOAWAY` |
//! | connections of a listener that have had more than 4 paths and hosts indexed | [`LargeKind::MAX_WITH_BLOCKS`](large_connections::LargeKind::MAX_WITH_BLOCKS) | the connection that has been silent longest gets `GOAWAY` |
//! | body | 64 KiB, lists 1 MiB | 413 |
//! | body trickling | [`body::BODY_TIMEOUT`] | 408 |
//! | large bodies at once | [`body::MAX_LARGE_BODIES`] | the next one evicts a stalled one |
//! | incomplete bodies above 4 KiB | [`body::MAX_WAITING_BODIES`] | the next one evicts a stalled one |
//! | unread responses of a connection | [`unread_responses::MAX_CONNECTION_BYTES`] | its lists wait |
//! | unread responses of a listener | [`unread_responses::MAX_LISTENER_BYTES`] | the connection that has read nothing for longest is closed |
//! | HTTP/2 streams per connection | [`connection::MAX_STREAMS`] | refused by the protocol |
//! | streams opened and reset at once, protocol errors | [`connection::MAX_PENDING_RESETS`], [`connection::MAX_ERROR_RESETS`] | the connection ends |
//! | bytes read of a connection in one turn | 64 KiB | other connections are served first |
//! | bytes and time after the last response of a connection that is closed | [`lingering_close::MAX_DISCARDED`], [`lingering_close::MAX_LINGER`] | closed, unread bytes or not |
//! | unfinished TLS handshake | [`tls::HANDSHAKE_TIMEOUT`] | closed |
//! | age of a gRPC connection | `--grpc-max-age` | `GOAWAY`, closed after its grace |

pub(crate) mod body;
mod body_pool;
pub(crate) mod budgeted_io;
pub(crate) mod connection;
pub(crate) mod frame_scanner;
mod header_blocks;
pub(crate) mod large_connections;
pub(crate) mod lingering_close;
pub(crate) mod listener;
pub(crate) mod peer_limit;
pub(crate) mod request_heads;
pub(crate) mod response_body;
pub(crate) mod shutdown_phase;
pub(crate) mod silent_connections;
mod stream_queue;
pub(crate) mod supervisor;
pub(crate) mod tls;
pub(crate) mod unread_responses;
pub(crate) mod waiting_streams;

pub(crate) use self::body::{BodyError, Discarded};
pub(crate) use self::connection::{ConnectionIo, HttpHandler, HttpProtocol, HttpResponse};
pub(crate) use self::listener::{ConnectionHandler, Listener, ListenerLimits, ListenerShutdown, WhenFull};
pub(crate) use self::response_body::ResponseBody;
pub(crate) use self::shutdown_phase::{ShutdownHandle, ShutdownPhase, ShutdownWaiter};
pub(crate) use self::supervisor::{Activity, ConnectionContext, ConnectionLimits};
pub(crate) use self::tls::ListenerTls;
pub(crate) use self::unread_responses::ConnectionUnread;
