//! The HTTP client of the command line: one request, one connection.

use std::io;
use std::time::Duration;

use http::header::{CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

/// A server on the same machine or network responds within this time. A slower one counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than any response to one request.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CliResponse {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Posts JSON to `path` of the server at `url`.
pub(super) fn post(url: &str, path: &str, body: &str) -> io::Result<CliResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let response = async { tokio::time::timeout(TIMEOUT, post_to(url, path, body)).await? };
    runtime.block_on(response)
}

async fn post_to(url: &str, path: &str, body: &str) -> io::Result<CliResponse> {
    if let Some(socket) = url.strip_prefix("unix:") {
        return exchange(UnixStream::connect(socket).await?, "localhost", path, body).await;
    }
    let host = host(url)?;
    exchange(TcpStream::connect(&host).await?, &host, path, body).await
}

async fn exchange<S>(stream: S, host: &str, path: &str, body: &str) -> io::Result<CliResponse>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let request = Request::post(path).header(HOST, host).header(CONTENT_TYPE, "application/json");
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).map_err(io::Error::other)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    tokio::spawn(connection);
    let response = sender.send_request(request).await.map_err(io::Error::other)?;
    let status = response.status().as_u16();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await.map_err(io::Error::other)?;
    Ok(CliResponse { status, body: String::from_utf8_lossy(&body.to_bytes()).into_owned() })
}

/// Host and port of a server: from a URL, `host:port`, or a port of this machine.
fn host(url: &str) -> io::Result<String> {
    let host = match url.split_once("://") {
        Some(("http", host)) => host.trim_end_matches('/'),
        Some(_) => {
            return Err(invalid_input("write http://host:port, host:port, a port or unix:path"));
        }
        None => url,
    };
    let is_port = |text: &str| text.parse::<u16>().is_ok();
    let port = host.strip_prefix(':').unwrap_or(host);
    if is_port(port) {
        return Ok(format!("127.0.0.1:{port}"));
    }
    match host.rsplit_once(':') {
        Some((_, port)) if is_port(port) => Ok(host.to_owned()),
        _ => Ok(format!("{host}:80")),
    }
}

fn invalid_input(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Reads one request of a client and writes `response`.
    fn serve_once(response: &'static str) -> u16 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(response.as_bytes()).unwrap();
        });
        port
    }

    #[test]
    fn a_response_may_come_in_chunks_and_must_be_http() {
        for response in [
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        ] {
            let response = post(&serve_once(response).to_string(), "/", "{}").unwrap();
            assert_eq!(response, CliResponse { status: 429, body: "{}".into() });
        }
        for response in ["nonsense\r\n\r\n", "HTTP/1.1 2\r\n\r\n", ""] {
            assert!(post(&serve_once(response).to_string(), "/", "{}").is_err(), "{response}");
        }
    }

    #[test]
    fn a_url_with_another_scheme_is_rejected() {
        assert!(post("ftp://x", "/", "").is_err());
    }

    #[test]
    fn a_server_address_has_the_forms_of_a_listener_address() {
        for (url, want) in [
            ("http://tidegate.internal/", "tidegate.internal:80"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080", "localhost:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("8080", "127.0.0.1:8080"),
            (":8080", "127.0.0.1:8080"),
        ] {
            assert_eq!(host(url).unwrap(), want, "{url}");
        }
    }
}
