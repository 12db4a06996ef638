//! Concurrency permits: `/v1/acquire`, `/v1/renew` and `/v1/release`.

use std::sync::Arc;

use http::StatusCode;
use serde_json::json;
use tidegate::http::{BodyStyle, acquired, concurrency_denied};
use tidegate::{AcquireError, Acquired, Ticket, TicketError};
use tidegate_core::units::Nanos;
use tidegate_rules::request::Edge;

use super::serve::{store_unavailable, to_response};
use super::wire;
use crate::edges::common::api_error::{ApiError, InputError, json_response};
use crate::edges::common::names;
use crate::logging::decision_ids::DecisionId;
use crate::net::connection::HttpResponse;
use crate::service::Service;
use crate::state::store_error_log::log_store_error;

/// Acquires permits for a request, or responds with the denial.
pub(super) async fn acquire(
    service: &Arc<Service>,
    id: &DecisionId,
    style: BodyStyle,
    body: &[u8],
) -> Result<HttpResponse, ApiError> {
    let parsed = wire::parse_acquire(body)?;
    names::check(service, &parsed.request)?;
    let (ttl, receipt) = (parsed.ttl, parsed.receipt);
    let result = service.acquire(parsed.request, ttl).await;
    let mut context = service.context(id, style);
    let reparse = || wire::parse_acquire(body).ok().map(|parsed| parsed.request);
    let response = match result.map_err(|error| acquire_error(&error))? {
        Acquired::Open { permit, decision, limits } => {
            let receipt = service.receipt(receipt, &decision);
            context.receipt = receipt.as_deref();
            let token = service.limiter.seal(&permit);
            acquired(&decision, &limits, &token, ttl, &context)
        }
        Acquired::Denied(decision) => {
            service.log_denial(id, Edge::Http, &decision, reparse);
            tidegate::http::response(&decision, &context)
        }
        Acquired::Full(denied) => {
            service.log_concurrency_denial(id, Edge::Http, &denied);
            concurrency_denied(&denied, &context)
        }
    };
    Ok(to_response(response))
}

/// Renews the permits of a request.
pub(super) async fn renew(service: &Service, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
    let ticket = parse_ticket(service, body)?;
    let renewed = service.limiter.renew(&ticket).await.map_err(store_unavailable)?;
    let ttl_ms = Nanos::from(ticket.ttl()).millis_up();
    let body = json!({"id": id.as_str(), "renewed": renewed, "ttl_ms": ttl_ms});
    Ok(json_response(StatusCode::OK, body.to_string().into(), id))
}

/// Releases the permits of a request. Idempotent.
pub(super) async fn release(service: &Service, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
    let ticket = parse_ticket(service, body)?;
    service.limiter.release(&ticket).await.map_err(store_unavailable)?;
    let body = json!({"id": id.as_str(), "released": true});
    Ok(json_response(StatusCode::OK, body.to_string().into(), id))
}

fn parse_ticket(service: &Service, body: &[u8]) -> Result<Ticket, ApiError> {
    let text = wire::parse_permit(body)?;
    service.limiter.unseal(&text).map_err(|error| invalid_ticket(&error))
}

fn invalid_ticket(error: &TicketError) -> ApiError {
    let bad = InputError { field: "permit".to_owned(), reason: error.to_string() };
    bad.into()
}

fn acquire_error(error: &AcquireError) -> ApiError {
    match error {
        AcquireError::Ticket(error) => invalid_ticket(error),
        AcquireError::Store(error) => {
            log_store_error(error);
            ApiError::StoreUnavailable
        }
        AcquireError::NoRandomness(error) => {
            tracing::error!(%error, "cannot create a permit without randomness");
            ApiError::Internal
        }
    }
}
