//! Limiters that find the rules of a request among many.

/// A request as the rule matchers see it.
#[derive(Debug, Clone)]
pub struct RuleRequest {
    /// The path; exactly one of the rules names it.
    pub path: String,
    /// The client address, by which the rule counts.
    pub ip: String,
}

impl RuleRequest {
    /// A request of one of a few clients to the path of rule `rule`.
    #[must_use]
    pub fn to_rule(rule: usize, client: usize) -> Self {
        RuleRequest { path: Self::path_of_rule(rule), ip: format!("198.51.{}.{}", client / 250 % 250, client % 250) }
    }

    /// The path that rule `rule` alone matches.
    #[must_use]
    pub fn path_of_rule(rule: usize) -> String {
        format!("/api/v1/resource-{rule}")
    }
}

/// A limiter with many rules, one for each path, all counting by `ip`.
pub trait RuleSubject: Sized + Send + Sync {
    /// The name in tables.
    const NAME: &'static str;

    /// A fresh limiter with this many rules that admit every request of a run.
    fn with_rules(rules: usize) -> Self;

    /// Finds the rule of the request and charges one unit; true when it was admitted.
    fn decide(&self, request: &RuleRequest) -> bool;
}
