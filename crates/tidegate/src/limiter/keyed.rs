//! Keys charged under a limit that the caller brings, without a rule: what `CL.THROTTLE` asks for.
//!
//! Kept true: the counters of a [`Family`] have a namespace of their own, so that no attribute of a
//! request and no other family reaches them. A key met under another limit than before keeps the
//! units it has used, as it would after a change of rules. Knows no protocol.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::Limit;
use tidegate_core::engine::Stance;
use tidegate_core::event::Event;
use tidegate_core::request::Edge;
use tidegate_core::store::{
    Charge, ChargeSet, Role, SINGLES, Single, Singles, Store, StoreError, Terms,
};
use tidegate_core::subject::{Fingerprint, FingerprintKey, RuleName};
use tidegate_core::units::Cost;

use super::Limiter;

/// Counters of one kind, under limits that callers bring.
#[derive(Debug)]
pub struct Family {
    name: RuleName,
    namespace: String,
}

/// One key to be charged.
#[derive(Clone, Copy, Debug)]
pub struct Keyed<'a> {
    /// The kind of counter.
    pub family: &'a Family,
    /// Whose counter. Hashed whole, and never kept.
    pub key: &'a [u8],
    /// The limit it is held to this time.
    pub limit: &'a Limit,
    /// What to do.
    pub act: Act,
}

/// What to do with a counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Act {
    /// Spend this much, if it is there.
    Charge(Cost),
    /// Only look. The answer says whether one unit would pass.
    Peek,
}

impl Family {
    /// The family called `name`, in metrics and in a shared store too.
    pub fn new(name: &str) -> Self {
        Family {
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
        let mut hasher = secret.subject(&self.namespace);
        hasher.part(key);
        hasher.finish()
    }
}

/// What such a counter asks of a store: the usual. A subject is one thing, its key.
const TERMS: Terms = Terms {
    named_by: 1,
    ..Terms::USUAL
};

impl<S: Store> Limiter<S> {
    /// Charges keys, each on its own and in order, and adds what became of each to `answers`. Up to
    /// [`SINGLES`] at a time read the clock once and, in memory, allocate nothing. Peeks are not told to
    /// observers.
    pub async fn charge_keys(&self, edge: Edge, asked: &[Keyed<'_>], answers: &mut Singles) {
        let charges = self.keyed_charges(asked);
        let mut charges = charges.as_slice();
        for run in asked.chunk_by(|a, b| a.peeks() == b.peeks()) {
            let (these, rest) = charges.split_at(run.len());
            charges = rest;
            if run[0].peeks() {
                for charge in these {
                    answers.push(self.peek_single(charge).await);
                }
            } else {
                let first = answers.len();
                self.store.charge_singles(these, answers).await;
                self.tell_keyed(edge, run, &answers[first..]);
            }
        }
    }

    fn keyed_charges<'a>(&self, asked: &[Keyed<'a>]) -> SmallVec<[Charge<'a>; SINGLES]> {
        let secret = self.keys.load();
        let role = match self.stance {
            Stance::AsWritten => Role::Enforce,
            Stance::AllShadow => Role::Shadow,
        };
        let charge = |keyed: &Keyed<'a>| Charge {
            subject: keyed.family.subject(&secret.fingerprint, keyed.key),
            rule: &keyed.family.name,
            rate: 0,
            limit: Cow::Borrowed(keyed.limit),
            cost: match keyed.act {
                Act::Charge(cost) => cost,
                Act::Peek => Cost::ONE,
            },
            role,
            terms: &TERMS,
        };
        asked.iter().map(charge).collect()
    }

    async fn peek_single(&self, charge: &Charge<'_>) -> Result<Single, StoreError> {
        let set = ChargeSet::of_one(charge.clone());
        let outcome = self.store.peek(&set).await?;
        Ok(Single::of(&outcome))
    }

    fn tell_keyed(&self, edge: Edge, asked: &[Keyed<'_>], answers: &[Result<Single, StoreError>]) {
        for (keyed, answer) in asked.iter().zip(answers) {
            let Ok(answer) = answer else { continue };
            let family = keyed.family.name();
            for observer in &self.observers {
                observer.notice(&Event::Charged {
                    edge,
                    family,
                    answer,
                });
            }
        }
    }
}

impl Keyed<'_> {
    fn peeks(&self) -> bool {
        self.act == Act::Peek
    }
}
