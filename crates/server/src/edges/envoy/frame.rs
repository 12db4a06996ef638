//! gRPC framing: five bytes before a message, and a status after it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use super::error::EnvoyError;
use crate::net::{HttpResponse, ResponseBody};

pub(super) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// One byte for the compression flag, and the length in four.
pub(super) const PREFIX_BYTES: usize = 5;

/// Whether the content type is gRPC with Protocol Buffers.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b';', ..]) | Some(b"+proto")) || rest.is_some_and(|rest| rest.starts_with(b"+proto;"))
}

/// The only message of a call.
pub(super) fn message(body: &[u8]) -> Result<&[u8], EnvoyError> {
    let (prefix, message) =
        body.split_first_chunk::<PREFIX_BYTES>().ok_or(EnvoyError::Envelope("it ends before the message"))?;
    let [compressed, length @ ..] = *prefix;
    match compressed {
        0 => {}
        1 => return Err(EnvoyError::Compressed),
        _ => return Err(EnvoyError::Envelope("its first byte is neither 0 nor 1")),
    }
    match u32::from_be_bytes(length) as usize {
        length if length > message.len() => Err(EnvoyError::Envelope("the message is truncated")),
        length if length < message.len() => Err(EnvoyError::Envelope("data follows the message")),
        _ => Ok(message),
    }
}

/// A buffer for a message, with space for the frame header before it.
pub(super) fn message_buffer(expected_bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX_BYTES + expected_bytes);
    out.extend_from_slice(&[0; PREFIX_BYTES]);
    out
}

/// The response with the message written into such a buffer.
pub(super) fn response(mut out: Vec<u8>) -> HttpResponse {
    let length = u32::try_from(out.len() - PREFIX_BYTES).expect("a response has less than 4 GiB");
    out[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
    let body = ResponseBody::with_trailer(Bytes::from(out), STATUS, HeaderValue::from_static("0"));
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_contains_one_message() {
        assert_eq!(message(&[0, 0, 0, 0, 2, 7, 8]).unwrap(), [7, 8]);
        assert!(message(&[0, 0, 0, 0, 0]).unwrap().is_empty());
        for (body, want) in [
            (&[0, 0, 0, 0][..], "ends before"),
            (&[0, 0, 0, 0, 2, 7], "truncated"),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "follows"),
            (&[2, 0, 0, 0, 0], "neither 0 nor 1"),
            (&[1, 0, 0, 0, 0], "compressed"),
        ] {
            let error = message(body).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }

    #[test]
    fn grpc_is_recognised_by_the_content_type() {
        let is_grpc_type = |kind: &'static str| {
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static(kind));
            is_grpc(&HeaderMap::from_iter([kind]))
        };
        assert!(is_grpc_type("application/grpc") && is_grpc_type("application/grpc+proto"));
        assert!(is_grpc_type("application/grpc;charset=utf-8"));
        assert!(!is_grpc_type("application/grpc-web") && !is_grpc_type("application/json"));
        assert!(!is_grpc_type("application/grpc+json"));
        assert!(!is_grpc(&HeaderMap::new()));
    }
}
