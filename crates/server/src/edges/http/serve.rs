//! The routes of the public listener.

use std::cell::OnceCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use serde_json::json;
use tidegate::http::{BodyStyle, DecisionResponse as Decided, ResponseContext, item, response};
use tidegate::{LimiterView, RefundError};
use tidegate_core::store::{Refunded, Store, StoreError};
use tidegate_rules::engine::Decision;
use tidegate_rules::request::{Edge, Request};
use tokio::sync::Semaphore;

use super::{explain, permits, reserve, wire};
use crate::config::listen_address::EndpointAddress;
use crate::edges::common::api_error::{ApiError, InputError, json_response};
use crate::edges::common::check_body::{CheckBatch, CheckBody, CheckOptions, CheckRequest, PlainCost, parse_check};
use crate::edges::common::names;
use crate::edges::{envoy, proxy_auth};
use crate::logging::decision_ids::DecisionId;
use crate::net::body::{self, Discarded, ReceivedBody};
use crate::net::connection::{HttpHandler, HttpResponse};
use crate::net::unread_responses::ConnectionUnread;
use crate::service::{ChargeScope, Service, body_style};
use crate::state::store_error_log::log_store_error;

/// A list of a thousand requests with generous attributes.
pub(crate) const MAX_BODY_BYTES: usize = 1 << 20;

/// Lists and explanations that are decided at the same time. Their responses take memory while they are built.
pub(crate) const MAX_LISTS: usize = 64;

static LISTS: Semaphore = Semaphore::const_new(MAX_LISTS);

/// The size of the response to a list relative to its body: an item of 17 bytes, the shortest, gets some 320.
const RESPONSE_RATIO: usize = 20;
const MAX_RESERVED_BYTES: usize = 320 << 10;

const OPENAPI: &str = include_str!("openapi.json");

#[derive(Clone)]
pub(crate) struct PublicListener(pub(crate) Arc<Service>);

/// The kind of decision.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CheckVerb {
    Check,
    Peek,
    Explain,
}

/// The route of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum HttpRoute {
    Decide(CheckVerb),
    Acquire,
    Renew,
    Release,
    Refund,
    Reserve,
    Settle,
    Health,
    Ready,
    /// The health check of the Envoy reference service, by which its deployments are probed.
    Healthcheck,
    OpenApi,
}

/// The parts of a request's head that are needed once its route is known. The head itself is dropped before a body is
/// awaited: thousands of streams may wait, and a head takes up to 32 KiB.
struct HttpRouteHead {
    route: HttpRoute,
    method: Method,
    style: BodyStyle,
}

impl HttpRoute {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => HttpRoute::Decide(CheckVerb::Check),
            "/v1/peek" => HttpRoute::Decide(CheckVerb::Peek),
            "/v1/explain" => HttpRoute::Decide(CheckVerb::Explain),
            "/v1/acquire" => HttpRoute::Acquire,
            "/v1/renew" => HttpRoute::Renew,
            "/v1/release" => HttpRoute::Release,
            "/v1/refund" => HttpRoute::Refund,
            "/v1/reserve" => HttpRoute::Reserve,
            "/v1/settle" => HttpRoute::Settle,
            "/healthz" => HttpRoute::Health,
            "/readyz" => HttpRoute::Ready,
            "/healthcheck" => HttpRoute::Healthcheck,
            "/openapi.json" => HttpRoute::OpenApi,
            _ => return None,
        })
    }

    /// Whether the response depends on the rules. A refund or a settlement without the rules of its charge would be
    /// lost. A permit is renewed and released by its token alone.
    fn needs_rules(self) -> bool {
        match self {
            HttpRoute::Decide(_) | HttpRoute::Acquire | HttpRoute::Refund | HttpRoute::Reserve | HttpRoute::Settle => {
                true
            }
            HttpRoute::Renew | HttpRoute::Release => false,
            HttpRoute::Health | HttpRoute::Ready | HttpRoute::Healthcheck | HttpRoute::OpenApi => false,
        }
    }
}

