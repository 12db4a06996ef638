//! `limitador` on its in-memory storage: fixed windows, conditions and variables in CEL.

use std::collections::HashMap;

use limitador::RateLimiter;
use limitador::limit::{Context, Expression, Limit, Namespace, Predicate};

use crate::{Allowance, Key, LimiterSubject, RuleRequest, RuleSubject};

const NAMESPACE: &str = "bench";

/// One limit qualified by the variable `key`.
pub struct Limitador {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl LimiterSubject for Limitador {
    const NAME: &'static str = "limitador";
    type Scratch = ();

    /// It requires a maximum number of counters, and evicts some beyond that.
    fn new(allowance: Allowance, keys: usize) -> Self {
        let limiter = RateLimiter::new(2 * keys as u64 + 1_000);
        let (count, period_secs) = (allowance.burst.get().into(), allowance.period_secs.into());
        limiter.add_limit(Limit::new(NAMESPACE, count, period_secs, [], [variable("key")]));
        Limitador { limiter, namespace: NAMESPACE.into() }
    }

    #[inline]
    fn decide(&self, key: &Key) -> bool {
        let values = HashMap::from([("key".to_owned(), key.as_str().to_owned())]);
        admitted(&self.limiter, &self.namespace, values)
    }
}

/// Many limits, each with a condition on the path, qualified by `ip`.
pub struct LimitadorRules {
    limiter: RateLimiter,
    namespace: Namespace,
}

impl RuleSubject for LimitadorRules {
    const NAME: &'static str = "limitador";

    fn with_rules(rules: usize) -> Self {
        let limiter = RateLimiter::new(100_000);
        for number in 0..rules {
            let condition = format!("path == '{}'", RuleRequest::path_of_rule(number));
            let condition = Predicate::parse(condition).expect("an equality is valid CEL");
            let limit = Limit::new(NAMESPACE, 100_000_000, 60, [condition], [variable("ip")]);
            limiter.add_limit(limit);
        }
        LimitadorRules { limiter, namespace: NAMESPACE.into() }
    }

    fn decide(&self, request: &RuleRequest) -> bool {
        let values = [("path", &request.path), ("ip", &request.ip)];
        let values = values.map(|(name, value)| (name.to_owned(), value.clone()));
        admitted(&self.limiter, &self.namespace, HashMap::from(values))
    }
}

fn variable(name: &str) -> Expression {
    Expression::parse(name).expect("a bare name is valid CEL")
}

fn admitted(limiter: &RateLimiter, namespace: &Namespace, values: HashMap<String, String>) -> bool {
    limiter.check_rate_limited_and_update(namespace, &Context::from(values), 1).is_ok_and(|result| !result.limited)
}
