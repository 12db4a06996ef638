//! A control plane for tests: accepts streams, records the requests on them, and sends responses by hand. Its
//! messages are encoded by another library than ours.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Response};
use prost::Message;
use tidegate_testkit::{TestAuthority, TestCertificate};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};

use crate::server::DEADLINE;

pub(crate) const KIND: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsRequest {
    #[prost(string, tag = "1")]
    pub(crate) version_info: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<XdsNode>,
    #[prost(string, repeated, tag = "3")]
    pub(crate) resource_names: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) type_url: String,
    #[prost(string, tag = "5")]
    pub(crate) response_nonce: String,
    #[prost(message, optional, tag = "6")]
    pub(crate) error_detail: Option<XdsStatus>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsNode {
    #[prost(string, tag = "1")]
    pub(crate) id: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsStatus {
    #[prost(int32, tag = "1")]
    pub(crate) code: i32,
    #[prost(string, tag = "2")]
    pub(crate) message: String,
}

#[derive(Clone, PartialEq, Message)]
struct XdsResponse {
    #[prost(string, tag = "1")]
    version_info: String,
    #[prost(message, repeated, tag = "2")]
    resources: Vec<XdsResource>,
    #[prost(string, tag = "4")]
    type_url: String,
    #[prost(string, tag = "5")]
    nonce: String,
}

#[derive(Clone, PartialEq, Message)]
struct XdsResource {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsConfig {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) domain: String,
    #[prost(message, repeated, tag = "3")]
    pub(crate) descriptors: Vec<XdsDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsDescriptor {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(message, optional, tag = "3")]
    pub(crate) rate_limit: Option<XdsPolicy>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) descriptors: Vec<XdsDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct XdsPolicy {
    #[prost(int32, tag = "1")]
    pub(crate) unit: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) requests_per_unit: u32,
}

pub(crate) const YEAR: i32 = 6;

/// A domain of the same name as its resource, with `requests_per_unit` a year for each value of `key`: that window
/// does not end during a test.
pub(crate) fn yearly(name: &str, key: &str, requests_per_unit: u32) -> XdsConfig {
    let limit = XdsPolicy { unit: YEAR, requests_per_unit };
    XdsConfig {
        name: name.to_owned(),
        domain: name.to_owned(),
        descriptors: vec![XdsDescriptor { key: key.to_owned(), rate_limit: Some(limit), descriptors: Vec::new() }],
    }
}

/// A control plane that listens.
pub(crate) struct TestControlPlane {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl TestControlPlane {
    pub(crate) async fn open() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        TestControlPlane { listener, tls: None }
    }

    /// A control plane that shows a certificate, and requires one of the same authority.
    pub(crate) async fn encrypted(authority: &TestAuthority, own: &TestCertificate) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(authority.file()).unwrap()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        let chain = vec![CertificateDer::from_pem_file(&own.certificate).unwrap()];
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients.build().unwrap())
            .with_single_cert(chain, PrivateKeyDer::from_pem_file(&own.key).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let tls = Some(TlsAcceptor::from(Arc::new(config)));
        TestControlPlane { tls, ..TestControlPlane::open().await }
    }

    pub(crate) fn address(&self) -> String {
        self.listener.local_addr().unwrap().to_string()
    }

    /// The next stream that a client opens.
    pub(crate) async fn accept_stream(&self) -> XdsStream {
        let accepted = async {
            let (socket, _) = self.listener.accept().await.unwrap();
            match &self.tls {
                None => XdsStream::over(socket).await,
                Some(tls) => XdsStream::over(tls.accept(socket).await.unwrap()).await,
            }
        };
        timeout(DEADLINE, accepted).await.expect("a stream")
    }
}

/// One stream. The connection breaks when it is dropped.
pub(crate) struct XdsStream {
    pub(crate) headers: HeaderMap,
    requests: RecvStream,
    responses: SendStream<Bytes>,
    rest: BytesMut,
    connection: AbortHandle,
}

impl XdsStream {
    async fn over(socket: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let (request, mut respond) = connection.accept().await.unwrap().unwrap();
        let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
        assert_eq!(request.uri().path(), path);
        let head = Response::builder().header("content-type", "application/grpc");
        let responses = respond.send_response(head.body(()).unwrap(), false).unwrap();
        let driven = tokio::spawn(async move { while connection.accept().await.is_some() {} });
        let (parts, requests) = request.into_parts();
        XdsStream {
            headers: parts.headers,
            requests,
            responses,
            rest: BytesMut::new(),
            connection: driven.abort_handle(),
        }
    }

    /// The next request of the client.
    pub(crate) async fn receive(&mut self) -> XdsRequest {
        loop {
            if self.rest.len() >= 5 {
                let length = (&self.rest[1..5]).get_u32() as usize;
                if self.rest.len() >= 5 + length {
                    self.rest.advance(5);
                    return XdsRequest::decode(self.rest.split_to(length)).unwrap();
                }
            }
            let piece = timeout(DEADLINE, self.requests.data()).await.expect("a request");
            let piece = piece.expect("the stream is open").unwrap();
            self.requests.flow_control().release_capacity(piece.len()).unwrap();
            self.rest.extend_from_slice(&piece);
        }
    }

    /// Sends the complete configuration.
    pub(crate) fn send(&mut self, version: &str, configs: &[XdsConfig]) {
        let resource = |config: &XdsConfig| XdsResource { type_url: KIND.to_owned(), value: config.encode_to_vec() };
        let response = XdsResponse {
            version_info: version.to_owned(),
            resources: configs.iter().map(resource).collect(),
            type_url: KIND.to_owned(),
            nonce: format!("nonce-{version}"),
        };
        self.send_bytes(&response.encode_to_vec());
    }

    pub(crate) fn send_bytes(&mut self, message: &[u8]) {
        let mut framed = vec![0];
        framed.extend_from_slice(&(message.len() as u32).to_be_bytes());
        framed.extend_from_slice(message);
        self.responses.send_data(framed.into(), false).unwrap();
    }

    /// Sends a configuration and waits for the next request.
    pub(crate) async fn send_and_receive(&mut self, version: &str, configs: &[XdsConfig]) -> XdsRequest {
        self.send(version, configs);
        let reply = self.receive().await;
        assert_eq!(reply.response_nonce, format!("nonce-{version}"));
        reply
    }
}

impl Drop for XdsStream {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
