//! The crate `limitador` in memory behind tonic, in place of limitador's server, which is no published crate.
//!
//! It takes descriptors and calls the limiter as that server does, on the same stack. It has no metrics, no
//! tracing and no middleware, which could only add to its cost.

use std::collections::HashMap;
use std::convert::Infallible;
use std::env;
use std::error::Error;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::task::{Context as Waking, Poll};

use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

/// The maximum number of counters, well above the keys of a run; beyond it counters are evicted.
const COUNTERS: u64 = 100_000;

/// The limit of a key per hour: more than any run charges.
const PER_HOUR: u64 = 100_000_000;

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<Descriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Descriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<Entry>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RateLimitResponse {
    #[prost(int32, tag = "1")]
    overall_code: i32,
}

const OK: i32 = 1;
const OVER_LIMIT: i32 = 2;

/// The service, and its one method.
#[derive(Clone)]
struct LimitadorService(Arc<RateLimiter>);

impl LimitadorService {
    fn code(&self, request: RateLimitRequest) -> Result<i32, Status> {
        let values = |descriptor: Descriptor| -> HashMap<String, String> {
            let pairs = descriptor.entries.into_iter();
            pairs.map(|entry| (entry.key, entry.value)).collect()
        };
        let values = request.descriptors.into_iter().map(values).collect();
        let mut context = Context::default();
        context.list_binding("descriptors".to_owned(), values);
        let hits = u64::from(request.hits_addend.max(1));
        let namespace = request.domain.into();
        let checked = self.0.check_rate_limited_and_update(&namespace, &context, hits);
        match checked {
            Ok(result) if result.limited => Ok(OVER_LIMIT),
            Ok(_) => Ok(OK),
            Err(error) => Err(Status::unavailable(error.to_string())),
        }
    }
}

impl UnaryService<RateLimitRequest> for LimitadorService {
    type Response = RateLimitResponse;
    type Future = BoxFuture<Response<RateLimitResponse>, Status>;

    fn call(&mut self, request: Request<RateLimitRequest>) -> Self::Future {
        let limits = self.clone();
        Box::pin(async move {
            let overall_code = limits.code(request.into_inner())?;
            Ok(Response::new(RateLimitResponse { overall_code }))
        })
    }
}

impl<B> Service<http::Request<B>> for LimitadorService
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _waking: &mut Waking<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    /// The service has a single method: every call is a call of it.
    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        let limits = self.clone();
        Box::pin(async move {
            let mut grpc = Grpc::new(ProstCodec::default());
            Ok(grpc.unary(limits, request).await)
        })
    }
}

impl NamedService for LimitadorService {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

fn main() -> Result<(), Box<dyn Error>> {
    let port: u16 = env::args().nth(1).ok_or("usage: bench-limitador PORT")?.parse()?;
    let limiter = RateLimiter::new(COUNTERS);
    let variable = Expression::parse("descriptors[0].api_key").map_err(|e| e.to_string())?;
    limiter.add_limit(Limit::new("bench", PER_HOUR, 3_600, [], [variable]));
    let service = LimitadorService(Arc::new(limiter));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let server = tonic::transport::Server::builder().add_service(service);
    runtime.block_on(server.serve((Ipv4Addr::LOCALHOST, port).into()))?;
    Ok(())
}
