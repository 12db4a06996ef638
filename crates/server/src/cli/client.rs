//! The HTTP client of the command line: one request, one connection.

use std::fmt;
use std::io;
use std::str::FromStr;
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

/// Where a server listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum ServerAddress {
    /// Host and port.
    Tcp(String),
    /// The path of a socket.
    Unix(String),
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServerAddress::Tcp(host) => f.write_str(host),
            ServerAddress::Unix(socket) => write!(f, "unix:{socket}"),
        }
    }
}

/// Why a text is not the address of a server. The text may hold a password and is not repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum ServerAddressError {
    #[error("is empty; {FORMS}")]
    Empty,
    #[error("has another scheme than http; {FORMS}")]
    Scheme,
    #[error("has a user or a password, which no server requires; remove what stands before `@`")]
    Password,
    #[error("has a path; write the server alone, such as http://host:port")]
    Path,
    #[error("is no address of a server; {FORMS}, and an IPv6 address in brackets: [::1]:8080")]
    Host,
}

const FORMS: &str = "write http://host:port, host:port, a port or unix:path";

impl FromStr for ServerAddress {
    type Err = ServerAddressError;

    /// From a URL, `host:port`, a port of this machine, or `unix:path`.
    fn from_str(url: &str) -> Result<Self, ServerAddressError> {
        if let Some(socket) = url.strip_prefix("unix:") {
            return Ok(ServerAddress::Unix(socket.to_owned()));
        }
        let host = match url.split_once("://") {
            Some((scheme, host)) if scheme.eq_ignore_ascii_case("http") => host,
            Some(_) => return Err(ServerAddressError::Scheme),
            None => url,
        };
        let host = host.trim_end_matches('/');
        if host.is_empty() {
            return Err(ServerAddressError::Empty);
        }
        if host.contains('@') {
            return Err(ServerAddressError::Password);
        }
        if host.contains(['/', '?', '#']) {
            return Err(ServerAddressError::Path);
        }
        let is_port = |text: &str| text.parse::<u16>().is_ok();
        if is_port(host.strip_prefix(':').unwrap_or(host)) {
            return Ok(ServerAddress::Tcp(format!("127.0.0.1:{}", host.trim_start_matches(':'))));
        }
        let (name, port) = host.rsplit_once(':').filter(|(_, port)| is_port(port)).unwrap_or((host, "80"));
        let bracketed = name.starts_with('[') && name.ends_with(']');
        if !bracketed && name.contains(':') || name.contains(char::is_whitespace) {
            return Err(ServerAddressError::Host);
        }
        Ok(ServerAddress::Tcp(format!("{name}:{port}")))
    }
}

/// Posts JSON to `path` of a server.
pub(super) fn post(server: &ServerAddress, path: &str, body: &str) -> io::Result<CliResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let response = async { tokio::time::timeout(TIMEOUT, post_to(server, path, body)).await? };
    runtime.block_on(response)
}

async fn post_to(server: &ServerAddress, path: &str, body: &str) -> io::Result<CliResponse> {
    match server {
        ServerAddress::Tcp(host) => exchange(TcpStream::connect(host).await?, host, path, body).await,
        ServerAddress::Unix(socket) => exchange(UnixStream::connect(socket).await?, "localhost", path, body).await,
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpListener;

    /// Reads one request of a client and writes `response`.
    fn serve_once(response: &'static str) -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 1024];
            let _ = stream.read(&mut request).unwrap();
            stream.write_all(response.as_bytes()).unwrap();
        });
        ServerAddress::Tcp(format!("127.0.0.1:{port}"))
    }

    #[test]
    fn a_response_may_come_in_chunks_and_must_be_http() {
        for response in [
            "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 429 Too Many Requests\r\ntransfer-encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n",
        ] {
            let response = post(&serve_once(response), "/", "{}").unwrap();
            assert_eq!(response, CliResponse { status: 429, body: "{}".into() });
        }
        for response in ["nonsense\r\n\r\n", "HTTP/1.1 2\r\n\r\n", ""] {
            assert!(post(&serve_once(response), "/", "{}").is_err(), "{response}");
        }
    }

    /// A path became part of the host, whose name was looked up, and the error repeated a password.
    #[test]
    fn a_url_that_names_no_server_is_rejected() {
        use ServerAddressError::{Empty, Host, Password, Path, Scheme};
        for (url, want) in [
            ("", Empty),
            ("http://", Empty),
            ("http:///", Empty),
            ("ftp://x", Scheme),
            ("https://planted@x", Scheme),
            ("http://user:planted@x:8080", Password),
            ("user:planted@x", Password),
            ("http://user:planted@x/path", Password),
            ("http://x:8080/v1/check", Path),
            ("x:8080/?a", Path),
            ("x?a", Path),
            ("::1", Host),
            ("x:99999", Host),
            ("x y", Host),
        ] {
            assert_eq!(url.parse::<ServerAddress>(), Err(want), "{url}");
            assert!(!want.to_string().contains("planted"));
        }
    }

    #[test]
    fn a_server_address_has_the_forms_of_a_listener_address() {
        for (url, want) in [
            ("http://tidegate.internal/", "tidegate.internal:80"),
            ("HTTP://tidegate.internal:8080//", "tidegate.internal:8080"),
            ("http://127.0.0.1:8080", "127.0.0.1:8080"),
            ("localhost:8080/", "localhost:8080"),
            ("[::1]:8080", "[::1]:8080"),
            ("[::1]", "[::1]:80"),
            ("8080", "127.0.0.1:8080"),
            (":8080", "127.0.0.1:8080"),
            ("unix:/run/a b@c", "unix:/run/a b@c"),
        ] {
            assert_eq!(url.parse::<ServerAddress>().unwrap().to_string(), want, "{url}");
        }
    }
}
