//! Answers to what cannot be decided: one shape, with an id that the logs can be searched for.

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::wire::BadInput;
use crate::first_config::MissingConfigError;
use crate::ids::Id;
use crate::net::body::BodyError;
use crate::net::connection::Answer;

/// Why a request gets no decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// It is not understood.
    Bad(BadInput),
    /// Its body did not come, or is too large.
    Body(BodyError),
    /// There is nothing at this path.
    NoSuchPath,
    /// There is, but not for this method.
    Method {
        /// The methods there are.
        allow: &'static str,
    },
    /// The caller has not shown the token.
    Token,
    /// Not a way to address this listener.
    Host,
    /// A page of another origin asks.
    Origin,
    /// The store gave no answer.
    Store,
    /// There is nothing to decide by yet.
    NoConfiguration(MissingConfigError),
    /// We failed.
    Internal,
}

impl From<BadInput> for Refusal {
    fn from(bad: BadInput) -> Self {
        Refusal::Bad(bad)
    }
}

impl From<BodyError> for Refusal {
    fn from(error: BodyError) -> Self {
        Refusal::Body(error)
    }
}

impl From<MissingConfigError> for Refusal {
    fn from(error: MissingConfigError) -> Self {
        Refusal::NoConfiguration(error)
    }
}

impl Refusal {
    fn told(&self) -> (u16, &'static str, String) {
        match self {
            Refusal::Bad(bad) if bad.field.is_empty() => (400, "bad_request", bad.reason.clone()),
            Refusal::Bad(bad) => (
                400,
                "bad_request",
                format!("`{}`: {}", bad.field, bad.reason),
            ),
            Refusal::Body(error @ BodyError::TooLarge { .. }) => {
                (413, "too_large", error.to_string())
            }
            Refusal::Body(error @ (BodyError::TooSlow | BodyError::Outpaced)) => {
                (408, "too_slow", error.to_string())
            }
            Refusal::Body(error @ BodyError::Broken) => (400, "bad_request", error.to_string()),
            Refusal::NoSuchPath => (
                404,
                "not_found",
                "there is nothing here; see /openapi.json".to_owned(),
            ),
            Refusal::Method { allow } => (405, "method_not_allowed", format!("write {allow}")),
            Refusal::Token => (
                401,
                "unauthorized",
                "send the admin token as a bearer token".to_owned(),
            ),
            Refusal::Host => (
                421,
                "misdirected",
                "this host name is not one of ours".to_owned(),
            ),
            Refusal::Origin => (
                403,
                "forbidden",
                "not from a page of another origin".to_owned(),
            ),
            Refusal::Store => (
                503,
                "store_unavailable",
                "the store gave no answer".to_owned(),
            ),
            Refusal::NoConfiguration(error) => (503, "no_configuration", error.to_string()),
            Refusal::Internal => (500, "internal", "this is our fault; see the log".to_owned()),
        }
    }

    /// As an answer.
    pub(crate) fn answer(&self, id: &Id) -> Answer {
        let (status, error, message) = self.told();
        let mut body = json!({"id": id.as_str(), "error": error, "message": message});
        if let Refusal::Bad(bad) = self {
            body["field"] = json!(bad.field);
        }
        let status = StatusCode::from_u16(status).expect("a status from the table above");
        let mut answer = json_answer(status, body.to_string().into(), id);
        let headers = answer.headers_mut();
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        match self {
            Refusal::Method { allow } => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allow));
            }
            Refusal::Token => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // The rest of the body is not read: nothing more can come over this connection.
            Refusal::Body(_) => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            _ => {}
        }
        answer
    }
}

/// A body of JSON.
pub(crate) fn json_answer(status: StatusCode, body: Bytes, id: &Id) -> Answer {
    let mut answer = Response::new(body.into());
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(header::CONTENT_TYPE, json);
    let id = HeaderValue::from_str(id.as_str()).expect("an id is plain ASCII");
    answer.headers_mut().insert(tidegate::http::ID, id);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::Ids;

    #[test]
    fn a_fault_names_its_field_and_carries_an_id() {
        let id = Ids::random().unwrap().next();
        let bad = BadInput {
            field: "attributes.ip".into(),
            reason: "\"x\" is no address".into(),
        };
        let answer = Refusal::Bad(bad).answer(&id);
        assert_eq!(answer.status(), 400);
        assert_eq!(answer.headers()["x-tidegate-id"], id.as_str());
        assert_eq!(answer.headers()["cache-control"], "no-store");
    }
}
