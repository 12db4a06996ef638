//! A listener for scrapers: the metrics page, without authentication, and nothing else.
//!
//! The reference service has one, and its deployments are scraped there. It cannot change anything and shows no client,
//! so there is no token.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, header};
use hyper::Request;
use hyper::body::Incoming;

use super::serve::{RenderMetrics, metrics_page};
use crate::config::EndpointAddress;
use crate::decider::Decider;
use crate::edges::common::api_error::ApiError;
use crate::net::{ConnectionUnread, HttpHandler, HttpResponse};

#[derive(Clone)]
pub(crate) struct MetricsListener {
    pub(crate) decider: Arc<Decider>,
    pub(crate) metrics: RenderMetrics,
    /// The path of the page.
    pub(crate) path: Arc<str>,
}

impl HttpHandler for MetricsListener {
    async fn handle(&self, _: &EndpointAddress, _: &ConnectionUnread, request: Request<Incoming>) -> HttpResponse {
        let error = match (request.uri().path() == &*self.path, request.method()) {
            (true, &Method::GET) => None,
            (true, _) => Some(ApiError::Method { allow: "GET" }),
            (false, _) => Some(ApiError::NotFound { hint: "this listener has only the metrics page" }),
        };
        let mut response = match error {
            None => metrics_page(&self.metrics),
            Some(error) => error.to_response(&self.decider.next_id()),
        };
        let no_store = HeaderValue::from_static("no-store");
        response.headers_mut().insert(header::CACHE_CONTROL, no_store);
        response
    }

    fn panic_response(&self) -> HttpResponse {
        ApiError::Internal.to_response(&self.decider.next_id())
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        peer.to_canonical().is_loopback()
    }
}
