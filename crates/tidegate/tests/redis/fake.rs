//! A server that greets like a real one and answers every script call as it was told to.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// What it does when a script is called by its hash.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// Sends these bytes.
    Bytes(String),
    /// Ends the connection.
    Close,
    /// Sends nothing any more on this connection: a later reply would answer this call.
    Silence,
}

pub(crate) struct Fake {
    pub(crate) url: String,
    /// Calls by hash, and calls by text.
    pub(crate) by_hash: Arc<AtomicU32>,
    pub(crate) by_text: Arc<AtomicU32>,
}

impl Fake {
    pub(crate) async fn start(answer: Answer) -> Fake {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fake = Fake {
            url: format!("redis://u:planted-s3cret@127.0.0.1:{port}"),
            by_hash: Arc::default(),
            by_text: Arc::default(),
        };
        let (by_hash, by_text) = (Arc::clone(&fake.by_hash), Arc::clone(&fake.by_text));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (by_hash, by_text) = (Arc::clone(&by_hash), Arc::clone(&by_text));
                tokio::spawn(serve(stream, answer.clone(), by_hash, by_text));
            }
        });
        fake
    }
}

/// Admitted at some time, no record found: zeros but for the time and the verdict, 1 as a double.
const ADMITTED: &[u8] = b"$19\r\n\0\0\x01\0\0\x06\0\0\0\0\0\0\0\xf0\x3f\0\0\0\0\r\n";

async fn serve(
    stream: TcpStream,
    answer: Answer,
    by_hash: Arc<AtomicU32>,
    by_text: Arc<AtomicU32>,
) {
    let mut stream = BufReader::new(stream);
    let mut silent = false;
    while let Some(command) = read(&mut stream).await {
        let reply: &[u8] = match command.to_ascii_uppercase().as_str() {
            "EVALSHA" => {
                by_hash.fetch_add(1, Ordering::SeqCst);
                match &answer {
                    Answer::Bytes(bytes) => bytes.as_bytes(),
                    Answer::Close => return,
                    Answer::Silence => {
                        silent = true;
                        continue;
                    }
                }
            }
            "EVAL" => {
                by_text.fetch_add(1, Ordering::SeqCst);
                ADMITTED
            }
            "EVAL_RO" => b":1\r\n",
            "PING" => b"+PONG\r\n",
            _ => b"+OK\r\n",
        };
        if silent {
            continue;
        }
        if stream.get_mut().write_all(reply).await.is_err() {
            return;
        }
    }
}

/// Reads one command; its first word.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let parts = length(stream).await?;
    let mut first = None;
    for _ in 0..parts {
        let mut part = vec![0; length(stream).await? + 2];
        stream.read_exact(&mut part).await.ok()?;
        part.truncate(part.len() - 2);
        first = first.or(Some(String::from_utf8_lossy(&part).into_owned()));
    }
    first
}

async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}
