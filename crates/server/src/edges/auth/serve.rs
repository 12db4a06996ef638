//! `ANY /v1/auth`: 200 and headers, or the denial.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use http_body_util::Full;
use tidegate::http::{answer as written, headers};
use tidegate_core::engine::Edge;

use super::wire::{self, Options};
use crate::address::Place;
use crate::edges::http::error::{Refusal, sign};
use crate::edges::http::serve::{decided, no_store};
use crate::ids::Id;
use crate::net::connection::Answer;
use crate::service::{Service, body_style, trusted_by};

/// Answers one sub-request. Its own body, if it has one, is not looked at.
pub(crate) fn answer(
    service: &Service,
    id: &Id,
    peer: &Place,
    parts: &Parts,
) -> Result<Answer, Refusal> {
    let options = Options::read(parts.uri.query())?;
    let trusted = trusted_by(&service.limiter.policy().load());
    let request = wire::request(&parts.headers, options, peer, &trusted)?;
    let decision = service.decide(request, false).map_err(no_store)?;
    let context = service.context(id, body_style(&parts.headers));
    if decision.allowed() {
        let mut answer = Response::new(Full::new(Bytes::new()));
        *answer.headers_mut() = headers(&decision, &context);
        sign(&mut answer, id);
        return Ok(answer);
    }
    service.log_denial(id, Edge::Auth, &decision, || {
        wire::request(&parts.headers, options, peer, &trusted).ok()
    });
    let mut answer = decided(written(&decision, &context), id);
    if let Some(status) = options.deny_status {
        *answer.status_mut() = status;
    }
    Ok(answer)
}
