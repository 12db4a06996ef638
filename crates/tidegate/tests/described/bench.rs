//! A limiter on memory with a clock moved by hand, asked in words.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::clock::ManualClock;
use tidegate::described::{Described, Manner};
use tidegate::engine::Judged;
use tidegate::request::Request;
use tidegate::rules::{Dialect, SourceFile};
use tidegate::store::Abilities;
use tidegate::stores::memory::MemoryStore;
use tidegate::units::Nanos;
use tidegate::{Limiter, Policy, Secret};

pub(crate) use crate::words::{described, told};

/// A moment at which every window begins.
pub(crate) const START: Nanos = Nanos::from_secs(365 * 30 * 7 * 86_400);

pub(crate) struct Bench {
    pub(crate) limiter: Limiter<MemoryStore<Arc<ManualClock>>>,
    clock: Arc<ManualClock>,
    pub(crate) manner: Manner,
}

/// The limits of `files`, or what is wrong with them.
pub(crate) fn policy(files: &[&str]) -> Result<Policy, String> {
    policy_in(Abilities::MEMORY.into(), files)
}

/// The same, read in another way.
pub(crate) fn policy_in(dialect: Dialect, files: &[&str]) -> Result<Policy, String> {
    let names: Vec<String> = (1..=files.len()).map(|n| format!("{n}.yaml")).collect();
    let named = names.iter().zip(files);
    let files: Vec<_> = named
        .map(|(name, text)| SourceFile { name, text })
        .collect();
    Policy::parse_for(&files, dialect).map_err(|faults| faults.to_string())
}

impl Bench {
    pub(crate) fn new(text: &str) -> Self {
        Bench::of(policy(&[text]).unwrap_or_else(|faults| panic!("{faults}")))
    }

    pub(crate) fn of(policy: Policy) -> Self {
        let clock = Arc::new(ManualClock::at(START));
        let store = MemoryStore::new(Arc::clone(&clock));
        let secret = Secret::from_bytes(b"0123456789abcdef").unwrap();
        Bench {
            limiter: Limiter::new(store, policy, secret, clock.clone()),
            clock,
            manner: Manner::default(),
        }
    }

    pub(crate) fn in_manner(mut self, manner: Manner) -> Self {
        self.manner = manner;
        self
    }

    pub(crate) fn in_shadow(mut self) -> Self {
        self.limiter = self.limiter.in_shadow();
        self
    }

    pub(crate) fn advance_secs(&self, secs: u64) {
        self.clock.advance(Nanos::from_secs(secs));
    }

    /// What a request of domain `d` is told.
    #[track_caller]
    pub(crate) fn check(&self, words: &str, want: &str) {
        self.check_beside(Request::default(), words, want);
    }

    /// The same, with attributes for native rules.
    #[track_caller]
    pub(crate) fn check_beside(&self, request: Request<'_>, words: &str, want: &str) {
        let told = self.judge(request, &described(words), |judged| told(&judged));
        assert_eq!(told, want, "{words}");
    }

    pub(crate) fn judge<T>(
        &self,
        request: Request<'_>,
        described: &Described<'_>,
        with: impl FnOnce(Judged<'_>) -> T,
    ) -> T {
        let view = self.limiter.view();
        let judged = at_once(view.check_described(request, described, self.manner));
        with(judged.expect("memory always answers"))
    }
}

/// Memory never waits, so no runtime is needed.
pub(crate) fn at_once<T>(future: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("memory never waits"),
    }
}
