//! One keep-alive connection of the load: sends a request, reads its response, never blocks.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::SocketAddr;
use std::time::Instant;

use mio::net::TcpStream;

/// The decision of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HttpDecision {
    /// The request is allowed.
    Admitted,
    /// The request is denied, by status 429 or by `"allowed":false`.
    Denied,
}

/// A connection with at most one request in flight.
pub(crate) struct LoadConnection {
    /// The socket, for registration with the poll.
    pub(crate) stream: TcpStream,
    /// The instant from which the wait for the current response is counted.
    pub(crate) due: Instant,
    unsent: Vec<u8>,
    received: Vec<u8>,
}

impl LoadConnection {
    /// Connects; the connection is usable at once on loopback.
    pub(crate) fn open(address: SocketAddr) -> io::Result<Self> {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(LoadConnection {
            stream: TcpStream::from_std(stream),
            due: Instant::now(),
            unsent: Vec::new(),
            received: Vec::with_capacity(1 << 16),
        })
    }

    /// Sends a request whose wait is counted from `due`.
    pub(crate) fn send(&mut self, request: &[u8], due: Instant) -> io::Result<()> {
        self.due = due;
        let sent = match self.stream.write(request) {
            Ok(sent) => sent,
            Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        self.unsent.extend_from_slice(&request[sent..]);
        Ok(())
    }

    /// Moves bytes until the socket is empty; returns the decision once the response is complete.
    pub(crate) fn progress(&mut self) -> io::Result<Option<HttpDecision>> {
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let mut piece = [0; 1 << 16];
        loop {
            match self.stream.read(&mut piece) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(length) => self.received.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
            // A short read has emptied the socket; another would cost a system call for nothing.
            if let Some(decision) = parse_response(&self.received)? {
                self.received.clear();
                return Ok(Some(decision));
            }
        }
        Ok(None)
    }
}

/// The response at the start of `bytes`, once its body is complete.
fn parse_response(bytes: &[u8]) -> io::Result<Option<HttpDecision>> {
    let Some(head_length) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let (head, body) = (&bytes[..head_length], &bytes[head_length + 4..]);
    let length = content_length(head).ok_or_else(|| io::Error::other("a response without content-length"))?;
    if body.len() < length {
        return Ok(None);
    }
    match head.get(9..12) {
        Some(b"429") => Ok(Some(HttpDecision::Denied)),
        Some(b"200") if starts_denied(body) => Ok(Some(HttpDecision::Denied)),
        Some(b"200") => Ok(Some(HttpDecision::Admitted)),
        _ => Err(io::Error::other(format!("unexpected response: {}", String::from_utf8_lossy(bytes)))),
    }
}

fn content_length(head: &[u8]) -> Option<usize> {
    let head = str::from_utf8(head).ok()?;
    let mut fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
    let (_, value) = fields.find(|(name, _)| name.eq_ignore_ascii_case("content-length"))?;
    value.trim().parse().ok()
}

/// Peers that respond with 200 to everything have the decision in the first member of the body.
fn starts_denied(body: &[u8]) -> bool {
    body.starts_with(b"{\"allowed\":false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: &str, want: Option<HttpDecision>) {
        assert_eq!(parse_response(bytes.as_bytes()).unwrap(), want);
    }

    #[test]
    fn a_response_is_complete_with_its_body() {
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{", None);
        check("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", Some(HttpDecision::Admitted));
    }

    #[test]
    fn a_denial_is_429_or_in_the_body() {
        check("HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n", Some(HttpDecision::Denied));
        let body = "{\"allowed\":false}";
        check(&format!("HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{body}"), Some(HttpDecision::Denied));
    }

    #[test]
    fn any_other_status_stops_the_run() {
        assert!(parse_response(b"HTTP/1.1 400 Bad\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
