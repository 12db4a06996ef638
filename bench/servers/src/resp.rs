//! The RESP client of the load: prepared command bytes, and replies that are parsed only as far as needed to
//! count them.
//!
//! The same client for every server, so that its cost and its waits are the same for all.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::load::KEYS;

/// Room for the replies to the longest pipeline.
const REPLY_BUFFER: usize = 16 << 10;

/// One command for each key, concatenated.
#[derive(Clone)]
pub(crate) struct RespCommands {
    bytes: Arc<[u8]>,
    /// The end of each command.
    ends: Arc<[usize]>,
    admitted: AdmittedReply,
}

/// The reply by which a server admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AdmittedReply {
    /// Any integer: the command counts and decides nothing.
    Counted,
    /// An array that starts with this integer.
    FirstIs(u8),
}

impl RespCommands {
    /// Encodes the command of each key.
    pub(crate) fn new<const N: usize>(admitted: AdmittedReply, words: impl Fn(&str) -> [String; N]) -> Self {
        let mut bytes = Vec::new();
        let mut ends = Vec::with_capacity(KEYS);
        for number in 0..KEYS {
            let words = words(&format!("user:{number:012}"));
            bytes.extend(format!("*{}\r\n", words.len()).into_bytes());
            for word in words {
                bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
            }
            ends.push(bytes.len());
        }
        RespCommands { bytes: bytes.into(), ends: ends.into(), admitted }
    }

    /// `count` commands from the key `first` on.
    fn from(&self, first: usize, count: usize) -> &[u8] {
        let begin = first.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.bytes[begin..self.ends[first + count - 1]]
    }
}

/// A connection with one pipeline in flight.
pub(crate) struct RespLoop {
    stream: TcpStream,
    commands: RespCommands,
    next: usize,
    at_once: usize,
    received: BytesMut,
}

impl RespLoop {
    /// Connects. The first command is that of the key `first`, rounded down to a whole pipeline.
    pub(crate) async fn open(
        server: SocketAddr,
        commands: RespCommands,
        first: usize,
        at_once: usize,
    ) -> io::Result<Self> {
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        Ok(RespLoop {
            stream,
            commands,
            next: first - first % at_once,
            at_once,
            received: BytesMut::with_capacity(REPLY_BUFFER),
        })
    }

    /// Sends a pipeline and reads as many replies.
    pub(crate) async fn decide_next(&mut self) -> io::Result<u64> {
        let commands = self.commands.from(self.next, self.at_once);
        self.stream.write_all(commands).await?;
        self.next = (self.next + self.at_once) % KEYS;
        let mut missing = self.at_once;
        while missing > 0 {
            if self.stream.read_buf(&mut self.received).await? == 0 {
                return Err(io::Error::other("the server closed a connection"));
            }
            while let Some(length) = reply_len(&self.received, self.commands.admitted)? {
                self.received.advance(length);
                missing = missing.checked_sub(1).ok_or_else(|| io::Error::other("a reply without a request"))?;
            }
        }
        self.received.clear();
        self.received.reserve(REPLY_BUFFER);
        Ok(self.at_once as u64)
    }
}

/// The length of the reply at the start of `bytes`, once it is complete. A denial is an error.
fn reply_len(bytes: &[u8], admitted: AdmittedReply) -> io::Result<Option<usize>> {
    let Some((head, mut length)) = line(bytes) else {
        return Ok(None);
    };
    let unexpected = || {
        let shown = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
        io::Error::other(format!("unexpected reply: {shown:?}"))
    };
    let first = match (admitted, head) {
        (AdmittedReply::Counted, [b':', ..]) => return Ok(Some(length)),
        (AdmittedReply::FirstIs(first), b"*5") => first,
        _ => return Err(unexpected()),
    };
    for index in 0..5 {
        let Some((integer, its_length)) = line(&bytes[length..]) else {
            return Ok(None);
        };
        if integer.first() != Some(&b':') || index == 0 && integer != [b':', first] {
            return Err(unexpected());
        }
        length += its_length;
    }
    Ok(Some(length))
}

/// The first line without its terminator, and its length with it.
fn line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let text = &bytes[..end];
    Some((text.strip_suffix(b"\r").unwrap_or(text), end + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const THROTTLE: AdmittedReply = AdmittedReply::FirstIs(b'0');

    #[test]
    fn a_reply_is_complete_with_its_last_line() {
        let whole = b"*5\r\n:0\r\n:16\r\n:15\r\n:-1\r\n:2\r\n";
        for length in 0..whole.len() {
            assert_eq!(reply_len(&whole[..length], THROTTLE).unwrap(), None);
        }
        let more = [whole.as_slice(), b"*5\r\n:0"].concat();
        assert_eq!(reply_len(&more, THROTTLE).unwrap(), Some(whole.len()));
    }

    #[test]
    fn a_denial_stops_the_run() {
        assert!(reply_len(b"*5\r\n:1\r\n:16\r\n:0\r\n:2\r\n:2\r\n", THROTTLE).is_err());
        assert!(reply_len(b"*5\r\n:0\r\n", AdmittedReply::FirstIs(b'1')).is_err());
    }

    #[test]
    fn an_error_stops_the_run() {
        assert!(reply_len(b"-ERR unknown command\r\n", THROTTLE).is_err());
        assert!(reply_len(b"-ERR unknown command\r\n", AdmittedReply::Counted).is_err());
    }

    #[test]
    fn a_count_is_one_line() {
        assert_eq!(reply_len(b":17\r\n:18", AdmittedReply::Counted).unwrap(), Some(5));
    }

    #[test]
    fn a_pipeline_is_cut_from_the_commands_at_their_ends() {
        let commands = RespCommands::new(AdmittedReply::Counted, |key| ["INCR".to_owned(), key.to_owned()]);
        let two = "*2\r\n$4\r\nINCR\r\n$17\r\nuser:000000000007\r\n\
                   *2\r\n$4\r\nINCR\r\n$17\r\nuser:000000000008\r\n";
        assert_eq!(commands.from(7, 2), two.as_bytes());
        assert!(commands.from(KEYS - 1, 1).ends_with(b"user:000000009999\r\n"));
        assert!(commands.from(0, 1).starts_with(b"*2\r\n$4\r\nINCR"));
    }
}
