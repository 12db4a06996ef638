//! A server with a real handshake and a configurable reply to every script call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The behaviour on a script call by hash.
#[derive(Clone, Debug)]
pub(crate) enum FakeBehaviour {
    /// Sends these bytes.
    Bytes(String),
    /// Ends the connection.
    Close,
    /// Replies to this and to every ping with a call id that no call has.
    OtherId,
    /// Sends nothing any more on this connection: a later reply would be taken for the reply to this call.
    Silence,
}

pub(crate) struct FakeRedis {
    pub(crate) url: String,
    /// Calls by hash, and calls by text.
    pub(crate) by_hash: Arc<AtomicU32>,
    pub(crate) by_text: Arc<AtomicU32>,
    /// Connections that were opened.
    pub(crate) opened: Arc<AtomicU32>,
}

impl FakeRedis {
    pub(crate) async fn start(behaviour: FakeBehaviour) -> FakeRedis {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fake = FakeRedis {
            url: format!("redis://u:planted-s3cret@127.0.0.1:{port}"),
            by_hash: Arc::default(),
            by_text: Arc::default(),
            opened: Arc::default(),
        };
        let (by_hash, by_text) = (Arc::clone(&fake.by_hash), Arc::clone(&fake.by_text));
        let opened = Arc::clone(&fake.opened);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                opened.fetch_add(1, Ordering::SeqCst);
                let (by_hash, by_text) = (Arc::clone(&by_hash), Arc::clone(&by_text));
                tokio::spawn(serve(stream, behaviour.clone(), by_hash, by_text));
            }
        });
        fake
    }
}

/// The reply of an admitted charge without a record: zeros except for the time and the verdict, 1 as a double. The call
/// id follows.
const ADMITTED: &[u8] = b"\0\0\x01\0\0\x06\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0";

/// A bulk string in RESP.
fn bulk(bytes: &[u8]) -> Vec<u8> {
    let length = format!("${}\r\n", bytes.len());
    [length.as_bytes(), bytes, b"\r\n"].concat()
}

async fn serve(stream: TcpStream, behaviour: FakeBehaviour, by_hash: Arc<AtomicU32>, by_text: Arc<AtomicU32>) {
    let mut stream = BufReader::new(stream);
    let mut silent = false;
    while let Some(command) = read(&mut stream).await {
        let name = command[0].to_ascii_uppercase();
        let last = command.last().map_or(&[][..], Vec::as_slice);
        let reply: Vec<u8> = match name.as_slice() {
            b"EVALSHA" => {
                by_hash.fetch_add(1, Ordering::SeqCst);
                match &behaviour {
                    FakeBehaviour::Bytes(bytes) => bytes.clone().into_bytes(),
                    FakeBehaviour::OtherId => bulk(&[ADMITTED, b"else"].concat()),
                    FakeBehaviour::Close => return,
                    FakeBehaviour::Silence => {
                        silent = true;
                        continue;
                    }
                }
            }
            b"EVAL" => {
                by_text.fetch_add(1, Ordering::SeqCst);
                bulk(&[ADMITTED, last].concat())
            }
            b"EVAL_RO" => b":1\r\n".to_vec(),
            b"PING" if command.len() == 1 => b"+PONG\r\n".to_vec(),
            b"PING" => match &behaviour {
                FakeBehaviour::OtherId => bulk(b"else"),
                _ => bulk(last),
            },
            _ => b"+OK\r\n".to_vec(),
        };
        if silent {
            continue;
        }
        if stream.get_mut().write_all(&reply).await.is_err() {
            return;
        }
    }
}

/// Reads one command. Returns its words, at least one.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Vec<Vec<u8>>> {
    let parts = length(stream).await?;
    let mut words = Vec::with_capacity(parts);
    for _ in 0..parts {
        let mut part = vec![0; length(stream).await? + 2];
        stream.read_exact(&mut part).await.ok()?;
        part.truncate(part.len() - 2);
        words.push(part);
    }
    (!words.is_empty()).then_some(words)
}

async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}
