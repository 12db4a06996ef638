//! Tidegate. This file is the only one of the bench that calls it as a library.

use std::fmt::Write as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate::{Limiter, Throttle, Verdict};

use crate::{Allowance, BATCH, Key, Request, Ruled, Subject};

/// One token bucket for each key.
pub struct Tidegate(Throttle);

impl Subject for Tidegate {
    const NAME: &'static str = "tidegate";
    type Scratch = Vec<Verdict>;

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let Allowance {
            count,
            period_secs,
            burst,
        } = allowance;
        Tidegate(throttle(&format!("{count}/{period_secs}s burst {burst}")))
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        self.0.check(key.as_str()).allows()
    }

    #[inline]
    fn decide_batch(&self, keys: &[&Key], scratch: &mut Vec<Verdict>) -> usize {
        let mut texts = [""; BATCH];
        for (text, key) in texts.iter_mut().zip(keys) {
            *text = key.as_str();
        }
        scratch.clear();
        self.0.check_many(&texts[..keys.len()], scratch);
        scratch.iter().filter(|verdict| verdict.allows()).count()
    }
}

/// One strict sliding window for each key: the largest state. Only its memory is measured.
pub struct TidegateStrict(Throttle);

impl Subject for TidegateStrict {
    const NAME: &'static str = "tidegate, strict window";
    type Scratch = ();

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let Allowance {
            period_secs, burst, ..
        } = allowance;
        TidegateStrict(throttle(&format!(
            "{burst}/{period_secs}s sliding-window-strict"
        )))
    }

    fn decide(&self, key: &Key) -> bool {
        self.0.check(key.as_str()).allows()
    }
}

fn throttle(rate: &str) -> Throttle {
    Throttle::new(rate).expect("an allowance is a valid rate")
}

/// The full limiter on the memory store: finds the rules of a request, charges them, tells observers.
pub struct TidegateRules(Limiter);

impl Ruled for TidegateRules {
    const NAME: &'static str = "tidegate";

    fn with_rules(rules: usize) -> Self {
        let mut file = String::from("version: 1\nrules:\n");
        for number in 0..rules {
            let path = Request::path_of_rule(number);
            let _ = writeln!(
                file,
                "  - {{ name: r{number}, match: {{ path: {path} }}, by: ip, rate: 60/minute burst 100000000 }}"
            );
        }
        TidegateRules(Limiter::from_rules(&file).expect("the rules above are valid"))
    }

    fn decide(&self, request: &Request) -> bool {
        let asked = tidegate::Request::new()
            .with("path", &request.path)
            .with("ip", &request.ip);
        at_once(self.0.check(&asked)).is_ok_and(|decision| decision.allows())
    }
}

/// Memory answers without waiting, so one poll is enough and no runtime adds its cost.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => unreachable!("the memory store never waits"),
    }
}
