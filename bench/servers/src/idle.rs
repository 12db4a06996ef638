//! Memory of an idle connection: many are opened, each sends one request, and then stays idle.
//!
//! Each server is a fresh process. The kernel memory of the sockets is the same for all and not counted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bench_process::ServerProcess;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::load::{ServerConcurrency, ServerLoad, ServerLoadKind};

/// The single request of each connection.
pub(crate) enum SingleRequest {
    /// A command or a call of the load.
    Of(ServerLoadKind),
    /// A complete HTTP/1 request.
    Http(Vec<u8>),
}

/// Connections open before the first reading, so that one-time setup of the server does not count.
const WARM_CONNECTIONS: usize = 16;

/// The interval between readings of memory until it falls no more.
const PAUSE: Duration = Duration::from_millis(500);

/// The maximum number of readings; memory that is freed later counts as in use.
const READINGS: usize = 20;

/// Resident bytes of the server for each of `connections`, all of which stay open meanwhile.
pub(crate) async fn bytes_per_connection(
    server: &ServerProcess,
    once: &SingleRequest,
    connections: usize,
) -> io::Result<f64> {
    let warm = IdleConnections::open(server.address(), once, WARM_CONNECTIONS).await?;
    let before = stable_memory(server).await?;
    let idle = IdleConnections::open(server.address(), once, connections).await?;
    let after = stable_memory(server).await?;
    drop((warm, idle));
    Ok((after as f64 - before as f64) / connections as f64)
}

/// Open connections that have received their response.
enum IdleConnections {
    Load { _open: ServerLoad },
    Streams { _open: Vec<TcpStream> },
}

impl IdleConnections {
    async fn open(server: SocketAddr, once: &SingleRequest, connections: usize) -> io::Result<Self> {
        match once {
            SingleRequest::Of(question) => {
                let concurrency = ServerConcurrency { connections, at_once: 1 };
                let mut load = ServerLoad::open(server, question, concurrency).await?;
                load.once().await?;
                Ok(IdleConnections::Load { _open: load })
            }
            SingleRequest::Http(request) => {
                let mut open = Vec::with_capacity(connections);
                for _ in 0..connections {
                    open.push(send_http(server, request).await?);
                }
                Ok(IdleConnections::Streams { _open: open })
            }
        }
    }
}

async fn send_http(server: SocketAddr, request: &[u8]) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server).await?;
    stream.write_all(request).await?;
    let mut received = Vec::new();
    while !is_complete(&received)? {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::Error::other("the server closed a connection"));
        }
    }
    Ok(stream)
}

/// Whether this is a complete response with status 200.
fn is_complete(bytes: &[u8]) -> io::Result<bool> {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Ok(false);
    };
    let mut lines = head.split("\r\n");
    if !lines.next().is_some_and(|first| first.contains(" 200 ")) {
        return Err(io::Error::other(format!("unexpected response: {text}")));
    }
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok());
    let length: usize = length.ok_or_else(|| io::Error::other("a response without content-length"))?;
    Ok(body.len() >= length)
}

/// Resident bytes once they fall no more: servers free buffers some time after the last response.
async fn stable_memory(server: &ServerProcess) -> io::Result<u64> {
    let mut least = server.resident_bytes()?;
    let mut since_it_fell = 0;
    for _ in 0..READINGS {
        tokio::time::sleep(PAUSE).await;
        let now = server.resident_bytes()?;
        since_it_fell = if now < least { 0 } else { since_it_fell + 1 };
        least = least.min(now);
        if since_it_fell == 4 {
            break;
        }
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_complete_with_its_body() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert!(!is_complete(b"HTTP/1.1 200").unwrap());
        assert!(!is_complete(format!("{head}{{").as_bytes()).unwrap());
        assert!(is_complete(format!("{head}{{}}").as_bytes()).unwrap());
    }

    #[test]
    fn another_status_stops_the_run() {
        assert!(is_complete(b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
