//! The routes of the admin listener.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode, header};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tidegate::Standing;
use tidegate::observe::Exposition;
use tidegate_core::store::Source;

use super::guard::Guard;
use super::missing;
use super::ready;
use crate::address::Place;
use crate::counters::StoreCondition;
use crate::edges::http::error::{Refusal, json_answer};
use crate::edges::http::serve::no_store;
use crate::edges::http::wire::{self, Ask, Asked, BadInput};
use crate::ids::Id;
use crate::live::{Live, ReloadOutcome};
use crate::net::body;
use crate::net::connection::{Answer, Handler};
use crate::net::occasional::OccasionalLine;
use crate::net::unread::ConnectionUnread;
use crate::service::Service;
use crate::sink;

static WRONG_TOKEN: OccasionalLine = OccasionalLine::new();

/// The admin listener.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) service: Arc<Service>,
    pub(crate) live: Arc<Live>,
    pub(crate) guard: Guard,
}

impl Handler for Admin {
    async fn handle(
        &self,
        peer: &Place,
        _: &ConnectionUnread,
        request: Request<Incoming>,
    ) -> Answer {
        let (parts, body) = request.into_parts();
        let id = self.service.ids.next();
        let answered = self.route(&id, peer, &parts, body).await;
        if matches!(answered, Err(Refusal::Token)) {
            self.service.metrics.network.wrong_tokens.inc();
            if let Some(times) = WRONG_TOKEN.count() {
                tracing::warn!(%peer, times, "wrong token on the admin listener");
            }
        }
        let mut answer = answered.unwrap_or_else(|refusal| refusal.answer(&id));
        let headers = answer.headers_mut();
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            HeaderValue::from_static("nosniff"),
        );
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }

    fn panicked(&self) -> Answer {
        Refusal::Internal.answer(&self.service.ids.next())
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        peer.to_canonical().is_loopback()
    }
}

impl Admin {
    async fn route(
        &self,
        id: &Id,
        peer: &Place,
        parts: &Parts,
        body: Incoming,
    ) -> Result<Answer, Refusal> {
        let (path, method) = (parts.uri.path(), &parts.method);
        if path == "/healthz" {
            return Ok(told(id, &json!({"status": "ok"})));
        }
        let verbose = ready::is_verbose(parts.uri.query());
        if path == "/readyz" && !verbose {
            return Ok(self.readiness(id, None));
        }
        self.guard.admit(peer, parts)?;
        match (path, method) {
            ("/readyz", &Method::GET) => {
                let condition = self.service.limiter.store().condition();
                Ok(self.readiness(id, Some(&condition)))
            }
            ("/metrics", &Method::GET) => Ok(metrics_page(&self.service)),
            ("/rlconfig", &Method::GET) => Ok(self.limits_of_descriptors()),
            ("/v1/rules", &Method::GET) => Ok(told(id, &self.rules())),
            ("/v1/reload", &Method::POST) => self.reload(id).await,
            ("/v1/subjects", &Method::GET) => {
                let attributes = query_attributes(parts.uri.query().unwrap_or_default())?;
                self.inspect(id, attributes.as_bytes()).await
            }
            ("/v1/subjects", &Method::POST) => {
                self.inspect(id, &body::read(body, body::SMALL).await?)
                    .await
            }
            ("/v1/subjects", &Method::DELETE) | ("/v1/subjects/reset", &Method::POST) => {
                let rule = rule_to_reset(parts.uri.query().unwrap_or_default())?;
                let body = body::read(body, body::SMALL).await?;
                self.reset(id, rule.as_deref(), &body).await
            }
            ("/readyz" | "/metrics" | "/rlconfig" | "/v1/rules", _) => {
                Err(Refusal::Method { allow: "GET" })
            }
            ("/v1/reload" | "/v1/subjects/reset", _) => Err(Refusal::Method { allow: "POST" }),
            ("/v1/subjects", _) => Err(Refusal::Method {
                allow: "GET, POST, DELETE",
            }),
            _ => Err(Refusal::NoSuchPath),
        }
    }

    /// Whether this node is ready, and if it is wanted how its store is.
    fn readiness(&self, id: &Id, condition: Option<&StoreCondition>) -> Answer {
        let readiness = self.service.readiness();
        let mut page = readiness.page();
        if let Some(condition) = condition {
            page["store"] = ready::store(condition);
        }
        json_answer(readiness.code(), page.to_string().into(), id)
    }

    /// The limits of descriptor files, as the reference service lists them.
    fn limits_of_descriptors(&self) -> Answer {
        let policy = self.service.limiter.policy().get();
        let listing = policy.rules.listing_of_limits().to_string();
        let mut answer = Response::new(Bytes::from(listing).into());
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        answer.headers_mut().insert(header::CONTENT_TYPE, plain);
        answer
    }

    fn rules(&self) -> Value {
        let policy = self.service.limiter.policy().get();
        let names: Vec<&str> = policy
            .rules
            .rules()
            .iter()
            .map(|rule| rule.name().as_str())
            .collect();
        json!({
            "version": policy.version(),
            "hash": *self.service.metrics.reload.hash.lock(),
            "keys": policy.keys.as_ref().map(|keys| keys.len()),
            "stale": self.live.stale(),
            "rules": names,
        })
    }

