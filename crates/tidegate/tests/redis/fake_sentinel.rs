//! A sentinel with configurable replies, true or not.

use std::sync::{Arc, Mutex};

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

pub(crate) struct FakeSentinel {
    pub(crate) port: u16,
    reply: Arc<Mutex<FakeSentinelReply>>,
    published: broadcast::Sender<String>,
}

/// The reply of the sentinel.
#[derive(Clone, Debug)]
pub(crate) enum FakeSentinelReply {
    /// The primary is on this port.
    Primary(u16),
    /// This error, to every client.
    Error(String),
}

impl FakeSentinel {
    pub(crate) async fn start(replies_with: FakeSentinelReply) -> FakeSentinel {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let fake = FakeSentinel {
            port: listener.local_addr().expect("an address").port(),
            reply: Arc::new(Mutex::new(replies_with)),
            published: broadcast::Sender::new(16),
        };
        let (replies_with, published) = (Arc::clone(&fake.reply), fake.published.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&replies_with), published.subscribe()));
            }
        });
        fake
    }

    /// Changes the reply.
    pub(crate) fn set_reply(&self, replies_with: FakeSentinelReply) {
        *self.reply.lock().expect("no panic") = replies_with;
    }

    /// Publishes that the primary has moved. Returns the number of subscribers.
    pub(crate) fn publish(&self, from: u16, to: u16) -> usize {
        let message = format!("counters 127.0.0.1 {from} 127.0.0.1 {to}");
        self.published.send(message).unwrap_or(0)
    }
}

/// The URL of a store with these sentinels.
pub(crate) fn url(sentinels: &[FakeSentinel]) -> String {
    let hosts = sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port));
    let hosts: Vec<String> = hosts.collect();
    format!("redis+sentinel://{}/counters", hosts.join(","))
}

async fn serve(
    stream: TcpStream,
    replies_with: Arc<Mutex<FakeSentinelReply>>,
    mut published: broadcast::Receiver<String>,
) {
    let mut stream = BufReader::new(stream);
    loop {
        let reply = tokio::select! {
            command = read(&mut stream) => match command {
                Some(command) => reply(&command, &replies_with),
                None => return,
            },
            Ok(message) = published.recv() => {
                push(&["message", "+switch-master", &message])
            }
        };
        if stream.get_mut().write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

fn reply(command: &[String], replies_with: &Mutex<FakeSentinelReply>) -> String {
    let replies_with = replies_with.lock().expect("no panic").clone();
    let verb = command.first().map(|verb| verb.to_ascii_uppercase());
    match (verb.as_deref(), replies_with) {
        (Some("CLIENT"), _) => "+OK\r\n".to_owned(),
        (_, FakeSentinelReply::Error(error)) => format!("-{error}\r\n"),
        (Some("HELLO"), _) => "%1\r\n+proto\r\n:3\r\n".to_owned(),
        (Some("SUBSCRIBE"), _) => ">3\r\n+subscribe\r\n++switch-master\r\n:1\r\n".to_owned(),
        (_, FakeSentinelReply::Primary(port)) => {
            let port = port.to_string();
            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
        }
    }
}

fn push(parts: &[&str]) -> String {
    let parts = parts.iter().map(|p| format!("${}\r\n{p}\r\n", p.len()));
    format!(">3\r\n{}", parts.collect::<String>())
}

/// Reads one command. Not cancel-safe, but messages are published only between commands.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    for _ in 0..length(stream).await? {
        let mut part = vec![0; length(stream).await? + 2];
        stream.read_exact(&mut part).await.ok()?;
        part.truncate(part.len() - 2);
        parts.push(String::from_utf8_lossy(&part).into_owned());
    }
    Some(parts)
}

async fn length(stream: &mut BufReader<TcpStream>) -> Option<usize> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok()?;
    line.get(1..)?.trim().parse().ok()
}
