//! A door for scrapers alone: the page of metrics, to whoever asks, and nothing else.
//!
//! The reference service has one; its deployments are scraped there. Nothing can be changed here, and
//! no client is named, so there is no token.

use std::net::IpAddr;
use std::sync::Arc;

use http::{HeaderValue, Method, header};
use hyper::Request;
use hyper::body::Incoming;

use super::serve::metrics_page;
use crate::address::Place;
use crate::edges::http::error::Refusal;
use crate::net::connection::{Answer, Handler};
use crate::net::unread::ConnectionUnread;
use crate::service::Service;

/// The listener for scrapers.
#[derive(Clone)]
pub(crate) struct Scraped {
    pub(crate) service: Arc<Service>,
    /// Where the page is.
    pub(crate) path: Arc<str>,
}

impl Handler for Scraped {
    async fn handle(&self, _: &Place, _: &ConnectionUnread, request: Request<Incoming>) -> Answer {
        let refusal = match (request.uri().path() == &*self.path, request.method()) {
            (true, &Method::GET) => None,
            (true, _) => Some(Refusal::Method { allow: "GET" }),
            (false, _) => Some(Refusal::NoSuchPath),
        };
        let mut answer = match refusal {
            None => metrics_page(&self.service),
            Some(refusal) => refusal.answer(&self.service.ids.next()),
        };
        let no_store = HeaderValue::from_static("no-store");
        answer.headers_mut().insert(header::CACHE_CONTROL, no_store);
        answer
    }

    fn panicked(&self) -> Answer {
        Refusal::Internal.answer(&self.service.ids.next())
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        peer.to_canonical().is_loopback()
    }
}
