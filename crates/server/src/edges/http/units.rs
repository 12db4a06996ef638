//! Rejects costs in units that the rules do not know, because nothing would be charged for them, and attributes
//! that differ from a known one by case, because no rule would look at them.

use tidegate_core::request::Request;
use tidegate_core::rules::{RuleSet, may_be_miscased};

use super::wire::{Asked, BadInput};
use crate::service::Service;

/// Checks one request or every request of a list.
pub(super) fn check_all(service: &Service, asked: &Asked<'_>) -> Result<(), BadInput> {
    match asked {
        Asked::One(ask) => check(service, &ask.request),
        Asked::Many(asks) => {
            if !asks.requests.iter().any(needs_check) {
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
    if !needs_check(request) {
        return Ok(());
    }
    known(&service.limiter.policy().load().rules, request, "")
}

/// Whether the rules have to be looked at. Those of most requests need not be.
fn needs_check(request: &Request<'_>) -> bool {
    !request.costs.is_empty() || may_be_miscased(request)
}

/// Checks one request by `rules`. `item` stands before the name of the field.
pub(crate) fn known(rules: &RuleSet, request: &Request<'_>, item: &str) -> Result<(), BadInput> {
    if let Some(miscased) = rules.miscased_attribute(request) {
        return Err(BadInput {
            field: format!("{item}attributes.{}", miscased.name),
            reason: miscased.to_string(),
        });
    }
    let Some(unknown) = rules.unknown_unit(request) else {
        return Ok(());
    };
    Err(BadInput {
        field: format!("{item}costs.{}", unknown.unit),
        reason: unknown.to_string(),
    })
}
