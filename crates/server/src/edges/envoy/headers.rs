//! The headers that Envoy adds to its response to the client.

use tidegate::http::{ResponseContext, each_header};
use tidegate_core::units::Nanos;
use tidegate_rules::engine::DescriptorResponse;
use tidegate_rules::envoy::{Status, StatusLimit};

use crate::config::{LimitHeaders, ReferenceHeaderNames};

/// Calls `each` with the name and value of every header.
pub(super) fn for_each_header(
    wanted: &LimitHeaders,
    judged: &DescriptorResponse<'_>,
    context: &ResponseContext<'_>,
    mut each: impl FnMut(&str, &[u8]),
) {
    match wanted {
        LimitHeaders::Off => {}
        LimitHeaders::Reference(names) => reference_headers(names, judged, each),
        LimitHeaders::Standard => each_header(&judged.decision, context, |name, value| {
            // An allowed request has nothing to wait for, whatever shadow rules decided.
            let wanted = judged.over_limit || name != "retry-after";
            // Envoy writes these itself if configured, and calculates their reset differently.
            if wanted && !name.starts_with("x-ratelimit-") {
                each(name, value);
            }
        }),
    }
}

fn reference_headers(names: &ReferenceHeaderNames, judged: &DescriptorResponse<'_>, mut each: impl FnMut(&str, &[u8])) {
    let Some((status, limit)) = binding_status(&judged.statuses) else {
        return;
    };
    let reset = status.reset_after.unwrap_or(Nanos::ZERO).secs_up();
    let mut digits = itoa::Buffer::new();
    each(&names.limit, digits.format(limit.requests).as_bytes());
    each(&names.remaining, digits.format(status.remaining).as_bytes());
    each(&names.reset, digits.format(reset).as_bytes());
}

/// The descriptor that the three headers describe: the last one that denies, otherwise the first of those with the
/// least remaining. One of several quotas does not deny alone.
fn binding_status<'s, 'r>(statuses: &'s [Status<'r>]) -> Option<(&'s Status<'r>, StatusLimit<'r>)> {
    let limited = || {
        let statuses = statuses.iter();
        statuses.filter_map(|status| status.limit.map(|limit| (status, limit)))
    };
    let mut denying = limited().filter(|(status, _)| status.over_limit && !status.quota);
    denying.next_back().or_else(|| limited().min_by_key(|(status, _)| status.remaining))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::envoy::Unit;

    fn status(over: bool, quota: bool, remaining: u32, requests: Option<u32>) -> Status<'static> {
        Status {
            over_limit: over,
            quota,
            remaining,
            limit: requests.map(|requests| StatusLimit { requests, unit: Some(Unit::Minute), name: None }),
            ..Status::NO_LIMIT
        }
    }

    fn limit(statuses: &[Status<'_>]) -> Option<u32> {
        binding_status(statuses).map(|(_, limit)| limit.requests)
    }

    #[test]
    fn the_three_headers_describe_the_last_denial_or_the_least_remaining() {
        let free = status(false, false, 0, None);
        let plenty = status(false, false, 9, Some(10));
        let little = status(false, false, 1, Some(20));
        let as_little = status(false, false, 1, Some(21));
        let over = status(true, false, 0, Some(30));
        let over_too = status(true, false, 0, Some(40));
        let spent = status(true, true, 0, Some(50));
        assert_eq!(limit(std::slice::from_ref(&free)), None);
        let allowed = [free.clone(), plenty.clone(), little, as_little];
        assert_eq!(limit(&allowed), Some(20));
        let denied = [over, over_too, plenty.clone(), spent.clone()];
        assert_eq!(limit(&denied), Some(40));
        assert_eq!(limit(&[plenty, spent]), Some(50), "it has the least remaining");
    }
}
