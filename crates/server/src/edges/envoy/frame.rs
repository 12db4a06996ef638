//! The envelope of gRPC: five bytes before a message, and a status after it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, header};

use super::error::Fault;
use crate::net::connection::Answer;
use crate::net::outgoing::Outgoing;

pub(super) const CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
pub(super) const STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(super) const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(super) const ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");

/// One byte that says whether it is compressed, and the length in four.
pub(super) const PREFIX: usize = 5;

/// Whether somebody speaks gRPC, with messages in protocol buffers.
pub(super) fn is_spoken(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b';', ..]) | Some(b"+proto"))
        || rest.is_some_and(|rest| rest.starts_with(b"+proto;"))
}

/// The one message of a call.
pub(super) fn message(body: &[u8]) -> Result<&[u8], Fault> {
    let (prefix, message) = body
        .split_first_chunk::<PREFIX>()
        .ok_or(Fault::Envelope("it ends before the message"))?;
    let [compressed, length @ ..] = *prefix;
    match compressed {
        0 => {}
        1 => return Err(Fault::Compressed),
        _ => return Err(Fault::Envelope("its first byte is neither 0 nor 1")),
    }
    match u32::from_be_bytes(length) as usize {
        length if length > message.len() => Err(Fault::Envelope("the message is cut short")),
        length if length < message.len() => Err(Fault::Envelope("something follows the message")),
        _ => Ok(message),
    }
}

/// A buffer that a message is to be written into, with room for the envelope before it.
pub(super) fn blank(about: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(PREFIX + about);
    out.extend_from_slice(&[0; PREFIX]);
    out
}

/// The answer that holds the message written into such a buffer.
pub(super) fn answer(mut out: Vec<u8>) -> Answer {
    let length = u32::try_from(out.len() - PREFIX).expect("an answer has less than 4 GiB");
    out[1..PREFIX].copy_from_slice(&length.to_be_bytes());
    let body = Outgoing::trailed(Bytes::from(out), STATUS, HeaderValue::from_static("0"));
    let mut answer = Response::new(body);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, CONTENT_TYPE);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_holds_one_message() {
        assert_eq!(message(&[0, 0, 0, 0, 2, 7, 8]).unwrap(), [7, 8]);
        assert!(message(&[0, 0, 0, 0, 0]).unwrap().is_empty());
        for (body, told) in [
            (&[0, 0, 0, 0][..], "ends before"),
            (&[0, 0, 0, 0, 2, 7], "cut short"),
            (&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0], "follows"),
            (&[2, 0, 0, 0, 0], "neither 0 nor 1"),
            (&[1, 0, 0, 0, 0], "compressed"),
        ] {
            let fault = message(body).unwrap_err().to_string();
            assert!(fault.contains(told), "{fault}");
        }
    }

    #[test]
    fn it_is_told_by_the_content_type() {
        let spoken = |kind: &'static str| {
            let kind = (header::CONTENT_TYPE, HeaderValue::from_static(kind));
            is_spoken(&HeaderMap::from_iter([kind]))
        };
        assert!(spoken("application/grpc") && spoken("application/grpc+proto"));
        assert!(spoken("application/grpc;charset=utf-8"));
        assert!(!spoken("application/grpc-web") && !spoken("application/json"));
        assert!(!spoken("application/grpc+json"));
        assert!(!is_spoken(&HeaderMap::new()));
    }
}
