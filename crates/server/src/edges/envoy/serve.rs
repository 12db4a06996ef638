//! The methods of the gRPC listener.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use hyper::Request;
use hyper::body::Incoming;
use tidegate::View;
use tidegate::http::BodyStyle;
use tidegate_core::engine::Judged;
use tidegate_core::request::Edge;

use super::deadline::CallerWait;
use super::error::Fault;
use super::reply::Reply;
use super::wire::{self, Asked};
use super::{frame, health, native};
use crate::address::Place;
use crate::counters::Counters;
use crate::ids::Id;
use crate::net::body;
use crate::net::connection::{Answer, Handler, Speaks};
use crate::net::unread::ConnectionUnread;
use crate::service::Service;
use crate::store_log::log_unanswered;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// What most answers take: one status and five headers.
const USUAL_ANSWER: usize = 384;

/// A method that is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum GrpcMethod {
    ShouldRateLimit,
    Health,
}

impl GrpcMethod {
    fn of(path: &str) -> Option<Self> {
        match path {
            SHOULD_RATE_LIMIT => Some(GrpcMethod::ShouldRateLimit),
            HEALTH => Some(GrpcMethod::Health),
            _ => None,
        }
    }
}

/// The gRPC listener.
#[derive(Clone)]
pub(crate) struct Envoy(pub(crate) Arc<Service>);

impl Handler for Envoy {
    async fn handle(&self, _: &Place, _: &ConnectionUnread, request: Request<Incoming>) -> Answer {
        let service = &*self.0;
        let (parts, body) = request.into_parts();
        if parts.method != Method::POST || !frame::is_spoken(&parts.headers) {
            service.metrics.answered(Edge::Envoy, 415);
            let mut answer = Response::new(Bytes::new().into());
            *answer.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return answer;
        }
        let method = GrpcMethod::of(parts.uri.path());
        let wait = CallerWait::of(&parts.headers, service.envoy.default_wait);
        // The head is not held while a body is awaited.
        drop(parts);
        let answered = match method {
            Some(GrpcMethod::ShouldRateLimit) => should_rate_limit(service, wait, body).await,
            Some(GrpcMethod::Health) => check_health(service, body).await.map(|out| (200, out)),
            None => Err(Fault::NoSuchMethod),
        };
        match answered {
            Ok((status, out)) => {
                service.metrics.answered(Edge::Envoy, status);
                frame::answer(out)
            }
            Err(fault) => {
                service.metrics.answered(Edge::Envoy, fault.status());
                fault.answer()
            }
        }
    }

    fn panicked(&self) -> Answer {
        self.0.metrics.answered(Edge::Envoy, 500);
        Fault::Internal.answer()
    }

    fn speaks(&self) -> Speaks {
        Speaks::Http2
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        self.0.reading().trusts(peer)
    }
}

/// A status for the metrics, and a message in its envelope.
type Told = Result<(u16, Vec<u8>), Fault>;

async fn should_rate_limit(service: &Service, wait: CallerWait, body: Incoming) -> Told {
    let told = match body::read(body, frame::PREFIX + wire::LARGEST).await {
        Ok(body) => service.wait_for(decide(service, wait, &body)).await,
        Err(error) => Err(error.into()),
    };
    count(service, &told);
    told
}

/// Counts a call as the reference service does, where that is wanted.
pub(super) fn count<T>(service: &Service, told: &Result<T, Fault>) {
    let Some(statistics) = &service.envoy_statistics else {
        return;
    };
    statistics.called();
    if let Err(fault) = told {
        statistics.failed(fault);
    }
}

async fn decide(service: &Service, wait: CallerWait, body: &[u8]) -> Told {
    let view = service.limiter.view();
    let asked = wire::asked(frame::message(body)?)?;
    judge(service, &view, &asked, wait, |reply| {
        let mut out = frame::blank(USUAL_ANSWER);
        reply.write(&mut out);
        out
    })
    .await
}

/// Decides a request and has its answer written.
pub(super) async fn judge<'v, T>(
    service: &Service,
    view: &'v View<'_, Counters>,
    asked: &Asked<'v>,
    wait: CallerWait,
    write: impl FnOnce(&Reply<'_, 'v>) -> T,
) -> Result<(u16, T), Fault> {
    service.require_config(Edge::Envoy)?;
    let options = &service.envoy;
    let begun = Instant::now();
    let mut request = native::request(&asked.described);
    request.max_wait = wait.left();
    let described = &asked.described;
    let judged = if native::contradicting_keys(described, &view.policy().rules) {
        view.deny_described(request, described, options.manner)
            .await
    } else {
        view.check_described(request, described, options.manner)
            .await
    };
    let took = begun.elapsed();
    service.metrics.took(Edge::Envoy, took);
    let judged = judged.map_err(|error| {
        log_unanswered(&error);
        Fault::Store(error)
    })?;
    if let Some(statistics) = &service.envoy_statistics {
        statistics.took(took);
        statistics.judged(asked, &judged);
    }
    let id = service.ids.next();
    log(service, &id, asked, &judged);
    let reply = Reply {
        asked,
        judged: &judged,
        options,
        context: service.context(&id, BodyStyle::Plain),
    };
    let status = if judged.over { 429 } else { 200 };
    Ok((status, write(&reply)))
}

fn log(service: &Service, id: &Id, asked: &Asked<'_>, judged: &Judged<'_>) {
    let request = || Some(native::request(&asked.described));
    if judged.over {
        service.log_denial(id, Edge::Envoy, &judged.decision, request);
    } else {
        service.log_shadow_denials(id, Edge::Envoy, &judged.decision, request);
    }
}

async fn check_health(service: &Service, body: Incoming) -> Result<Vec<u8>, Fault> {
    let body = body::read(body, frame::PREFIX + wire::LARGEST).await?;
    let mut out = frame::blank(2);
    health::check(frame::message(&body)?, service.is_healthy(), &mut out)?;
    Ok(out)
}
