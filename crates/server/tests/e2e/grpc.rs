//! A gRPC client by other libraries: HTTP/2 by the `h2` crate, messages by `prost`.

use bytes::{BufMut, Bytes, BytesMut};
use h2::client::SendRequest;
use http::{HeaderMap, Request, StatusCode};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::messages::{ProtoEntry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use crate::server::TestServer;

pub(crate) const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
pub(crate) const HEALTH: &str = "/grpc.health.v1.Health/Check";

pub(crate) const OK: i32 = 1;
pub(crate) const OVER: i32 = 2;

#[derive(Clone)]
pub(crate) struct GrpcClient(pub(crate) SendRequest<Bytes>);

/// The response to a call.
#[derive(Debug)]
pub(crate) struct GrpcReply {
    pub(crate) http: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The gRPC status, from headers or trailers.
    pub(crate) code: Option<String>,
    pub(crate) text: String,
    pub(crate) body: Bytes,
}

impl GrpcClient {
    /// Connects to the listener's address or socket.
    pub(crate) async fn connect(server: &TestServer) -> Self {
        GrpcClient::connect_to(&server.grpc).await
    }

    /// The same, without a server at hand.
    pub(crate) async fn connect_to(address: &str) -> Self {
        match address.strip_prefix("unix:") {
            Some(path) => GrpcClient::over(UnixStream::connect(path).await.unwrap()).await,
            None => {
                let stream = TcpStream::connect(address).await.unwrap();
                stream.set_nodelay(true).unwrap();
                GrpcClient::over(stream).await
            }
        }
    }

    /// Over an open stream.
    pub(crate) async fn over(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (client, connection) = h2::client::handshake(io).await.unwrap();
        tokio::spawn(async {
            // Calls on the connection see how it ends.
            let _ = connection.await;
        });
        GrpcClient(client)
    }

    /// A complete call, as bytes.
    pub(crate) async fn call(&self, path: &str, body: Bytes) -> GrpcReply {
        self.try_call(path, body).await.unwrap()
    }

    async fn try_call(&self, path: &str, body: Bytes) -> Result<GrpcReply, h2::Error> {
        let request = Request::post(format!("http://tidegate{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers");
        self.send(request.body(()).unwrap(), body).await
    }

    /// A request of any kind.
    pub(crate) async fn send(&self, request: Request<()>, body: Bytes) -> Result<GrpcReply, h2::Error> {
        let mut client = self.0.clone().ready().await?;
        let (reply, mut stream) = client.send_request(request, false)?;
        // The response may come before all of it is sent.
        let _ = stream.send_data(body, true);
        let (head, mut stream) = reply.await?.into_parts();
        let mut body = BytesMut::new();
        while let Some(piece) = stream.data().await {
            let piece = piece?;
            stream.flow_control().release_capacity(piece.len())?;
            body.extend_from_slice(&piece);
        }
        let trailers = stream.trailers().await?.unwrap_or_default();
        let line = |name| {
            let line = head.headers.get(name).or(trailers.get(name));
            line.map(|value| value.to_str().unwrap().to_owned())
        };
        Ok(GrpcReply {
            http: head.status,
            code: line("grpc-status"),
            text: line("grpc-message").unwrap_or_default(),
            headers: head.headers.clone(),
            body: body.freeze(),
        })
    }

    /// Calls `ShouldRateLimit`.
    pub(crate) async fn check(&self, request: &RateLimitRequest) -> RateLimitResponse {
        self.try_check(request).await.unwrap()
    }

    /// The same; an error if the connection ends first.
    pub(crate) async fn try_check(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, h2::Error> {
        let called = self.try_call(SHOULD_RATE_LIMIT, framed(request)).await?;
        assert_eq!(called.code.as_deref(), Some("0"), "{called:?}");
        assert_eq!(called.headers["content-type"], "application/grpc");
        Ok(RateLimitResponse::decode(&called.body[5..]).unwrap())
    }

    /// A call that gets no verdict. Returns the status and the text.
    pub(crate) async fn fails(&self, request: &RateLimitRequest) -> (String, String) {
        let called = self.call(SHOULD_RATE_LIMIT, framed(request)).await;
        (called.code.unwrap(), called.text)
    }

    /// The health of a service by name.
    pub(crate) async fn health(&self, service: &str) -> GrpcReply {
        #[derive(Clone, PartialEq, prost::Message)]
        struct HealthCheckRequest {
            #[prost(string, tag = "1")]
            service: String,
        }
        let service = service.to_owned();
        self.call(HEALTH, framed(&HealthCheckRequest { service })).await
    }
}

/// A message in its gRPC frame.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    let mut out = BytesMut::new();
    out.put_u8(0);
    out.put_u32(message.encoded_len().try_into().unwrap());
    message.encode(&mut out).unwrap();
    out.freeze()
}

/// A descriptor of these entries.
pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| ProtoEntry { key: (*key).to_owned(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// A request of these descriptors.
pub(crate) fn request(domain: &str, descriptors: &[&[(&str, &str)]]) -> RateLimitRequest {
    RateLimitRequest {
        domain: domain.to_owned(),
        descriptors: descriptors.iter().map(|entries| descriptor(entries)).collect(),
        hits_addend: 0,
    }
}

impl RateLimitResponse {
    /// What the binding limit has left, by its header.
    pub(crate) fn left(&self) -> Option<u64> {
        let (_, figures) = self.header("ratelimit")?.split_once(";r=")?;
        figures.split_once(';')?.0.parse().ok()
    }

    /// The value of a header for the client.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let mut headers = self.response_headers_to_add.iter();
        let found = headers.find(|header| header.key == name);
        found.map(|header| header.value.as_str())
    }
}
