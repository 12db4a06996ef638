//! A small blocking HTTP/1.1 client for the command line: one request, one connection.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A server on the same machine or network responds within this time. A slower one counts as unreachable.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than any response to one request.
const MAX_RESPONSE_BYTES: u64 = 4 << 20;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct CliResponse {
    pub(super) status: u16,
    pub(super) body: String,
}

/// Posts JSON to `path` of the server at `url`.
pub(super) fn post(url: &str, path: &str, body: &str) -> io::Result<CliResponse> {
    let head = |host: &str| {
        format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {}\r\nconnection: close\r\n\r\n",
            body.len()
        )
    };
    if let Some(socket) = url.strip_prefix("unix:") {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        return exchange(stream, &head("localhost"), body);
    }
    let host = host(url)?;
    let address = host.to_socket_addrs()?.next().ok_or_else(|| invalid_input("no such host"))?;
    let stream = TcpStream::connect_timeout(&address, TIMEOUT)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    exchange(stream, &head(&host), body)
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

fn exchange(mut stream: impl Read + Write, head: &str, body: &str) -> io::Result<CliResponse> {
    stream.write_all(head.as_bytes())?;
    stream.write_all(body.as_bytes())?;
    let mut response = String::new();
    stream.take(MAX_RESPONSE_BYTES).read_to_string(&mut response)?;
    parse_response(&response).ok_or_else(|| invalid_input("the response is not HTTP/1.1"))
}

/// Splits a response that ends with its connection. The server always sends a length, so there are no chunks to
/// decode.
fn parse_response(response: &str) -> Option<CliResponse> {
    let (head, body) = response.split_once("\r\n\r\n")?;
    let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
    Some(CliResponse { status, body: body.to_owned() })
}

fn invalid_input(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_split_into_status_and_body() {
        let response = parse_response("HTTP/1.1 429 Too Many Requests\r\na: b\r\n\r\n{}").unwrap();
        assert_eq!(response, CliResponse { status: 429, body: "{}".into() });
        assert_eq!(parse_response("nonsense"), None);
        assert_eq!(parse_response("HTTP/1.1 2\r\n\r\n"), None);
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
