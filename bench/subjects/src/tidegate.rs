//! Tidegate. This file is the only one of the bench that calls it as a library.

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
        self.0.check(key.as_str()).is_allowed()
    }

    #[inline]
    fn decide_batch(&self, keys: &[&Key], scratch: &mut Vec<Verdict>) -> usize {
        let mut texts = [""; BATCH];
        for (text, key) in texts.iter_mut().zip(keys) {
            *text = key.as_str();
        }
        scratch.clear();
        self.0.check_many(&texts[..keys.len()], scratch);
        scratch
            .iter()
            .filter(|verdict| verdict.is_allowed())
            .count()
    }
}

fn throttle(rate: &str) -> Throttle {
    Throttle::new(rate).expect("an allowance is a valid rate")
}
