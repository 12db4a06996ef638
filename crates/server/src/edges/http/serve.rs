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
use tidegate::http::{Answer as Decided, BodyStyle, Context, answer, item};
use tidegate::{RefundError, View};
use tidegate_core::engine::Decision;
use tidegate_core::request::{Edge, Request};
use tidegate_core::store::{Refunded, Store, StoreError};
use tokio::sync::Semaphore;

use super::error::{Refusal, json_answer};
use super::wire::{self, Ask, Asked, Asks, BadInput, PlainCost, Wish};
use super::{explain, reserve, slots, units};
use crate::address::Place;
use crate::edges::{auth, envoy};
use crate::ids::Id;
use crate::net::body::{self, Discarded, Received};
use crate::net::connection::{Answer, Handler};
use crate::net::unread::ConnectionUnread;
use crate::service::{ChargeScope, Service, body_style};
use crate::store_log::log_unanswered;

/// A list of a thousand requests with generous attributes.
pub(crate) const LARGEST: usize = 1 << 20;

/// Lists and explanations that are decided at the same time. Their answers take memory while they are made.
pub(crate) const MAX_LISTS: usize = 64;

static LISTS: Semaphore = Semaphore::const_new(MAX_LISTS);

/// What the answer to a list takes: an item of 17 bytes, the shortest, is answered by some 320.
const ANSWER_RATIO: usize = 20;
const USUAL_LIST: usize = 320 << 10;

const OPENAPI: &str = include_str!("openapi.json");

/// The public listener.
#[derive(Clone)]
pub(crate) struct Public(pub(crate) Arc<Service>);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Verb {
    Check,
    Peek,
    Explain,
}

/// What a path leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Route {
    Decide(Verb),
    Acquire,
    Renew,
    Release,
    Refund,
    Reserve,
    Settle,
    Health,
    Ready,
    /// Of the Envoy reference service, by which its deployments are probed.
    Healthcheck,
    OpenApi,
}

/// What is needed of a request's head once its path is known. The head itself is dropped before a body is
/// awaited: thousands of streams may wait, and a head takes up to 32 KiB.
struct RouteHead {
    route: Route,
    method: Method,
    style: BodyStyle,
}

impl Route {
    fn of(path: &str) -> Option<Self> {
        Some(match path {
            "/v1/check" => Route::Decide(Verb::Check),
            "/v1/peek" => Route::Decide(Verb::Peek),
            "/v1/explain" => Route::Decide(Verb::Explain),
            "/v1/acquire" => Route::Acquire,
            "/v1/renew" => Route::Renew,
            "/v1/release" => Route::Release,
            "/v1/refund" => Route::Refund,
            "/v1/reserve" => Route::Reserve,
            "/v1/settle" => Route::Settle,
            "/healthz" => Route::Health,
            "/readyz" => Route::Ready,
            "/healthcheck" => Route::Healthcheck,
            "/openapi.json" => Route::OpenApi,
            _ => return None,
        })
    }

    /// Whether the rules have a say in the response. A refund or a settlement without the rules of its charge would be
    /// lost. A permit is renewed and released by its token alone.
    fn needs_rules(self) -> bool {
        match self {
            Route::Decide(_) | Route::Acquire | Route::Refund | Route::Reserve | Route::Settle => {
                true
            }
            Route::Renew | Route::Release => false,
            Route::Health | Route::Ready | Route::Healthcheck | Route::OpenApi => false,
        }
    }
}

