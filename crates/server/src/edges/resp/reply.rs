//! Encodes replies. Pure. Invariant: no bytes of a client can end a line of a reply.

use std::fmt::Write;

/// The version of the protocol that a client has selected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Protocol {
    /// The version that every client begins with.
    #[default]
    Resp2,
    /// With maps and a null type.
    Resp3,
}

/// Maximum bytes of a client's input in an error text.
const MAX_ECHO_BYTES: usize = 128;

fn write_header(out: &mut Vec<u8>, mark: u8, number: i64) {
    out.push(mark);
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// `+OK`. The text must not contain a line break.
pub(super) fn simple(out: &mut Vec<u8>, text: &str) {
    out.push(b'+');
    out.extend_from_slice(text.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// An error, code first: `ERR no such thing`. A line break in it becomes a space.
pub(super) fn error(out: &mut Vec<u8>, text: &str) {
    out.push(b'-');
    let plain = |byte: u8| {
        if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }
    };
    out.extend(text.bytes().map(plain));
    out.extend_from_slice(b"\r\n");
}

pub(super) fn integer(out: &mut Vec<u8>, number: i64) {
    write_header(out, b':', number);
}

pub(super) fn bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    write_header(out, b'$', length_i64(bytes.len()));
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn null(out: &mut Vec<u8>, protocol: Protocol) {
    out.extend_from_slice(match protocol {
        Protocol::Resp2 => b"$-1\r\n".as_slice(),
        Protocol::Resp3 => b"_\r\n",
    });
}

/// Opens an array of `values` values.
pub(super) fn array(out: &mut Vec<u8>, values: usize) {
    write_header(out, b'*', length_i64(values));
}

/// Opens a map of `pairs` names and values: in RESP2 a flat array.
pub(super) fn map(out: &mut Vec<u8>, protocol: Protocol, pairs: usize) {
    match protocol {
        Protocol::Resp2 => array(out, 2 * pairs),
        Protocol::Resp3 => write_header(out, b'%', length_i64(pairs)),
    }
}

/// The five integers of a throttle reply.
#[inline]
pub(super) fn five_integers(out: &mut Vec<u8>, numbers: [i64; 5]) {
    out.extend_from_slice(b"*5\r\n");
    for number in numbers {
        integer(out, number);
    }
}

/// An unsigned number as the signed one of the protocol.
pub(super) fn saturating_i64(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn length_i64(bytes: usize) -> i64 {
    saturating_i64(bytes as u64)
}

/// Input of a client for an error text: truncated, and with other than printable bytes escaped.
pub(super) fn echo(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes[..bytes.len().min(MAX_ECHO_BYTES)].utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "\\x{byte:02x}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_input_cannot_end_the_line_of_an_error() {
        let mut out = Vec::new();
        error(&mut out, &format!("ERR no '{}'", echo(b"a\r\n+OK\xff")));
        assert_eq!(out, b"-ERR no 'a  +OK\\xff'\r\n");
        assert!(echo(&[b'x'; 70_000]).len() <= MAX_ECHO_BYTES);
    }

    #[test]
    fn a_map_is_an_array_in_resp2() {
        for (protocol, want) in [(Protocol::Resp2, "*4\r\n$-1\r\n"), (Protocol::Resp3, "%2\r\n_\r\n")] {
            let mut out = Vec::new();
            map(&mut out, protocol, 2);
            null(&mut out, protocol);
            assert_eq!(out, want.as_bytes());
        }
    }

    #[test]
    fn numbers_are_written_whole() {
        let mut out = Vec::new();
        five_integers(&mut out, [0, i64::MAX, i64::MIN, -1, 2]);
        let want = "*5\r\n:0\r\n:9223372036854775807\r\n:-9223372036854775808\r\n:-1\r\n:2\r\n";
        assert_eq!(out, want.as_bytes());
    }
}
