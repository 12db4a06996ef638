//! Limits the requests of an axum service by user and by address, and says so in headers:
//! `cargo run -p tidegate --features http,tokio --example axum_handler`, then
//! `curl -i -H 'x-user: ada' 127.0.0.1:3000/hello`.
#![allow(clippy::print_stdout, reason = "an example prints what it does")]

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::Router;
use axum::extract::{ConnectInfo, Request as HttpRequest, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tidegate::http::{ResponseContext, headers, response};
use tidegate::runtime::TokioRuntime;
use tidegate::{Limiter, Request};

const RULES: &str = "
version: 1
rules:
  - { name: hello, match: { path: /hello }, by: user|ip, rate: 2/minute }
  - { name: everything, by: global, rate: 5000/second burst 5000 }
";

struct RateLimits {
    limiter: Arc<Limiter>,
    decisions: AtomicU64,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:3000".to_owned());
    let limiter = Arc::new(Limiter::from_yaml(RULES)?);
    limiter.spawn_background(&TokioRuntime::new()?);
    let limits = Arc::new(RateLimits { limiter, decisions: AtomicU64::new(0) });
    let service = Router::new().route("/hello", get(|| async { "hello\n" })).layer(from_fn_with_state(limits, limit));
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("listening on {}", listener.local_addr()?);
    axum::serve(listener, service.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}

/// Checks a request before its handler runs. A denied request gets the response that explains it.
async fn limit(
    State(limits): State<Arc<RateLimits>>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    incoming: HttpRequest,
    next: Next,
) -> Response {
    let mut request = Request::default()
        .with("path", incoming.uri().path().to_owned())
        .with("method", incoming.method().as_str().to_owned());
    request.ip = Some(client.ip());
    // A service that has authenticated its user takes the name from there.
    if let Some(user) = incoming.headers().get("x-user").and_then(|user| user.to_str().ok()) {
        request = request.with("user", user.to_owned());
    }
    let decision = limits.limiter.check_now(request);
    let id = limits.decisions.fetch_add(1, Ordering::Relaxed).to_string();
    let context = ResponseContext::new(&id);
    if !decision.allowed() {
        let denial = response(&decision, &context);
        return (denial.status, denial.headers, denial.body).into_response();
    }
    let mut response = next.run(incoming).await;
    response.headers_mut().extend(headers(&decision, &context));
    response
}