impl Handler for Public {
    async fn handle(
        &self,
        peer: &Place,
        unread: &ConnectionUnread,
        request: hyper::Request<Incoming>,
    ) -> Answer {
        let service = &self.0;
        let (parts, mut body) = request.into_parts();
        let id = service.ids.next();
        let mut left_of_body = Discarded::Whole;
        let (edge, answered) = match parts.uri.path() {
            "/v1/auth" => {
                left_of_body = discard(&parts, &mut body).await;
                drop(body);
                let deciding = auth::serve::answer(service, &id, peer, &parts);
                (Edge::Auth, service.wait_for(deciding).await)
            }
            "/json" => {
                drop(parts);
                return envoy::json::answer(service, body).await;
            }
            path => {
                let route = Route::of(path).ok_or(Refusal::NoSuchPath);
                let head = route.map(|route| RouteHead {
                    route,
                    style: body_style(&parts.headers),
                    method: parts.method.clone(),
                });
                if !head.as_ref().is_ok_and(RouteHead::reads_body) {
                    left_of_body = discard(&parts, &mut body).await;
                }
                drop(parts);
                let answered = match head {
                    Ok(head) => head.answer(service, &id, unread, body).await,
                    Err(refusal) => Err(refusal),
                };
                (Edge::Http, answered)
            }
        };
        let mut answer = answered.unwrap_or_else(|refusal| refusal.answer(&id));
        if left_of_body == Discarded::Partly {
            let close = HeaderValue::from_static("close");
            answer.headers_mut().insert(header::CONNECTION, close);
        }
        service.metrics.answered(edge, answer.status().as_u16());
        answer
    }

    fn panicked(&self) -> Answer {
        self.0.metrics.answered(Edge::Http, 500);
        Refusal::Internal.answer(&self.0.ids.next())
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.0.reading().trusts(peer)
    }
}

/// Discards a body that nobody reads, so that its HTTP/1 connection can go on. An HTTP/2 stream ends alone.
async fn discard(parts: &Parts, body: &mut Incoming) -> Discarded {
    if parts.version >= Version::HTTP_2 || body.is_end_stream() {
        return Discarded::Whole;
    }
    // To look for it would ask the client to send it.
    if parts.headers.contains_key(header::EXPECT) {
        return Discarded::Partly;
    }
    body::discard(body).await
}

impl RouteHead {
    /// Whether the body of this request is looked at.
    fn reads_body(&self) -> bool {
        let is_page = matches!(
            self.route,
            Route::Health | Route::Ready | Route::Healthcheck | Route::OpenApi
        );
        self.method == Method::POST && !is_page
    }

    async fn answer(
        self,
        service: &Arc<Service>,
        id: &Id,
        unread: &ConnectionUnread,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let style = self.style;
        match self.route {
            Route::Decide(verb) => self.decide(service, id, verb, unread, body).await,
            Route::Acquire => {
                let body = self.posted_small(service, body).await?;
                let acquiring = slots::acquire(service, id, style, &body);
                service.wait_for(acquiring).await
            }
            Route::Renew => {
                let body = self.posted_small(service, body).await?;
                service.wait_for(slots::renew(service, id, &body)).await
            }
            Route::Release => {
                let body = self.posted_small(service, body).await?;
                service.wait_for(slots::release(service, id, &body)).await
            }
            Route::Refund => {
                let body = self.posted(service, body).await?;
                service.wait_for(refund(service, id, &body)).await
            }
            Route::Reserve => {
                let body = self.posted_small(service, body).await?;
                let reserving = reserve::reserve(service, id, style, &body);
                service.wait_for(reserving).await
            }
            Route::Settle => {
                let body = self.posted_small(service, body).await?;
                service.wait_for(reserve::settle(service, id, &body)).await
            }
            Route::Health => self.get().map(|()| status_answer(StatusCode::OK, "ok", id)),
            Route::Ready => self.get().map(|()| {
                let readiness = service.readiness();
                json_answer(readiness.code(), readiness.page().to_string().into(), id)
            }),
            Route::Healthcheck => self.get().map(|()| healthcheck(service.is_healthy())),
            Route::OpenApi => {
                let page = Bytes::from_static(OPENAPI.as_bytes());
                self.get().map(|()| json_answer(StatusCode::OK, page, id))
            }
        }
    }

