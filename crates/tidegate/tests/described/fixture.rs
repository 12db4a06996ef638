//! A limiter on memory with a manual clock, whose requests are written as words.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::clock::ManualClock;
use tidegate::engine::DescriptorResponse;
use tidegate::envoy::{DescribedRequest, DescriptorOptions};
use tidegate::request::Request;
use tidegate::rules::{ParseOptions, SourceFile};
use tidegate::store::Capabilities;
use tidegate::stores::memory::MemoryStore;
use tidegate::units::Nanos;
use tidegate::{Limiter, LimiterBuilder, Policy, Secret};

pub(crate) use crate::words::{described, summary};

/// An instant at which every window begins.
pub(crate) const START: Nanos = Nanos::from_secs(365 * 30 * 7 * 86_400);

type DescriptorBuilder = LimiterBuilder<Arc<ManualClock>>;

pub(crate) struct DescriptorFixture {
    pub(crate) limiter: Limiter<MemoryStore<Arc<ManualClock>>>,
    clock: Arc<ManualClock>,
    pub(crate) options: DescriptorOptions,
}

/// The limits of `files`, or their errors.
pub(crate) fn policy(files: &[&str]) -> Result<Policy, String> {
    policy_in(Capabilities::MEMORY.into(), files)
}

/// The same with other parse options.
pub(crate) fn policy_in(options: ParseOptions, files: &[&str]) -> Result<Policy, String> {
    let names: Vec<String> = (1..=files.len()).map(|n| format!("{n}.yaml")).collect();
    let named = names.iter().zip(files);
    let files: Vec<_> = named.map(|(name, text)| SourceFile { name, text }).collect();
    Policy::parse_for(&files, options).map_err(|errors| errors.to_string())
}

impl DescriptorFixture {
    pub(crate) fn new(text: &str) -> Self {
        DescriptorFixture::of(policy(&[text]).unwrap_or_else(|errors| panic!("{errors}")))
    }

    pub(crate) fn of(policy: Policy) -> Self {
        DescriptorFixture::with(policy, |builder| builder)
    }

    pub(crate) fn with(policy: Policy, change: impl FnOnce(DescriptorBuilder) -> DescriptorBuilder) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        let builder = Limiter::builder().clock(Arc::clone(&clock)).policy(policy).secret(secret);
        DescriptorFixture { limiter: change(builder).build().unwrap(), clock, options: DescriptorOptions::default() }
    }

    pub(crate) fn with_options(mut self, options: DescriptorOptions) -> Self {
        self.options = options;
        self
    }

    pub(crate) fn advance_secs(&self, secs: u64) {
        self.clock.advance(Nanos::from_secs(secs));
    }

    /// Checks the result of a request of domain `d`.
    #[track_caller]
    pub(crate) fn check(&self, words: &str, want: &str) {
        self.check_beside(Request::default(), words, want);
    }

    /// The same, with attributes for native rules.
    #[track_caller]
    pub(crate) fn check_beside(&self, request: Request<'_>, words: &str, want: &str) {
        let found = self.judge(request, &described(words), |judged| summary(&judged));
        assert_eq!(found, want, "{words}");
    }

    pub(crate) fn judge<T>(
        &self,
        request: Request<'_>,
        described: &DescribedRequest<'_>,
        with: impl FnOnce(DescriptorResponse<'_>) -> T,
    ) -> T {
        let view = self.limiter.view();
        let judged = at_once(view.check_described(request, described, self.options));
        with(judged.expect("memory always replies"))
    }
}

/// Memory never waits, so no runtime is needed.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("memory never waits"),
    }
}
