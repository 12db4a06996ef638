//! The methods of the gRPC listener.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Response, StatusCode};
use hyper::Request;
use hyper::body::Incoming;
use tidegate::http::BodyStyle;
use tidegate_rules::request::Edge;

use super::deadline::CallerDeadline;
use super::error::EnvoyError;
use super::response::EnvoyResponse;
use super::statistics::EnvoyStatistics;
use super::wire::{self, EnvoyRequest};
use super::{frame, native};
use crate::config::{EndpointAddress, EnvoyOptions};
use crate::decider::{Decider, DeciderView};
use crate::edges::common::RejectionLog;
use crate::net::{ConnectionUnread, HttpHandler, HttpProtocol, HttpResponse, body};
use crate::protobuf::{ProtobufFields, ProtobufWriter, for_each_field};

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

/// The states of the gRPC health check.
const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;

/// The size of most responses: one status and five headers.
const USUAL_RESPONSE_BYTES: usize = 384;

/// The edge, for gRPC and for `/json`.
pub(crate) struct EnvoyEdge {
    pub(super) decider: Arc<Decider>,
    pub(super) options: EnvoyOptions,
    /// The statistics of the reference service, if they are enabled.
    statistics: Option<EnvoyStatistics>,
    rejection_log: RejectionLog,
}

#[derive(Clone)]
pub(crate) struct EnvoyListener(pub(crate) Arc<EnvoyEdge>);

impl HttpHandler for EnvoyListener {
    async fn handle(&self, _: &EndpointAddress, _: &ConnectionUnread, request: Request<Incoming>) -> HttpResponse {
        let edge = &*self.0;
        let (parts, body) = request.into_parts();
        if parts.method != Method::POST || !frame::is_grpc(&parts.headers) {
            edge.count_response(415);
            let mut response = Response::new(Bytes::new().into());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let method = [SHOULD_RATE_LIMIT, HEALTH].into_iter().find(|known| *known == parts.uri.path());
        let wait = CallerDeadline::of(&parts.headers, edge.options.default_wait);
        // The head is not held while a body is awaited.
        drop(parts);
        let result = match method {
            Some(SHOULD_RATE_LIMIT) => edge.should_rate_limit(wait, body).await,
            Some(_) => edge.check_health(body).await.map(|out| (200, out)),
            None => Err(EnvoyError::UnknownMethod),
        };
        match result {
            Ok((status, out)) => {
                edge.count_response(status);
                frame::response(out)
            }
            Err(error) => {
                edge.count_response(error.http_status());
                error.to_response()
            }
        }
    }

    fn panic_response(&self) -> HttpResponse {
        self.0.count_response(500);
        EnvoyError::Internal.to_response()
    }

    fn protocol(&self) -> HttpProtocol {
        HttpProtocol::Http2
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.0.decider.trusts(peer)
    }
}

/// An HTTP status for the metrics, and a message.
pub(super) type EnvoyResult<T> = Result<(u16, T), EnvoyError>;

impl EnvoyEdge {
    pub(crate) fn new(decider: Arc<Decider>, options: EnvoyOptions) -> Self {
        let statistics = options.near_ratio.map(EnvoyStatistics::new);
        EnvoyEdge { decider, options, statistics, rejection_log: RejectionLog::new(Edge::Envoy) }
    }

    /// Health in the terms of the reference service: serving and, if so configured, with at least one domain.
    pub(crate) fn is_healthy(&self) -> bool {
        self.decider.is_serving() && (!self.options.healthy_when_configured || self.decider.has_domains())
    }

    /// The statistics of the reference service, in the Prometheus text format. Empty unless they are enabled.
    pub(crate) fn expose_statistics(&self) -> String {
        let Some(statistics) = &self.statistics else { return String::new() };
        let (loads, rejected) = self.decider.rule_loads();
        let policy = self.decider.policy();
        statistics.prune(loads, |path| policy.rules.rule(path).is_some());
        statistics.expose(loads, rejected)
    }

    pub(super) fn count_response(&self, status: u16) {
        self.decider.count_response(Edge::Envoy, status);
    }

    async fn should_rate_limit(&self, wait: CallerDeadline, body: Incoming) -> EnvoyResult<Vec<u8>> {
        let result = match body::read(body, frame::PREFIX_BYTES + wire::MAX_MESSAGE_BYTES).await {
            Ok(body) => self.decider.run(self.decide_message(wait, &body)).await,
            Err(error) => Err(error.into()),
        };
        self.record_call(&result);
        result
    }

    /// Counts a call in the statistics, and logs its error if the call is the cause of it.
    pub(super) fn record_call<T>(&self, result: &Result<T, EnvoyError>) {
        let error = result.as_ref().err();
        if let Some(rejected) = error.filter(|error| error.http_status() < 500) {
            self.rejection_log.record(rejected);
        }
        if let Some(statistics) = &self.statistics {
            statistics.record_call(error);
        }
    }

    async fn decide_message(&self, wait: CallerDeadline, body: &[u8]) -> EnvoyResult<Vec<u8>> {
        let view = self.decider.view_for(Edge::Envoy)?;
        let envoy_request = wire::parse_request(frame::message(body)?, self.options.max_descriptors)?;
        self.decide(&view, &envoy_request, wait, |response| {
            let mut out = frame::message_buffer(USUAL_RESPONSE_BYTES);
            response.write(&mut out);
            out
        })
        .await
    }

    /// Decides a request and writes its response.
    pub(super) async fn decide<'v, T>(
        &self,
        view: &'v DeciderView<'_>,
        envoy_request: &EnvoyRequest<'v>,
        wait: CallerDeadline,
        write: impl FnOnce(&EnvoyResponse<'_, 'v>) -> T,
    ) -> EnvoyResult<T> {
        let described = &envoy_request.described;
        let mut request = native::request(described);
        request.max_wait = wait.remaining();
        let identity = native::client_identity(described, &request, &view.policy().rules);
        let (again, options) = (|| Some(native::request(described)), self.options.descriptor_options);
        let checked = self.decider.check_described(view, (described, request), identity, options, again).await?;
        if let Some(statistics) = &self.statistics {
            statistics.record_decision(envoy_request, &checked.response, checked.took);
        }
        let response = EnvoyResponse {
            request: envoy_request,
            judged: &checked.response,
            options: &self.options,
            context: self.decider.context(&checked.id, BodyStyle::Plain),
        };
        let status = if checked.response.over_limit { 429 } else { 200 };
        Ok((status, write(&response)))
    }

    async fn check_health(&self, body: Incoming) -> Result<Vec<u8>, EnvoyError> {
        let body = body::read(body, frame::PREFIX_BYTES + wire::MAX_MESSAGE_BYTES).await?;
        let mut out = frame::message_buffer(2);
        let mut service = "";
        for_each_field!(ProtobufFields::of(frame::message(&body)?), field: { 1 => service = field.text()?, });
        // The empty name is the process, which is healthy as long as it responds.
        let status = match service {
            "" => SERVING,
            "ratelimit" if self.is_healthy() => SERVING,
            "ratelimit" => NOT_SERVING,
            _ => return Err(EnvoyError::UnknownService),
        };
        ProtobufWriter::to(&mut out).uint(1, status);
        Ok(out)
    }
}
