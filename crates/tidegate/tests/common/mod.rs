//! A limiter on memory with a clock moved by hand, and requests written as `name=value` words.
#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "clippy sees tests only inside test functions")]

use std::sync::Arc;

use tidegate::clock::ManualClock;
use tidegate::engine::{Decision, DecisionKind};
use tidegate::identity::Digest;
use tidegate::request::{ApiKey, Request};
use tidegate::rules::{RuleSet, SourceFile, parse};
use tidegate::store::Refunded;
use tidegate::stores::memory::MemoryStore;
use tidegate::units::{Cost, Nanos};
use tidegate::{LimitUsage, Limiter, LimiterBuilder, Policy, Retry, Secret};

/// An hour at which every window begins: 2026-01-05 00:00 UTC, a Monday.
pub(crate) const START: Nanos = Nanos::from_secs(1_767_571_200);

pub(crate) struct TestLimiter {
    pub(crate) limiter: Limiter<MemoryStore<Arc<ManualClock>>>,
    pub(crate) clock: Arc<ManualClock>,
}

type TestBuilder = LimiterBuilder<Arc<ManualClock>>;

pub(crate) fn rules(text: &str) -> RuleSet {
    let file = SourceFile { name: "test.yaml", text };
    parse(&[file]).unwrap_or_else(|errors| panic!("{errors}"))
}

/// `user=a path=/x cost=3 tokens:1500 key=k1 patience=0`
pub(crate) fn request(words: &str) -> Request<'_> {
    let mut request = Request::default();
    for word in words.split_whitespace() {
        if let Some((unit, cost)) = word.split_once(':')
            && let Ok(cost) = cost.parse()
        {
            request.costs.push((unit.into(), Cost::new(cost)));
            continue;
        }
        let (name, value) = word.split_once('=').expect("words are name=value");
        match name {
            "ip" => request.ip = Some(value.parse().unwrap()),
            "key" => {
                request.api_key = Some(ApiKey { digest: *Digest::of(value).as_bytes(), tier: None, name: None });
            }
            "cost" => request.cost = Cost::new(value.parse().unwrap()),
            "patience" => request.max_delay = Some(Nanos::from_millis(value.parse().unwrap())),
            name => request.attributes.push((name.into(), value.into())),
        }
    }
    request
}

impl TestLimiter {
    pub(crate) fn new(text: &str) -> Self {
        TestLimiter::with(text, |builder| builder)
    }

    pub(crate) fn in_shadow(text: &str) -> Self {
        TestLimiter::with(text, LimiterBuilder::shadow)
    }

    pub(crate) fn with(text: &str, change: impl FnOnce(TestBuilder) -> TestBuilder) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let builder = Limiter::builder().clock(clock.clone()).yaml(text).secret(secret);
        TestLimiter { limiter: change(builder).build().unwrap_or_else(|error| panic!("{error}")), clock }
    }

    pub(crate) fn advance(&self, nanos: u64) {
        self.clock.advance(Nanos::new(nanos));
    }

    /// Sets the clock back.
    pub(crate) fn set_back(&self, secs: u64) {
        use tidegate::clock::Clock;
        self.clock.set(self.clock.now().since(Nanos::from_secs(secs)));
    }

    pub(crate) fn reload(&self, text: &str) {
        self.replace(Policy::of(rules(text)));
    }

    pub(crate) fn replace(&self, policy: Policy) {
        let replaced = self.limiter.policy().replace_with(|| Ok::<_, String>(policy));
        replaced.unwrap();
    }

    pub(crate) fn decide(&self, request: Request<'_>) -> Decision {
        self.limiter.check_now(request)
    }

    /// Checks one decision, written as `allow`, `delay 1s`, `deny rule 30s`, `deny rule`, `never rule` or `block`.
    #[track_caller]
    pub(crate) fn check(&self, words: &str, want: &str) {
        let decision = self.decide(request(words));
        let rule = || decision.binding().unwrap().rule.name().to_string();
        let found = match decision.kind() {
            DecisionKind::Allow => "allow".to_owned(),
            DecisionKind::Delay(wait) => format!("delay {}s", wait.secs_up()),
            DecisionKind::Deny(Retry::After(wait)) => {
                format!("deny {} {}s", rule(), wait.secs_up())
            }
            DecisionKind::Deny(Retry::Never) => format!("never {}", rule()),
            DecisionKind::Unavailable => "unavailable".to_owned(),
            DecisionKind::Block { .. } => "block".to_owned(),
        };
        let same = found == want || (want.split(' ').count() == 2 && found.starts_with(want));
        assert!(same, "{words}: found `{found}`, want `{want}`");
    }

    #[track_caller]
    pub(crate) fn denied_for(&self, words: &str) -> Nanos {
        match self.decide(request(words)).kind() {
            DecisionKind::Deny(Retry::After(wait)) => wait,
            other => panic!("{words}: {other:?}"),
        }
    }

    pub(crate) fn peek(&self, words: &str) -> Decision {
        ready(self.limiter.peek(request(words))).unwrap()
    }

    pub(crate) fn refund(&self, receipt: &str) -> Refunded {
        ready(self.limiter.refund(receipt)).unwrap()
    }

    pub(crate) fn usage(&self, words: &str) -> Vec<LimitUsage> {
        ready(self.limiter.view().inspect(request(words))).unwrap()
    }

    /// The client's usage of one rule.
    pub(crate) fn used(&self, words: &str, rule: &str) -> u64 {
        let usages = self.usage(words);
        let of_rule = usages.into_iter().find(|found| found.rule == rule);
        let inspection = of_rule.and_then(|found| found.inspection);
        inspection.map_or(0, |inspection| inspection.used)
    }
}

/// The output of a future that never waits, as all of the memory store's do.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match std::pin::pin!(future).poll(&mut context) {
        std::task::Poll::Ready(result) => result,
        std::task::Poll::Pending => panic!("memory does not wait"),
    }
}
