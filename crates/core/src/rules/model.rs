//! A rule after it has been read and checked. Only the compiler of rules makes one.

use std::collections::HashMap;
use std::sync::Arc;

use crate::algorithms::Limit;
use crate::subject::RuleName;
use crate::units::Nanos;

/// One rule, compiled.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) name: RuleName,
    pub(crate) by: By,
    pub(crate) if_missing: IfMissing,
    pub(crate) mode: Mode,
    pub(crate) unit: Option<Arc<str>>,
    pub(crate) on_store_failure: OnStoreFailure,
    pub(crate) budget: Option<Nanos>,
    pub(crate) max_delay: Option<Nanos>,
    /// The limits of a client without a tier or an override. Empty means unlimited.
    pub(crate) rates: Rates,
    /// By position in the rules' list of tiers; a tier not named here has `rates`.
    pub(crate) tiers: Vec<Option<Rates>>,
    /// By the text of the subject.
    pub(crate) overrides: HashMap<Box<str>, Rates>,
}

/// The rates of a rule for one kind of client.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rates {
    pub(crate) limits: Box<[Limit]>,
    /// As written, one per limit: `1000/minute burst 200`.
    pub(crate) written: Box<[Box<str>]>,
}

/// Whose counter a rule charges.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum By {
    /// One counter for everybody.
    Global,
    /// The values of all these together.
    All(Vec<Alternatives>),
}

/// Attribute names of which the first that is present counts.
pub type Alternatives = Vec<Box<str>>;

/// What happens to a request without the attribute a rule counts by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum IfMissing {
    /// It is counted by its address, and without one together with all others that have none.
    #[default]
    Substitute,
    /// The rule does not apply.
    Skip,
}

/// What a rule does with its verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// Refuses.
    #[default]
    Enforce,
    /// Counts what it would refuse.
    Shadow,
    /// Nothing.
    Off,
}

/// What decides when the store does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnStoreFailure {
    /// A local share of the limit.
    #[default]
    Local,
    /// The full limit on each node.
    Allow,
    /// Refuse.
    Deny,
}

impl Rule {
    /// Its unique name.
    pub fn name(&self) -> &RuleName {
        &self.name
    }

    /// Whose counter it charges.
    pub fn by(&self) -> &By {
        &self.by
    }

    /// What happens when that is absent.
    pub fn if_missing(&self) -> IfMissing {
        self.if_missing
    }

    /// What it does with its verdict.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The unit it counts, if not requests.
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }

    /// The longest delay a client of this rule may be given.
    pub fn max_delay(&self) -> Option<Nanos> {
        self.max_delay
    }

    /// What decides when the store does not.
    pub fn on_store_failure(&self) -> OnStoreFailure {
        self.on_store_failure
    }

    /// How long a decision may wait for the store.
    pub fn budget(&self) -> Option<Nanos> {
        self.budget
    }

    /// The limits for a client of `tier` whose subject reads `subject`. Empty means unlimited.
    pub fn limits(&self, tier: Option<u16>, subject: &str) -> &[Limit] {
        &self.rates_for(tier, subject).limits
    }

    pub(crate) fn rates_for(&self, tier: Option<u16>, subject: &str) -> &Rates {
        if let Some(own) = self.overrides.get(subject) {
            return own;
        }
        let tiered = self.tiers.get(usize::from(tier.unwrap_or(0)));
        tiered.and_then(Option::as_ref).unwrap_or(&self.rates)
    }
}
