//! A minimal HTTP/2 client that makes one call after another. It is small, so that it adds few instructions to the
//! counts.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const HEADER: usize = 9;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

const END_STREAM: u8 = 1;
const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

/// A connection that makes the same call again and again.
pub(super) struct Http2Client {
    pipe: DuplexStream,
    /// A `HEADERS` and a `DATA` frame; their stream is filled in for each call.
    call: Vec<u8>,
    data_at: usize,
    stream: u32,
    received: Vec<u8>,
}

impl Http2Client {
    pub(super) async fn connect(mut pipe: DuplexStream, path: &str, message: &[u8]) -> Self {
        let mut first = PREFACE.to_vec();
        frame(&mut first, SETTINGS, 0, &[]);
        // The service never waits for room to respond.
        frame(&mut first, WINDOW_UPDATE, 0, &0x7fff_0000_u32.to_be_bytes());
        frame(&mut first, SETTINGS, ACK, &[]);
        pipe.write_all(&first).await.expect("an open pipe");
        let mut call = Vec::new();
        frame(&mut call, HEADERS, END_HEADERS, &head(path));
        let data_at = call.len();
        frame(&mut call, DATA, END_STREAM, message);
        Http2Client { pipe, call, data_at, stream: 1, received: Vec::with_capacity(64 << 10) }
    }

    /// Makes one call and returns the payload of its `DATA` frames.
    pub(super) async fn call(&mut self) -> Vec<u8> {
        let stream = self.stream.to_be_bytes();
        self.stream += 2;
        for at in [0, self.data_at] {
            self.call[at + 5..at + HEADER].copy_from_slice(&stream);
        }
        let written = self.pipe.write_all(&self.call).await;
        written.expect("an open pipe");
        let mut message = Vec::new();
        loop {
            while let Some(length) = self.frame_length() {
                let (kind, flags) = (self.received[3], self.received[4]);
                let of_call = self.received[5..HEADER] == stream;
                if of_call && kind == DATA {
                    message.extend_from_slice(&self.received[HEADER..length]);
                }
                self.received.drain(..length);
                if of_call && flags & END_STREAM != 0 {
                    return message;
                }
            }
            let read = self.pipe.read_buf(&mut self.received).await;
            assert!(read.expect("an open pipe") > 0, "the connection was closed");
        }
    }

    /// The length of the next frame, header included, if all of it is there.
    fn frame_length(&self) -> Option<usize> {
        let &[a, b, c, ..] = self.received.as_slice() else {
            return None;
        };
        let length = HEADER + u32::from_be_bytes([0, a, b, c]) as usize;
        (self.received.len() >= length).then_some(length)
    }
}

/// A frame on the connection itself, or on a stream that is filled in later.
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("a short frame");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags, 0, 0, 0, 0]);
    out.extend_from_slice(payload);
}

/// A block of header fields, none of which enters the header table of the service.
fn head(path: &str) -> Vec<u8> {
    // `:method: POST` and `:scheme: http`, by their indexes in the static table.
    let mut block = vec![0x83, 0x86];
    // `:path` and `:authority`, named by the static table.
    for (name, value) in [(4, path), (1, "tidegate")] {
        block.push(name);
        text(&mut block, value);
    }
    let fields = [("content-type", "application/grpc"), ("te", "trailers")];
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// A string literal, not Huffman-coded.
fn text(block: &mut Vec<u8>, text: &str) {
    let length = u8::try_from(text.len()).ok().filter(|length| *length < 127);
    block.push(length.expect("a short text"));
    block.extend_from_slice(text.as_bytes());
}
