//! Scans the frames that an HTTP/2 connection receives before the HTTP/2 library decodes them.
//!
//! The library decodes each frame of a head as it arrives, and holds the fields until the last one. A client that never
//! sends the last one makes a connection hold a hundred times the bytes it sent. A head up to 16 KiB fits into one
//! frame, which is decoded when it is whole. So few honest clients need more than one frame, and a listener allows
//! [`MAX_UNFINISHED_HEADS`] connections to wait for the rest of a head.
//!
//! [`HeaderBlocks`] follows header blocks. Of other frames only the frame headers are read. No length changes. A frame
//! that the library decodes and the scanner does not, or the other way round, would make the count of `HeaderBlocks`
//! wrong, so such frames end the connection: PUSH_PROMISE, which no client may send, and heads of a stream that depends
//! on itself, which the library rejects undecoded.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::header_blocks::{AuthorityUse, HeaderBlocks};
use super::waiting_streams::ConnectionStreams;

/// Connections of one listener that may wait for the rest of a head.
pub(crate) const MAX_UNFINISHED_HEADS: usize = 64;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PUSH_PROMISE: u8 = 5;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;
/// The length of the priority in a HEADERS frame: the parent stream and a weight.
const PRIORITY_BYTES: usize = 5;
const WEIGHT_BYTES: usize = 1;
/// The bits of a stream id. The first one is reserved.
const STREAM_BITS: u32 = u32::MAX >> 1;

/// Follows the frames of one connection.
pub(crate) struct FrameScanner {
    state: ScanState,
    unfinished_permits: Arc<Semaphore>,
    unfinished_permit: Option<OwnedSemaphorePermit>,
    /// The stream of the head that is being received.
    stream: u32,
    /// Whether the current frame is its last one.
    is_last: bool,
    blocks: HeaderBlocks,
    connection: Arc<ConnectionStreams>,
}

/// The part of the protocol that the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ScanState {
    /// The preface, with the number of bytes received.
    Preface(usize),
    /// A frame header, with the number of bytes received.
    Header([u8; FRAME_HEADER], usize),
    /// A payload to skip, with the number of bytes left.
    Payload(usize),
    /// The padding length of a head. `left` bytes follow it, of which the first `priority` are a priority.
    PadLength { left: usize, priority: usize },
    /// The priority of a head, with the number of bytes left, and the parent stream as far as it is received.
    Priority { left: usize, dependency: u32, after: BlockRemaining },
    /// A header block before padding.
    Block(BlockRemaining),
    /// Another protocol.
    Other,
}

/// Bytes left of a header block, and of the padding after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct BlockRemaining {
    block: usize,
    padding: usize,
}

impl FrameScanner {
    /// A scanner for one connection. `unfinished_permits` are the permits of its listener for unfinished heads. The
    /// blocks that its heads hold are recorded in `connection`.
    pub(super) fn new(
        authority: AuthorityUse,
        unfinished_permits: Arc<Semaphore>,
        connection: Arc<ConnectionStreams>,
    ) -> Self {
        FrameScanner {
            state: ScanState::Preface(0),
            unfinished_permits,
            unfinished_permit: None,
            stream: 0,
            is_last: false,
            blocks: HeaderBlocks::new(authority),
            connection,
        }
    }

    /// Scans the next bytes. On an error the connection has to end.
    pub(crate) fn scan(&mut self, mut bytes: &mut [u8]) -> io::Result<()> {
        while !bytes.is_empty() && self.state != ScanState::Other {
            let used = self.advance(bytes)?;
            bytes = &mut bytes[used..];
        }
        Ok(())
    }

    /// Consumes the bytes of one state, at least one.
    fn advance(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self.state {
            ScanState::Preface(have) => {
                let used = bytes.len().min(PREFACE.len() - have);
                let is_http2 = bytes[..used] == PREFACE[have..have + used];
                self.state = match have + used {
                    _ if !is_http2 => ScanState::Other,
                    have if have == PREFACE.len() => ScanState::Header([0; FRAME_HEADER], 0),
                    have => ScanState::Preface(have),
                };
                Ok(used)
            }
            ScanState::Header(mut header, have) => {
                let used = bytes.len().min(FRAME_HEADER - have);
                header[have..have + used].copy_from_slice(&bytes[..used]);
                self.state = ScanState::Header(header, have + used);
                if have + used == FRAME_HEADER {
                    self.begin_frame(header)?;
                }
                Ok(used)
            }
            ScanState::Payload(left) => {
                let used = bytes.len().min(left);
                self.begin_payload(left - used);
                Ok(used)
            }
            ScanState::PadLength { left, priority } => {
                let padding = left.min(usize::from(bytes[0]));
                self.begin_block(left - padding, priority, padding);
                Ok(1)
            }
            ScanState::Priority { left, dependency, after } => {
                self.advance_priority(bytes[0], left - 1, dependency, after)?;
                Ok(1)
            }
            ScanState::Block(remaining) => Ok(self.advance_block(bytes, remaining)),
            ScanState::Other => Ok(bytes.len()),
        }
    }