impl HttpHandler for PublicListener {
    async fn handle(
        &self,
        peer: &EndpointAddress,
        unread: &ConnectionUnread,
        request: hyper::Request<Incoming>,
    ) -> HttpResponse {
        let service = &self.0;
        let (parts, mut body) = request.into_parts();
        let id = service.ids.next();
        let mut discarded = Discarded::Whole;
        let (edge, result) = match parts.uri.path() {
            "/v1/auth" => {
                discarded = discard(&parts, &mut body).await;
                drop(body);
                let deciding = proxy_auth::serve::respond(service, &id, peer, &parts);
                (Edge::Auth, service.wait_for(deciding).await)
            }
            "/json" => {
                drop(parts);
                return envoy::json::respond(service, body).await;
            }
            path => {
                let route = HttpRoute::of(path).ok_or(ApiError::NotFound { hint: "see /openapi.json" });
                let head = route.map(|route| HttpRouteHead {
                    route,
                    style: body_style(&parts.headers),
                    method: parts.method.clone(),
                });
                if !head.as_ref().is_ok_and(HttpRouteHead::reads_body) {
                    discarded = discard(&parts, &mut body).await;
                }
                drop(parts);
                let result = match head {
                    Ok(head) => head.respond(service, &id, unread, body).await,
                    Err(error) => Err(error),
                };
                (Edge::Http, result)
            }
        };
        let mut response = result.unwrap_or_else(|error| error.to_response(&id));
        if discarded == Discarded::Partly {
            let close = HeaderValue::from_static("close");
            response.headers_mut().insert(header::CONNECTION, close);
        }
        service.metrics.count_response(edge, response.status().as_u16());
        response
    }

    fn panic_response(&self) -> HttpResponse {
        self.0.metrics.count_response(Edge::Http, 500);
        ApiError::Internal.to_response(&self.0.ids.next())
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.0.proxy_header_policy().trusts(peer)
    }
}

/// Discards a body that no route reads, so that its HTTP/1 connection can continue. An HTTP/2 stream ends alone.
async fn discard(parts: &Parts, body: &mut Incoming) -> Discarded {
    if parts.version >= Version::HTTP_2 || body.is_end_stream() {
        return Discarded::Whole;
    }
    // Reading the body would make the client send it.
    if parts.headers.contains_key(header::EXPECT) {
        return Discarded::Partly;
    }
    body::discard(body).await
}

impl HttpRouteHead {
    /// Whether this route reads the body of this request.
    fn reads_body(&self) -> bool {
        let is_page =
            matches!(self.route, HttpRoute::Health | HttpRoute::Ready | HttpRoute::Healthcheck | HttpRoute::OpenApi);
        self.method == Method::POST && !is_page
    }

    async fn respond(
        self,
        service: &Arc<Service>,
        id: &DecisionId,
        unread: &ConnectionUnread,
        body: Incoming,
    ) -> Result<HttpResponse, ApiError> {
        let style = self.style;
        match self.route {
            HttpRoute::Decide(verb) => self.decide(service, id, verb, unread, body).await,
            HttpRoute::Acquire => {
                let body = self.read_small_post(service, body).await?;
                let acquiring = permits::acquire(service, id, style, &body);
                service.wait_for(acquiring).await
            }
            HttpRoute::Renew => {
                let body = self.read_small_post(service, body).await?;
                service.wait_for(permits::renew(service, id, &body)).await
            }
            HttpRoute::Release => {
                let body = self.read_small_post(service, body).await?;
                service.wait_for(permits::release(service, id, &body)).await
            }
            HttpRoute::Refund => {
                let body = self.read_post(service, body).await?;
                service.wait_for(refund(service, id, &body)).await
            }
            HttpRoute::Reserve => {
                let body = self.read_small_post(service, body).await?;
                let reserving = reserve::reserve(service, id, style, &body);
                service.wait_for(reserving).await
            }
            HttpRoute::Settle => {
                let body = self.read_small_post(service, body).await?;
                service.wait_for(reserve::settle(service, id, &body)).await
            }
            HttpRoute::Health => self.require_get().map(|()| status_response(StatusCode::OK, "ok", id)),
            HttpRoute::Ready => self.require_get().map(|()| {
                let readiness = service.readiness();
                json_response(readiness.status_code(), readiness.body().to_string().into(), id)
            }),
            HttpRoute::Healthcheck => self.require_get().map(|()| healthcheck(service.is_healthy())),
            HttpRoute::OpenApi => {
                let page = Bytes::from_static(OPENAPI.as_bytes());
                self.require_get().map(|()| json_response(StatusCode::OK, page, id))
            }
        }
    }

