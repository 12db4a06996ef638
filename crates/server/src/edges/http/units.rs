//! Rejects costs in units that the rules do not know: nothing would be charged for them.

use tidegate_core::request::Request;
use tidegate_core::rules::RuleSet;

use super::wire::{Asked, BadInput};
use crate::service::Service;

/// Checks one request or every request of a list.
pub(super) fn check_all(service: &Service, asked: &Asked<'_>) -> Result<(), BadInput> {
    match asked {
        Asked::One(ask) => check(service, &ask.request),
        Asked::Many(asks) => {
            if asks.requests.iter().all(|request| request.costs.is_empty()) {
                return Ok(());
            }
            let policy = service.limiter.policy().load();
            let mut each = asks.requests.iter().enumerate();
            each.try_for_each(|(at, request)| known(&policy.rules, request, &format!("[{at}].")))
        }
    }
}

/// Checks one request.
pub(super) fn check(service: &Service, request: &Request<'_>) -> Result<(), BadInput> {
    if request.costs.is_empty() {
        return Ok(());
    }
    known(&service.limiter.policy().load().rules, request, "")
}

fn known(rules: &RuleSet, request: &Request<'_>, item: &str) -> Result<(), BadInput> {
    let Some(unknown) = rules.unknown_unit(request) else {
        return Ok(());
    };
    Err(BadInput {
        field: format!("{item}costs.{}", unknown.unit),
        reason: unknown.to_string(),
    })
}
