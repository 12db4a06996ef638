//! The methods of the gRPC listener.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use hyper::Request;
use hyper::body::Incoming;
use tidegate::LimiterView;
use tidegate::http::BodyStyle;
use tidegate_rules::engine::DescriptorResponse;
use tidegate_rules::request::Edge;

use super::deadline::CallerDeadline;
use super::error::EnvoyError;
use super::response::EnvoyResponse;
use super::wire::{self, EnvoyRequest};
use super::{frame, health, native};
use crate::config::listen_address::EndpointAddress;
use crate::logging::decision_ids::DecisionId;
use crate::net::body;
use crate::net::connection::{HttpHandler, HttpProtocol, HttpResponse};
use crate::net::unread_responses::ConnectionUnread;
use crate::service::Service;
use crate::state::any_store::AnyStore;
use crate::state::store_error_log::log_store_error;

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// The size of most responses: one status and five headers.
const USUAL_RESPONSE_BYTES: usize = 384;

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

#[derive(Clone)]
pub(crate) struct EnvoyListener(pub(crate) Arc<Service>);

impl HttpHandler for EnvoyListener {
    async fn handle(&self, _: &EndpointAddress, _: &ConnectionUnread, request: Request<Incoming>) -> HttpResponse {
        let service = &*self.0;
        let (parts, body) = request.into_parts();
        if parts.method != Method::POST || !frame::is_grpc(&parts.headers) {
            service.metrics.count_response(Edge::Envoy, 415);
            let mut response = Response::new(Bytes::new().into());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let method = GrpcMethod::of(parts.uri.path());
        let wait = CallerDeadline::of(&parts.headers, service.envoy.default_wait);
        // The head is not held while a body is awaited.
        drop(parts);
        let result = match method {
            Some(GrpcMethod::ShouldRateLimit) => should_rate_limit(service, wait, body).await,
            Some(GrpcMethod::Health) => check_health(service, body).await.map(|out| (200, out)),
            None => Err(EnvoyError::UnknownMethod),
        };
        match result {
            Ok((status, out)) => {
                service.metrics.count_response(Edge::Envoy, status);
                frame::response(out)
            }
            Err(error) => {
                service.metrics.count_response(Edge::Envoy, error.status());
                error.to_response()
            }
        }
    }

    fn panic_response(&self) -> HttpResponse {
        self.0.metrics.count_response(Edge::Envoy, 500);
        EnvoyError::Internal.to_response()
    }

    fn protocol(&self) -> HttpProtocol {
        HttpProtocol::Http2
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.0.proxy_header_policy().trusts(peer)
    }
}

/// An HTTP status for the metrics, and a framed message.
type GrpcResult = Result<(u16, Vec<u8>), EnvoyError>;

async fn should_rate_limit(service: &Service, wait: CallerDeadline, body: Incoming) -> GrpcResult {
    let result = match body::read(body, frame::PREFIX_BYTES + wire::MAX_MESSAGE_BYTES).await {
        Ok(body) => service.wait_for(decide(service, wait, &body)).await,
        Err(error) => Err(error.into()),
    };
    count_call(service, &result);
    result
}

/// Counts a call in the statistics of the reference service, if they are enabled.
pub(super) fn count_call<T>(service: &Service, result: &Result<T, EnvoyError>) {
    let Some(statistics) = &service.envoy_statistics else {
        return;
    };
    statistics.record_call();
    if let Err(error) = result {
        statistics.record_failure(error);
    }
}

async fn decide(service: &Service, wait: CallerDeadline, body: &[u8]) -> GrpcResult {
    let view = service.limiter.view();
    let envoy_request = wire::parse_request(frame::message(body)?)?;
    decide_and_write(service, &view, &envoy_request, wait, |response| {
        let mut out = frame::message_buffer(USUAL_RESPONSE_BYTES);
        response.write(&mut out);
        out
    })
    .await
}

/// Decides a request and writes its response.
pub(super) async fn decide_and_write<'v, T>(
    service: &Service,
    view: &'v LimiterView<'_, AnyStore>,
    envoy_request: &EnvoyRequest<'v>,
    wait: CallerDeadline,
    write: impl FnOnce(&EnvoyResponse<'_, 'v>) -> T,
) -> Result<(u16, T), EnvoyError> {
    service.require_config(Edge::Envoy)?;
    let options = &service.envoy;
    let started = Instant::now();
    let mut request = native::request(&envoy_request.described);
    request.max_wait = wait.remaining();
    let described = &envoy_request.described;
    let judged = if native::is_ambiguous(described, &request, &view.policy().rules) {
        view.deny_described(request, described, options.descriptor_options).await
    } else {
        view.check_described(request, described, options.descriptor_options).await
    };
    let took = started.elapsed();
    service.metrics.record_duration(Edge::Envoy, took);
    let judged = judged.map_err(|error| {
        log_store_error(&error);
        EnvoyError::Store(error)
    })?;
    if let Some(statistics) = &service.envoy_statistics {
        statistics.record_duration(took);
        statistics.record_decision(envoy_request, &judged);
    }
    let id = service.ids.next();
    log_denials(service, &id, envoy_request, &judged);
    let response = EnvoyResponse {
        request: envoy_request,
        judged: &judged,
        options,
        context: service.context(&id, BodyStyle::Plain),
    };
    let status = if judged.over_limit { 429 } else { 200 };
    Ok((status, write(&response)))
}

fn log_denials(service: &Service, id: &DecisionId, envoy_request: &EnvoyRequest<'_>, judged: &DescriptorResponse<'_>) {
    let request = || Some(native::request(&envoy_request.described));
    if judged.over_limit {
        service.log_denial(id, Edge::Envoy, &judged.decision, request);
    } else {
        service.log_shadow_denials(id, Edge::Envoy, &judged.decision, request);
    }
}

async fn check_health(service: &Service, body: Incoming) -> Result<Vec<u8>, EnvoyError> {
    let body = body::read(body, frame::PREFIX_BYTES + wire::MAX_MESSAGE_BYTES).await?;
    let mut out = frame::message_buffer(2);
    health::check(frame::message(&body)?, service.is_healthy(), &mut out)?;
    Ok(out)
}