    /// Decides a body once it has arrived. Where the response may be large, it first waits until the peer has read
    /// enough of the earlier responses.
    async fn decide(
        &self,
        service: &Service,
        id: &DecisionId,
        verb: CheckVerb,
        unread: &ConnectionUnread,
        body: Incoming,
    ) -> Result<HttpResponse, ApiError> {
        let mut body = self.read_post(service, body).await?;
        let is_list = body.trim_ascii_start().starts_with(b"[");
        // Created at its use: otherwise every connection would reserve space for it.
        let deciding = |body| decide_body(service, id, verb, self.style, body);
        if !is_list && verb != CheckVerb::Explain {
            return service.wait_for(deciding(&body)).await;
        }
        let size = (RESPONSE_RATIO * body.len()).min(MAX_RESERVED_BYTES);
        let _room = body.wait_with_body(unread.reserve(size)).await?;
        let _permit = body.wait_with_body(LISTS.acquire()).await?;
        service.wait_for(deciding(&body)).await
    }

    fn require_get(&self) -> Result<(), ApiError> {
        match self.method {
            Method::GET | Method::HEAD => Ok(()),
            _ => Err(ApiError::Method { allow: "GET, HEAD" }),
        }
    }

    /// The body of a POST that can be served.
    async fn read_post(&self, service: &Service, body: Incoming) -> Result<ReceivedBody, ApiError> {
        if self.method != Method::POST {
            return Err(ApiError::Method { allow: "POST" });
        }
        let body = body::read(body, MAX_BODY_BYTES).await?;
        if self.route.needs_rules() {
            service.require_config(Edge::Http)?;
        }
        Ok(body)
    }

    /// The body of a POST that is never a list.
    async fn read_small_post(&self, service: &Service, body: Incoming) -> Result<ReceivedBody, ApiError> {
        let body = self.read_post(service, body).await?;
        if body.len() > body::MAX_SMALL_BODY {
            return Err(too_large());
        }
        Ok(body)
    }
}

fn too_large() -> ApiError {
    ApiError::Body(body::BodyError::TooLarge { max_bytes: body::MAX_SMALL_BODY })
}

fn status_response(status: StatusCode, text: &str, id: &DecisionId) -> HttpResponse {
    json_response(status, json!({"status": text}).to_string().into(), id)
}

