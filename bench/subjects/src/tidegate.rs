//! Tidegate. This file is the only one of the bench that calls it as a library.

use std::fmt::Write as _;
use std::time::Duration;

use tidegate::{Algorithm, Limiter, Quota, Throttle};

use crate::{Allowance, Key, LimiterSubject, RuleRequest, RuleSubject};

/// One token bucket for each key.
pub struct Tidegate(Throttle);

impl LimiterSubject for Tidegate {
    const NAME: &'static str = "tidegate";
    type Scratch = ();

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let Allowance { count, period_secs, burst } = allowance;
        Tidegate(throttle(&format!("{count}/{period_secs}s burst {burst}")))
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        self.0.check(key.as_str()).allows()
    }

    #[inline]
    fn decide_batch(&self, keys: &[&Key], _scratch: &mut ()) -> usize {
        let verdicts = self.0.check_each(keys.iter().map(|key| key.as_str()));
        verdicts.filter(|verdict| verdict.allows()).count()
    }
}

/// One strict sliding window for each key: the largest state. Only its memory is measured.
pub struct TidegateStrict(Throttle);

impl LimiterSubject for TidegateStrict {
    const NAME: &'static str = "tidegate, strict window";
    type Scratch = ();

    fn new(allowance: Allowance, _keys: usize) -> Self {
        let Allowance { period_secs, burst, .. } = allowance;
        let window = Duration::from_secs(period_secs.into());
        let quota = Quota::per(burst.get().into(), window).algorithm(Algorithm::SlidingWindowStrict);
        TidegateStrict(Throttle::new(quota).expect("an allowance is exact"))
    }

    fn decide(&self, key: &Key) -> bool {
        self.0.check(key.as_str()).allows()
    }
}

fn throttle(rate: &str) -> Throttle {
    Throttle::new(rate).expect("an allowance is a valid rate")
}

/// The full limiter on the memory store: finds the rules of a request, charges them, notifies observers.
pub struct TidegateRules(Limiter);

impl RuleSubject for TidegateRules {
    const NAME: &'static str = "tidegate";

    fn with_rules(rules: usize) -> Self {
        let mut text = String::from("version: 1\nrules:\n");
        for number in 0..rules {
            let path = RuleRequest::path_of_rule(number);
            let _ = writeln!(
                text,
                "  - {{ name: r{number}, match: {{ path: {path} }}, by: ip, rate: 60/minute burst 100000000 }}"
            );
        }
        TidegateRules(Limiter::from_yaml(&text).expect("the rules above are valid"))
    }

    fn decide(&self, request: &RuleRequest) -> bool {
        let mut check = tidegate::Request::default().with("path", &*request.path);
        check.ip = request.ip.parse().ok();
        self.0.check_now(check).allowed()
    }
}
