//! Answers in bytes. Pure; nothing that a client sent can end a line of an answer.

use std::fmt::Write;

/// Which version of the protocol a client has asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Protocol {
    /// What every client begins with.
    #[default]
    Resp2,
    /// With maps and a null of its own.
    Resp3,
}

/// What a client's own words may take of an error.
const LONGEST_ECHO: usize = 128;

fn headed(out: &mut Vec<u8>, mark: u8, number: i64) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `+OK`. The text has no end of line.
pub(super) fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// An error, code first: `ERR no such thing`. An end of line in it becomes a space.
pub(super) fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    let plain = |byte: u8| {
        if matches!(byte, b'\r' | b'\n') {
            b' '
        } else {
            byte
        }
    };
    out.extend(text.bytes().map(plain));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn integer(out: &mut Vec<u8>, number: i64) {
    headed(out, b':', number);
}

pub(super) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    headed(out, b'$', length(bytes.len()));
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn null(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Resp2 => b"$-1\r\n".as_slice(),
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Opens an array of so many values.
pub(super) fn array(out: &mut Vec<u8>, values: usize) {
    headed(out, b'*', length(values));
}

/// Opens a map of so many names and values: an array of both for those who know no maps.
pub(super) fn map(out: &mut Vec<u8>, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::Resp2 => array(out, 2 * pairs),
        Protocol::Resp3 => headed(out, b'%', length(pairs)),
    }
}

/// The five integers that a throttle answers with.
#[inline]
pub(super) fn five(out: &mut Vec<u8>, numbers: [i64; 5]) {
    out.extend_from_slice(b"*5\r\n");
    for number in numbers {
        integer(out, number);
    }
}

/// A number that was never negative, for a protocol that counts with signs.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn length(bytes: usize) -> i64 {
    signed(bytes as u64)
}

/// What a client said, as an error may repeat it: cut, and what is not text made visible.
pub(super) fn echoed(bytes: &[u8]) -> String {
    let mut shown = String::new();
    for chunk in bytes[..bytes.len().min(LONGEST_ECHO)].utf8_chunks() {
        shown.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_sent_cannot_end_the_line_of_an_error() {
        let mut out = Vec::new();
        error(&mut out, &format!("ERR no '{}'", echoed(b"a\r\n+OK\xff")));
        assert_eq!(out, b"-ERR no 'a  +OK\\xff'\r\n");
        assert!(echoed(&[b'x'; 70_000]).len() <= LONGEST_ECHO);
    }

    #[test]
    fn a_map_is_an_array_for_those_who_know_no_maps() {
        for (protocol, want) in [
            (Protocol::Resp2, "*4\r\n$-1\r\n"),
            (Protocol::Resp3, "%2\r\n_\r\n"),
        ] {
            let mut out = Vec::new();
            map(&mut out, protocol, 2);
            null(&mut out, protocol);
            assert_eq!(out, want.as_bytes());
        }
    }

    #[test]
    fn numbers_are_written_whole() {
        let mut out = Vec::new();
        five(&mut out, [0, i64::MAX, i64::MIN, -1, 2]);
        let want = "*5\r\n:0\r\n:9223372036854775807\r\n:-9223372036854775808\r\n:-1\r\n:2\r\n";
        assert_eq!(out, want.as_bytes());
    }
}
