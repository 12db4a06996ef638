//! `/v1/reserve` and `/v1/settle`: an estimate is charged now, and the actual cost when it is known.

use http::StatusCode;
use serde_json::json;
use tidegate::SettleError;
use tidegate::http::{BodyStyle, response};
use tidegate_rules::request::Edge;

use super::serve::{store_unavailable, to_response};
use super::wire::{parse_reserve, parse_settle};
use crate::edges::common::api_error::{ApiError, InputError, json_response};
use crate::edges::common::names;
use crate::logging::decision_ids::DecisionId;
use crate::net::connection::HttpResponse;
use crate::service::Service;

/// Responds like a check, with a token to settle the reservation.
pub(super) async fn reserve(
    service: &Service,
    id: &DecisionId,
    style: BodyStyle,
    body: &[u8],
) -> Result<HttpResponse, ApiError> {
    let parsed = parse_reserve(body)?;
    names::check(service, &parsed.request)?;
    let reserved = service.reserve(parsed.request, parsed.ttl).await;
    let reserved = reserved.map_err(store_unavailable)?;
    let mut context = service.context(id, style);
    let token = reserved.token.as_deref();
    context.reservation = token.map(|token| (token, reserved.ttl));
    service.log_denial(id, Edge::Http, &reserved.decision, || parse_reserve(body).ok().map(|parsed| parsed.request));
    Ok(to_response(response(&reserved.decision, &context)))
}

/// Settles a reservation and responds with the result. A settlement that is pending for the store is accepted.
pub(super) async fn settle(service: &Service, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
    let parsed = parse_settle(body)?;
    let settled = match service.limiter.settle(&parsed.token, &parsed.actual).await {
        Ok(settled) => settled,
        Err(SettleError::Store(error)) => return Err(store_unavailable(error)),
        Err(error) => {
            let field = match &error {
                SettleError::NotReserved { unit } => format!("costs.{unit}"),
                _ => "reservation".to_owned(),
            };
            let reason = error.to_string();
            return Err(InputError { field, reason }.into());
        }
    };
    let body = json!({"id": id.as_str(), "settled": settled.name()});
    Ok(json_response(StatusCode::OK, body.to_string().into(), id))
}