    /// Answers with what came of it.
    async fn reload(&self, id: &Id) -> Result<Answer, Refusal> {
        let (live, service) = (Arc::clone(&self.live), Arc::clone(&self.service));
        let reload = tokio::task::spawn_blocking(move || live.reload(&service)).await;
        let reload = reload.map_err(|_| Refusal::Internal)?;
        let mut body = json!({
            "id": id.as_str(),
            "status": reload.status(),
            "version": self.service.limiter.policy().version(),
        });
        if let ReloadOutcome::Rejected { why } = reload {
            body["why"] = why.into();
        }
        Ok(told(id, &body))
    }

    async fn inspect(&self, id: &Id, body: &[u8]) -> Result<Answer, Refusal> {
        let ask = single(body)?;
        let view = self.service.limiter.view();
        let missing = missing::attributes(&view.explain(ask.request.clone()));
        let standings = view.inspect(ask.request).await.map_err(no_store)?;
        let limits: Vec<Value> = standings.iter().map(standing).collect();
        let body = json!({"id": id.as_str(), "limits": limits, "missing": missing});
        Ok(told(id, &body))
    }

    /// Resets the counters of one client, or that of one rule if it is named.
    async fn reset(&self, id: &Id, rule: Option<&str>, body: &[u8]) -> Result<Answer, Refusal> {
        let ask = single(body)?;
        let view = self.service.limiter.view();
        let explanation = view.explain(ask.request.clone());
        let (missing, counters) = if let Some(rule) = rule {
            let mut views = explanation.rules.iter();
            if !views.any(|view| view.rule.as_str() == rule) {
                return Err(bad_rule("no rule in force has this name"));
            }
            let missing = missing::of_rule_named(rule, &explanation);
            (missing, view.reset_rule(rule, ask.request).await)
        } else {
            let missing = missing::or_shared(&explanation);
            (missing, view.reset(ask.request).await)
        };
        let counters = counters.map_err(no_store)?;
        tracing::info!(id = id.as_str(), rule, counters, "subject reset");
        let body = json!({"id": id.as_str(), "reset": counters, "missing": missing});
        Ok(told(id, &body))
    }
}

/// Every figure of this process, as Prometheus reads them.
pub(super) fn metrics_page(service: &Service) -> Answer {
    service.metrics.lines_dropped.set(sink::dropped());
    let facts = service.limiter.store().facts();
    service.metrics.note_open(service.limiter.open_requests());
    let metrics = &service.metrics;
    let mut page = metrics.expose(env!("CARGO_PKG_VERSION"), &facts);
    if let Some(statistics) = &service.envoy_statistics {
        page += &statistics.expose(metrics.reload.rejected.get());
    }
    let mut answer = Response::new(Bytes::from(page).into());
    let content_type = HeaderValue::from_static(Exposition::CONTENT_TYPE);
    answer
        .headers_mut()
        .insert(header::CONTENT_TYPE, content_type);
    answer
}

fn told(id: &Id, body: &Value) -> Answer {
    json_answer(StatusCode::OK, body.to_string().into(), id)
}

fn single(body: &[u8]) -> Result<Ask<'_>, Refusal> {
    match wire::asked(body)? {
        Asked::One(ask) => Ok(*ask),
        Asked::Many(_) => {
            let reason = "one subject at a time: write an object".to_owned();
            Err(BadInput {
                field: String::new(),
                reason,
            }
            .into())
        }
    }
}

fn standing(standing: &Standing) -> Value {
    let inspection = standing.inspection;
    let source = inspection.map_or(Source::Exact, |found| found.source);
    json!({
        "source": source.name(),
        "rule": standing.rule,
        "rate": standing.rate,
        "limit": standing.capacity,
        "used": inspection.map_or(0, |found| found.used),
        "remaining": inspection.map_or(standing.capacity, |found| found.figures.remaining),
        "reset_after_ms": inspection.map_or(0, |found| found.figures.reset_after.millis_up()),
    })
}

/// `ip=203.0.113.9&user=a` as the body of a request. `+` and `%XX` are decoded.
fn query_attributes(query: &str) -> Result<String, Refusal> {
    let mut attributes = serde_json::Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        attributes.insert(decoded(name)?, Value::String(decoded(value)?));
    }
    Ok(json!({"attributes": attributes}).to_string())
}

/// The rule that a query such as `rule=ceiling` names. Anything else is rejected: a misspelt parameter would
/// reset other counters.
fn rule_to_reset(query: &str) -> Result<Option<String>, Refusal> {
    let mut rule = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("rule", name)) if rule.is_none() => rule = Some(decoded(name)?),
            Some(("rule", _)) => return Err(bad_rule("given twice")),
            _ => {
                let reason = "unknown parameter, write rule=NAME".to_owned();
                let field = "query".to_owned();
                return Err(BadInput { field, reason }.into());
            }
        }
    }
    Ok(rule)
}

fn bad_rule(reason: &str) -> Refusal {
    BadInput {
        field: "rule".to_owned(),
        reason: reason.to_owned(),
    }
    .into()
}

fn decoded(text: &str) -> Result<String, Refusal> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next())
                    .zip(digit(rest.next()))
                    .map(|(a, b)| a * 16 + b);
                let value = value.and_then(|value| u8::try_from(value).ok());
                value.ok_or_else(bad_query)?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| bad_query())
}

fn bad_query() -> Refusal {
    let reason = "an escape is %XX, and all of it is UTF-8".to_owned();
    BadInput {
        field: "query".to_owned(),
        reason,
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_attributes() {
        let body = query_attributes("ip=203.0.113.9&user=a+b%2fc").unwrap();
        assert_eq!(
            body,
            r#"{"attributes":{"ip":"203.0.113.9","user":"a b/c"}}"#
        );
        assert!(query_attributes("a=%zz").is_err() && query_attributes("a=%ff").is_err());
    }
}
