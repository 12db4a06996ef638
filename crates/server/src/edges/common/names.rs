//! Rejects costs in units that the rules do not know, because nothing would be charged for them, and attributes that
//! differ from a known one by case, because no rule would match them.

use tidegate_rules::request::Request;
use tidegate_rules::{RuleSet, may_have_case_mismatch};

use super::api_error::InputError;
use super::check_body::CheckBody;
use crate::service::Service;

/// Checks one request or every request of a list.
pub(crate) fn check_all(service: &Service, body: &CheckBody<'_>) -> Result<(), InputError> {
    match body {
        CheckBody::One(check_request) => check(service, &check_request.request),
        CheckBody::Many(batch) => {
            if !batch.requests.iter().any(needs_check) {
                return Ok(());
            }
            let policy = service.limiter.policy().load();
            let mut each = batch.requests.iter().enumerate();
            each.try_for_each(|(at, request)| check_names(&policy.rules, request, &format!("[{at}].")))
        }
    }
}

/// Checks one request.
pub(crate) fn check(service: &Service, request: &Request<'_>) -> Result<(), InputError> {
    if !needs_check(request) {
        return Ok(());
    }
    check_names(&service.limiter.policy().load().rules, request, "")
}

/// Whether the check is needed. Most requests need none.
fn needs_check(request: &Request<'_>) -> bool {
    !request.costs.is_empty() || may_have_case_mismatch(request)
}

/// Checks one request against `rules`. `item` is the prefix of the field name.
pub(crate) fn check_names(rules: &RuleSet, request: &Request<'_>, item: &str) -> Result<(), InputError> {
    if let Some(miscased) = rules.find_case_mismatch(request) {
        return Err(InputError { field: format!("{item}attributes.{}", miscased.name), reason: miscased.to_string() });
    }
    let Some(unknown) = rules.unknown_unit(request) else {
        return Ok(());
    };
    Err(InputError { field: format!("{item}costs.{}", unknown.unit), reason: unknown.to_string() })
}
