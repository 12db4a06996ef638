//! What an idle connection takes: many are opened, each asks once, and then nothing happens.
//!
//! Each server is a fresh process. What the kernel holds for the sockets is the same for all and not counted.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bench_process::ServerProcess;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::load::{ServerConcurrency, ServerLoad, ServerLoadKind};

/// What the connections ask once.
pub(crate) enum SingleRequest {
    /// A command or a call of the load.
    Of(ServerLoadKind),
    /// A whole request of HTTP/1.
    Http(Vec<u8>),
}

/// Connections open before the first reading: what a server sets up once is none of theirs.
const WARM_CONNECTIONS: usize = 16;

/// How often memory is read until it falls no more.
const PAUSE: Duration = Duration::from_millis(500);

/// At most so many readings; a server that frees later than this keeps its memory for our purpose.
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

/// Open connections that have asked and been answered.
enum IdleConnections {
    Load { _open: ServerLoad },
    Streams { _open: Vec<TcpStream> },
}

impl IdleConnections {
    async fn open(
        server: SocketAddr,
        once: &SingleRequest,
        connections: usize,
    ) -> io::Result<Self> {
        match once {
            SingleRequest::Of(question) => {
                let concurrency = ServerConcurrency {
                    connections,
                    at_once: 1,
                };
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
    while !is_whole(&received)? {
        if stream.read_buf(&mut received).await? == 0 {
            return Err(io::Error::other("the server closed a connection"));
        }
    }
    Ok(stream)
}

/// Whether this is an answer of 200 to its end.
fn is_whole(bytes: &[u8]) -> io::Result<bool> {
    let text = String::from_utf8_lossy(bytes);
    let Some((head, body)) = text.split_once("\r\n\r\n") else {
        return Ok(false);
    };
    let mut lines = head.split("\r\n");
    if !lines.next().is_some_and(|first| first.contains(" 200 ")) {
        return Err(io::Error::other(format!("unexpected answer: {text}")));
    }
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse().ok());
    let length: usize = length.ok_or_else(|| io::Error::other("an answer without length"))?;
    Ok(body.len() >= length)
}

/// Resident bytes once they fall no more: servers give buffers back some time after the last answer.
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
    fn an_answer_is_whole_with_its_body() {
        let head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n";
        assert!(!is_whole(b"HTTP/1.1 200").unwrap());
        assert!(!is_whole(format!("{head}{{").as_bytes()).unwrap());
        assert!(is_whole(format!("{head}{{}}").as_bytes()).unwrap());
    }

    #[test]
    fn another_status_stops_the_run() {
        assert!(is_whole(b"HTTP/1.1 429 Too Many\r\ncontent-length: 0\r\n\r\n").is_err());
    }
}
