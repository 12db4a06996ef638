//! The rules file of a run. Nodes parse it as they parse a user's.

use tidegate_core::algorithms::Spec;
use tidegate_core::store::{Counting, OnStoreFailure};
use tidegate_core::units::Nanos;

use super::{Scenario, Work};
use crate::variant::Variant;

impl Scenario {
    /// The rules file of the run.
    pub fn rules(&self) -> String {
        self.rules_for(Variant::Shipped)
    }

    /// The rules file with the mistake of `variant`: the checkers do not know about it.
    pub(crate) fn rules_for(&self, variant: Variant) -> String {
        if let Work::Permits(permits) = self.work {
            return format!(
                "version: 1\nrules:\n  - {{ name: own, by: user, concurrent: {}, on_store_failure: {} }}\n",
                permits.max_open,
                self.on_failure_name()
            );
        }
        let own = self.rule("own", "user", variant.misread(&self.spec), self.counting);
        let ceiling = self
            .ceiling
            .as_ref()
            .map_or(String::new(), |spec| self.rule("ceiling", "global", variant.misread(spec), self.ceiling_counting));
        format!("version: 1\nrules:\n{own}{ceiling}")
    }

    fn on_failure_name(&self) -> &'static str {
        match self.on_failure {
            OnStoreFailure::Local => "local",
            OnStoreFailure::Allow => "allow",
            OnStoreFailure::Deny => "deny",
        }
    }

    fn rule(&self, name: &str, by: &str, spec: Spec, counting: Counting) -> String {
        let on_failure = self.on_failure_name();
        let millis = |span: Nanos| format!("{}ms", span.millis_up());
        let window = millis(spec.window.length());
        let burst = spec.burst.map_or(String::new(), |b| format!(" burst {b}"));
        let guard = match spec.guard {
            Nanos::ZERO => String::new(),
            guard => format!(", guard: {}", millis(guard)),
        };
        let counting = match (counting, spec.lease_ttl) {
            (Counting::Exact, _) => String::new(),
            (Counting::Leased, Some(lasts)) => format!(", counting: leased {}", millis(lasts)),
            (counting, _) => format!(", counting: {}", counting.name()),
        };
        format!(
            "  - {{ name: {name}, by: {by}, rate: {}/{window}{burst}, algorithm: {}, \
             on_store_failure: {on_failure}{guard}{counting} }}\n",
            spec.count, spec.algorithm
        )
    }
}
