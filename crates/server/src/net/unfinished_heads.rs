//! HTTP/2 heads that come in several frames, bounded per listener.
//!
//! The HTTP/2 library decodes each frame of a head as it comes, and holds the fields until the last one. A
//! client that never sends the last one makes a connection hold a hundred times what it sent. A head up to
//! 16 KiB fits into one frame, which is decoded when it is whole. So few honest clients need more
//! than one frame, and a listener lets [`MAX_UNFINISHED`] connections wait for the rest of a head.
//! Reads the frames' headers alone, on their way to the library.

use std::io;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections of one listener that wait for the rest of a head.
pub(crate) const MAX_UNFINISHED: usize = 64;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

/// Follows the frames that one connection receives.
pub(crate) struct FrameScanner {
    place: ScanPlace,
    listener: Arc<Semaphore>,
    unfinished: Option<OwnedSemaphorePermit>,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ScanPlace {
    /// The preface, of which so many bytes have come.
    Preface(usize),
    /// A frame's header, of which so many bytes have come.
    Header([u8; FRAME_HEADER], usize),
    /// A frame's payload, of which so many bytes are to come.
    Payload(usize),
    /// Another protocol.
    Other,
}

impl FrameScanner {
    /// For a connection of a listener whose unfinished heads are counted in `listener`.
    pub(crate) fn new(listener: Arc<Semaphore>) -> Self {
        FrameScanner {
            place: ScanPlace::Preface(0),
            listener,
            unfinished: None,
        }
    }

    /// Looks at the next bytes. An error means that the connection has to end.
    pub(crate) fn scan(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() && self.place != ScanPlace::Other {
            let used = self.advance(bytes)?;
            bytes = &bytes[used..];
        }
        Ok(())
    }

    /// Uses the bytes of one place, at least one.
    fn advance(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.place {
            ScanPlace::Preface(have) => {
                let used = bytes.len().min(PREFACE.len() - have);
                let is_http2 = bytes[..used] == PREFACE[have..have + used];
                self.place = match have + used {
                    _ if !is_http2 => ScanPlace::Other,
                    have if have == PREFACE.len() => ScanPlace::Header([0; FRAME_HEADER], 0),
                    have => ScanPlace::Preface(have),
                };
                Ok(used)
            }
            ScanPlace::Header(mut header, have) => {
                let used = bytes.len().min(FRAME_HEADER - have);
                header[have..have + used].copy_from_slice(&bytes[..used]);
                self.place = ScanPlace::Header(header, have + used);
                if have + used == FRAME_HEADER {
                    self.begin_frame(header)?;
                }
                Ok(used)
            }
            ScanPlace::Payload(left) => {
                let used = bytes.len().min(left);
                self.end_payload(left - used);
                Ok(used)
            }
            ScanPlace::Other => Ok(bytes.len()),
        }
    }

    fn begin_frame(&mut self, header: [u8; FRAME_HEADER]) -> io::Result<()> {
        let [a, b, c, kind, flags, ..] = header;
        let is_last = flags & END_HEADERS != 0;
        match kind {
            HEADERS if !is_last => {
                let permit = Arc::clone(&self.listener).try_acquire_owned();
                let permit = permit.map_err(|_| {
                    io::Error::other("too many connections wait for the rest of a head")
                })?;
                self.unfinished = Some(permit);
            }
            CONTINUATION if is_last => self.unfinished = None,
            _ => {}
        }
        self.end_payload(u32::from_be_bytes([0, a, b, c]) as usize);
        Ok(())
    }

    fn end_payload(&mut self, left: usize) {
        self.place = match left {
            0 => ScanPlace::Header([0; FRAME_HEADER], 0),
            left => ScanPlace::Payload(left),
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

    fn scanner(listener: &Arc<Semaphore>) -> FrameScanner {
        let mut scanner = FrameScanner::new(Arc::clone(listener));
        scanner.scan(PREFACE).unwrap();
        scanner
    }

    /// However the bytes are cut, the frames are the same. What looks like a frame in a payload is none.
    #[test]
    fn a_head_is_unfinished_until_its_last_frame() {
        let listener = Arc::new(Semaphore::new(1));
        let payload = frame(HEADERS, 0, b"inside");
        let before = [PREFACE.to_vec(), frame(0, 0, &payload), frame(4, 0, b"")].concat();
        let begun = [
            frame(HEADERS, END_HEADERS, b"whole"),
            frame(HEADERS, 0, &payload),
        ]
        .concat();
        let ended = [
            frame(CONTINUATION, 0, b"x"),
            frame(CONTINUATION, END_HEADERS, b""),
        ]
        .concat();
        for size in [1, 2, 7, 9, 10, 1_000] {
            let mut scanner = FrameScanner::new(Arc::clone(&listener));
            for (bytes, free) in [(&before, 1), (&begun, 0), (&ended, 1)] {
                for part in bytes.chunks(size) {
                    scanner.scan(part).unwrap();
                }
                assert_eq!(listener.available_permits(), free, "in parts of {size}");
            }
        }
    }

    #[test]
    fn a_listener_lets_so_many_wait_and_whole_heads_pass_all_the_time() {
        let listener = Arc::new(Semaphore::new(2));
        let begun = frame(HEADERS, 0, b"x");
        let (mut first, mut second) = (scanner(&listener), scanner(&listener));
        assert!(first.scan(&begun).is_ok() && second.scan(&begun).is_ok());
        let mut third = scanner(&listener);
        assert!(third.scan(&frame(HEADERS, END_HEADERS, b"x")).is_ok());
        assert!(third.scan(&begun).is_err());
        drop(first);
        assert!(scanner(&listener).scan(&begun).is_ok());
    }

    #[test]
    fn other_protocols_are_not_looked_at() {
        let listener = Arc::new(Semaphore::new(0));
        for text in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/1.1\r\n\r\n", "P", ""] {
            let mut scanner = FrameScanner::new(Arc::clone(&listener));
            scanner.scan(text.as_bytes()).unwrap();
            scanner.scan(&frame(HEADERS, 0, b"x").repeat(9)).unwrap();
        }
    }
}
