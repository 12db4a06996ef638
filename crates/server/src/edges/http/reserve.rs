//! `/v1/reserve` and `/v1/settle`: an estimate is charged now, and what was used when it is known.

use http::StatusCode;
use serde_json::json;
use tidegate::SettleError;
use tidegate::http::{BodyStyle, answer};
use tidegate_core::request::Edge;

use super::error::{Refusal, json_answer};
use super::reserve_wire::{reserving, settling};
use super::serve::{decided, no_store};
use super::units;
use super::wire::BadInput;
use crate::ids::Id;
use crate::net::connection::Answer;
use crate::service::Service;

/// Answers as a check does, and with what to settle it.
pub(super) async fn reserve(
    service: &Service,
    id: &Id,
    style: BodyStyle,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let asked = reserving(body)?;
    units::check(service, &asked.request)?;
    let reserved = service.reserve(asked.request, asked.lasts).await;
    let reserved = reserved.map_err(no_store)?;
    let mut context = service.context(id, style);
    let token = reserved.token.as_deref();
    context.reservation = token.map(|token| (token, reserved.lasts));
    service.log_denial(id, Edge::Http, &reserved.decision, || {
        reserving(body).ok().map(|asked| asked.request)
    });
    Ok(decided(answer(&reserved.decision, &context)))
}

/// Says what became of it. What waits for the store is accepted.
pub(super) async fn settle(service: &Service, id: &Id, body: &[u8]) -> Result<Answer, Refusal> {
    let asked = settling(body)?;
    let settled = match service.limiter.settle(&asked.token, &asked.actual).await {
        Ok(settled) => settled,
        Err(SettleError::Store(error)) => return Err(no_store(error)),
        Err(error) => {
            let field = match &error {
                SettleError::NotReserved { unit } => format!("costs.{unit}"),
                _ => "reservation".to_owned(),
            };
            let reason = error.to_string();
            return Err(BadInput { field, reason }.into());
        }
    };
    let told = json!({"id": id.as_str(), "settled": settled.name()});
    Ok(json_answer(StatusCode::OK, told.to_string().into(), id))
}
