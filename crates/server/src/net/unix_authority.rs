//! Makes the `:authority` of gRPC clients on a unix socket acceptable to the HTTP/2 library.
//!
//! gRPC C-core (grpc-python, Ruby, PHP, C++, Envoy's `google_grpc`) sends the path of the socket as
//! `:authority`, percent-encoded: `tmp%2Frls.sock`. RFC 3986 allows that, but the `http` crate does not, and
//! `h2` resets the stream. The authority of a unix socket names nobody and no listener reads it. So every
//! byte of it that is not an unreserved character becomes `-` before `h2` sees it.
//!
//! C-core sends this value without Huffman coding, and so the bytes can be changed where they are: no
//! length of a frame or of a table changes. A value with Huffman coding passes unchanged. Input may be
//! split anywhere; malformed input passes too and is rejected by `h2`.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const PADDED: u8 = 0x08;
const PRIORITY: u8 = 0x20;

const AUTHORITY: &[u8] = b":authority";
/// The place of `:authority` in the static table of HPACK.
const AUTHORITY_INDEX: u8 = 1;

/// A connection, with authorities rewritten if it is one of HTTP/2 over a unix socket.
pub(crate) struct UnixAuthority<I> {
    io: I,
    frames: Option<Box<Frames>>,
}

impl<I> UnixAuthority<I> {
    /// Changes nothing.
    pub(crate) fn ignored(io: I) -> Self {
        UnixAuthority { io, frames: None }
    }

