//! The routes of the admin listener.

use std::net::IpAddr;
use std::sync::Arc;

use http::request::Parts;
use http::{HeaderValue, Method, StatusCode, header};
use hyper::Request;
use hyper::body::Incoming;
use serde_json::{Value, json};
use tidegate::observe::Exposition;
use tidegate::{LimitUsage, Source};

use super::access::AdminAccess;
use super::missing_attributes;
use super::readiness_page;
use crate::config::EndpointAddress;
use crate::decider::{Decider, InputError};
use crate::edges::common::api_error::{ApiError, json_response, ok_response, text_page};
use crate::edges::common::check_body::{CheckBody, CheckRequest, parse_check};
use crate::edges::common::readiness_page as common_page;
use crate::logging::{DecisionId, RateLimitedLog};
use crate::net::{ConnectionUnread, HttpHandler, HttpResponse, body};
use crate::policy::watcher::{PolicyWatcher, ReloadOutcome};
use crate::store_condition::StoreCondition;

/// The paths for a client that asks for another one.
const PATHS: &str = "this listener has /healthz, /readyz, /metrics, /rlconfig, /v1/rules, /v1/reload, /v1/subjects and \
                     /v1/subjects/reset";

static WRONG_TOKEN: RateLimitedLog = RateLimitedLog::new();

/// Renders all metrics of this process, in the Prometheus text format.
pub(crate) type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

#[derive(Clone)]
pub(crate) struct AdminListener {
    pub(crate) decider: Arc<Decider>,
    pub(crate) metrics: RenderMetrics,
    pub(crate) policy_watcher: Arc<PolicyWatcher>,
    pub(crate) access: AdminAccess,
}

impl HttpHandler for AdminListener {
    async fn handle(&self, peer: &EndpointAddress, _: &ConnectionUnread, request: Request<Incoming>) -> HttpResponse {
        let (parts, body) = request.into_parts();
        let id = self.decider.next_id();
        let result = self.route(&id, peer, &parts, body).await;
        if matches!(result, Err(ApiError::WrongToken)) {
            self.decider.network_metrics().wrong_tokens.inc();
            if let Some(times) = WRONG_TOKEN.count() {
                tracing::warn!(%peer, times, "wrong token on the admin listener");
            }
        }
        let mut response = result.unwrap_or_else(|error| error.to_response(&id));
        let headers = response.headers_mut();
        headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    fn panic_response(&self) -> HttpResponse {
        ApiError::Internal.to_response(&self.decider.next_id())
    }

    fn is_trusted(&self, peer: IpAddr) -> bool {
        peer.to_canonical().is_loopback()
    }
}

impl AdminListener {
    async fn route(
        &self,
        id: &DecisionId,
        peer: &EndpointAddress,
        parts: &Parts,
        body: Incoming,
    ) -> Result<HttpResponse, ApiError> {
        let (path, method) = (parts.uri.path(), &parts.method);
        if path == "/healthz" {
            return Ok(ok_response(id, &json!({"status": "ok"})));
        }
        let verbose = readiness_page::is_verbose(parts.uri.query());
        if path == "/readyz" && !verbose {
            return Ok(self.readiness(id, None));
        }
        self.access.authorize(peer, parts)?;
        match (path, method) {
            ("/readyz", &Method::GET) => {
                let condition = self.decider.store_condition();
                Ok(self.readiness(id, Some(&condition)))
            }
            ("/metrics", &Method::GET) => Ok(metrics_page(&self.metrics)),
            ("/rlconfig", &Method::GET) => Ok(self.descriptor_limits()),
            ("/v1/rules", &Method::GET) => Ok(ok_response(id, &self.rules())),
            ("/v1/reload", &Method::POST) => self.reload(id).await,
            ("/v1/subjects", &Method::GET) => {
                let attributes = query_attributes(parts.uri.query().unwrap_or_default())?;
                self.inspect(id, attributes.as_bytes()).await
            }
            ("/v1/subjects", &Method::POST) => self.inspect(id, &body::read(body, body::MAX_SMALL_BODY).await?).await,
            ("/v1/subjects", &Method::DELETE) | ("/v1/subjects/reset", &Method::POST) => {
                let rule = rule_to_reset(parts.uri.query().unwrap_or_default())?;
                let body = body::read(body, body::MAX_SMALL_BODY).await?;
                self.reset(id, rule.as_deref(), &body).await
            }
            ("/readyz" | "/metrics" | "/rlconfig" | "/v1/rules", _) => Err(ApiError::Method { allow: "GET" }),
            ("/v1/reload" | "/v1/subjects/reset", _) => Err(ApiError::Method { allow: "POST" }),
            ("/v1/subjects", _) => Err(ApiError::Method { allow: "GET, POST, DELETE" }),
            _ => Err(ApiError::NotFound { hint: PATHS }),
        }
    }

    /// Whether this node is ready, and the condition of its store if the caller wants it.
    fn readiness(&self, id: &DecisionId, condition: Option<&StoreCondition>) -> HttpResponse {
        let (status, mut page) = common_page::page(self.decider.readiness());
        if let Some(condition) = condition {
            page["store"] = readiness_page::store_json(condition);
        }
        json_response(status, page.to_string().into(), id)
    }

    /// The limits of descriptor files, in the format of the reference service.
    fn descriptor_limits(&self) -> HttpResponse {
        let policy = self.decider.policy();
        let listing = policy.rules.config_dump().to_string();
        text_page(StatusCode::OK, "text/plain; charset=utf-8", listing)
    }