    fn begin_frame(&mut self, header: [u8; FRAME_HEADER]) -> io::Result<()> {
        let [a, b, c, kind, flags, stream @ ..] = header;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        let is_last = flags & END_HEADERS != 0;
        match kind {
            HEADERS => {
                self.stream = u32::from_be_bytes(stream) & STREAM_BITS;
                self.is_last = is_last;
                if !is_last {
                    let permit = Arc::clone(&self.unfinished_permits).try_acquire_owned();
                    let permit =
                        permit.map_err(|_| io::Error::other("too many connections wait for the rest of a head"))?;
                    self.unfinished_permit = Some(permit);
                }
                self.blocks.begin();
                let has_priority = flags & PRIORITY != 0;
                let priority = if has_priority { PRIORITY_BYTES } else { 0 };
                if flags & PADDED != 0 && length > 0 {
                    let left = length - 1;
                    self.state = ScanState::PadLength { left, priority };
                } else {
                    self.begin_block(length, priority, 0);
                }
            }
            CONTINUATION => {
                self.is_last = is_last;
                self.begin_block(length, 0, 0);
            }
            PUSH_PROMISE => return Err(io::Error::other("a client must not send PUSH_PROMISE")),
            _ => self.begin_payload(length),
        }
        Ok(())
    }

    /// `length` bytes of a priority and a header block follow, and then padding.
    fn begin_block(&mut self, length: usize, priority: usize, padding: usize) {
        let left = priority.min(length);
        let after = BlockRemaining { block: length - left, padding };
        if left > 0 {
            let dependency = 0;
            self.state = ScanState::Priority { left, dependency, after };
        } else {
            self.enter_block(after);
        }
    }

    fn advance_priority(&mut self, byte: u8, left: usize, dependency: u32, after: BlockRemaining) -> io::Result<()> {
        let dependency = if left >= WEIGHT_BYTES { dependency << 8 | u32::from(byte) } else { dependency };
        if left > 0 {
            self.state = ScanState::Priority { left, dependency, after };
            return Ok(());
        }
        if dependency & STREAM_BITS == self.stream {
            return Err(io::Error::other("a stream depends on itself"));
        }
        self.enter_block(after);
        Ok(())
    }

    fn advance_block(&mut self, bytes: &mut [u8], remaining: BlockRemaining) -> usize {
        let used = bytes.len().min(remaining.block);
        self.blocks.scan(&mut bytes[..used]);
        self.enter_block(BlockRemaining { block: remaining.block - used, ..remaining });
        used
    }

    /// A head ends with its last block, and not before: the library decodes whole frames.
    fn enter_block(&mut self, remaining: BlockRemaining) {
        if remaining.block > 0 {
            self.state = ScanState::Block(remaining);
            return;
        }
        let held = self.blocks.held_blocks();
        self.connection.record_held_blocks(held);
        if self.is_last {
            self.unfinished_permit = None;
        }
        self.begin_payload(remaining.padding);
    }