    /// Rewrites authorities. The peer speaks HTTP/2 from its first byte.
    pub(crate) fn rewritten(io: I) -> Self {
        let frames = Some(Box::new(Frames::default()));
        UnixAuthority { io, frames }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for UnixAuthority<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buffer))?;
        if let Some(frames) = &mut self.frames {
            frames.rewrite(&mut buffer.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for UnixAuthority<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// Where in the frames of a connection its next byte stands.
struct Frames {
    at: FramePart,
    fields: FieldPart,
}

#[derive(Clone, Copy)]
enum FramePart {
    /// So many bytes that hold no header fields.
    Skipped(usize),
    /// The head of a frame, as far as it has come.
    Head([u8; FRAME_HEAD], usize),
    /// What a HEADERS frame has before its fields: the length of its padding and its priority.
    Prefix {
        left: usize,
        payload: usize,
        padding: Option<usize>,
    },
    /// Header fields, and so many bytes of padding after them.
    Fields { left: usize, padding: usize },
}

impl Default for Frames {
    fn default() -> Self {
        Frames {
            at: FramePart::Skipped(PREFACE),
            fields: FieldPart::First,
        }
    }
}

impl Frames {
    fn rewrite(&mut self, bytes: &mut [u8]) {
        let mut at = 0;
        while at < bytes.len() {
            if let FramePart::Skipped(left) = self.at {
                let skipped = left.min(bytes.len() - at);
                self.skip(left - skipped);
                at += skipped;
            } else {
                self.step(&mut bytes[at]);
                at += 1;
            }
        }
    }

    fn step(&mut self, byte: &mut u8) {
        match self.at {
            FramePart::Skipped(_) => {}
            FramePart::Head(mut head, filled) => {
                head[filled] = *byte;
                if filled + 1 == FRAME_HEAD {
                    self.begin(head);
                } else {
                    self.at = FramePart::Head(head, filled + 1);
                }
            }
            FramePart::Prefix {
                left,
                payload,
                padding,
            } => {
                let padding = padding.unwrap_or(usize::from(*byte));
                let (left, payload) = (left - 1, payload - 1);
                if left == 0 {
                    self.fields(payload.saturating_sub(padding), padding.min(payload));
                } else {
                    let padding = Some(padding);
                    self.at = FramePart::Prefix {
                        left,
                        payload,
                        padding,
                    };
                }
            }
            FramePart::Fields { left, padding } => {
                self.fields.step(byte);
                self.fields(left - 1, padding);
            }
        }
    }

    fn begin(&mut self, head: [u8; FRAME_HEAD]) {
        let [a, b, c, kind, flags, ..] = head;
        let payload = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
        match kind {
            HEADERS => {
                self.fields = FieldPart::First;
                let padded = flags & PADDED != 0;
                let priority = if flags & PRIORITY != 0 { 5 } else { 0 };
                let left = usize::from(padded) + priority;
                let padding = if padded { None } else { Some(0) };
                if left > payload {
                    self.skip(payload);
                } else if left == 0 {
                    self.fields(payload, 0);
                } else {
                    self.at = FramePart::Prefix {
                        left,
                        payload,
                        padding,
                    };
                }
            }
            CONTINUATION => self.fields(payload, 0),
            _ => self.skip(payload),
        }
    }

    fn fields(&mut self, left: usize, padding: usize) {
        if left == 0 {
            self.skip(padding);
        } else {
            self.at = FramePart::Fields { left, padding };
        }
    }

    fn skip(&mut self, left: usize) {
        self.at = match left {
            0 => FramePart::Head([0; FRAME_HEAD], 0),
            left => FramePart::Skipped(left),
        };
    }
}

/// Where in a block of header fields its next byte stands (RFC 7541, section 6).
#[derive(Clone, Copy)]
enum FieldPart {
    /// The first byte of a field.
    First,
    /// The rest of a number of several bytes, before another field or before a value.
    Number(AfterNumber),
    /// The length of a text, as far as it has come.
    Length { of: Text, bytes: usize, shift: u32 },
    /// A text.
    Text { of: Text, left: usize },
}

#[derive(Clone, Copy)]
enum AfterNumber {
    Field,
    Value,
}

#[derive(Clone, Copy)]
enum Text {
    /// A name, and how many bytes of `:authority` it has begun with; nothing if it is another.
    Name(Option<usize>),
    /// The value of `:authority`.
    Authority,
    /// Any other value, or one with Huffman coding.
    Other,
}

impl FieldPart {
    fn step(&mut self, byte: &mut u8) {
        *self = match *self {
            FieldPart::First => FieldPart::after_first(*byte),
            FieldPart::Number(after) if *byte & 0x80 == 0 => match after {
                AfterNumber::Field => FieldPart::First,
                AfterNumber::Value => length(Text::Other),
            },
            FieldPart::Number(after) => FieldPart::Number(after),
            FieldPart::Length { of, bytes, shift } => after_length(*byte, of, bytes, shift),
            FieldPart::Text { of, left } => text(of.step(byte), left - 1),
        };
    }

    fn after_first(byte: u8) -> Self {
        let number = |after| FieldPart::Number(after);
        match byte {
            0xff => number(AfterNumber::Field),
            0x80.. => FieldPart::First,
            0x40.. => FieldPart::literal(byte & 0x3f, 0x3f),
            0x3f => number(AfterNumber::Field),
            0x20.. => FieldPart::First,
            _ => FieldPart::literal(byte & 0x0f, 0x0f),
        }
    }

    /// A literal field with this index of its name. `full` says that the index goes on.
    fn literal(index: u8, full: u8) -> Self {
        match index {
            0 => length(Text::Name(Some(0))),
            AUTHORITY_INDEX => length(Text::Authority),
            index if index == full => FieldPart::Number(AfterNumber::Value),
            _ => length(Text::Other),
        }
    }
}

fn length(of: Text) -> FieldPart {
    FieldPart::Length {
        of,
        bytes: 0,
        shift: 0,
    }
}

fn after_length(byte: u8, of: Text, bytes: usize, shift: u32) -> FieldPart {
    let low = usize::from(byte & 0x7f);
    if shift == 0 {
        let of = if byte & 0x80 == 0 { of } else { of.coded() };
        return match low {
            0x7f => FieldPart::Length {
                of,
                bytes: low,
                shift: 1,
            },
            left => text(of, left),
        };
    }
    // No block is as long as a number that does not fit.
    let bytes = bytes.saturating_add(low.checked_shl(shift - 1).unwrap_or(usize::MAX));
    match byte & 0x80 {
        0 => text(of, bytes),
        _ => FieldPart::Length {
            of,
            bytes,
            shift: shift + 7,
        },
    }
}

/// A text of which so many bytes are to come.
fn text(of: Text, left: usize) -> FieldPart {
    match (left, of) {
        (0, Text::Name(Some(matched))) if matched == AUTHORITY.len() => length(Text::Authority),
        (0, Text::Name(_)) => length(Text::Other),
        (0, _) => FieldPart::First,
        (left, of) => FieldPart::Text { of, left },
    }
}

impl Text {
    /// The same text with Huffman coding.
    fn coded(self) -> Self {
        match self {
            Text::Name(_) => Text::Name(None),
            Text::Authority | Text::Other => Text::Other,
        }
    }

    fn step(self, byte: &mut u8) -> Self {
        match self {
            Text::Name(Some(matched)) if AUTHORITY.get(matched) == Some(byte) => {
                Text::Name(Some(matched + 1))
            }
            Text::Name(_) => Text::Name(None),
            Text::Authority => {
                if !(byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
                    *byte = b'-';
                }
                self
            }
            Text::Other => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn string(text: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match text.len() {
            short @ ..0x7f => out.push(u8::try_from(short).unwrap()),
            long => {
                let mut rest = long - 0x7f;
                out.push(0x7f);
                while rest >= 0x80 {
                    out.push(u8::try_from(rest % 0x80).unwrap() | 0x80);
                    rest /= 0x80;
                }
                out.push(u8::try_from(rest).unwrap());
            }
        }
        out.extend_from_slice(text);
        out
    }

    /// A field as C-core writes it: with its name spelt out.
    fn spelt(name: &str, value: &str) -> Vec<u8> {
        [
            &[0x40][..],
            &string(name.as_bytes()),
            &string(value.as_bytes()),
        ]
        .concat()
    }

    /// Rewrites frames after a preface, in pieces of `piece` bytes.
    fn rewritten(frames: &[Vec<u8>], piece: usize) -> Vec<u8> {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let mut bytes = [&preface[..], &frames.concat()].concat();
        let mut scan = Frames::default();
        for piece in bytes.chunks_mut(piece) {
            scan.rewrite(piece);
        }
        bytes.split_off(PREFACE)
    }

    #[track_caller]
    fn check(given: &[Vec<u8>], want: &[Vec<u8>]) {
        for piece in [1, 2, 3, 7, 64, 4096] {
            assert_eq!(
                rewritten(given, piece),
                want.concat(),
                "in pieces of {piece}"
            );
        }
    }

    const GIVEN: &str = "tmp%2Fa@b.sock";
    const WANT: &str = "tmp-2Fa-b.sock";

    #[test]
    fn only_the_authority_changes_wherever_it_stands() {
        let settings = frame(4, 0, &[0, 3, 0, 0, 0, 100]);
        let path = spelt(":path", "/a%2Fb");
        let long = spelt("x-long", &"%".repeat(70_000));
        let block = |authority: &str| {
            let indexed = [0x83, 0x86, 0xff, 0x81, 0x01, 0x3f, 0xe1, 0x1f];
            let literal = [&[0x0f, 0x80, 0x01][..], &string(b"50%")].concat();
            let own = spelt(":authority", authority);
            [&indexed[..], &path, &literal, &long, &own, &path].concat()
        };
        let data = frame(0, 1, b"\x40\x0a:authority\x03a%b");
        let frames = |authority| {
            [
                settings.clone(),
                frame(HEADERS, 4, &block(authority)),
                data.clone(),
                frame(HEADERS, 4, &block(authority)),
            ]
        };
        check(&frames(GIVEN), &frames(WANT));
    }

    #[test]
    fn a_name_from_the_static_table_counts_too() {
        for first in [0x41, 0x01, 0x11] {
            let block = |value: &str| [&[first][..], &string(value.as_bytes())].concat();
            check(
                &[frame(HEADERS, 5, &block(GIVEN))],
                &[frame(HEADERS, 5, &block(WANT))],
            );
        }
    }

    #[test]
    fn padding_priority_and_continuations_are_no_obstacle() {
        let frames = |authority: &str| {
            let block = [spelt("te", "trailers"), spelt(":authority", authority)].concat();
            let (head, rest) = block.split_at(block.len() - 10);
            let padded = [&[4, 0, 0, 0, 0, 9], head, &[0x41, 1, b'%', b'%']].concat();
            [
                frame(HEADERS, PADDED | PRIORITY, &padded),
                frame(CONTINUATION, 0, &rest[..3]),
                frame(CONTINUATION, 4, &rest[3..]),
                frame(HEADERS, 4, &spelt(":authority", authority)),
            ]
        };
        check(&frames(GIVEN), &frames(WANT));
    }

    #[test]
    fn texts_with_huffman_coding_pass_unchanged() {
        let coded = |text: &[u8]| {
            let mut text = string(text);
            text[0] |= 0x80;
            text
        };
        let value = [&[0x41][..], &coded(b"a%b")].concat();
        let name = [&[0x40][..], &coded(AUTHORITY), &string(b"a%b")].concat();
        let frames = [frame(HEADERS, 4, &value), frame(HEADERS, 4, &name)];
        check(&frames, &frames);
    }

    #[test]
    fn any_bytes_pass_without_a_panic_and_with_their_length() {
        let mut state = 12_u64;
        for _ in 0..3_000 {
            let mut bytes = [0; 300];
            for byte in &mut bytes {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                // Small numbers make frames that end within the input.
                *byte = (state >> 33) as u8 & if state & 1 == 0 { 0x0f } else { 0xff };
            }
            Frames::default().rewrite(&mut bytes);
        }
    }
}