fn healthcheck(healthy: bool) -> HttpResponse {
    let (status, text) = if healthy { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") };
    let mut response = Response::new(Bytes::from_static(text.as_bytes()).into());
    *response.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}

/// Decides one request or a list. A list with an invalid item is rejected as a whole, before anything is charged.
async fn decide_body(
    service: &Service,
    id: &DecisionId,
    verb: CheckVerb,
    style: BodyStyle,
    body: &Bytes,
) -> Result<HttpResponse, ApiError> {
    let parsed = parse_check(body)?;
    names::check_all(service, &parsed)?;
    match parsed {
        CheckBody::One(_) if body.len() > body::MAX_SMALL_BODY => Err(too_large()),
        parsed if verb == CheckVerb::Explain => explain::respond(service, id, parsed),
        CheckBody::One(check_request) => decide_one(service, id, verb, style, *check_request, body).await,
        CheckBody::Many(batch) => Ok(decide_batch(service, id, verb, batch, body).await),
    }
}

async fn decide_one(
    service: &Service,
    id: &DecisionId,
    verb: CheckVerb,
    style: BodyStyle,
    check_request: CheckRequest<'_>,
    body: &[u8],
) -> Result<HttpResponse, ApiError> {
    let scope = scope(verb, check_request.options);
    let decision = service.decide(check_request.request, scope).await;
    let decision = decision.map_err(store_unavailable)?;
    let receipt = service.receipt(check_request.options.receipt && scope.charges(), &decision);
    let mut context = service.context(id, style);
    context.receipt = receipt.as_deref();
    if scope.charges() {
        service.log_denial(id, Edge::Http, &decision, || match parse_check(body) {
            Ok(CheckBody::One(check_request)) => Some(check_request.request),
            _ => None,
        });
    }
    Ok(to_response(response(&decision, &context)))
}

/// The rules that a request charges.
fn scope(verb: CheckVerb, options: CheckOptions) -> ChargeScope {
    match (verb, options.plain_cost) {
        (CheckVerb::Peek | CheckVerb::Explain, _) => ChargeScope::Nothing,
        (CheckVerb::Check, PlainCost::Zero) => ChargeScope::Units,
        (CheckVerb::Check, PlainCost::Charged) => ChargeScope::All,
    }
}

/// The HTTP response of a decision.
pub(crate) fn to_response(decided: Decided) -> HttpResponse {
    let mut response = Response::new(decided.body.into());
    *response.status_mut() = decided.status;
    *response.headers_mut() = decided.headers;
    response
}

/// Decides each request of a list on its own, in order, all under the same rules. Works in chunks that fit the first
/// cache of the processor.
async fn decide_batch(
    service: &Service,
    id: &DecisionId,
    verb: CheckVerb,
    batch: CheckBatch<'_>,
    body: &[u8],
) -> HttpResponse {
    const PIECE: usize = 16;
    let view = service.limiter.view();
    let (mut requests, options) = (batch.requests, batch.options);
    let mut out = Vec::with_capacity(requests.len() * 320 + 2);
    out.push(b'[');
    // Used only by the log, and then parsed once for the whole list.
    let reparsed = OnceCell::new();
    let context = service.context(id, BodyStyle::Plain);
    let (mut at, mut took) = (0, Duration::ZERO);
    for (piece, options) in requests.chunks_mut(PIECE).zip(options.chunks(PIECE)) {
        let started = Instant::now();
        let decisions = decide_each(&view, piece, options, verb).await;
        took += started.elapsed();
        for (decision, item_options) in decisions.iter().zip(options) {
            if at > 0 {
                out.push(b',');
            }
            let reparse = || match reparsed.get_or_init(|| parse_check(body)) {
                Ok(CheckBody::Many(batch)) => batch.requests.get(at).cloned(),
                _ => None,
            };
            write_item(service, &context, decision, *item_options, verb, reparse, &mut out);
            at += 1;
        }
    }
    out.push(b']');
    service.metrics.record_duration(Edge::Http, took);
    json_response(StatusCode::OK, out.into(), id)
}

fn write_item<'a>(
    service: &Service,
    list: &ResponseContext<'_>,
    decision: &Result<Decision, StoreError>,
    options: CheckOptions,
    verb: CheckVerb,
    reparse: impl FnOnce() -> Option<Request<'a>>,
    out: &mut Vec<u8>,
) {
    let id = service.ids.next();
    let Ok(decision) = decision else {
        out.extend_from_slice(br#"{"status":503,"error":"store_unavailable"}"#);
        return;
    };
    let charges = scope(verb, options).charges();
    if charges {
        service.log_denial(&id, Edge::Http, decision, reparse);
    }
    let receipt = service.receipt(options.receipt && charges, decision);
    let context = ResponseContext { id: id.as_str(), receipt: receipt.as_deref(), ..*list };
    item(decision, &context, out);
}

async fn decide_each<'r, S: Store>(
    view: &'r LimiterView<'_, S>,
    requests: &mut [Request<'r>],
    options: &[CheckOptions],
    verb: CheckVerb,
) -> Vec<Result<Decision, StoreError>> {
    let scope = |item_options: &CheckOptions| scope(verb, *item_options);
    if options.iter().all(|item_options| scope(item_options) == ChargeScope::All) {
        return view.check_each(requests).await;
    }
    let mut decided = Vec::with_capacity(options.len());
    for (request, item_options) in requests.iter().cloned().zip(options) {
        decided.push(match scope(item_options) {
            ChargeScope::Nothing => view.peek(request).await,
            ChargeScope::Units => view.check_units(request).await,
            ChargeScope::All => view.check(request).await,
        });
    }
    decided
}

async fn refund(service: &Service, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
    let receipt = wire::parse_receipt(body)?;
    let result = match service.limiter.refund(&receipt).await {
        Ok(refunded) => refunded,
        Err(RefundError::Receipt(error)) => {
            let bad = InputError { field: "receipt".to_owned(), reason: error.to_string() };
            return Err(bad.into());
        }
        Err(RefundError::Store(error)) => return Err(store_unavailable(error)),
    };
    let refunded = result == Refunded::Done;
    let body = json!({"id": id.as_str(), "refunded": refunded, "result": result.name()});
    Ok(json_response(StatusCode::OK, body.to_string().into(), id))
}

pub(crate) fn store_unavailable(error: StoreError) -> ApiError {
    log_store_error(&error);
    ApiError::StoreUnavailable
}
