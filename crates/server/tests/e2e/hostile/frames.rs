//! Raw HTTP/2: frames that no honest client would send.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::server::DEADLINE;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 1;
pub(crate) const END_HEADERS: u8 = 4;

/// How long to wait for a peer that reads nothing more. It ends an attack, never a test.
const PATIENCE: Duration = Duration::from_millis(300);

/// A connection on which anything may be sent.
pub(crate) struct RawHttp2(TcpStream);

impl RawHttp2 {
    /// Opens a connection as an honest client would.
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let mut raw = RawHttp2(stream);
        raw.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        raw.send(&frame(SETTINGS, 0, 0, b""))?;
        Ok(raw)
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    /// Sends frames until the server closes, reads no more, or has received `most` of them. Nothing that comes back
    /// is read.
    pub(crate) fn flood(&mut self, most: u32, mut next: impl FnMut(u32) -> Vec<u8>) {
        for first in (0..most).step_by(100) {
            let batch: Vec<u8> = (first..first + 100).flat_map(&mut next).collect();
            if self.send(&batch).is_err() {
                return;
            }
        }
    }

    /// The error code with which the server closes, if it sends one.
    pub(crate) fn reason(&mut self) -> Option<u32> {
        loop {
            let frame = self.receive().ok()?;
            if frame.kind == GOAWAY {
                let reason = frame.payload.get(4..8)?;
                return Some(u32::from_be_bytes(reason.try_into().ok()?));
            }
        }
    }

    /// Reads up to the end of the response on a stream.
    pub(crate) fn wait_for_response(&mut self, stream: u32) {
        loop {
            let frame = self.receive().unwrap();
            let is_closed = matches!(frame.kind, GOAWAY | RST_STREAM);
            assert!(!is_closed, "closed: {:?}", frame.payload);
            let is_reply = matches!(frame.kind, HEADERS | DATA) && frame.stream == stream;
            if is_reply && frame.flags & END_STREAM != 0 {
                return;
            }
        }
    }

    /// The status of the response on a stream, as its head spells it.
    pub(crate) fn status(&mut self, stream: u32) -> &'static str {
        self.try_status(stream).unwrap()
    }

    /// The same, unless the server closes.
    pub(crate) fn try_status(&mut self, stream: u32) -> io::Result<&'static str> {
        loop {
            let frame = self.receive()?;
            if frame.kind != HEADERS || frame.stream != stream {
                continue;
            }
            // The static table has 200 as its eighth entry; other statuses are literals.
            let is_spelt = |status: &str| {
                let has = |spelt: &[u8]| frame.payload.windows(spelt.len()).any(|part| part == spelt);
                has(status.as_bytes()) || has(&huffman_digits(status))
            };
            return Ok(match frame.payload[0] {
                0x88 => "200",
                _ if is_spelt("431") => "431",
                _ => "another",
            });
        }
    }

    /// Waits until everything sent so far has been handled. An error means that the server closed.
    pub(crate) fn wait_for_ping(&mut self) -> io::Result<()> {
        const MARK: [u8; 8] = *b"all done";
        self.send(&frame(PING, 0, 0, &MARK))?;
        loop {
            let frame = self.receive()?;
            if frame.kind == PING && frame.payload == MARK {
                return Ok(());
            }
        }
    }

    /// Reads until the server closes. Whether it does so by an end or a reset makes no difference.
    pub(crate) fn wait_for_end(&mut self) {
        while self.receive().is_ok() {}
    }

    /// Shuts down the sending side.
    pub(crate) fn half_close(&mut self) {
        // The server may have closed already.
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }

    fn receive(&mut self) -> io::Result<RawFrame> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head)?;
        let [a, b, c, kind, flags, stream @ ..] = head;
        let mut payload = vec![0; u32::from_be_bytes([0, a, b, c]) as usize];
        self.0.read_exact(&mut payload)?;
        Ok(RawFrame { kind, flags, stream: u32::from_be_bytes(stream), payload })
    }
}

struct RawFrame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

/// One frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    framed(kind, flags, stream, payload.len() as u32, payload)
}

/// One frame with the length field `length`.
pub(crate) fn framed(kind: u8, flags: u8, stream: u32, length: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = length.to_be_bytes()[1..].to_vec();
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
    bytes
}

/// The stream that a client opens as its `turn`th.
pub(crate) fn stream(turn: u32) -> u32 {
    2 * turn + 1
}

/// The header block of a request: `POST` to a path, as a gRPC client sends it.
pub(crate) fn post(path: &str) -> Vec<u8> {
    // From the static table: the method and the scheme.
    let mut block = vec![0x83, 0x86];
    for (name, value) in [(4, path), (1, "tidegate")] {
        block.extend([name, value.len() as u8]);
        block.extend(value.bytes());
    }
    block.extend(literal("content-type", "application/grpc"));
    block
}

/// A header that is not added to the table.
pub(crate) fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut block = vec![0, name.len() as u8];
    block.extend(name.bytes());
    block.push(value.len() as u8);
    block.extend(value.bytes());
    block
}

/// Three digits as Huffman codes of HPACK (RFC 7541, Appendix B): 0, 1 and 2 have five bits, the others six.
fn huffman_digits(digits: &str) -> Vec<u8> {
    let (mut bits, mut length) = (0_u32, 0);
    for digit in digits.bytes().map(|byte| u32::from(byte - b'0')) {
        let (code, size) = match digit {
            0..=2 => (digit, 5),
            _ => (0x19 + digit - 3, 6),
        };
        bits = bits << size | code;
        length += size;
    }
    // Padded with ones.
    let padding = (8 - length % 8) % 8;
    bits = bits << padding | ((1 << padding) - 1);
    let bytes = bits.to_be_bytes();
    bytes[4 - (length + padding) / 8..].to_vec()
}
