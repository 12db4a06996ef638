//! One stream to a control plane: messages in both directions, over HTTP/2 with or without TLS.
//!
//! Invariant: no message above the maximum size is ever held in memory. Pings detect a control plane that has
//! disappeared without closing the connection. Knows no message types.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::tls;
use crate::config::ControlPlane;

const METHOD: &str = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// Maximum time to connect, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A stream may be idle for days. Without pings a dead peer would go unnoticed.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// The frame header of a message: the compression flag, and the length.
const PREFIX_BYTES: usize = 5;

/// Why the stream has ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum AdsStreamError {
    #[error("it cannot be reached: {0}")]
    Connect(String),
    #[error("it did not respond within {CONNECT_WITHIN:?}")]
    Timeout,
    #[error("it does not speak gRPC: HTTP status {0}")]
    NotGrpc(http::StatusCode),
    #[error("it ended the stream: grpc-status {code} {message}")]
    Ended { code: String, message: String },
    #[error("it ended the stream without a status")]
    Truncated,
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("a message of {bytes} bytes exceeds the maximum of {max}")]
    TooLarge { bytes: usize, max: usize },
    #[error("a message is compressed, although no compression was negotiated")]
    Compressed,
}

/// An open stream. Dropping it closes it.
pub(super) struct AdsStream {
    outgoing: mpsc::UnboundedSender<Bytes>,
    body: Incoming,
    /// Bytes received that are no complete message yet.
    buffered: BytesMut,
    max_message_bytes: usize,
    _connection: AbortOnDrop,
}

impl AdsStream {
    /// Connects to the control plane, calls `on_connect`, and sends `first`. A control plane need not respond before it
    /// has something to send.
    pub(super) async fn open(
        plane: &ControlPlane,
        first: &[u8],
        on_connect: impl FnOnce(),
    ) -> Result<Self, AdsStreamError> {
        let connected = timeout(CONNECT_WITHIN, connect(plane));
        let (mut sender, connection) = connected.await.map_err(|_| AdsStreamError::Timeout)??;
        on_connect();
        let (out, messages) = mpsc::unbounded_channel();
        let _error_below = out.send(frame_message(first));
        let response = sender.send_request(request(plane, messages)?).await?;
        if !response.status().is_success() {
            return Err(AdsStreamError::NotGrpc(response.status()));
        }
        // A control plane that rejects the call at once has the status in the head.
        check_grpc_status(response.headers())?;
        Ok(AdsStream {
            outgoing: out,
            body: response.into_body(),
            buffered: BytesMut::new(),
            max_message_bytes: plane.max_message_bytes,
            _connection: connection,
        })
    }

    /// Sends a message. If the peer is gone, `receive` returns the error.
    pub(super) fn send(&self, message: &[u8]) {
        let _error_on_receive = self.outgoing.send(frame_message(message));
    }

    /// The next message. Must not be called again after an error.
    pub(super) async fn receive(&mut self) -> Result<Bytes, AdsStreamError> {
        loop {
            if let Some(message) = self.next_message()? {
                return Ok(message);
            }
            match self.body.frame().await {
                None => return Err(AdsStreamError::Truncated),
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.buffered.extend_from_slice(&data),
                    // Trailers: nothing follows them.
                    Err(frame) => {
                        frame.trailers_ref().map_or(Ok(()), check_grpc_status)?;
                        return Err(AdsStreamError::Truncated);
                    }
                },
            }
        }
    }

    /// The next complete message. A message that is too long is rejected before the rest of it is awaited.
    fn next_message(&mut self) -> Result<Option<Bytes>, AdsStreamError> {
        let Some(&[compressed, a, b, c, d]) = self.buffered.first_chunk::<PREFIX_BYTES>() else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(AdsStreamError::Compressed);
        }
        let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        if bytes > self.max_message_bytes {
            let max = self.max_message_bytes;
            return Err(AdsStreamError::TooLarge { bytes, max });
        }
        if self.buffered.len() < PREFIX_BYTES + bytes {
            return Ok(None);
        }
        self.buffered.advance(PREFIX_BYTES);
        Ok(Some(self.buffered.split_to(bytes).freeze()))
    }
}

/// Ends the task of a connection when it is dropped.
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type AdsSender = http2::SendRequest<AdsRequestBody>;

async fn connect(plane: &ControlPlane) -> Result<(AdsSender, AbortOnDrop), AdsStreamError> {
    let connect_error = |error: std::io::Error| AdsStreamError::Connect(error.to_string());
    let socket = TcpStream::connect(&plane.authority).await.map_err(connect_error)?;
    socket.set_nodelay(true).map_err(connect_error)?;
    match &plane.tls {
        None => handshake(socket).await,
        Some(files) => {
            let name = files.name.as_deref().unwrap_or(plane.host());
            let socket = tls::connect_tls(socket, files, name).await;
            handshake(socket.map_err(AdsStreamError::Connect)?).await
        }
    }
}

async fn handshake<S>(socket: S) -> Result<(AdsSender, AbortOnDrop), AdsStreamError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN)
        .keep_alive_while_idle(true);
    let (sender, connection) = builder.handshake(TokioIo::new(socket)).await?;
    // `receive` reports how the connection ends.
    let connection = tokio::spawn(async move { drop(connection.await) });
    Ok((sender, AbortOnDrop(connection.abort_handle())))
}

fn request(
    plane: &ControlPlane,
    messages: mpsc::UnboundedReceiver<Bytes>,
) -> Result<Request<AdsRequestBody>, AdsStreamError> {
    let scheme = if plane.tls.is_some() { "https" } else { "http" };
    let request = Request::post(format!("{scheme}://{}{METHOD}", plane.authority)).body(AdsRequestBody(messages));
    let mut request = request.map_err(|error| AdsStreamError::Connect(error.to_string()))?;
    let headers = request.headers_mut();
    for (name, value) in &plane.headers {
        headers.append(name, value.clone());
    }
    let fixed = |text| HeaderValue::from_static(text);
    headers.insert(header::CONTENT_TYPE, fixed("application/grpc"));
    headers.insert(header::TE, fixed("trailers"));
    Ok(request)
}

/// The messages to send, as they are queued.
struct AdsRequestBody(mpsc::UnboundedReceiver<Bytes>);

impl Body for AdsRequestBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(context).map(|message| message.map(|message| Ok(Frame::data(message))))
    }
}

fn frame_message(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("discovery requests are short");
    let mut framed = Vec::with_capacity(PREFIX_BYTES + message.len());
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

/// Any status ends a stream of this kind, even success.
fn check_grpc_status(trailers: &HeaderMap) -> Result<(), AdsStreamError> {
    let text = |name: &str| {
        let value = trailers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    match text("grpc-status") {
        Some(code) => Err(AdsStreamError::Ended { code, message: text("grpc-message").unwrap_or_default() }),
        None => Ok(()),
    }
}