    fn rules(&self) -> Value {
        let policy = self.decider.policy();
        let names: Vec<&str> = policy.rules.rules().iter().map(|rule| rule.name().as_str()).collect();
        json!({
            "version": policy.version(),
            "hash": self.decider.rules_hash(),
            "keys": policy.keys.as_ref().map(|keys| keys.len()),
            "stale": self.policy_watcher.stale(),
            "rules": names,
        })
    }

    /// Reloads the rules and responds with the result.
    async fn reload(&self, id: &DecisionId) -> Result<HttpResponse, ApiError> {
        let policy_watcher = Arc::clone(&self.policy_watcher);
        let reload = tokio::task::spawn_blocking(move || policy_watcher.reload()).await;
        let reload = reload.map_err(|_| ApiError::Internal)?;
        let mut body = json!({
            "id": id.as_str(),
            "status": reload.status(),
            "version": self.decider.policy().version(),
        });
        if let ReloadOutcome::Rejected { why } = reload {
            body["why"] = why.into();
        }
        Ok(ok_response(id, &body))
    }

    async fn inspect(&self, id: &DecisionId, body: &[u8]) -> Result<HttpResponse, ApiError> {
        let check_request = parse_single(body)?;
        let (explanation, usages) = self.decider.inspect(check_request.request).await?;
        let missing = missing_attributes::for_inspect(&explanation);
        let limits: Vec<Value> = usages.iter().map(usage_json).collect();
        let body = json!({"id": id.as_str(), "limits": limits, "missing": missing});
        Ok(ok_response(id, &body))
    }

    /// Resets the counters of one client, or only that of the rule named in the query.
    async fn reset(&self, id: &DecisionId, rule: Option<&str>, body: &[u8]) -> Result<HttpResponse, ApiError> {
        let check_request = parse_single(body)?;
        let (explanation, counters) = self.decider.reset(check_request.request, rule).await?;
        let missing = match rule {
            Some(rule) => missing_attributes::for_rule_reset(rule, &explanation),
            None => missing_attributes::for_reset(&explanation),
        };
        tracing::info!(id = id.as_str(), rule, counters, "subject reset");
        let body = json!({"id": id.as_str(), "reset": counters, "missing": missing});
        Ok(ok_response(id, &body))
    }
}

pub(super) fn metrics_page(metrics: &RenderMetrics) -> HttpResponse {
    text_page(StatusCode::OK, Exposition::CONTENT_TYPE, metrics())
}

fn parse_single(body: &[u8]) -> Result<CheckRequest<'_>, ApiError> {
    match parse_check(body)? {
        CheckBody::One(check_request) => Ok(*check_request),
        CheckBody::Many(_) => Err(InputError::new("", "one subject at a time: write an object").into()),
    }
}

fn usage_json(usage: &LimitUsage) -> Value {
    let inspection = usage.inspection;
    let source = inspection.map_or(Source::Exact, |found| found.source);
    json!({
        "source": source.name(),
        "rule": usage.rule,
        "rate": usage.rate,
        "limit": usage.capacity,
        "used": inspection.map_or(0, |found| found.used),
        "remaining": inspection.map_or(usage.capacity, |found| found.figures.remaining),
        "reset_after_ms": inspection.map_or(0, |found| found.figures.reset_after.millis_up()),
    })
}

/// `ip=203.0.113.9&user=a` as the body of a request. Decodes `+` and `%XX`.
fn query_attributes(query: &str) -> Result<String, ApiError> {
    let mut attributes = serde_json::Map::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (percent_decode(name)?, Value::String(percent_decode(value)?));
        if attributes.contains_key(&name) {
            return Err(InputError::new(name, "given twice").inside("attributes").into());
        }
        attributes.insert(name, value);
    }
    Ok(json!({"attributes": attributes}).to_string())
}

/// The rule that a query such as `rule=ceiling` names. Any other parameter is rejected: a misspelt one would reset
/// other counters.
fn rule_to_reset(query: &str) -> Result<Option<String>, ApiError> {
    let mut rule = None;
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("rule", name)) if rule.is_none() => rule = Some(percent_decode(name)?),
            Some(("rule", _)) => return Err(invalid_rule("given twice")),
            _ => {
                return Err(InputError::new("query", "unknown parameter, write rule=NAME").into());
            }
        }
    }
    Ok(rule)
}

fn invalid_rule(reason: &str) -> ApiError {
    InputError::new("rule", reason).into()
}

fn percent_decode(text: &str) -> Result<String, ApiError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                let value = digit(rest.next()).zip(digit(rest.next())).map(|(a, b)| a * 16 + b);
                let value = value.and_then(|value| u8::try_from(value).ok());
                value.ok_or_else(invalid_query)?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).map_err(|_| invalid_query())
}

fn invalid_query() -> ApiError {
    InputError::new("query", "invalid escape; write %XX, as UTF-8").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_becomes_attributes() {
        let body = query_attributes("ip=203.0.113.9&user=a+b%2fc").unwrap();
        assert_eq!(body, r#"{"attributes":{"ip":"203.0.113.9","user":"a b/c"}}"#);
        assert!(query_attributes("a=%zz").is_err() && query_attributes("a=%ff").is_err());
        // The last value counted, and the page was about another client.
        assert!(query_attributes("user=a&user=b").is_err() && query_attributes("user=&us%65r=b").is_err());
    }
}
