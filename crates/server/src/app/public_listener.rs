//! The public listener: one port for the JSON API, the sub-requests of proxies and the JSON form of Envoy.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, StatusCode, Version, header};
use hyper::body::{Body, Incoming};
use tidegate_rules::request::Edge;

use crate::config::EndpointAddress;
use crate::decider::Decider;
use crate::edges::common::api_error::{ApiError, text_page};
use crate::edges::envoy;
use crate::edges::envoy::serve::EnvoyEdge;
use crate::edges::http::serve::{HttpRouteHead, require_get};
use crate::edges::proxy_auth::serve::ProxyAuthEdge;
use crate::net::body;
use crate::net::{ConnectionUnread, Discarded, HttpHandler, HttpResponse};

#[derive(Clone)]
pub(crate) struct PublicListener(Arc<PublicEdges>);

struct PublicEdges {
    decider: Arc<Decider>,
    proxy_auth: ProxyAuthEdge,
    envoy: Arc<EnvoyEdge>,
}

impl PublicListener {
    pub(crate) fn new(decider: &Arc<Decider>, envoy: &Arc<EnvoyEdge>) -> Self {
        PublicListener(Arc::new(PublicEdges {
            decider: Arc::clone(decider),
            proxy_auth: ProxyAuthEdge::new(Arc::clone(decider)),
            envoy: Arc::clone(envoy),
        }))
    }
}

impl HttpHandler for PublicListener {
    async fn handle(
        &self,
        peer: &EndpointAddress,
        unread: &ConnectionUnread,
        request: hyper::Request<Incoming>,
    ) -> HttpResponse {
        let PublicEdges { decider, proxy_auth, envoy } = &*self.0;
        let (parts, mut body) = request.into_parts();
        let id = decider.next_id();
        let mut discarded = Discarded::Whole;
        let (edge, result) = match parts.uri.path() {
            "/v1/auth" => {
                discarded = discard(&parts, &mut body).await;
                drop(body);
                (Edge::Auth, decider.run(proxy_auth.respond(&id, peer, &parts)).await)
            }
            "/json" => {
                drop(parts);
                return envoy::json::respond(envoy, body).await;
            }
            // The health check of the Envoy reference service, by which its deployments are probed.
            "/healthcheck" => {
                discarded = discard(&parts, &mut body).await;
                (Edge::Http, require_get(&parts.method).map(|()| health_page(envoy.is_healthy())))
            }
            _ => {
                let head = HttpRouteHead::of(&parts);
                if !head.as_ref().is_ok_and(HttpRouteHead::reads_body) {
                    discarded = discard(&parts, &mut body).await;
                }
                drop(parts);
                let result = match head {
                    Ok(head) => head.respond(decider, &id, unread, body).await,
                    Err(error) => Err(error),
                };
                (Edge::Http, result)
            }
        };
        let mut response = result.unwrap_or_else(|error| error.to_response(&id));
        if discarded == Discarded::Partly {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        decider.count_response(edge, response.status().as_u16());
        response
    }

    fn panic_response(&self) -> HttpResponse {
        self.0.decider.count_response(Edge::Http, 500);
        ApiError::Internal.to_response(&self.0.decider.next_id())
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        self.0.decider.trusts(peer)
    }
}

fn health_page(healthy: bool) -> HttpResponse {
    let (status, text) = if healthy { (StatusCode::OK, "OK") } else { (StatusCode::INTERNAL_SERVER_ERROR, "") };
    text_page(status, "text/plain; charset=utf-8", text)
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
