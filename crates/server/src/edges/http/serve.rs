//! The routes of the public listener.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use http::request::Parts;
use http::{Method, Response, StatusCode};
use http_body_util::Full;
use hyper::Request;
use hyper::body::Incoming;
use serde_json::json;
use tidegate::http::{Answer as Decided, answer, item};
use tidegate::{RefundError, View};
use tidegate_core::engine::{Decision, Edge};
use tidegate_core::store::{Refunded, StoreError};

use super::error::{Refusal, json_answer, sign};
use super::explain;
use super::wire::{self, Ask, Asked, BadInput};
use crate::address::Place;
use crate::drain::Phase;
use crate::edges::auth;
use crate::ids::Id;
use crate::net::body;
use crate::net::connection::{Answer, Handler};
use crate::service::{Service, body_style};

/// A list of a thousand requests with generous attributes.
const LARGEST: usize = 1 << 20;

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

impl Handler for Public {
    async fn handle(&self, peer: &Place, request: Request<Incoming>) -> Answer {
        let service = &*self.0;
        let (parts, body) = request.into_parts();
        let id = service.ids.next();
        let (edge, answered) = match parts.uri.path() {
            "/v1/auth" => (
                Edge::Auth,
                auth::serve::answer(service, &id, peer, &parts).await,
            ),
            path => (Edge::Http, route(service, &id, path, &parts, body).await),
        };
        let answer = answered.unwrap_or_else(|refusal| refusal.answer(&id));
        service.metrics.answered(edge, answer.status().as_u16());
        answer
    }

    fn panicked(&self) -> Answer {
        self.0.metrics.answered(Edge::Http, 500);
        Refusal::Internal.answer(&self.0.ids.next())
    }
}

async fn route(
    service: &Service,
    id: &Id,
    path: &str,
    parts: &Parts,
    body: Incoming,
) -> Result<Answer, Refusal> {
    match path {
        "/v1/check" => ask(service, id, Verb::Check, parts, body).await,
        "/v1/peek" => ask(service, id, Verb::Peek, parts, body).await,
        "/v1/explain" => ask(service, id, Verb::Explain, parts, body).await,
        "/v1/refund" => refund(service, id, parts, body).await,
        "/healthz" => get(parts).map(|()| status_answer(StatusCode::OK, "ok", id)),
        "/readyz" => get(parts).map(|()| match *service.phase.borrow() {
            Phase::Serving => status_answer(StatusCode::OK, "ready", id),
            _ => status_answer(StatusCode::SERVICE_UNAVAILABLE, "draining", id),
        }),
        "/openapi.json" => get(parts)
            .map(|()| json_answer(StatusCode::OK, Bytes::from_static(OPENAPI.as_bytes()), id)),
        _ => Err(Refusal::NoSuchPath),
    }
}

fn get(parts: &Parts) -> Result<(), Refusal> {
    match parts.method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Refusal::Method { allow: "GET, HEAD" }),
    }
}

/// The body of a POST.
pub(crate) async fn posted(parts: &Parts, body: Incoming) -> Result<Bytes, Refusal> {
    if parts.method != Method::POST {
        return Err(Refusal::Method { allow: "POST" });
    }
    Ok(body::read(body, LARGEST).await?)
}

fn status_answer(status: StatusCode, text: &str, id: &Id) -> Answer {
    json_answer(status, json!({"status": text}).to_string().into(), id)
}

/// One request or a list. A list that is not understood as a whole is refused as a whole, before
/// anything is charged.
async fn ask(
    service: &Service,
    id: &Id,
    verb: Verb,
    parts: &Parts,
    body: Incoming,
) -> Result<Answer, Refusal> {
    let body = posted(parts, body).await?;
    match wire::asked(&body)? {
        Asked::One(_) if body.len() > body::SMALL => {
            Err(Refusal::Body(body::BodyError::TooLarge {
                most: body::SMALL,
            }))
        }
        Asked::One(ask) if verb == Verb::Explain => {
            let explained = explain::json(&service.limiter.view().explain(ask.request));
            Ok(json_answer(
                StatusCode::OK,
                explained.to_string().into(),
                id,
            ))
        }
        Asked::One(ask) => one(service, id, verb, parts, *ask, &body).await,
        Asked::Many(asks) if verb == Verb::Explain => {
            let view = service.limiter.view();
            let all: Vec<_> = asks
                .into_iter()
                .map(|ask| explain::json(&view.explain(ask.request)))
                .collect();
            Ok(json_answer(
                StatusCode::OK,
                json!(all).to_string().into(),
                id,
            ))
        }
        Asked::Many(asks) => many(service, id, verb, asks, &body).await,
    }
}

