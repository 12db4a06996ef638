//! Finds out why a server cannot be connected to, where the client library reports less than there is to know.
//!
//! A server that has `maxclients` connections, or is in protected mode, sends one line and closes. The client
//! library has sent its handshake by then, so the close becomes a reset, and a reset is all that it reports. A
//! connection that sends nothing receives the line. With TLS a server closes before the handshake and sends none.
//!
//! A server without TLS reads the first bytes of a TLS handshake as a command and waits for the rest. From the outside
//! it looks overloaded. A `PING` without encryption, login or secret distinguishes the two.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

use super::access::{Access, RedisAddress};
use super::error::{Action, RedisStoreError};

/// The time for the line. A server that closes sends it at once; any other sends nothing.
const LINE_TIMEOUT: Duration = Duration::from_millis(200);
/// The longest such line, about the protected mode, has some 1,060 bytes.
const MAX_LINE: u64 = 4_096;
/// The time for the reply to `PING`. The server has just had its full timeout, so this is short.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns `error`, or the reason for it that the server at `address` shows.
pub(super) async fn explained(error: RedisStoreError, address: &RedisAddress, access: &Access) -> RedisStoreError {
    if error.is_connection_refused() {
        return error;
    }
    if access.tls.is_some() && error.is_silence() {
        let replies = timeout(REPLY_TIMEOUT, replies_unencrypted(address)).await;
        return if replies.is_ok_and(|replies| replies) { RedisStoreError::NO_TLS } else { error.with_tls_cure() };
    }
    if access.tls.is_none() && error.action() == Action::Reconnect {
        let line = timeout(LINE_TIMEOUT, first_line(address)).await.ok().flatten();
        let closing_error = line.and_then(|line| error_of(&line, access.secret()));
        return closing_error.unwrap_or(error);
    }
    error
}

/// Whether the server replies to an unencrypted `PING` as Redis does: with a status or an error.
async fn replies_unencrypted(address: &RedisAddress) -> bool {
    let RedisAddress::Tcp { host, port } = address else {
        return false; // a unix socket is never encrypted
    };
    let Ok(mut stream) = TcpStream::connect((host.as_str(), *port)).await else {
        return false;
    };
    let mut first = [0];
    let sent = stream.write_all(b"PING\r\n").await.is_ok();
    sent && stream.read_exact(&mut first).await.is_ok() && matches!(first, [b'+' | b'-'])
}

/// The error in a line, if the line is one.
fn error_of(line: &str, secret: Option<&str>) -> Option<RedisStoreError> {
    let (code, detail) = line.strip_prefix('-')?.trim_end().split_once(' ')?;
    Some(RedisStoreError::from_reply(code, detail, secret))
}

async fn first_line(address: &RedisAddress) -> Option<String> {
    match address {
        RedisAddress::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.ok()?;
            line_of(stream).await
        }
        RedisAddress::Unix(path) => line_of(UnixStream::connect(path).await.ok()?).await,
    }
}

/// The bytes up to the end of a line or of the stream.
async fn line_of(stream: impl AsyncRead + Unpin) -> Option<String> {
    let (mut stream, mut line) = (stream.take(MAX_LINE), Vec::new());
    while let Ok(byte) = stream.read_u8().await {
        line.push(byte);
        if byte == b'\n' {
            break;
        }
    }
    String::from_utf8(line).ok()
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// The error found at a server that sends `text` and closes.
    async fn found(text: &'static str) -> Option<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = RedisAddress::Tcp {
            host: "127.0.0.1".to_owned(),
            port: listener.local_addr().expect("its address").port(),
        };
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.expect("a connection");
            stream.write_all(text.as_bytes()).await.expect("a reader");
        });
        let line = first_line(&address).await;
        serving.await.expect("no panic");
        Some(error_of(&line?, None)?.to_string())
    }

    #[tokio::test]
    async fn the_line_before_the_close_is_the_error() {
        let full = "ERR max number of clients reached: raise `maxclients` of the server";
        for (text, want) in [
            ("-ERR max number of clients reached\r\n", Some(full)),
            ("-ERR max number of clients reached", Some(full)),
            ("", None),
            ("+PONG\r\n", None),
            ("-\r\n", None),
        ] {
            assert_eq!(found(text).await.as_deref(), want, "{text:?}");
        }
    }
}
