//! `ANY /v1/auth`: 200 and headers, or the denial.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tidegate::http::{headers, response as written};
use tidegate_rules::RuleSet;
use tidegate_rules::request::Edge;

use super::wire::{self, ProxyAuthOptions, ProxyHeaderPolicy};
use crate::config::EndpointAddress;
use crate::decider::{CheckOptions, Decider};
use crate::edges::common::RejectionLog;
use crate::edges::common::api_error::{ApiError, body_style, to_response};
use crate::logging::DecisionId;
use crate::net::HttpResponse;

pub(crate) struct ProxyAuthEdge {
    decider: Arc<Decider>,
    policy: ArcSwapOption<ProxyHeaderPolicy>,
    rejection_log: RejectionLog,
}

impl ProxyAuthEdge {
    pub(crate) fn new(decider: Arc<Decider>) -> Self {
        ProxyAuthEdge { decider, policy: ArcSwapOption::empty(), rejection_log: RejectionLog::new(Edge::Auth) }
    }

    /// Responds to one sub-request. Its own body, if it has one, is not read.
    pub(crate) async fn respond(
        &self,
        id: &DecisionId,
        peer: &EndpointAddress,
        parts: &Parts,
    ) -> Result<HttpResponse, ApiError> {
        let result = self.decide(id, peer, parts).await;
        if let Err(ApiError::Input(error)) = &result {
            self.rejection_log.record(&format_args!("{}: {}", error.field, error.reason));
        }
        result
    }

    async fn decide(&self, id: &DecisionId, peer: &EndpointAddress, parts: &Parts) -> Result<HttpResponse, ApiError> {
        // The rules determine which headers are read.
        let view = self.decider.view_for(Edge::Auth)?;
        let options = ProxyAuthOptions::parse(parts.uri.query())?;
        let policy = self.header_policy(&view.policy().rules);
        let request = wire::parse_request(&parts.headers, options, peer, &policy)?;
        let again = || wire::parse_request(&parts.headers, options, peer, &policy).ok();
        let checked = self.decider.check_under(&view, id, request, CheckOptions::CHARGE, again).await?;
        let context = self.decider.context(id, body_style(&parts.headers));
        if checked.decision.allowed() {
            let mut response = Response::new(Bytes::new().into());
            *response.headers_mut() = headers(&checked.decision, &context);
            return Ok(response);
        }
        let mut response = to_response(written(&checked.decision, &context));
        // Every proxy understands 403, and a blocked client must not be encouraged to retry.
        if let Some(status) = options.deny_status
            && response.status() != StatusCode::FORBIDDEN
        {
            *response.status_mut() = status;
        }
        Ok(response)
    }

    /// How sub-requests are read under `rules`. Built once for each rule set.
    fn header_policy(&self, rules: &Arc<RuleSet>) -> Arc<ProxyHeaderPolicy> {
        let known = self.policy.load();
        match &*known {
            Some(known) if Arc::ptr_eq(&known.rules, rules) => Arc::clone(known),
            _ => {
                let fresh = Arc::new(ProxyHeaderPolicy::of(rules));
                self.policy.store(Some(Arc::clone(&fresh)));
                fresh
            }
        }
    }
}
