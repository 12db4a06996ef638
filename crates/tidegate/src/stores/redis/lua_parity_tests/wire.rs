//! A minimal client that sends many commands before it reads the first reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum WireReply {
    Nil,
    Number(i64),
    Bytes(Vec<u8>),
    Error(String),
    List(Vec<WireReply>),
}

impl WireReply {
    pub(super) fn number(&self) -> i64 {
        match self {
            WireReply::Number(number) => *number,
            WireReply::Bytes(text) => {
                let text = std::str::from_utf8(text).expect("digits");
                text.parse().expect("a number")
            }
            other => panic!("a number is not {other:?}"),
        }
    }

    /// The reply without the call id at its end. A list of a number and the id becomes the number.
    pub(super) fn without(&self, id: &[u8]) -> Option<WireReply> {
        match self {
            WireReply::Bytes(bytes) => Some(WireReply::Bytes(bytes.strip_suffix(id)?.to_vec())),
            WireReply::List(list) => match list.as_slice() {
                [number, WireReply::Bytes(last)] if last == id => Some(number.clone()),
                _ => None,
            },
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self {
            WireReply::Nil => None,
            WireReply::Bytes(bytes) => Some(bytes),
            other => panic!("bytes are not {other:?}"),
        }
    }
}

pub(super) struct WireClient {
    stream: BufReader<UnixStream>,
    pending: Vec<u8>,
    sent: usize,
}

impl WireClient {
    pub(super) fn connect(socket: &Path) -> WireClient {
        let stream = UnixStream::connect(socket).expect("a server");
        WireClient { stream: BufReader::with_capacity(1 << 16, stream), pending: Vec::new(), sent: 0 }
    }

    pub(super) fn push<'a>(&mut self, command: impl IntoIterator<Item = &'a [u8]>) {
        let command: Vec<&[u8]> = command.into_iter().collect();
        let to = &mut self.pending;
        to.extend_from_slice(format!("*{}\r\n", command.len()).as_bytes());
        for part in command {
            to.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
            to.extend_from_slice(part);
            to.extend_from_slice(b"\r\n");
        }
        self.sent += 1;
    }

    /// Sends the pushed commands. Returns the replies, in order.
    pub(super) fn replies(&mut self) -> Vec<WireReply> {
        let pending = std::mem::take(&mut self.pending);
        self.stream.get_mut().write_all(&pending).expect("sent");
        (0..std::mem::take(&mut self.sent)).map(|_| self.reply()).collect()
    }

    pub(super) fn call(&mut self, command: &[&[u8]]) -> WireReply {
        self.push(command.iter().copied());
        self.replies().remove(0)
    }

    fn reply(&mut self) -> WireReply {
        let mut line = String::new();
        self.stream.read_line(&mut line).expect("a reply");
        let (kind, rest) = line.trim_end().split_at(1);
        let length = || rest.parse::<i64>().expect("a length");
        match kind {
            ":" => WireReply::Number(length()),
            "+" => WireReply::Bytes(rest.into()),
            "-" => WireReply::Error(rest.into()),
            "*" => WireReply::List((0..length()).map(|_| self.reply()).collect()),
            "$" if length() < 0 => WireReply::Nil,
            "$" => {
                let mut bytes = vec![0; usize::try_from(length()).expect("a length") + 2];
                self.stream.read_exact(&mut bytes).expect("a reply");
                bytes.truncate(bytes.len() - 2);
                WireReply::Bytes(bytes)
            }
            other => panic!("a reply of kind {other}"),
        }
    }
}