    /// Answers a body once it is there, and where the answer may be large, once its peer has read enough of
    /// those before it.
    async fn decide(
        &self,
        service: &Service,
        id: &Id,
        verb: Verb,
        unread: &ConnectionUnread,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let mut body = self.posted(service, body).await?;
        let is_list = body.trim_ascii_start().starts_with(b"[");
        // Made where it is used: a connection would else have room for it all the time.
        let deciding = |body| ask(service, id, verb, self.style, body);
        if !is_list && verb != Verb::Explain {
            return service.wait_for(deciding(&body)).await;
        }
        let size = (ANSWER_RATIO * body.len()).min(USUAL_LIST);
        let _room = body.while_held(unread.reserve(size)).await?;
        let _turn = body.while_held(LISTS.acquire()).await?;
        service.wait_for(deciding(&body)).await
    }

    fn get(&self) -> Result<(), Refusal> {
        match self.method {
            Method::GET | Method::HEAD => Ok(()),
            _ => Err(Refusal::Method { allow: "GET, HEAD" }),
        }
    }

    /// The body of a POST that can be served.
    async fn posted(&self, service: &Service, body: Incoming) -> Result<Received, Refusal> {
        if self.method != Method::POST {
            return Err(Refusal::Method { allow: "POST" });
        }
        let body = body::read(body, LARGEST).await?;
        if self.route.needs_rules() {
            service.require_config(Edge::Http)?;
        }
        Ok(body)
    }

    /// The body of a POST that is never a list.
    async fn posted_small(&self, service: &Service, body: Incoming) -> Result<Received, Refusal> {
        let body = self.posted(service, body).await?;
        if body.len() > body::SMALL {
            return Err(too_large());
        }
        Ok(body)
    }
}

fn too_large() -> Refusal {
    Refusal::Body(body::BodyError::TooLarge { most: body::SMALL })
}

fn status_answer(status: StatusCode, text: &str, id: &Id) -> Answer {
    json_answer(status, json!({"status": text}).to_string().into(), id)
}

fn healthcheck(healthy: bool) -> Answer {
    let (status, text) = match healthy {
        true => (StatusCode::OK, "OK"),
        false => (StatusCode::INTERNAL_SERVER_ERROR, ""),
    };
    let mut answer = Response::new(Bytes::from_static(text.as_bytes()).into());
    *answer.status_mut() = status;
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, plain);
    answer
}

/// One request or a list. A list that is not understood as a whole is refused as a whole, before
/// anything is charged.
async fn ask(
    service: &Service,
    id: &Id,
    verb: Verb,
    style: BodyStyle,
    body: &Bytes,
) -> Result<Answer, Refusal> {
    let asked = wire::asked(body)?;
    units::check_all(service, &asked)?;
    match asked {
        Asked::One(_) if body.len() > body::SMALL => Err(too_large()),
        asked if verb == Verb::Explain => explain::answer(service, id, asked),
        Asked::One(ask) => one(service, id, verb, style, *ask, body).await,
        Asked::Many(asks) => Ok(many(service, id, verb, asks, body).await),
    }
}

async fn one(
    service: &Service,
    id: &Id,
    verb: Verb,
    style: BodyStyle,
    ask: Ask<'_>,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let scope = scope(verb, ask.wish);
    let decision = service.decide(ask.request, scope).await;
    let decision = decision.map_err(no_store)?;
    let receipt = service.receipt(ask.wish.receipt && scope.charges(), &decision);
    let mut context = service.context(id, style);
    context.receipt = receipt.as_deref();
    if scope.charges() {
        service.log_denial(id, Edge::Http, &decision, || match wire::asked(body) {
            Ok(Asked::One(ask)) => Some(ask.request),
            _ => None,
        });
    }
    Ok(decided(answer(&decision, &context)))
}

/// Which rules a request charges.
fn scope(verb: Verb, wish: Wish) -> ChargeScope {
    match (verb, wish.plain_cost) {
        (Verb::Peek | Verb::Explain, _) => ChargeScope::Nothing,
        (Verb::Check, PlainCost::Zero) => ChargeScope::Units,
        (Verb::Check, PlainCost::Charged) => ChargeScope::All,
    }
}

/// A decision on the wire.
pub(crate) fn decided(decided: Decided) -> Answer {
    let mut answer = Response::new(decided.body.into());
    *answer.status_mut() = decided.status;
    *answer.headers_mut() = decided.headers;
    answer
}

