//! What gets no verdict, and how that is told: a gRPC status and a text.

use http::{HeaderValue, Response};
use tidegate_core::store::StoreError;

use super::frame;
use crate::first_config::MissingConfigError;
use crate::net::body::BodyError;
use crate::net::connection::HttpResponse;
use crate::protobuf::ProtobufError;

/// Why a call gets no verdict.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnvoyError {
    /// The message is none.
    #[error("the request is not understood: {0}")]
    Malformed(#[from] ProtobufError),
    /// The JSON is not that of a request.
    #[error("the request is not understood: {0}")]
    Json(&'static str),
    /// The envelope is wrong.
    #[error("the call does not hold one message: {0}")]
    Envelope(&'static str),
    /// Nobody said that they may compress.
    #[error("the message is compressed; send it as identity")]
    Compressed,
    /// There are more of something than there may be.
    #[error("more than {most} {what}")]
    TooMany { what: &'static str, most: usize },
    /// Something is longer than it may be.
    #[error("a {what} has more than {most} bytes")]
    TooLong { what: &'static str, most: usize },
    /// A limit comes along, but not per what.
    #[error("descriptor {descriptor} brings a limit with unit {unit}, which is none")]
    UnknownUnit { descriptor: usize, unit: u64 },
    /// A limit comes along, per several of a unit. Per one of them would be another limit.
    #[error("descriptor {descriptor} brings a limit per {times} of its unit; write it per one")]
    SeveralUnits { descriptor: usize, times: u64 },
    /// Whose limits? In the words of the reference service, for which people search their logs.
    #[error("rate limit domain must not be empty")]
    NoDomain,
    /// Nothing to decide about. In the words of the reference service.
    #[error("rate limit descriptor list must not be empty")]
    NoDescriptors,
    /// Nothing to decide by. In the words of the reference service.
    #[error("no rate limit configuration loaded")]
    NoConfiguration(#[from] MissingConfigError),
    /// The message did not come whole.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// The store gave no answer.
    #[error("the store gave no answer: {0}")]
    Store(StoreError),
    /// There is no such method.
    #[error("there is no such method")]
    UnknownMethod,
    /// A service whose health nobody knows.
    #[error("there is no such service")]
    UnknownService,
    /// We failed.
    #[error("this is our fault; see the log")]
    Internal,
}

/// The status codes of gRPC that are used here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrpcCode {
    Unknown = 2,
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
}

impl EnvoyError {
    fn code(&self) -> GrpcCode {
        match self {
            EnvoyError::Malformed(_)
            | EnvoyError::Json(_)
            | EnvoyError::Envelope(_)
            | EnvoyError::TooMany { .. }
            | EnvoyError::TooLong { .. }
            | EnvoyError::UnknownUnit { .. }
            | EnvoyError::SeveralUnits { .. }
            | EnvoyError::Body(BodyError::Broken) => GrpcCode::InvalidArgument,
            EnvoyError::Body(BodyError::TooLarge { .. }) => GrpcCode::ResourceExhausted,
            EnvoyError::Body(BodyError::TooSlow | BodyError::Evicted) => GrpcCode::DeadlineExceeded,
            EnvoyError::Compressed | EnvoyError::UnknownMethod => GrpcCode::Unimplemented,
            EnvoyError::UnknownService => GrpcCode::NotFound,
            // As the reference service has it. `Unavailable` would invite Envoy to ask again, and a
            // charge without an answer may have been made.
            EnvoyError::NoDomain
            | EnvoyError::NoDescriptors
            | EnvoyError::NoConfiguration(_)
            | EnvoyError::Store(_) => GrpcCode::Unknown,
            EnvoyError::Internal => GrpcCode::Internal,
        }
    }

    /// The nearest status of HTTP, for the metrics that all edges share.
    pub(crate) fn status(&self) -> u16 {
        match (self, self.code()) {
            (EnvoyError::Store(_) | EnvoyError::NoConfiguration(_), _) => 503,
            (_, GrpcCode::Internal) => 500,
            (_, GrpcCode::ResourceExhausted) => 413,
            (_, GrpcCode::DeadlineExceeded) => 408,
            (_, GrpcCode::Unimplemented | GrpcCode::NotFound) => 404,
            _ => 400,
        }
    }

    /// As an answer, which is nothing but its head.
    pub(crate) fn to_response(&self) -> HttpResponse {
        let mut response = Response::new(bytes::Bytes::new().into());
        let headers = response.headers_mut();
        headers.insert(http::header::CONTENT_TYPE, frame::CONTENT_TYPE);
        headers.insert(frame::STATUS, HeaderValue::from(self.code() as u16));
        if let Ok(text) = HeaderValue::try_from(percent_encode(&self.to_string())) {
            headers.insert(frame::MESSAGE, text);
        }
        if matches!(self, EnvoyError::Compressed) {
            headers.insert(frame::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        }
        response
    }
}

/// A text as `grpc-message` has it: printable ASCII as it is, everything else as `%XX`.
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
        assert_eq!(
            response.headers()["grpc-message"],
            "rate limit domain must not be empty"
        );
        assert_eq!(response.headers()["content-type"], "application/grpc");
    }

    #[test]
    fn what_is_not_printable_is_escaped() {
        assert_eq!(percent_encode("50% é\n"), "50%25 %C3%A9%0A");
    }
}
