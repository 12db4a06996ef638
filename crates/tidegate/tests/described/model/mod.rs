//! Random trees and random requests against a naive reference service: a list of nodes, a map of counts.
//!
//! In the manner of the reference service every status and the whole must read the same, window after
//! window. What a limit is asked for beyond itself the reference goes on counting, and we do up to twice
//! the limit and no further. That shows only where one counter is read under several limits or given
//! back, so a second model, which knows of it, is held against such requests.

mod service;
mod traffic;

use std::collections::HashMap;

use tidegate::described::{Described, Descriptor, Manner, OwnLimit, RefusedPays, ZeroHits};
use tidegate::request::Request;

use self::service::Service;
use self::traffic::{Asked, Choices, Traffic, asked, level, written};
use crate::bench::{Bench, START, told};

fn run(seed: u64, traffic: Traffic, pays: RefusedPays, refused: &mut u64) {
    let choices = &mut Choices(seed);
    let nodes = level(choices, 0);
    let manner = Manner {
        refused: pays,
        zero_hits: match pays {
            RefusedPays::Nothing => ZeroHits::OverWhenSpent,
            RefusedPays::Violated | RefusedPays::All => ZeroHits::OverWhenExceeded,
        },
        all_quota: choices.once_in(5),
        all_shadow: choices.once_in(5),
    };
    let text = format!("domain: d\ndescriptors: [{}]\n", written(&nodes));
    let bench = Bench::new(&text).in_manner(manner);
    let mut service = Service {
        nodes,
        manner,
        traffic,
        counts: HashMap::new(),
    };
    let mut now = START.get() / 1_000_000_000;
    for step in 0..60 {
        let asked: Vec<Asked> = (0..1 + choices.below(4))
            .map(|_| asked(choices, traffic))
            .collect();
        let Some(want) = service.answer(&asked, now) else {
            continue;
        };
        let got = bench.judge(Request::default(), &described(&asked), |judged| {
            told(&judged)
        });
        assert_eq!(
            got, want,
            "seed {seed}, step {step}: {asked:?} under {manner:?} of\n{text}"
        );
        *refused += u64::from(got.starts_with("refuse"));
        let pass = choices.pick(&[0, 0, 0, 1, 20, 59, 3_600]);
        bench.advance_secs(pass);
        now += pass;
    }
}

fn described(asked: &[Asked]) -> Described<'static> {
    Described {
        domain: "d",
        descriptors: asked
            .iter()
            .map(|asked| Descriptor {
                entries: asked
                    .entries
                    .iter()
                    .map(|(k, v)| (*k, (*v).into()))
                    .collect(),
                own: asked
                    .own
                    .map(|(requests, unit)| OwnLimit { requests, unit }),
                hits: asked.hits,
            })
            .collect(),
    }
}

#[track_caller]
fn check(traffic: Traffic, pays: RefusedPays) {
    let mut refused = 0;
    (0..1_000).for_each(|seed| run(seed, traffic, pays, &mut refused));
    assert!((2_000..40_000).contains(&refused), "{refused} were refused");
}

#[test]
fn the_reference_service_would_have_said_the_same() {
    check(Traffic::Common, RefusedPays::All);
}

#[test]
fn who_is_refused_pays_what_was_agreed() {
    check(Traffic::Common, RefusedPays::Nothing);
    check(Traffic::Common, RefusedPays::Violated);
}

#[test]
fn limits_of_requests_and_refunds_keep_to_the_same_counters() {
    check(Traffic::Mixed, RefusedPays::All);
    check(Traffic::Mixed, RefusedPays::Violated);
    check(Traffic::Mixed, RefusedPays::Nothing);
}