async fn one(
    service: &Service,
    id: &Id,
    verb: Verb,
    parts: &Parts,
    ask: Ask<'_>,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let peek = ask.peek || verb == Verb::Peek;
    let decision = service.decide(ask.request, peek).await.map_err(no_store)?;
    let receipt = service.receipt(ask.receipt && !peek, &decision);
    let mut context = service.context(id, body_style(&parts.headers));
    context.receipt = receipt.as_deref();
    if !peek {
        service.log_denial(id, Edge::Http, &decision, || match wire::asked(body) {
            Ok(Asked::One(ask)) => Some(ask.request),
            _ => None,
        });
    }
    Ok(decided(answer(&decision, &context), id))
}

/// A decision on the wire.
pub(crate) fn decided(
    Decided {
        status,
        headers,
        body,
    }: Decided,
    id: &Id,
) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    *answer.headers_mut() = headers;
    sign(&mut answer, id);
    answer
}

/// A list: each decided on its own, in order, all under the same rules.
async fn many(
    service: &Service,
    id: &Id,
    verb: Verb,
    asks: Vec<Ask<'_>>,
    body: &[u8],
) -> Result<Answer, Refusal> {
    let begun = std::time::Instant::now();
    let view = service.limiter.view();
    let peeks: Vec<bool> = asks
        .iter()
        .map(|ask| ask.peek || verb == Verb::Peek)
        .collect();
    let receipts: Vec<bool> = asks.iter().map(|ask| ask.receipt).collect();
    let decisions = decide_each(&view, asks, &peeks).await;
    service.metrics.took(Edge::Http, begun.elapsed());
    let mut out = BytesMut::with_capacity(decisions.len() * 320 + 2);
    out.put_u8(b'[');
    for (at, decision) in decisions.into_iter().enumerate() {
        if at > 0 {
            out.put_u8(b',');
        }
        let id = service.ids.next();
        let Ok(decision) = decision else {
            out.put_slice(br#"{"status":503,"error":"store_unavailable"}"#);
            continue;
        };
        let receipt = service.receipt(receipts[at] && !peeks[at], &decision);
        let mut context = service.context(&id, tidegate::http::BodyStyle::Plain);
        context.receipt = receipt.as_deref();
        if !peeks[at] {
            service.log_denial(&id, Edge::Http, &decision, || match wire::asked(body) {
                Ok(Asked::Many(asks)) => asks.into_iter().nth(at).map(|ask| ask.request),
                _ => None,
            });
        }
        item(&decision, &context, &mut out);
    }
    out.put_u8(b']');
    Ok(json_answer(StatusCode::OK, out.freeze(), id))
}

async fn decide_each<S: tidegate_core::store::Store>(
    view: &View<'_, S>,
    asks: Vec<Ask<'_>>,
    peeks: &[bool],
) -> Vec<Result<Decision, StoreError>> {
    let requests = asks.into_iter().map(|ask| ask.request);
    if !peeks.contains(&true) {
        return view.check_each(requests.collect()).await;
    }
    let mut decisions = Vec::with_capacity(peeks.len());
    for (request, peek) in requests.zip(peeks) {
        decisions.push(match peek {
            true => view.peek(request).await,
            false => view.check(request).await,
        });
    }
    decisions
}

async fn refund(
    service: &Service,
    id: &Id,
    parts: &Parts,
    body: Incoming,
) -> Result<Answer, Refusal> {
    let body = posted(parts, body).await?;
    let receipt = wire::receipt(&body)?;
    let result = match service.limiter.refund(&receipt).await {
        Ok(Refunded::Done) => "done",
        Ok(Refunded::Already) => "already",
        Ok(Refunded::Lapsed) => "lapsed",
        Err(RefundError::Receipt(error)) => {
            let bad = BadInput {
                field: "receipt".to_owned(),
                reason: error.to_string(),
            };
            return Err(bad.into());
        }
        Err(RefundError::Store(error)) => return Err(no_store(error)),
    };
    let told = json!({"id": id.as_str(), "refunded": result == "done", "result": result});
    Ok(json_answer(StatusCode::OK, told.to_string().into(), id))
}

pub(crate) fn no_store(error: StoreError) -> Refusal {
    tracing::warn!(%error, "store gave no answer");
    Refusal::Store
}
