//! Described requests and their results, written as words.
//!
//! `user=a,path=/x hits=2 | user=a` is two descriptors, the first with two entries. After the entries there may be
//! `hits=N` (to charge), `used=N`, `none` (a check without hits), `back=N` (a refund), and `limit=N/unit` (a limit
//! supplied by the request). The result reads `pass: ok 4 of 5/minute | free`.

use tidegate::engine::DescriptorResponse;
use tidegate::envoy::{DescribedRequest, Descriptor, DescriptorOverride, Hits, Status, Unit};
use tidegate::units::Cost;

pub(crate) fn described(words: &str) -> DescribedRequest<'_> {
    let (domain, words) = match words.split_once(": ") {
        Some((domain, words)) => (domain, words),
        None => ("d", words),
    };
    DescribedRequest { domain, descriptors: words.split('|').map(descriptor).collect() }
}

fn descriptor(words: &str) -> Descriptor<'_> {
    let mut descriptor =
        Descriptor { entries: Default::default(), limit_override: None, hits: Hits::Charge(Cost::ONE) };
    let cost = |text: &str| Cost::new(text.parse().unwrap()).unwrap();
    for word in words.split_whitespace() {
        match word.split_once('=') {
            None => descriptor.hits = Hits::Check,
            Some(("hits", many)) => descriptor.hits = Hits::Charge(cost(many)),
            Some(("used", many)) => descriptor.hits = Hits::Used(cost(many)),
            Some(("back", many)) => descriptor.hits = Hits::Refund(cost(many)),
            Some(("limit", rate)) => {
                let (requests, unit) = rate.split_once('/').unwrap();
                descriptor.limit_override = Some(DescriptorOverride {
                    requests: requests.parse().unwrap(),
                    unit: Unit::from_name(unit).unwrap(),
                });
            }
            Some(_) => {
                let entries = word.split(',').map(|entry| entry.split_once('=').unwrap());
                descriptor.entries = entries.map(|(key, value)| (key, value.into())).collect();
            }
        }
    }
    descriptor
}

pub(crate) fn summary(judged: &DescriptorResponse<'_>) -> String {
    let overall = if judged.over_limit { "deny" } else { "pass" };
    let statuses: Vec<String> = judged.statuses.iter().map(status).collect();
    format!("{overall}: {}", statuses.join(" | "))
}

fn status(status: &Status<'_>) -> String {
    let code = match (status.over_limit, status.shadow_over_limit) {
        (true, _) => "over",
        (false, true) => "watched",
        (false, false) => "ok",
    };
    match status.limit {
        None if status.remaining == u32::MAX => "unlimited".to_owned(),
        None if status.over_limit => "over".to_owned(),
        None => "free".to_owned(),
        Some(limit) => {
            let unit = limit.unit.map_or("?", Unit::name);
            let name = limit.name.map(|name| format!(" {name}")).unwrap_or_default();
            let (remaining, requests) = (status.remaining, limit.requests);
            format!("{code} {remaining} of {requests}/{unit}{name}")
        }
    }
}
