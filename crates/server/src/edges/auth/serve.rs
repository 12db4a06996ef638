//! `ANY /v1/auth`: 200 and headers, or the denial.

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::http::{answer as written, headers};
use tidegate_core::request::Edge;

use super::wire::{self, Options};
use crate::address::Place;
use crate::edges::http::error::Refusal;
use crate::edges::http::serve::{decided, no_store};
use crate::ids::Id;
use crate::net::connection::Answer;
use crate::service::{ChargeScope, Service, body_style};

/// Answers one sub-request. Its own body, if it has one, is not looked at.
pub(crate) async fn answer(
    service: &Service,
    id: &Id,
    peer: &Place,
    parts: &Parts,
) -> Result<Answer, Refusal> {
    service.require_config(Edge::Auth)?;
    let options = Options::read(parts.uri.query())?;
    let reading = service.reading();
    let request = wire::request(&parts.headers, options, peer, &reading)?;
    let decision = service.decide(request, ChargeScope::All).await;
    let decision = decision.map_err(no_store)?;
    let context = service.context(id, body_style(&parts.headers));
    let asked_again = || wire::request(&parts.headers, options, peer, &reading).ok();
    service.log_denial(id, Edge::Auth, &decision, asked_again);
    if decision.allowed() {
        let mut answer = Response::new(Bytes::new().into());
        *answer.headers_mut() = headers(&decision, &context);
        return Ok(answer);
    }
    let mut answer = decided(written(&decision, &context));
    // Every proxy understands 403, and a blocked client must not be told to come back.
    if let Some(status) = options.deny_status
        && answer.status() != StatusCode::FORBIDDEN
    {
        *answer.status_mut() = status;
    }
    Ok(answer)
}