/// A list: each decided on its own, in order, all under the same rules. Taken in pieces that fit
/// the processor's first cache.
async fn many(service: &Service, id: &Id, verb: Verb, asks: Asks<'_>, body: &[u8]) -> Answer {
    const PIECE: usize = 16;
    let view = service.limiter.view();
    let (mut requests, wishes) = (asks.requests, asks.wishes);
    let mut out = Vec::with_capacity(requests.len() * 320 + 2);
    out.push(b'[');
    // Asked for by the log alone, and then read once for the whole list.
    let again = OnceCell::new();
    let context = service.context(id, BodyStyle::Plain);
    let (mut at, mut took) = (0, Duration::ZERO);
    for (piece, wishes) in requests.chunks_mut(PIECE).zip(wishes.chunks(PIECE)) {
        let begun = Instant::now();
        let decisions = decide_each(&view, piece, wishes, verb).await;
        took += begun.elapsed();
        for (decision, wish) in decisions.iter().zip(wishes) {
            if at > 0 {
                out.push(b',');
            }
            let asked = || match again.get_or_init(|| wire::asked(body)) {
                Ok(Asked::Many(asks)) => asks.requests.get(at).cloned(),
                _ => None,
            };
            write_item(service, &context, decision, *wish, verb, asked, &mut out);
            at += 1;
        }
    }
    out.push(b']');
    service.metrics.took(Edge::Http, took);
    json_answer(StatusCode::OK, out.into(), id)
}

fn write_item<'a>(
    service: &Service,
    list: &Context<'_>,
    decision: &Result<Decision, StoreError>,
    wish: Wish,
    verb: Verb,
    asked: impl FnOnce() -> Option<Request<'a>>,
    out: &mut Vec<u8>,
) {
    let id = service.ids.next();
    let Ok(decision) = decision else {
        out.extend_from_slice(br#"{"status":503,"error":"store_unavailable"}"#);
        return;
    };
    let charges = scope(verb, wish).charges();
    if charges {
        service.log_denial(&id, Edge::Http, decision, asked);
    }
    let receipt = service.receipt(wish.receipt && charges, decision);
    let context = Context {
        id: id.as_str(),
        receipt: receipt.as_deref(),
        ..*list
    };
    item(decision, &context, out);
}

async fn decide_each<'r, S: Store>(
    view: &'r View<'_, S>,
    requests: &mut [Request<'r>],
    wishes: &[Wish],
    verb: Verb,
) -> Vec<Result<Decision, StoreError>> {
    let scope = |wish: &Wish| scope(verb, *wish);
    if wishes.iter().all(|wish| scope(wish) == ChargeScope::All) {
        return view.check_each(requests).await;
    }
    let mut decided = Vec::with_capacity(wishes.len());
    for (request, wish) in requests.iter().cloned().zip(wishes) {
        decided.push(match scope(wish) {
            ChargeScope::Nothing => view.peek(request).await,
            ChargeScope::Units => view.check_units(request).await,
            ChargeScope::All => view.check(request).await,
        });
    }
    decided
}

async fn refund(service: &Service, id: &Id, body: &[u8]) -> Result<Answer, Refusal> {
    let receipt = wire::receipt(body)?;
    let result = match service.limiter.refund(&receipt).await {
        Ok(refunded) => refunded,
        Err(RefundError::Receipt(error)) => {
            let bad = BadInput {
                field: "receipt".to_owned(),
                reason: error.to_string(),
            };
            return Err(bad.into());
        }
        Err(RefundError::Store(error)) => return Err(no_store(error)),
    };
    let refunded = result == Refunded::Done;
    let body = json!({"id": id.as_str(), "refunded": refunded, "result": result.name()});
    Ok(json_answer(StatusCode::OK, body.to_string().into(), id))
}

pub(crate) fn no_store(error: StoreError) -> Refusal {
    log_unanswered(&error);
    Refusal::Store
}
