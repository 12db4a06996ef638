//! One stream to a control plane: messages out, messages in, over HTTP/2 without TLS or with it.
//!
//! Kept true: no message above the bound is ever held; a plane that is gone without a word is noticed
//! by pings that nobody answers. Knows no message.

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

use super::{ControlPlane, tls};

const METHOD: &str =
    "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
/// To meet it, TLS included.
const CONNECT_WITHIN: Duration = Duration::from_secs(10);
/// A stream may be silent for days. Without pings nobody would notice that its other end is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PONG_WITHIN: Duration = Duration::from_secs(20);
/// Before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// Why there is no stream any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error("it cannot be met: {0}")]
    Unmet(String),
    #[error("it did not answer within {CONNECT_WITHIN:?}")]
    Silent,
    #[error("it speaks no gRPC: status {0}")]
    NoGrpc(http::StatusCode),
    #[error("it ended the stream: grpc-status {code} {message}")]
    Ended { code: String, message: String },
    #[error("it ended the stream without a word")]
    CutShort,
    #[error("the connection broke: {0}")]
    Broken(#[from] hyper::Error),
    #[error("a message of {bytes} bytes is above the {most} that are taken")]
    TooLarge { bytes: usize, most: usize },
    #[error("a message is compressed, which was not agreed")]
    Compressed,
}

/// A stream under way. Ends when dropped.
pub(super) struct Stream {
    out: mpsc::UnboundedSender<Bytes>,
    body: Incoming,
    /// What came and is no whole message yet.
    rest: BytesMut,
    most: usize,
    connection: AbortHandle,
}

impl Stream {
    /// Meets the plane, tells so, and says `first`. A plane need not answer before it has something to
    /// say itself.
    pub(super) async fn open(
        plane: &ControlPlane,
        first: &[u8],
        met: impl FnOnce(),
    ) -> Result<Self, Lost> {
        let connected = timeout(CONNECT_WITHIN, connect(plane));
        let (mut sender, connection) = connected.await.map_err(|_| Lost::Silent)??;
        let mut guarded = Guarded(Some(connection));
        met();
        let (out, said) = mpsc::unbounded_channel();
        let _heard_below = out.send(framed(first));
        let answer = sender.send_request(request(plane, said)?).await?;
        if !answer.status().is_success() {
            return Err(Lost::NoGrpc(answer.status()));
        }
        // A plane that refuses at once says so in the head.
        ended(answer.headers())?;
        let connection = guarded.0.take().expect("taken once, here");
        Ok(Stream {
            out,
            body: answer.into_body(),
            rest: BytesMut::new(),
            most: plane.message_bytes,
            connection,
        })
    }

    /// Says something. If nobody is there any more, hearing tells.
    pub(super) fn say(&self, message: &[u8]) {
        let _told_when_heard = self.out.send(framed(message));
    }

    /// The next message. Not to be called again after a fault.
    pub(super) async fn hear(&mut self) -> Result<Bytes, Lost> {
        loop {
            if let Some(message) = self.whole()? {
                return Ok(message);
            }
            match self.body.frame().await {
                None => return Err(Lost::CutShort),
                Some(frame) => match frame?.into_data() {
                    Ok(data) => self.rest.extend_from_slice(&data),
                    // Trailers: nothing comes after them.
                    Err(frame) => {
                        frame.trailers_ref().map_or(Ok(()), ended)?;
                        return Err(Lost::CutShort);
                    }
                },
            }
        }
    }

    /// A message that is here as a whole. Refused by its length before the rest of it is awaited.
    fn whole(&mut self) -> Result<Option<Bytes>, Lost> {
        let Some(&[compressed, a, b, c, d]) = self.rest.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        if compressed != 0 {
            return Err(Lost::Compressed);
        }
        let bytes = u32::from_be_bytes([a, b, c, d]) as usize;
        if bytes > self.most {
            let most = self.most;
            return Err(Lost::TooLarge { bytes, most });
        }
        if self.rest.len() < PREFIX + bytes {
            return Ok(None);
        }
        self.rest.advance(PREFIX);
        Ok(Some(self.rest.split_to(bytes).freeze()))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

/// A connection that nobody has taken over ends.
struct Guarded(Option<AbortHandle>);

impl Drop for Guarded {
    fn drop(&mut self) {
        if let Some(connection) = &self.0 {
            connection.abort();
        }
    }
}

type Sender = http2::SendRequest<Said>;

async fn connect(plane: &ControlPlane) -> Result<(Sender, AbortHandle), Lost> {
    let unmet = |error: std::io::Error| Lost::Unmet(error.to_string());
    let socket = TcpStream::connect(&plane.authority).await.map_err(unmet)?;
    socket.set_nodelay(true).map_err(unmet)?;
    match &plane.tls {
        None => shake(socket).await,
        Some(files) => {
            let name = files.name.as_deref().unwrap_or(plane.host());
            let socket = tls::encrypted(socket, files, name).await;
            shake(socket.map_err(Lost::Unmet)?).await
        }
    }
}

async fn shake<S>(socket: S) -> Result<(Sender, AbortHandle), Lost>
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
    // How it ends is told to whoever hears.
    let connection = tokio::spawn(async move { drop(connection.await) });
    Ok((sender, connection.abort_handle()))
}

fn request(
    plane: &ControlPlane,
    said: mpsc::UnboundedReceiver<Bytes>,
) -> Result<Request<Said>, Lost> {
    let scheme = if plane.tls.is_some() { "https" } else { "http" };
    let request = Request::post(format!("{scheme}://{}{METHOD}", plane.authority)).body(Said(said));
    let mut request = request.map_err(|error| Lost::Unmet(error.to_string()))?;
    let headers = request.headers_mut();
    for (name, value) in &plane.headers {
        headers.append(name, value.clone());
    }
    let fixed = |text| HeaderValue::from_static(text);
    headers.insert(header::CONTENT_TYPE, fixed("application/grpc"));
    headers.insert(header::TE, fixed("trailers"));
    Ok(request)
}

/// What we say, as it is said.
struct Said(mpsc::UnboundedReceiver<Bytes>);

impl Body for Said {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0
            .poll_recv(context)
            .map(|said| said.map(|said| Ok(Frame::data(said))))
    }
}

fn framed(message: &[u8]) -> Bytes {
    let length =
        u32::try_from(message.len()).expect("what we say is short: a request for resources");
    let mut framed = Vec::with_capacity(PREFIX + message.len());
    framed.push(0);
    framed.extend_from_slice(&length.to_be_bytes());
    framed.extend_from_slice(message);
    framed.into()
}

/// A stream like this ends with a status only, whichever it is.
fn ended(trailers: &HeaderMap) -> Result<(), Lost> {
    let text = |name: &str| {
        let value = trailers.get(name).and_then(|value| value.to_str().ok());
        value.map(str::to_owned)
    };
    match text("grpc-status") {
        Some(code) => Err(Lost::Ended {
            code,
            message: text("grpc-message").unwrap_or_default(),
        }),
        None => Ok(()),
    }
}
