//! The routes of the JSON API.

use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{Method, StatusCode};
use hyper::body::Incoming;
use serde_json::json;
use tidegate::Refunded;
use tidegate::http::{BodyStyle, ResponseContext, acquired, concurrency_denied, item, response};
use tidegate_rules::request::Edge;
use tokio::sync::Semaphore;

use super::{explain, wire};
use crate::decider::{AcquireOutcome, CheckOptions, CheckedItem, DecideError, Decider};
use crate::edges::common::api_error::{ApiError, body_style, json_response, ok_response, to_response};
use crate::edges::common::check_body::{CheckBatch, CheckBody, parse_check};
use crate::edges::common::readiness_page;
use crate::logging::DecisionId;
use crate::net::body;
use crate::net::{BodyError, ConnectionUnread, HttpResponse};

/// A list of a thousand requests with generous attributes.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// Lists and explanations that are decided at the same time. Their responses take memory while they are built.
pub(crate) const MAX_LISTS: usize = 64;

static LISTS: Semaphore = Semaphore::const_new(MAX_LISTS);

/// The size of the response to a list relative to its body: an item of 17 bytes, the shortest, gets some 320.
const RESPONSE_RATIO: usize = 20;
const MAX_RESERVED_BYTES: usize = 320 << 10;

const OPENAPI: &str = include_str!("openapi.json");

/// The route of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HttpRoute {
    Check,
    Peek,
    Explain,
    Acquire,
    Renew,
    Release,
    Refund,
    Reserve,
    Settle,
    Health,
    Ready,
    OpenApi,
}

/// The parts of a request's head that are needed once its route is known. The head itself is dropped before a body is
/// awaited: thousands of streams may wait, and a head takes up to 32 KiB.
pub(crate) struct HttpRouteHead {
    route: HttpRoute,
    method: Method,
    style: BodyStyle,
}

impl HttpRouteHead {
    pub(crate) fn of(parts: &Parts) -> Result<Self, ApiError> {
        let route = match parts.uri.path() {
            "/v1/check" => HttpRoute::Check,
            "/v1/peek" => HttpRoute::Peek,
            "/v1/explain" => HttpRoute::Explain,
            "/v1/acquire" => HttpRoute::Acquire,
            "/v1/renew" => HttpRoute::Renew,
            "/v1/release" => HttpRoute::Release,
            "/v1/refund" => HttpRoute::Refund,
            "/v1/reserve" => HttpRoute::Reserve,
            "/v1/settle" => HttpRoute::Settle,
            "/healthz" => HttpRoute::Health,
            "/readyz" => HttpRoute::Ready,
            "/openapi.json" => HttpRoute::OpenApi,
            _ => return Err(ApiError::NotFound { hint: "see /openapi.json" }),
        };
        Ok(HttpRouteHead { route, style: body_style(&parts.headers), method: parts.method.clone() })
    }

    fn is_page(&self) -> bool {
        matches!(self.route, HttpRoute::Health | HttpRoute::Ready | HttpRoute::OpenApi)
    }

    /// Whether this route reads the body of this request.
    pub(crate) fn reads_body(&self) -> bool {
        self.method == Method::POST && !self.is_page()
    }

    pub(crate) async fn respond(
        self,
        decider: &Arc<Decider>,
        id: &DecisionId,
        unread: &ConnectionUnread,
        body: Incoming,
    ) -> Result<HttpResponse, ApiError> {
        if self.is_page() {
            require_get(&self.method)?;
            return Ok(self.page(decider, id));
        }
        if self.method != Method::POST {
            return Err(ApiError::Method { allow: "POST" });
        }
        let mut body = body::read(body, MAX_BODY_BYTES).await?;
        let may_be_list = matches!(self.route, HttpRoute::Check | HttpRoute::Peek | HttpRoute::Explain);
        let is_list = may_be_list && body.trim_ascii_start().starts_with(b"[");
        if !may_be_list && body.len() > body::MAX_SMALL_BODY {
            return Err(too_large());
        }
        if !is_list && self.route != HttpRoute::Explain {
            return decider.run(self.decide(decider, id, &body)).await;
        }
        // The response may be large: first the peer has to read enough of the earlier responses.
        let size = (RESPONSE_RATIO * body.len()).min(MAX_RESERVED_BYTES);
        let _room = body.wait_with_body(unread.reserve(size)).await?;
        let _permit = body.wait_with_body(LISTS.acquire()).await?;
        decider.run(self.decide(decider, id, &body)).await
    }

    fn page(&self, decider: &Decider, id: &DecisionId) -> HttpResponse {
        match self.route {
            HttpRoute::Ready => {
                let (status, page) = readiness_page::page(decider.readiness());
                json_response(status, page.to_string().into(), id)
            }
            HttpRoute::OpenApi => json_response(StatusCode::OK, Bytes::from_static(OPENAPI.as_bytes()), id),
            _ => ok_response(id, &json!({"status": "ok"})),
        }
    }

