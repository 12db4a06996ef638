//! Errors of gRPC calls: a gRPC status and a message.

use http::{HeaderValue, Response};
use tidegate::StoreError;

use super::frame;
use crate::decider::{DecideError, MissingConfigError};
use crate::net::{BodyError, HttpResponse};
use crate::protobuf::ProtobufError;

/// Why a call gets no decision.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvoyError {
    /// The message is not valid Protocol Buffers.
    #[error("the request is invalid: {0}")]
    Malformed(#[from] ProtobufError),
    /// The JSON is not a valid request.
    #[error("the request is invalid: {0}")]
    Json(&'static str),
    /// The gRPC frame is invalid.
    #[error("the call does not contain exactly one message: {0}")]
    Envelope(&'static str),
    /// The message is compressed, although the server announces no compression.
    #[error("the message is compressed; send it as identity")]
    Compressed,
    /// More items than allowed.
    #[error("more than {max} {what}")]
    TooMany { what: &'static str, max: usize },
    /// A text longer than allowed.
    #[error("a {what} has more than {max} bytes")]
    TooLong { what: &'static str, max: usize },
    /// An override limit without a valid unit.
    #[error("descriptor {descriptor} has an override limit with the unknown unit {unit}; use a unit of the protocol")]
    UnknownUnit { descriptor: usize, unit: u64 },
    /// An override limit per several units. Read as per one unit it would be another limit.
    #[error("descriptor {descriptor} has an override limit per {times} units; write it per one unit")]
    SeveralUnits { descriptor: usize, times: u64 },
    /// The domain is empty. The text is that of the reference service, for which operators search their logs.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// There are no descriptors. The text is that of the reference service.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// No configuration is loaded. The text is that of the reference service.
    #[error("no rate limit configuration loaded")]
    NoConfiguration(MissingConfigError),
    /// The message did not arrive completely.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The store did not reply.
    #[error("the store did not reply: {0}")]
    Store(StoreError),
    #[error("there is no such method")]
    UnknownMethod,
    /// The health of an unknown service.
    #[error("there is no such service")]
    UnknownService,
    /// An internal error.
    #[error("internal error; see the log")]
    Internal,
}

/// The gRPC status codes in use.
const UNKNOWN: u16 = 2;
const INVALID_ARGUMENT: u16 = 3;
const DEADLINE_EXCEEDED: u16 = 4;
const NOT_FOUND: u16 = 5;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNIMPLEMENTED: u16 = 12;
const INTERNAL: u16 = 13;

impl From<DecideError> for EnvoyError {
    fn from(error: DecideError) -> Self {
        match error {
            DecideError::NoConfiguration(error) => EnvoyError::NoConfiguration(error),
            DecideError::Store(error) => EnvoyError::Store(error),
            // Names and tokens of Envoy are not checked.
            DecideError::Input(_) | DecideError::Internal => EnvoyError::Internal,
        }
    }
}

impl EnvoyError {
    /// The gRPC status, and the nearest HTTP status for the metrics that all edges share.
    fn statuses(&self) -> (u16, u16) {
        match self {
            EnvoyError::Malformed(_)
            | EnvoyError::Json(_)
            | EnvoyError::Envelope(_)
            | EnvoyError::TooMany { .. }
            | EnvoyError::TooLong { .. }
            | EnvoyError::UnknownUnit { .. }
            | EnvoyError::SeveralUnits { .. }
            | EnvoyError::Body(BodyError::Broken) => (INVALID_ARGUMENT, 400),
            EnvoyError::Body(BodyError::TooLarge { .. }) => (RESOURCE_EXHAUSTED, 413),
            EnvoyError::Body(BodyError::TooSlow | BodyError::Evicted) => (DEADLINE_EXCEEDED, 408),
            EnvoyError::Compressed | EnvoyError::UnknownMethod => (UNIMPLEMENTED, 404),
            EnvoyError::UnknownService => (NOT_FOUND, 404),
            // As in the reference service. `Unavailable` would invite Envoy to retry, and a charge without a reply may
            // have been applied.
            EnvoyError::NoDomain | EnvoyError::NoDescriptors => (UNKNOWN, 400),
            EnvoyError::NoConfiguration(_) | EnvoyError::Store(_) => (UNKNOWN, 503),
            EnvoyError::Internal => (INTERNAL, 500),
        }
    }

    pub(crate) fn http_status(&self) -> u16 {
        self.statuses().1
    }

    /// The response, which consists of headers only.
    pub(crate) fn to_response(&self) -> HttpResponse {
        let mut response = Response::new(bytes::Bytes::new().into());
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, frame::CONTENT_TYPE);
        headers.insert(frame::STATUS, HeaderValue::from(self.statuses().0));
        if let Ok(text) = HeaderValue::try_from(percent_encode(&self.to_string())) {
            headers.insert(frame::MESSAGE, text);
        }
        if matches!(self, EnvoyError::Compressed) {
            headers.insert(frame::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        response
    }
}

/// Encodes a text for `grpc-message`: printable ASCII unchanged, everything else as `%XX`.
fn percent_encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b' '..=b'~' if byte != b'%' => out.push(char::from(byte)),
            _ => {
                const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
                let digit = |half: u8| char::from(DIGITS[usize::from(half)]);
                out.extend(['%', digit(byte >> 4), digit(byte & 15)]);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_a_status_and_a_message_in_the_head() {
        let response = EnvoyError::NoDomain.to_response();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["grpc-status"], "2");
        assert_eq!(response.headers()["grpc-message"], "rate limit domain must not be empty");
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }

    #[test]
    fn bytes_that_are_not_printable_are_escaped() {
        assert_eq!(percent_encode("50% é\n"), "50%25 %C3%A9%0A");
    }
}
