//! The floor: a bare hyper handler that parses the check's JSON and writes its headers and body, and decides
//! nothing. The difference between a real server and this is the cost of its limiter.
//!
//! `bench-bare PORT` listens on loopback. The response to the path `/api/v1/login` is a denial.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::{env, io};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Deserialize;
use tokio::net::TcpListener;

/// One check. Any attribute may come, so they are a map; the text is borrowed from the body.
#[derive(Deserialize)]
struct BareCheck<'a> {
    #[serde(borrow)]
    attributes: HashMap<&'a str, &'a str>,
    cost: u32,
}

fn main() -> io::Result<()> {
    let port = env::args().nth(1).and_then(|port| port.parse().ok());
    let port: u16 = port.ok_or_else(|| io::Error::other("usage: bench-bare PORT"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(tokio::task::LocalSet::new().run_until(serve(port)))
}

async fn serve(port: u16) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::task::spawn_local(async move {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            // A client that hangs up mid-request ends its connection, nothing more.
            let _ = connection.await;
        });
    }
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let Ok(body) = request.into_body().collect().await else {
        return Ok(bad_request());
    };
    let body = body.to_bytes();
    let response = if body.first() == Some(&b'[') { many(&body) } else { one(&body) };
    Ok(response.unwrap_or_else(|_| bad_request()))
}

fn one(body: &[u8]) -> serde_json::Result<Response<Full<Bytes>>> {
    let check: BareCheck<'_> = serde_json::from_slice(body)?;
    let is_denied = is_denied(&check);
    let mut text = Vec::with_capacity(320);
    write_decision(&mut text, is_denied, check.cost);
    let mut response = Response::new(Full::new(Bytes::from(text)));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let remaining = 200_u32.saturating_sub(check.cost);
    headers.insert("ratelimit-policy", formatted(format!("\"search\";q={};w={}", 200, 12)));
    headers.insert("ratelimit", formatted(format!("\"search\";r={remaining};t={}", check.cost)));
    headers.insert("x-ratelimit-limit", HeaderValue::from(200));
    headers.insert("x-ratelimit-remaining", HeaderValue::from(remaining));
    headers.insert("x-ratelimit-reset", HeaderValue::from(1_790_000_000_u64 + u64::from(check.cost)));
    if is_denied {
        headers.insert(RETRY_AFTER, HeaderValue::from(check.cost));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    }
    Ok(response)
}

fn many(body: &[u8]) -> serde_json::Result<Response<Full<Bytes>>> {
    let checks: Vec<BareCheck<'_>> = serde_json::from_slice(body)?;
    let mut text = Vec::with_capacity(320 * checks.len());
    text.push(b'[');
    for check in &checks {
        if text.len() > 1 {
            text.push(b',');
        }
        write_decision(&mut text, is_denied(check), check.cost);
    }
    text.push(b']');
    let mut response = Response::new(Full::new(Bytes::from(text)));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(response)
}

/// Every attribute is read, so that none of the parsing can be optimised away.
fn is_denied(check: &BareCheck<'_>) -> bool {
    let known = ["ip", "api_key", "method"].iter().all(|name| check.attributes.contains_key(name));
    known && check.attributes.get("path") == Some(&"/api/v1/login")
}

/// The body of a real response, with its numbers formatted each time.
fn write_decision(text: &mut Vec<u8>, is_denied: bool, cost: u32) {
    let remaining = 200_u32.saturating_sub(cost);
    let written = if is_denied {
        write!(
            text,
            "{{\"error\":\"rate_limit_exceeded\",\"message\":\"rule `search` allows {} in 12 s; retry in {cost} s\",\
             \"allowed\":false,\"rule\":\"search\",\"limit\":{},\"window\":\"1m\",\"remaining\":0,\
             \"retry_after_seconds\":{cost},\"retry_after_ms\":{cost},\"source\":\"exact\",\
             \"limits\":[{{\"rule\":\"search\",\"rate\":\"1000/minute burst 200\",\"allowed\":false,\"limit\":{},\
             \"remaining\":0,\"reset_after_ms\":{cost},\"mode\":\"enforce\"}}]}}",
            200, 200, 200
        )
    } else {
        write!(
            text,
            "{{\"allowed\":true,\"rule\":\"search\",\"limit\":{},\"remaining\":{remaining},\"reset_after_ms\":{cost},\
             \"source\":\"exact\",\"limits\":[{{\"rule\":\"search\",\"rate\":\"1000/minute burst 200\",\"allowed\":true,\
             \"limit\":{},\"remaining\":{remaining},\"reset_after_ms\":{cost},\"mode\":\"enforce\"}}]}}",
            200, 200
        )
    };
    written.expect("writing to memory does not fail");
}

fn formatted(text: String) -> HeaderValue {
    HeaderValue::from_maybe_shared(Bytes::from(text)).expect("printable ASCII is a header value")
}

fn bad_request() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(b"{\"error\":\"bad request\"}")));
    *response.status_mut() = StatusCode::BAD_REQUEST;
    response
}