    async fn decide(&self, decider: &Arc<Decider>, id: &DecisionId, body: &Bytes) -> Result<HttpResponse, ApiError> {
        let style = self.style;
        // A permit is renewed and released by its token alone.
        if !matches!(self.route, HttpRoute::Renew | HttpRoute::Release) {
            decider.require_config(Edge::Http)?;
        }
        match self.route {
            HttpRoute::Check | HttpRoute::Peek | HttpRoute::Explain => self.check(decider, id, body).await,
            HttpRoute::Acquire => acquire(decider, id, style, body).await,
            HttpRoute::Reserve => reserve(decider, id, style, body).await,
            HttpRoute::Renew => {
                let (renewed, ttl) = decider.renew(&wire::parse_permit(body)?).await?;
                Ok(ok_response(id, &json!({"id": id.as_str(), "renewed": renewed, "ttl_ms": ttl.millis_up()})))
            }
            HttpRoute::Release => {
                decider.release(&wire::parse_permit(body)?).await?;
                Ok(ok_response(id, &json!({"id": id.as_str(), "released": true})))
            }
            HttpRoute::Refund => {
                let result = decider.refund(Edge::Http, &wire::parse_receipt(body)?).await?;
                let refunded = result == Refunded::Done;
                Ok(ok_response(id, &json!({"id": id.as_str(), "refunded": refunded, "result": result.name()})))
            }
            HttpRoute::Settle => {
                let parsed = wire::parse_settle(body)?;
                let settled = decider.settle(Edge::Http, &parsed.token, &parsed.actual).await?;
                Ok(ok_response(id, &json!({"id": id.as_str(), "settled": settled.name()})))
            }
            HttpRoute::Health | HttpRoute::Ready | HttpRoute::OpenApi => Ok(self.page(decider, id)),
        }
    }

    /// Decides one request or a list. A list with an invalid item is rejected as a whole, before anything is charged.
    async fn check(&self, decider: &Decider, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
        let one = match parse_check(body)? {
            CheckBody::Many(mut batch) => {
                for (at, request) in batch.requests.iter().enumerate() {
                    decider.validate(request).map_err(|error| ApiError::of_item(error, at))?;
                }
                if self.route == HttpRoute::Explain {
                    return explain::respond_to_list(decider, id, batch.requests);
                }
                self.set_scope(&mut batch.options);
                return Ok(check_list(decider, id, batch).await);
            }
            CheckBody::One(_) if body.len() > body::MAX_SMALL_BODY => return Err(too_large()),
            CheckBody::One(one) => *one,
        };
        let (request, mut options) = (one.request, [one.options]);
        if self.route == HttpRoute::Explain {
            return explain::respond(decider, id, request);
        }
        self.set_scope(&mut options);
        let again = || match parse_check(body) {
            Ok(CheckBody::One(one)) => Some(one.request),
            _ => None,
        };
        let checked = decider.check(id, request, options[0], again).await?;
        let receipt = checked.receipt.as_deref();
        let context = ResponseContext { receipt, ..decider.context(id, self.style) };
        Ok(to_response(response(&checked.decision, &context)))
    }

    fn set_scope(&self, options: &mut [CheckOptions]) {
        if self.route == HttpRoute::Peek {
            options.iter_mut().for_each(|options| *options = options.peeking());
        }
    }
}

pub(crate) fn require_get(method: &Method) -> Result<(), ApiError> {
    match *method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(ApiError::Method { allow: "GET, HEAD" }),
    }
}

fn too_large() -> ApiError {
    ApiError::Body(BodyError::TooLarge { max_bytes: body::MAX_SMALL_BODY })
}

/// Decides each request of a list on its own, in order.
async fn check_list(decider: &Decider, id: &DecisionId, batch: CheckBatch<'_>) -> HttpResponse {
    let mut out = Vec::with_capacity(batch.requests.len() * 320 + 2);
    out.push(b'[');
    let context = decider.context(id, BodyStyle::Plain);
    let write = |result: Result<CheckedItem<'_>, DecideError>| {
        if out.len() > 1 {
            out.push(b',');
        }
        let Ok(checked) = result else {
            return out.extend_from_slice(br#"{"status":503,"error":"store_unavailable"}"#);
        };
        let context = ResponseContext { id: checked.id.as_str(), receipt: checked.receipt.as_deref(), ..context };
        item(checked.decision, &context, &mut out);
    };
    decider.check_list(batch.requests, &batch.options, write).await;
    out.push(b']');
    json_response(StatusCode::OK, out.into(), id)
}

/// Acquires permits for a request, or responds with the denial.
async fn acquire(
    decider: &Arc<Decider>,
    id: &DecisionId,
    style: BodyStyle,
    body: &[u8],
) -> Result<HttpResponse, ApiError> {
    let parsed = wire::parse_acquire(body)?;
    let again = || wire::parse_acquire(body).ok().map(|parsed| parsed.request);
    let outcome = decider.acquire(id, parsed.request, (parsed.ttl, parsed.receipt), again).await?;
    let context = decider.context(id, style);
    Ok(to_response(match outcome {
        AcquireOutcome::Open { decision, limits, token, receipt } => {
            let context = ResponseContext { receipt: receipt.as_deref(), ..context };
            acquired(&decision, &limits, &token, parsed.ttl, &context)
        }
        AcquireOutcome::Denied(decision) => response(&decision, &context),
        AcquireOutcome::Full(denied) => concurrency_denied(&denied, &context),
    }))
}

/// Responds like a check, with a token to settle the reservation.
async fn reserve(decider: &Decider, id: &DecisionId, style: BodyStyle, body: &[u8]) -> Result<HttpResponse, ApiError> {
    let parsed = wire::parse_reserve(body)?;
    let again = || wire::parse_reserve(body).ok().map(|parsed| parsed.request);
    let reserved = decider.reserve(id, parsed.request, parsed.ttl, again).await?;
    let reservation = reserved.token.as_deref().map(|token| (token, reserved.ttl));
    let context = ResponseContext { reservation, ..decider.context(id, style) };
    Ok(to_response(response(&reserved.decision, &context)))
}
