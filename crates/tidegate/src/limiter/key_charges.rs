//! Keys charged under a limit that the caller brings, without a rule: what `CL.THROTTLE` asks for.
//!
//! Kept true: the counters of a [`KeyFamily`] have a namespace of their own, so that no attribute of a
//! request and no other family reaches them. A key met under another limit than before keeps the
//! units it has used, as it would after a change of rules. Knows no protocol.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::Limit;
use tidegate_core::engine::EnforceMode;
use tidegate_core::event::Event;
use tidegate_core::request::Edge;
use tidegate_core::store::{
    Charge, ChargeSet, Role, RuleOptions, SINGLE_BATCH, SingleOutcome, SingleOutcomes, Store,
    StoreError,
};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::Cost;

use super::Limiter;

/// Counters of one kind, under limits that callers bring.
#[derive(Debug)]
pub struct KeyFamily {
    name: RuleName,
    namespace: String,
}

/// One key to be charged.
#[derive(Clone, Copy, Debug)]
pub struct KeyCharge<'a> {
    /// The kind of counter.
    pub family: &'a KeyFamily,
    /// Whose counter. Hashed whole, and never kept.
    pub key: &'a [u8],
    /// The limit it is held to this time.
    pub limit: &'a Limit,
    /// What to do.
    pub action: KeyAction,
}

/// What to do with a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyAction {
    /// Spend this much, if it is there.
    Charge(Cost),
    /// Only look. The answer says whether one unit would pass.
    Peek,
}

impl KeyFamily {
    /// The family called `name`, in metrics and in a shared store too.
    pub fn new(name: &str) -> Self {
        KeyFamily {
            name: RuleName::new(name),
            // Subjects of rules are in `tidegate`, which this can never spell.
            namespace: format!("keyed {name}"),
        }
    }

    /// What it is called.
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    fn subject(&self, secret: &FingerprintKey, key: &[u8]) -> Fingerprint {
        let mut hasher = secret.hasher(&self.namespace);
        hasher.part(key);
        hasher.finish()
    }
}

/// What such a counter asks of a store: the usual. A subject is one thing, its key.
const OPTIONS: RuleOptions = RuleOptions {
    specificity: 1,
    ..RuleOptions::DEFAULT
};

impl<S: Store> Limiter<S> {
    /// Charges keys, each on its own and in order, and adds what became of each to `replies`. Up to
    /// [`SINGLE_BATCH`] at a time read the clock once and, in memory, allocate nothing. Peeks are not told to
    /// observers.
    pub async fn charge_keys(
        &self,
        edge: Edge,
        requests: &[KeyCharge<'_>],
        replies: &mut SingleOutcomes,
    ) {
        let charges = self.keyed_charges(requests);
        let mut charges = charges.as_slice();
        for run in requests.chunk_by(|a, b| a.peeks() == b.peeks()) {
            let (these, rest) = charges.split_at(run.len());
            charges = rest;
            if run[0].peeks() {
                for charge in these {
                    replies.push(self.peek_single(charge).await);
                }
            } else {
                let first = replies.len();
                self.store.charge_singles(these, replies).await;
                self.notify_charged(edge, run, &replies[first..]);
            }
        }
    }

    fn keyed_charges<'a>(
        &self,
        requests: &[KeyCharge<'a>],
    ) -> SmallVec<[Charge<'a>; SINGLE_BATCH]> {
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

    fn notify_charged(
        &self,
        edge: Edge,
        requests: &[KeyCharge<'_>],
        replies: &[Result<SingleOutcome, StoreError>],
    ) {
        for (keyed, outcome) in requests.iter().zip(replies) {
            let Ok(outcome) = outcome else { continue };
            let family = keyed.family.name();
            for observer in &self.observers {
                observer.on_event(&Event::Charged {
                    edge,
                    family,
                    outcome,
                });
            }
        }
    }
}

impl KeyCharge<'_> {
    fn peeks(&self) -> bool {
        self.action == KeyAction::Peek
    }
}
