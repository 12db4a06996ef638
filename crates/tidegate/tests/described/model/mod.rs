//! Random trees and random requests against a naive reference service: a list of nodes, a map of counts.
//!
//! With reference options every status and the overall result must be equal, window after window. The reference counts
//! hits beyond a limit without bound; Tidegate counts up to twice the limit and no further. The difference shows only
//! where one counter is read under several limits or refunded, so such requests are compared with a second model that
//! includes it.

mod service;
mod traffic;

use std::collections::HashMap;

use tidegate::envoy::{ChargeOnDenial, DescribedRequest, Descriptor, DescriptorOptions, DescriptorOverride, ZeroHits};
use tidegate::request::Request;

use self::service::ReferenceService;
use self::traffic::{DescriptorQuery, TrafficKind, TrafficRng, level, random_query, written};
use crate::fixture::{DescriptorFixture, START, summary};

fn run(seed: u64, traffic: TrafficKind, pays: ChargeOnDenial, denied: &mut u64) {
    let choices = &mut TrafficRng(seed);
    let nodes = level(choices, 0);
    let options = DescriptorOptions {
        charge_on_denial: pays,
        zero_hits: match pays {
            ChargeOnDenial::Nothing => ZeroHits::OverAtLimit,
            ChargeOnDenial::Violated | ChargeOnDenial::All => ZeroHits::OverAboveLimit,
        },
        all_quota: choices.once_in(5),
        all_shadow: choices.once_in(5),
    };
    let text = format!("domain: d\ndescriptors: [{}]\n", written(&nodes));
    let fixture = DescriptorFixture::new(&text).with_options(options);
    let mut service = ReferenceService { nodes, options, traffic, counts: HashMap::new() };
    let mut now = START.get() / 1_000_000_000;
    for step in 0..60 {
        let queries: Vec<DescriptorQuery> = (0..1 + choices.below(4)).map(|_| random_query(choices, traffic)).collect();
        let Some(want) = service.decide(&queries, now) else {
            continue;
        };
        let got = fixture.judge(Request::default(), &described(&queries), |judged| summary(&judged));
        assert_eq!(got, want, "seed {seed}, step {step}: {queries:?} under {options:?} of\n{text}");
        *denied += u64::from(got.starts_with("deny"));
        let pass = choices.pick(&[0, 0, 0, 1, 20, 59, 3_600]);
        fixture.advance_secs(pass);
        now += pass;
    }
}

fn described(queries: &[DescriptorQuery]) -> DescribedRequest<'static> {
    DescribedRequest {
        domain: "d",
        descriptors: queries
            .iter()
            .map(|query| Descriptor {
                entries: query.entries.iter().map(|(k, v)| (*k, (*v).into())).collect(),
                limit_override: query.own.map(|(requests, unit)| DescriptorOverride { requests, unit }),
                hits: query.hits,
            })
            .collect(),
    }
}

#[track_caller]
fn check(traffic: TrafficKind, pays: ChargeOnDenial) {
    let mut denied = 0;
    (0..1_000).for_each(|seed| run(seed, traffic, pays, &mut denied));
    assert!((2_000..40_000).contains(&denied), "{denied} were denied");
}

#[test]
fn the_reference_service_decides_the_same() {
    check(TrafficKind::Common, ChargeOnDenial::All);
}

#[test]
fn a_denied_request_is_charged_as_configured() {
    check(TrafficKind::Common, ChargeOnDenial::Nothing);
    check(TrafficKind::Common, ChargeOnDenial::Violated);
}

#[test]
fn limits_of_requests_and_refunds_use_the_same_counters() {
    check(TrafficKind::Mixed, ChargeOnDenial::All);
    check(TrafficKind::Mixed, ChargeOnDenial::Violated);
    check(TrafficKind::Mixed, ChargeOnDenial::Nothing);
}