    fn begin_payload(&mut self, left: usize) {
        self.state = match left {
            0 => ScanState::Header([0; FRAME_HEADER], 0),
            left => ScanState::Payload(left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = (payload.len() as u32).to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    fn scanner_before_preface(listener: &Arc<Semaphore>) -> FrameScanner {
        let authority = AuthorityUse::UnixSocket;
        FrameScanner::new(authority, Arc::clone(listener), Arc::default())
    }

    fn scanner(listener: &Arc<Semaphore>) -> FrameScanner {
        let mut scanner = scanner_before_preface(listener);
        scan(&mut scanner, PREFACE).unwrap();
        scanner
    }

    fn scan(scanner: &mut FrameScanner, bytes: &[u8]) -> io::Result<()> {
        scanner.scan(&mut bytes.to_vec())
    }

    /// The frames are the same however the bytes are split. Bytes in a payload that look like a frame are none.
    #[test]
    fn a_head_is_unfinished_until_its_last_frame() {
        let listener = Arc::new(Semaphore::new(1));
        let payload = frame(HEADERS, 0, b"inside");
        let before = [PREFACE.to_vec(), frame(0, 0, &payload), frame(4, 0, b"")].concat();
        let begun = [frame(HEADERS, END_HEADERS, b"whole"), frame(HEADERS, 0, &payload)].concat();
        // The library decodes a frame when it is whole.
        let last = frame(CONTINUATION, END_HEADERS, b"x");
        let (almost, ended) = last.split_at(last.len() - 1);
        let almost = [frame(CONTINUATION, 0, b"x"), almost.to_vec()].concat();
        let empty = [frame(HEADERS, 0, b"x"), frame(CONTINUATION, END_HEADERS, b"")].concat();
        for size in [1, 2, 7, 9, 10, 1_000] {
            let mut scanner = scanner_before_preface(&listener);
            for (bytes, free) in [(&before[..], 1), (&begun, 0), (&almost, 0), (ended, 1), (&empty, 1)] {
                for part in bytes.chunks(size) {
                    scan(&mut scanner, part).unwrap();
                }
                assert_eq!(listener.available_permits(), free, "in pieces of {size}");
            }
        }
    }

    #[test]
    fn unfinished_heads_are_limited_and_whole_heads_always_pass() {
        let listener = Arc::new(Semaphore::new(2));
        let begun = frame(HEADERS, 0, b"x");
        let (mut first, mut second) = (scanner(&listener), scanner(&listener));
        assert!(scan(&mut first, &begun).is_ok() && scan(&mut second, &begun).is_ok());
        let mut third = scanner(&listener);
        assert!(scan(&mut third, &frame(HEADERS, END_HEADERS, b"x")).is_ok());
        assert!(scan(&mut third, &begun).is_err());
        drop(first);
        assert!(scan(&mut scanner(&listener), &begun).is_ok());
    }

    #[test]
    fn other_protocols_are_not_scanned() {
        let listener = Arc::new(Semaphore::new(0));
        for text in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n\r\n", "P", ""] {
            let mut scanner = scanner_before_preface(&listener);
            scan(&mut scanner, text.as_bytes()).unwrap();
            scan(&mut scanner, &frame(HEADERS, 0, b"x").repeat(9)).unwrap();
        }
    }

    /// A priority, padding, and a block in two frames: only the block's own bytes are followed.
    #[test]
    fn inserted_paths_are_counted_at_any_position_of_the_block() {
        // `:path` with a value of one byte, inserted.
        const PATH: [u8; 3] = [0x44, 1, b'/'];
        const PAIR: [u8; 6] = [0x44, 1, b'/', 0x44, 1, b'/'];
        let padded = [&[4][..], &[0x44; 5], &PAIR, &[0x44; 4]].concat();
        let all = [
            PREFACE.to_vec(),
            frame(0, 0, &PAIR),
            frame(HEADERS, END_HEADERS, &PAIR),
            frame(HEADERS, END_HEADERS | PADDED | PRIORITY, &padded),
            frame(HEADERS, 0, &PAIR[..2]),
            frame(CONTINUATION, END_HEADERS, &PATH[2..]),
            // Neither the padding nor the priority fits.
            frame(HEADERS, END_HEADERS | PADDED, &[9, 0x44]),
            frame(HEADERS, END_HEADERS | PRIORITY, &[0x44]),
            frame(HEADERS, END_HEADERS, &PATH),
        ]
        .concat();
        for size in [1, 2, 7, 9, 10, 1_000] {
            let connection = Arc::new(ConnectionStreams::default());
            let listener = Arc::new(Semaphore::new(1));
            let authority = AuthorityUse::Unchanged;
            let mut scanner = FrameScanner::new(authority, listener, Arc::clone(&connection));
            for part in all.chunks(size) {
                scan(&mut scanner, part).unwrap();
            }
            assert_eq!(connection.held_blocks(), 6, "in pieces of {size}");
        }
    }

    #[test]
    fn any_bytes_pass_without_a_panic() {
        let listener = Arc::new(Semaphore::new(1));
        let mut state = 12_u64;
        for _ in 0..3_000 {
            let mut bytes = [0; 300];
            for byte in &mut bytes {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                // Small numbers make frames that end within the input.
                *byte = (state >> 33) as u8 & if state & 1 == 0 { 0x0f } else { 0xff };
            }
            // Frames that end the connection are errors.
            let _ = scanner(&listener).scan(&mut bytes);
        }
    }

    /// The library resets such a stream and decodes nothing of its head. Its insertions made the count lose entries
    /// that the table still holds. The library does decode a PUSH_PROMISE.
    #[test]
    fn frames_that_the_library_decodes_differently_end_the_connection() {
        let listener = Arc::new(Semaphore::new(1));
        let head = |dependency: u32| {
            let payload = [&dependency.to_be_bytes()[..], &[7, 0x82]].concat();
            frame(HEADERS, END_HEADERS | PRIORITY, &payload)
        };
        let promise = frame(PUSH_PROMISE, 0, &[0, 0, 0, 2, 0x82]);
        for (bytes, is_fine) in
            [(head(0), true), (head(3), true), (head(1), false), (head(1 | 1 << 31), false), (promise, false)]
        {
            for size in [1, 3, 1_000] {
                let mut scanner = scanner(&listener);
                let mut parts = bytes.chunks(size);
                let scanned = parts.try_for_each(|part| scan(&mut scanner, part));
                assert_eq!(scanned.is_ok(), is_fine, "{bytes:?}");
            }
        }
    }
}
