//! The gRPC client of the load: the same on the `h2` crate for every server, with prepared messages.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{Builder, SendRequest};
use http::{HeaderMap, Method, Request, Version};
use tokio::net::TcpStream;

use crate::load::KEYS;
use crate::message;

/// As large as proxies set it: responses never wait for it.
const WINDOW: u32 = 16 << 20;

/// Calls of one method, a message for each key.
#[derive(Clone)]
pub(crate) struct GrpcCalls {
    path: &'static str,
    messages: Arc<[Bytes]>,
}

impl GrpcCalls {
    /// `message` makes the message of a key.
    pub(crate) fn new(path: &'static str, message: impl Fn(&str) -> Bytes) -> Self {
        let messages = (0..KEYS).map(|number| message(&format!("user:{number:012}")));
        GrpcCalls { path, messages: messages.collect() }
    }
}

/// A request loop on a connection that may be shared.
pub(crate) struct GrpcLoop {
    sender: SendRequest<Bytes>,
    head: Request<()>,
    messages: Arc<[Bytes]>,
    next: usize,
}

/// One connection with several request loops, which start at the key `first`.
pub(crate) async fn open(
    server: SocketAddr,
    calls: &GrpcCalls,
    first: usize,
    loops: usize,
) -> io::Result<Vec<GrpcLoop>> {
    let stream = TcpStream::connect(server).await?;
    stream.set_nodelay(true)?;
    let mut builder = Builder::new();
    builder.initial_window_size(WINDOW).initial_connection_window_size(WINDOW);
    let (sender, connection) = builder.handshake(stream).await.map_err(io::Error::other)?;
    // The task ends when the last loop is dropped; an error reaches the loops through their calls.
    tokio::spawn(connection);
    let head = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("http://{server}{}", calls.path))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())
        .map_err(io::Error::other)?;
    let new_loop = |number| GrpcLoop {
        sender: sender.clone(),
        head: head.clone(),
        messages: Arc::clone(&calls.messages),
        next: (first + number) % KEYS,
    };
    Ok((0..loops).map(new_loop).collect())
}

impl GrpcLoop {
    /// Makes one call and reads its response to the end. A denial is an error.
    pub(crate) async fn decide_next(&mut self) -> io::Result<u64> {
        let message = self.messages[self.next].clone();
        self.next = (self.next + 1) % KEYS;
        self.call(message).await.map_err(io::Error::other)?
    }

    async fn call(&mut self, message: Bytes) -> Result<io::Result<u64>, h2::Error> {
        let mut sender = self.sender.clone().ready().await?;
        let (response, mut body) = sender.send_request(self.head.clone(), false)?;
        body.send_data(message, true)?;
        let (head, mut body) = response.await?.into_parts();
        let bytes = whole(&mut body).await?;
        let trailers = body.trailers().await?.unwrap_or_default();
        let is_fine = status(&trailers).or(status(&head.headers)) == Some("0");
        if is_fine && message::admits(&bytes) {
            return Ok(Ok(1));
        }
        Ok(Err(io::Error::other(format!(
            "unexpected response: {} {:?} {trailers:?} {bytes:?}",
            head.status, head.headers
        ))))
    }
}

fn status(fields: &HeaderMap) -> Option<&str> {
    fields.get("grpc-status")?.to_str().ok()
}

/// The whole body. Most bodies arrive in one piece, which is not copied.
async fn whole(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    let mut bytes = Bytes::new();
    while let Some(piece) = body.data().await {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        bytes = if bytes.is_empty() {
            piece
        } else {
            let mut joined = BytesMut::from(bytes.as_ref());
            joined.extend_from_slice(&piece);
            joined.freeze()
        };
    }
    Ok(bytes)
}
