//! Requests with Envoy descriptors, on a real server: charges, forced charges and refunds, under limits that change
//! from request to request, by the bare store and by the whole stack around it.

use std::sync::Arc;

use tidegate::envoy::{ChargeOnDenial, DescriptorOptions, ZeroHits};
use tidegate::resilience::{ResilienceSettings, StoreEvent, resilient};
use tidegate::rules::SourceFile;
use tidegate::runtime::TokioRuntime;
use tidegate::{Limiter, Policy, Request, Secret};
use tidegate_core::store::{Capabilities, Store};
use tidegate_core::units::Nanos;

use crate::words::{described, summary};
use crate::{on_runtime, redis, store};
use tidegate_testkit::TestRedis;

/// Windows that outlast every test.
const FILE: &str = "
domain: d
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 3 } }
  - { key: path, value: /a*, share_threshold: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: a, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
  - { key: b, quota_mode: true, rate_limit: { unit: year, requests_per_unit: 2 } }
  - { key: seen, shadow_mode: true, rate_limit: { unit: year, requests_per_unit: 1 } }
";

/// Requests and their expected decisions.
const COMMON: [(&str, &str); 15] = [
    ("user=a hits=2", "pass: ok 1 of 3/year"),
    ("user=a none", "pass: ok 1 of 3/year"),
    ("user=a | user=a", "deny: ok 1 of 3/year | over 0 of 3/year"),
    ("user=a", "pass: ok 0 of 3/year"),
    ("user=a none | path=/a1", "deny: over 0 of 3/year | ok 2 of 2/year"),
    ("user=a limit=9/year", "pass: ok 5 of 9/year"),
    ("user=a limit=2/year", "deny: over 0 of 2/year"),
    ("user=a limit=9/year", "pass: ok 4 of 9/year"),
    ("user=a limit=9/month", "pass: ok 8 of 9/month"),
    ("user=q | user=q limit=9/year", "pass: ok 1 of 3/year | ok 7 of 9/year"),
    ("path=/a1 | path=/a2", "pass: ok 0 of 2/year | ok 0 of 2/year"),
    ("a=1 | b=1", "pass: ok 0 of 1/year | ok 1 of 2/year"),
    ("a=1 | b=1 hits=2 | seen=1", "deny: over 0 of 1/year | over 0 of 2/year | ok 1 of 1/year"),
    ("a=1 | b=1 | seen=1 hits=2", "pass: over 0 of 1/year | ok 0 of 2/year | watched 0 of 1/year"),
    ("user=z used=5 | seen=2", "deny: over 0 of 3/year | ok 1 of 1/year"),
];

/// The last denial is remembered; a refund ends that.
const REFUNDED: [(&str, &str); 5] = [
    ("user=b hits=3", "pass: ok 0 of 3/year"),
    ("user=b", "deny: over 0 of 3/year"),
    ("user=b", "deny: over 0 of 3/year"),
    ("user=b back=2", "pass: ok 2 of 3/year"),
    ("user=b", "pass: ok 1 of 3/year"),
];

const WITH_REFERENCE_OPTIONS: [(&str, &str); 4] = [
    ("path=/a hits=2", "pass: ok 0 of 2/year"),
    ("user=c | path=/a", "deny: ok 2 of 3/year | over 0 of 2/year"),
    ("user=c | path=/a", "deny: ok 1 of 3/year | over 0 of 2/year"),
    ("user=c", "pass: ok 0 of 3/year"),
];

/// Checks requests one after another, under a secret of its own and so with counters of its own.
async fn check<S: Store>(store: S, steps: &[(&str, &str)], options: DescriptorOptions, secret: &[u8; 16]) {
    let file = SourceFile { name: "envoy.yaml", text: FILE };
    let policy = Policy::parse_for(&[file], Capabilities::SHARED).expect("good rules");
    let secret = Secret::from_bytes(secret).expect("a secret");
    let limiter = Limiter::builder().policy(policy).secret(secret).build_on(store).expect("rules are given");
    for (step, (words, want)) in steps.iter().enumerate() {
        let (view, described) = (limiter.view(), described(words));
        let judged = view.check_described(Request::default(), &described, options);
        let judged = judged.await.unwrap_or_else(|error| panic!("{words}: {error}"));
        assert_eq!(summary(&judged), *want, "step {step}: {words}");
    }
}

const ALL: DescriptorOptions = DescriptorOptions {
    charge_on_denial: ChargeOnDenial::All,
    zero_hits: ZeroHits::OverAboveLimit,
    all_quota: false,
    all_shadow: false,
};

#[test]
fn a_shared_store_decides_descriptors() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let usual = DescriptorOptions::default();
        for (steps, options, secret) in [
            (&COMMON[..], usual, b"the first secret"),
            (&REFUNDED[..], usual, b"a second secret!"),
            (&WITH_REFERENCE_OPTIONS[..], ALL, b"the third secret"),
        ] {
            Box::pin(check(store(&server.url()).await, steps, options, secret)).await;
        }
    });
}

#[test]
fn the_whole_stack_decides_descriptors_like_the_bare_store() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let usual = DescriptorOptions::default();
        for (steps, options, secret) in [
            (&COMMON[..], usual, b"the first secret"),
            (&REFUNDED[..], usual, b"a second secret!"),
            (&WITH_REFERENCE_OPTIONS[..], ALL, b"the third secret"),
        ] {
            let (exact, mut ready) = tokio::sync::mpsc::unbounded_channel();
            let watcher = Arc::new(move |event| {
                if event == StoreEvent::Exact {
                    let _nobody_waits_twice = exact.send(());
                }
            });
            let settings = ResilienceSettings {
                budget: Nanos::from_secs(20), // a busy machine is no outage
                ..ResilienceSettings::default()
            };
            let runtime = TokioRuntime::new().expect("randomness");
            let whole = resilient(redis(&server.url()).await, runtime, settings, watcher);
            ready.recv().await.expect("the node joins its store");
            Box::pin(check(whole, steps, options, secret)).await;
        }
    });
}
