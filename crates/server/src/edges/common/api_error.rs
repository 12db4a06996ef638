//! Responses to requests without a decision: one shape, with an id that is in the logs too.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};
use tidegate::http::{BodyStyle, DecisionResponse};

use crate::decider::{DecideError, InputError, MissingConfigError};
use crate::logging::DecisionId;
use crate::net::{BodyError, HttpResponse};

/// Why a request gets no decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ApiError {
    /// It is invalid.
    Input(InputError),
    /// Its body did not arrive, or is too large.
    Body(BodyError),
    /// The path does not exist.
    NotFound {
        /// Where the paths of this listener are.
        hint: &'static str,
    },
    /// The path exists, but not for this method.
    Method {
        /// The allowed methods.
        allow: &'static str,
    },
    /// The request carries no valid token.
    WrongToken,
    /// The host name is not one of this listener.
    UnknownHost,
    /// The request comes from a page of another origin.
    CrossOrigin,
    /// The store did not reply.
    StoreUnavailable,
    /// No configuration is loaded yet.
    NoConfiguration(MissingConfigError),
    /// An internal error.
    Internal,
}

impl From<InputError> for ApiError {
    fn from(error: InputError) -> Self {
        ApiError::Input(error)
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        ApiError::Body(error)
    }
}

impl From<DecideError> for ApiError {
    fn from(error: DecideError) -> Self {
        match error {
            DecideError::NoConfiguration(error) => ApiError::NoConfiguration(error),
            DecideError::Input(error) => ApiError::Input(error),
            DecideError::Store(_) => ApiError::StoreUnavailable,
            DecideError::Internal => ApiError::Internal,
        }
    }
}

impl ApiError {
    /// The error of item `at` of a list.
    pub(crate) fn of_item(error: DecideError, at: usize) -> Self {
        match error {
            DecideError::Input(error) => ApiError::Input(error.inside(&format!("[{at}]"))),
            other => other.into(),
        }
    }

    fn describe(&self) -> (u16, &'static str, String) {
        match self {
            ApiError::Input(bad) if bad.field.is_empty() => (400, "bad_request", bad.reason.clone()),
            ApiError::Input(bad) => (400, "bad_request", format!("`{}`: {}", bad.field, bad.reason)),
            ApiError::Body(error @ BodyError::TooLarge { .. }) => (413, "too_large", error.to_string()),
            ApiError::Body(error @ (BodyError::TooSlow | BodyError::Evicted)) => (408, "too_slow", error.to_string()),
            ApiError::Body(error @ BodyError::Broken) => (400, "bad_request", error.to_string()),
            ApiError::NotFound { hint } => (404, "not_found", format!("no such path; {hint}")),
            ApiError::Method { allow } => (405, "method_not_allowed", format!("use {allow}")),
            ApiError::WrongToken => (401, "unauthorized", "send the admin token as a bearer token".to_owned()),
            ApiError::UnknownHost => (421, "misdirected", "this host name is not one of this listener".to_owned()),
            ApiError::CrossOrigin => {
                (403, "forbidden", "requests from pages of another origin are not allowed".to_owned())
            }
            ApiError::StoreUnavailable => (503, "store_unavailable", "the store did not reply".to_owned()),
            ApiError::NoConfiguration(error) => (503, "no_configuration", error.to_string()),
            ApiError::Internal => (500, "internal", "internal error; see the log".to_owned()),
        }
    }

    /// The response for this error.
    pub(crate) fn to_response(&self, id: &DecisionId) -> HttpResponse {
        let (status, error, message) = self.describe();
        let mut body = json!({"id": id.as_str(), "error": error, "message": message});
        if let ApiError::Input(bad) = self {
            body["field"] = json!(bad.field);
        }
        let status = StatusCode::from_u16(status).expect("the table above has valid status codes");
        let mut response = json_response(status, body.to_string().into(), id);
        let headers = response.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            ApiError::Method { allow } => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allow));
            }
            ApiError::WrongToken => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of the body is not read: nothing more can arrive on this connection.
            ApiError::Body(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        response
    }
}

/// The response to a decision.
pub(crate) fn to_response(decided: DecisionResponse) -> HttpResponse {
    let mut response = Response::new(decided.body.into());
    *response.status_mut() = decided.status;
    *response.headers_mut() = decided.headers;
    response
}

/// The body style of denials: problem details if the client accepts them.
pub(crate) fn body_style(headers: &HeaderMap) -> BodyStyle {
    let wants = |value: &HeaderValue| value.to_str().is_ok_and(|text| text.contains("application/problem+json"));
    if headers.get_all(header::ACCEPT).iter().any(wants) { BodyStyle::Problem } else { BodyStyle::Plain }
}

/// A JSON response with status 200.
pub(crate) fn ok_response(id: &DecisionId, body: &Value) -> HttpResponse {
    json_response(StatusCode::OK, body.to_string().into(), id)
}

/// A page in a format of its own.
pub(crate) fn text_page(status: StatusCode, content_type: &'static str, page: impl Into<Bytes>) -> HttpResponse {
    let mut response = Response::new(page.into().into());
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// A JSON response.
pub(crate) fn json_response(status: StatusCode, body: Bytes, id: &DecisionId) -> HttpResponse {
    let mut response = text_page(status, "application/json", body);
    let id = HeaderValue::from_str(id.as_str()).expect("ids are ASCII");
    response.headers_mut().insert(tidegate::http::ID, id);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::decision_ids::DecisionIds;

    #[test]
    fn an_error_names_its_field_and_carries_an_id() {
        let id = DecisionIds::random().unwrap().next();
        let bad = InputError { field: "attributes.ip".into(), reason: "\"x\" is no address".into() };
        let response = ApiError::Input(bad).to_response(&id);
        assert_eq!(response.status(), 400);
        assert_eq!(response.headers()["x-tidegate-id"], id.as_str());
        assert_eq!(response.headers()["cache-control"], "no-store");
    }
}
