//! The two gRPC requests as bytes.
//!
//! Written by hand: they have four kinds of field, and generated code would need `protoc`.

use bytes::Bytes;

/// `RateLimitRequest` of the Envoy protocol with one descriptor of one entry.
pub(crate) fn rate_limit_request(domain: &str, key: &str, value: &str) -> Bytes {
    let mut entry = Vec::new();
    nested(&mut entry, 1, key.as_bytes());
    nested(&mut entry, 2, value.as_bytes());
    let mut descriptor = Vec::new();
    nested(&mut descriptor, 1, &entry);
    let mut request = Vec::new();
    nested(&mut request, 1, domain.as_bytes());
    nested(&mut request, 2, &descriptor);
    framed(&request)
}

/// `ThrottleRequest` of throttlecrab. Without a quantity it would charge nothing.
pub(crate) fn throttle_request(key: &str, burst: u32, count: u32, period_secs: u32) -> Bytes {
    let mut request = Vec::new();
    nested(&mut request, 1, key.as_bytes());
    number(&mut request, 2, burst);
    number(&mut request, 3, count);
    number(&mut request, 4, period_secs);
    number(&mut request, 5, 1);
    framed(&request)
}

/// Whether a response of either protocol admits: its first field is 1, which is `OK` in one and `true` in the
/// other.
pub(crate) fn admits(response: &[u8]) -> bool {
    matches!(response, [0, _, _, _, _, 0x08, 1, ..])
}

/// A message with its gRPC prefix: not compressed, and its length.
fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a request is short");
    [&[0], length.to_be_bytes().as_slice(), message].concat().into()
}

fn nested(out: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, u32::try_from(bytes.len()).expect("a request is short"));
    out.extend_from_slice(bytes);
}

fn number(out: &mut Vec<u8>, field: u8, value: u32) {
    out.push(field << 3);
    varint(out, value);
}

fn varint(out: &mut Vec<u8>, mut value: u32) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_as_protoc_encodes_it() {
        let want = b"\0\0\0\0\x10\x0a\x01d\x12\x0b\x0a\x09\x0a\x01k\x12\x04v123";
        assert_eq!(rate_limit_request("d", "k", "v123").as_ref(), want);
        let want = b"\0\0\0\0\x0c\x0a\x01k\x10\xac\x02\x18\x02\x20\x03\x28\x01";
        assert_eq!(throttle_request("k", 300, 2, 3).as_ref(), want);
    }

    #[test]
    fn only_a_first_field_of_one_admits() {
        assert!(admits(b"\0\0\0\0\x02\x08\x01"));
        assert!(!admits(b"\0\0\0\0\x02\x08\x02"));
        assert!(!admits(b"\0\0\0\0\x02\x10\x05"));
        assert!(!admits(b""));
    }
}
