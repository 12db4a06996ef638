//! The gRPC listener itself: sockets, TLS, client authentication, connection ages and shutdown.

use std::path::Path;
use std::sync::Arc;

use http::Request;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tidegate_testkit::{TestAuthority, TestCertificate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::grpc::{GrpcClient, OK, SHOULD_RATE_LIMIT, framed, request};
use crate::messages::RateLimitRequest;
use crate::server::{TestServer, wait_for};

const RULES: &str = "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000/hour }\n";

fn anything() -> RateLimitRequest {
    request("shop", &[&[("a", "b")]])
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A server with the certificate `own` and more flags.
fn tls_server(own: &TestCertificate, more: &[&str]) -> TestServer {
    let cert = ["--grpc-cert", text(&own.certificate)];
    let key = ["--grpc-key", text(&own.key)];
    TestServer::with(RULES, &[&cert, &key, more].concat())
}

/// A client that trusts `authority`, shows `own` if it has one, and speaks HTTP/2.
fn connector(authority: &TestAuthority, own: Option<&TestCertificate>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_file_iter(authority.file()).unwrap() {
        roots.add(root.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::pem_file_iter(&own.certificate).unwrap();
            let chain = chain.map(Result::unwrap).collect();
            let key = PrivateKeyDer::from_pem_file(&own.key).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn over_tls(server: &TestServer, connector: &TlsConnector) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(&server.grpc).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    connector.connect(name, stream).await.unwrap()
}

/// Whether a call passes. With TLS 1.3 a client learns only then that it was rejected.
async fn is_accepted(server: &TestServer, connector: &TlsConnector) -> bool {
    let io = over_tls(server, connector).await;
    let Ok((client, connection)) = h2::client::handshake(io).await else {
        return false;
    };
    tokio::spawn(async {
        let _ = connection.await;
    });
    let request =
        Request::post(format!("http://tidegate{SHOULD_RATE_LIMIT}")).header("content-type", "application/grpc");
    let request = request.body(()).unwrap();
    let called = GrpcClient(client).send(request, framed(&anything())).await;
    called.is_ok_and(|called| called.code.as_deref() == Some("0"))
}

#[tokio::test(flavor = "multi_thread")]
async fn the_listener_opens_a_unix_socket() {
    let dir = tempfile::tempdir().unwrap();
    let address = format!("unix:{}", dir.path().join("rls.sock").display());
    let server = TestServer::with(RULES, &["--grpc", &address]);
    assert_eq!(server.grpc, address);
    let caller = GrpcClient::connect(&server).await;
    assert_eq!(caller.check(&anything()).await.overall_code, OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_a_certificate_the_listener_accepts_tls_only() {
    let authority = TestAuthority::new();
    let server = tls_server(&authority.sign(&["localhost"]), &[]);
    let io = over_tls(&server, &connector(&authority, None)).await;
    assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
    let caller = GrpcClient::over(io).await;
    assert_eq!(caller.check(&anything()).await.overall_code, OK);
    let mut open = TcpStream::connect(&server.grpc).await.unwrap();
    open.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let mut received = Vec::new();
    // An alert, or nothing, and the end.
    let _ = open.read_to_end(&mut received).await;
    assert!(received.len() < 20, "{received:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_authenticate_by_their_certificates_and_names() {
    let (authority, stranger) = (TestAuthority::new(), TestAuthority::new());
    let own = authority.sign(&["localhost"]);
    let ca = authority.file();
    let with = |certificate: &TestCertificate| connector(&authority, Some(certificate));
    let envoy = authority.sign(&["envoy.example"]);
    let spiffe = authority.sign(&["spiffe://mesh/envoy"]);
    let other = authority.sign(&["other.example"]);
    let forged = stranger.sign(&["envoy.example"]);

    let all = tls_server(&own, &["--grpc-client-ca", text(&ca)]);
    assert!(is_accepted(&all, &with(&envoy)).await);
    assert!(is_accepted(&all, &with(&other)).await);
    assert!(!is_accepted(&all, &with(&forged)).await);
    assert!(!is_accepted(&all, &connector(&authority, None)).await);

    let names = ["--grpc-client-san", "envoy.example, spiffe://mesh/envoy"];
    let named = [&["--grpc-client-ca", text(&ca)], &names[..]].concat();
    let named = tls_server(&own, &named);
    assert!(is_accepted(&named, &with(&envoy)).await);
    assert!(is_accepted(&named, &with(&spiffe)).await);
    assert!(!is_accepted(&named, &with(&other)).await);
    named.wait_log(|line| line["level"] == "WARN" && line["wanted"] == "envoy.example, spiffe://mesh/envoy");
    assert!(!is_accepted(&named, &with(&forged)).await);
    assert!(!is_accepted(&named, &connector(&authority, None)).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_without_a_restart_and_a_bad_one_is_not_used() {
    let authority = TestAuthority::new();
    let shown = authority.sign(&["localhost"]);
    let server = tls_server(&shown, &[]);
    let connector = connector(&authority, None);
    let seen = async || {
        let io = over_tls(&server, &connector).await;
        io.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = seen().await;
    let before = over_tls(&server, &connector).await;
    let before = GrpcClient::over(before).await;
    let replace = |certificate: &[u8], key: &[u8]| {
        std::fs::write(&shown.certificate, certificate).unwrap();
        std::fs::write(&shown.key, key).unwrap();
    };
    replace(b"not a certificate", b"nor a key");
    server.wait_log(|line| {
        let message = line["message"].as_str().unwrap_or_default();
        message.starts_with("bad certificate")
    });
    assert_eq!(seen().await, first, "the one before stays in use");
    let next = authority.sign(&["localhost", "another.example"]);
    let read = |path: &Path| std::fs::read(path).unwrap();
    replace(&read(&next.certificate), &read(&next.key));
    server.wait_log(|line| line["message"] == "certificate renewed");
    assert_ne!(seen().await, first);
    let response = before.check(&anything()).await;
    assert_eq!(response.overall_code, OK, "open connections stay open");
}

#[test]
fn certificates_that_cannot_be_used_stop_the_start() {
    let dir = tempfile::tempdir().unwrap();
    let authority = TestAuthority::new();
    let (own, other) = (authority.sign(&["localhost"]), authority.sign(&["x"]));
    let empty = dir.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let none = dir.path().join("none.pem");
    for (certificate, key, want) in [
        (&none, &own.key, "none.pem"),
        (&empty, &own.key, "there is no certificate in it"),
        (&own.certificate, &empty, "empty.pem"),
        (&own.certificate, &other.key, "cannot be used"),
    ] {
        let output = std::process::Command::new(crate::server::BINARY)
            .args(["serve", "--http", "off", "--admin", "off"])
            .args(["--grpc", "127.0.0.1:0", "--log-format", "text"])
            .arg("--grpc-cert")
            .arg(certificate)
            .arg("--grpc-key")
            .arg(key)
            .output()
            .unwrap();
        let received = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{received}");
        assert!(received.contains(want), "{received}");
    }
}

/// Calls until the server sends GOAWAY on this connection. All calls get responses.
async fn calls_until_goaway(caller: &GrpcClient) -> usize {
    let mut calls = 0;
    loop {
        let request =
            Request::post(format!("http://tidegate{SHOULD_RATE_LIMIT}")).header("content-type", "application/grpc");
        let request = request.body(()).unwrap();
        match caller.send(request, framed(&anything())).await {
            Ok(called) => assert_eq!(called.code.as_deref(), Some("0"), "{called:?}"),
            Err(error) => {
                assert!(error.is_go_away() || error.is_io() || !error.is_reset(), "{error:?}");
                return calls;
            }
        }
        calls += 1;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_connection_is_closed_gracefully_and_a_new_one_is_accepted() {
    let server = TestServer::with(RULES, &["--grpc-max-age", "1"]);
    let caller = GrpcClient::connect(&server).await;
    assert!(calls_until_goaway(&caller).await > 0);
    let next = GrpcClient::connect(&server).await;
    assert_eq!(next.check(&anything()).await.overall_code, OK);
}

#[tokio::test(flavor = "multi_thread")]
async fn at_shutdown_calls_in_flight_finish_and_no_more_are_accepted() {
    let server = TestServer::with(RULES, &["--drain-delay", "0"]);
    let caller = GrpcClient::connect(&server).await;
    caller.check(&anything()).await;
    // A call that has begun: its head is there, its message is not.
    let mut client = caller.0.clone().ready().await.unwrap();
    let begun = Request::post(format!("http://tidegate{SHOULD_RATE_LIMIT}")).header("content-type", "application/grpc");
    let (reply, mut stream) = client.send_request(begun.body(()).unwrap(), false).unwrap();
    // The server has received it before this call.
    caller.check(&anything()).await;
    server.signal("TERM");
    let address = server.grpc.clone();
    wait_for("the listener to close", || std::net::TcpStream::connect(&address).is_err().then_some(()));
    stream.send_data(framed(&anything()), true).unwrap();
    let mut stream = reply.await.unwrap().into_body();
    while let Some(piece) = stream.data().await {
        piece.unwrap();
    }
    let trailers = stream.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    let (status, _) = server.wait_end();
    assert_eq!(status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn silent_clients_and_other_protocols_are_cut_off() {
    let server = TestServer::with(RULES, &["--idle-timeout", "5"]);
    let mut silent = TcpStream::connect(&server.grpc).await.unwrap();
    let mut other = TcpStream::connect(&server.grpc).await.unwrap();
    other.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    for stream in [&mut silent, &mut other] {
        let mut received = Vec::new();
        let _ = stream.read_to_end(&mut received).await;
        let received = String::from_utf8_lossy(&received);
        assert!(!received.contains("HTTP/1.1 200"), "{received}");
    }
    let caller = GrpcClient::connect(&server).await;
    assert_eq!(caller.check(&anything()).await.overall_code, OK);
}

/// Streams opened and reset at once cost the connection that does it, and no other.
#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_their_connection_only() {
    let server = TestServer::start(RULES);
    let good = GrpcClient::connect(&server).await;
    let hostile = GrpcClient::connect(&server).await;
    let mut opened = 0;
    for _ in 0..100_000 {
        let Ok(mut client) = hostile.0.clone().ready().await else {
            break;
        };
        let request = Request::post(format!("http://tidegate{SHOULD_RATE_LIMIT}"));
        let Ok((reply, mut stream)) = client.send_request(request.body(()).unwrap(), false) else {
            break;
        };
        stream.send_reset(h2::Reason::CANCEL);
        drop(reply);
        opened += 1;
    }
    assert!(opened < 100_000, "the resets were not stopped");
    assert_eq!(good.check(&anything()).await.overall_code, OK);
}
