//! `ANY /v1/auth`: 200 and headers, or the denial.

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::http::{headers, response as written};
use tidegate_rules::request::Edge;

use super::wire::{self, ProxyAuthOptions};
use crate::config::listen_address::EndpointAddress;
use crate::edges::common::api_error::ApiError;
use crate::edges::http::serve::{store_unavailable, to_response};
use crate::logging::decision_ids::DecisionId;
use crate::net::connection::HttpResponse;
use crate::service::{ChargeScope, Service, body_style};

/// Responds to one sub-request. Its own body, if it has one, is not read.
pub(crate) async fn respond(
    service: &Service,
    id: &DecisionId,
    peer: &EndpointAddress,
    parts: &Parts,
) -> Result<HttpResponse, ApiError> {
    service.require_config(Edge::Auth)?;
    let options = ProxyAuthOptions::parse(parts.uri.query())?;
    let policy = service.proxy_header_policy();
    let request = wire::parse_request(&parts.headers, options, peer, &policy)?;
    let decision = service.decide(request, ChargeScope::All).await;
    let decision = decision.map_err(store_unavailable)?;
    let context = service.context(id, body_style(&parts.headers));
    let reparse = || wire::parse_request(&parts.headers, options, peer, &policy).ok();
    service.log_denial(id, Edge::Auth, &decision, reparse);
    if decision.allowed() {
        let mut response = Response::new(Bytes::new().into());
        *response.headers_mut() = headers(&decision, &context);
        return Ok(response);
    }
    let mut response = to_response(written(&decision, &context));
    // Every proxy understands 403, and a blocked client must not be encouraged to retry.
    if let Some(status) = options.deny_status
        && response.status() != StatusCode::FORBIDDEN
    {
        *response.status_mut() = status;
    }
    Ok(response)
}
