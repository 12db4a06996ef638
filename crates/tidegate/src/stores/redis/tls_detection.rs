//! Detects that a server which does not reply to a TLS handshake speaks no TLS.
//!
//! A server without TLS reads the first bytes of a handshake as a command and waits for the rest. From the outside
//! it looks overloaded. A `PING` without encryption, login or secret distinguishes the two.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::access::{Access, RedisAddress};
use super::error::RedisStoreError;

/// The time for the reply. The server has just had its full timeout, so this is short.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Returns `error`, or the error that the server at `address` speaks no TLS.
pub(super) async fn or_no_tls(error: RedisStoreError, address: &RedisAddress, access: &Access) -> RedisStoreError {
    let unexplained = access.tls.is_some() && error.is_silence() && !error.is_connection_refused();
    if !unexplained {
        return error;
    }
    let replies = timeout(REPLY_TIMEOUT, replies_unencrypted(address)).await;
    if replies.is_ok_and(|replies| replies) { RedisStoreError::no_tls() } else { error.with_tls_cure() }
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
