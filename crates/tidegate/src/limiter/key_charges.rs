//! Keys charged under a limit that the caller supplies, without a rule, as `CL.THROTTLE` does.
//!
//! Invariant: the counters of a [`KeyFamily`] have a namespace of their own, so that no attribute of a request and
//! no other family reaches them. A key charged under another limit than before keeps the units it has used, as it
//! would after a change of rules. Knows no protocol.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::Limit;
use tidegate_core::store::{
    Charge, ChargeSet, Role, RuleOptions, SINGLE_BATCH, SingleOutcome, SingleOutcomes, Store, StoreError,
};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::Cost;
use tidegate_rules::engine::EnforceMode;
use tidegate_rules::event::Event;
use tidegate_rules::request::Edge;

use super::Limiter;
use crate::runtime::join_all;

/// Counters of one kind, under limits that callers supply.
#[derive(Debug)]
pub struct KeyFamily {
    name: RuleName,
    namespace: String,
}

/// One key to charge.
#[derive(Clone, Copy, Debug)]
pub struct KeyCharge<'a> {
    /// The kind of counter.
    pub family: &'a KeyFamily,
    /// The key of the counter. It is hashed whole, and never stored.
    pub key: &'a [u8],
    /// The limit of this charge.
    pub limit: &'a Limit,
    /// Whether to charge or to peek.
    pub action: KeyAction,
}

/// The operation on a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    /// Charge this cost, if the limit allows it.
    Charge(Cost),
    /// Read without charging. The verdict is that for one unit.
    Peek,
}

impl KeyFamily {
    /// The family called `name`, also in metrics and in a shared store.
    pub fn new(name: &str) -> Self {
        KeyFamily {
            name: RuleName::new(name),
            // Subjects of rules have the namespace `tidegate`, which this string can never equal.
            namespace: format!("keyed {name}"),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    fn subject(&self, secret: &FingerprintKey, key: &[u8]) -> Fingerprint {
        let mut hasher = secret.hasher(&self.namespace);
        hasher.part(key);
        hasher.finish()
    }
}

/// The default options. A subject consists of one attribute, its key.
const OPTIONS: RuleOptions = RuleOptions { specificity: 1, ..RuleOptions::DEFAULT };

impl<S: Store> Limiter<S> {
    /// Charges keys, each on its own and in order, and appends the outcome of each to `replies`. Up to
    /// [`SINGLE_BATCH`] keys share one reading of the clock and, in memory, allocate nothing. Observers are not
    /// notified of peeks. Dropped before it has finished, the call may have charged any of them.
    pub async fn charge_keys(&self, edge: Edge, requests: &[KeyCharge<'_>], replies: &mut SingleOutcomes) {
        let charges = self.keyed_charges(requests);
        let mut charges = charges.as_slice();
        for run in requests.chunk_by(|a, b| a.peeks() == b.peeks()) {
            let (these, rest) = charges.split_at(run.len());
            charges = rest;
            if run[0].peeks() {
                replies.extend(join_all(these.iter().map(|charge| self.peek_single(charge))).await);
            } else {
                let first = replies.len();
                self.store.charge_singles(these, replies).await;
                self.notify_charged(edge, run, &replies[first..]);
            }
        }
    }

    fn keyed_charges<'a>(&self, requests: &[KeyCharge<'a>]) -> SmallVec<[Charge<'a>; SINGLE_BATCH]> {
        let secret = self.keys.load();
        let role = match self.enforcement {
            EnforceMode::AsWritten => Role::Enforce,
            EnforceMode::AllShadow => Role::Shadow,
        };
        let charge = |keyed: &KeyCharge<'a>| Charge {
            subject: keyed.family.subject(&secret.fingerprint, keyed.key),
            rule: &keyed.family.name,
            rate: 0,
            limit: Cow::Borrowed(keyed.limit),
            cost: match keyed.action {
                KeyAction::Charge(cost) => cost,
                KeyAction::Peek => Cost::ONE,
            },
            role,
            options: &OPTIONS,
        };
        requests.iter().map(charge).collect()
    }

    async fn peek_single(&self, charge: &Charge<'_>) -> Result<SingleOutcome, StoreError> {
        let set = ChargeSet::of_one(charge.clone());
        let outcome = self.store.peek(&set).await?;
        Ok(SingleOutcome::of(&outcome))
    }

    fn notify_charged(&self, edge: Edge, requests: &[KeyCharge<'_>], replies: &[Result<SingleOutcome, StoreError>]) {
        for (keyed, outcome) in requests.iter().zip(replies) {
            if let Ok(outcome) = outcome {
                self.notify_observers(&Event::Charged { edge, family: keyed.family.name(), outcome });
            }
        }
    }
}

impl KeyCharge<'_> {
    fn peeks(&self) -> bool {
        self.action == KeyAction::Peek
    }
}
