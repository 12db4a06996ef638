//! The ledger of charges whose replies are late: the policy as a pure state machine.
//!
//! States of a unit, per counter: `waiting` (admitted here, the reply is outstanding), credit (the store counts it for
//! a request that was denied here), pending (admitted, and known not to be counted by the store) or confirmed. Pending
//! units live in the write-back queue; here they are only effects.
//!
//! Events: `pay` (a late request was admitted), `pay_by_credits` (a denial in time), `insert_request`,
//! `never_sent`, `replied`, `withdraw`, `expire`, `void_credits` (the store lost its counts), `reset`, `take_unshared`.
//! Effects: [`LateEffect::WriteBack`] and [`LateEffect::Refund`].
//!
//! Invariants: a unit is in one state at a time; a denied request keeps nothing; a credit is spent or refunded, once.
//! Knows no store, no lock and no clock: `now` is the local time and `at` the store's.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::BuildHasherDefault;

use smallvec::SmallVec;
use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, Role};
use tidegate_core::units::Nanos;

use crate::owned_charge::OwnedCharge;
use crate::shard::node::striped_map::IdentityHasher;

/// The longest time for which a credit waits for a request that it can pay for. Then it is refunded.
pub(crate) const CREDIT_TTL: Nanos = Nanos::from_millis(250);

/// How long a credit of a limit can pay. The store expires a unit by the time of its charge, so a unit that is used
/// later shortens the window by as much: by a twentieth at most.
fn credit_ttl(limit: &Limit) -> Nanos {
    CREDIT_TTL.min(Nanos::new(limit.full_window().get() / 20))
}

/// Identifies a request whose reply is outstanding.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct LateId(u64);

/// The units of one charge of a late request, and what may pay for them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Claim {
    pub(crate) counter: u128,
    pub(crate) units: u64,
    /// What this node may have unconfirmed of the counter: its share, less its pending units.
    pub(crate) room: u64,
    /// What the charge means for the request.
    pub(crate) role: Role,
}

impl Claim {
    pub(crate) fn new(charge: &Charge<'_>, room: u64) -> Self {
        Claim { counter: charge.counter(), units: charge.cost.get(), room, role: charge.role }
    }
}

/// What paid for the units of one charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Payment {
    /// Nothing: they are not admitted.
    None,
    /// This node's share. They are waiting until the reply.
    Share,
    /// Credits, of which the oldest was charged then. A refund as of a later time would refund units that have drained.
    Credit { charged: Nanos },
}

/// One payment per claim, in order.
pub(crate) type Payments = SmallVec<[Payment; 4]>;

/// What a reply means for one charge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LateChargeResult {
    /// The store counts its units since then.
    Charged(Nanos),
    /// The store does not count them.
    Denied,
    /// The reply is lost: the store may count them or not.
    Unknown,
}

/// An effect for the caller to run.
#[derive(Clone, Debug)]
pub(crate) enum LateEffect {
    /// These units were admitted and the store does not count them: charge them by force.
    WriteBack {
        charge: OwnedCharge,
        /// When they were admitted, by the store's time.
        admitted: Nanos,
        /// How many of them this node's share does not count yet.
        unshared: u64,
    },
    /// The store counts these units since `charged`, and no request was admitted for them: refund them.
    Refund { charge: OwnedCharge, charged: Nanos },
}

struct Credit {
    charge: OwnedCharge,
    charged: Nanos,
    /// When it stops paying, by the store's time.
    pays_until: Nanos,
    /// When it is refunded, by the local time.
    until: Nanos,
}

impl Credit {
    fn pays_at(&self, at: Nanos) -> bool {
        at < self.pays_until && self.charge.same_window(self.charged, at)
    }
}

#[derive(Default)]
struct LateAccount {
    /// Units admitted here whose reply is outstanding.
    waiting: u64,
    /// How many of these this node's share counts.
    shared: u64,
    /// The oldest first.
    credits: VecDeque<Credit>,
    /// Charges of requests whose reply is outstanding.
    open: u64,
    /// When the counter was last reset, by the store's time.
    reset_at: Nanos,
}

struct LateRequest {
    charges: SmallVec<[OwnedCharge; 2]>,
    payments: Payments,
    decided: Nanos,
}

/// The late charges of one node.
#[derive(Default)]
pub(crate) struct LateLedger {
    accounts: HashMap<u128, LateAccount, BuildHasherDefault<IdentityHasher>>,
    requests: BTreeMap<LateId, LateRequest>,
    next: u64,
}

impl LateLedger {
    pub(crate) fn is_empty(&self) -> bool {
        self.accounts.is_empty()
    }

    /// Whether a reply may change what can be admitted of a counter: one is outstanding, or there are credits.
    pub(crate) fn has_late_charges(&self, counter: u128) -> bool {
        self.accounts.contains_key(&counter)
    }

    /// Units admitted here whose reply is outstanding.
    pub(crate) fn waiting(&self, counter: u128) -> u64 {
        self.accounts.get(&counter).map_or(0, |a| a.waiting)
    }

    /// What would pay for each of the claims of a request at the store's time `at`.
    pub(crate) fn affordable_payments(&self, claims: &[Claim], at: Nanos) -> Payments {
        let mut payments = Payments::new();
        for (i, claim) in claims.iter().enumerate() {
            payments.push(self.affordable(claim, at, &claims[..i], &payments));
        }
        payments
    }

    /// What can pay for a claim, after the earlier claims of the same request.
    fn affordable(&self, claim: &Claim, at: Nanos, earlier: &[Claim], paid: &[Payment]) -> Payment {
        let needed = |is_paid_so: fn(&Payment) -> bool| -> u64 {
            let pairs = earlier.iter().zip(paid);
            let same = pairs.filter(|(c, p)| c.counter == claim.counter && is_paid_so(p));
            claim.units.saturating_add(same.map(|(c, _)| c.units).sum())
        };
        let account = self.accounts.get(&claim.counter);
        let credits = account.filter(|_| claim.role != Role::Shadow).and_then(|account| account.credit_units(at));
        if let Some((units, charged)) = credits
            && needed(|payment| matches!(payment, Payment::Credit { .. })) <= units
        {
            return Payment::Credit { charged };
        }
        let waiting = account.map_or(0, |a| a.waiting);
        if waiting.saturating_add(needed(|payment| *payment == Payment::Share)) <= claim.room {
            return Payment::Share;
        }
        Payment::None
    }

    /// Takes what pays for an admitted request.
    pub(crate) fn pay(&mut self, claims: &[Claim], payments: &[Payment], at: Nanos) {
        for (claim, payment) in claims.iter().zip(payments) {
            match payment {
                Payment::None => {}
                Payment::Share => {
                    self.accounts.entry(claim.counter).or_default().waiting += claim.units;
                }
                Payment::Credit { .. } => self.spend_credits(claim.counter, claim.units, at),
            }
        }
    }

    /// The reply came in time and denied the request: credits pay for all of it, or for nothing. Shadow limits deny
    /// nothing, and nothing is paid for them.
    pub(crate) fn pay_by_credits(&mut self, claims: &[Claim], at: Nanos) -> Option<Payments> {
        let by_credit: SmallVec<[Claim; 4]> = claims.iter().map(|claim| Claim { room: 0, ..*claim }).collect();
        let payments = self.affordable_payments(&by_credit, at);
        let mut decide = by_credit.iter().zip(&payments).filter(|(claim, _)| claim.role != Role::Shadow).peekable();
        let admitted = decide.peek().is_some() && decide.all(|(_, payment)| *payment != Payment::None);
        if admitted {
            self.pay(&by_credit, &payments, at);
        }
        admitted.then_some(payments)
    }

    /// Records a request whose reply is outstanding.
    pub(crate) fn insert_request(
        &mut self,
        charges: impl IntoIterator<Item = OwnedCharge>,
        payments: Payments,
        decided: Nanos,
    ) -> LateId {
        let id = LateId(self.next);
        self.next += 1;
        let charges: SmallVec<[OwnedCharge; 2]> = charges.into_iter().collect();
        for charge in &charges {
            let counter = charge.counter();
            self.accounts.entry(counter).or_default().open += 1;
        }
        let request = LateRequest { charges, payments, decided };
        self.requests.insert(id, request);
        id
    }

    /// A request that was not sent is admitted: its units are pending at once.
    pub(crate) fn never_sent(
        &mut self,
        charges: impl IntoIterator<Item = OwnedCharge>,
        payments: &[Payment],
        at: Nanos,
    ) -> Vec<LateEffect> {
        let mut effects = Vec::new();
        for (charge, payment) in charges.into_iter().zip(payments) {
            if *payment == Payment::Share {
                self.resolve_uncounted(&charge, at, at, &mut effects);
            }
        }
        effects
    }

    /// The reply arrived, or is lost. `result_of` is the result of a charge by its index. `cancel_pending` removes as
    /// many units from the pending ones of the counter, if it has them. Those are of the window of `at`, so a charge to
    /// an earlier window pays none of them.
    pub(crate) fn replied(
        &mut self,
        id: LateId,
        result_of: impl Fn(usize) -> LateChargeResult,
        (now, at): (Nanos, Nanos),
        mut cancel_pending: impl FnMut(&OwnedCharge) -> bool,
    ) -> Vec<LateEffect> {
        let Some(request) = self.requests.remove(&id) else {
            return Vec::new();
        };
        let mut effects = Vec::new();
        let pairs = request.charges.into_iter().zip(&request.payments);
        for (i, (charge, payment)) in pairs.enumerate() {
            let counter = charge.counter();
            if let Some(account) = self.accounts.get_mut(&counter) {
                account.open -= 1;
            }
            match (payment, result_of(i)) {
                (Payment::Share, LateChargeResult::Charged(at)) if charge.same_window(at, request.decided) => {
                    self.stop_waiting(&charge);
                }
                // Charged to a later window than that of the admission, which is over.
                (Payment::Share, LateChargeResult::Charged(charged)) if charged > request.decided => {
                    self.stop_waiting(&charge);
                    self.add_credit(charge, charged, (now, at));
                }
                (Payment::Share, _) => self.resolve_uncounted(&charge, request.decided, at, &mut effects),
                (Payment::None | Payment::Credit { .. }, LateChargeResult::Charged(charged)) => {
                    let is_paid = charge.same_window(charged, at) && cancel_pending(&charge);
                    if !is_paid {
                        self.add_credit(charge, charged, (now, at));
                    }
                }
                (Payment::None | Payment::Credit { .. }, LateChargeResult::Denied | LateChargeResult::Unknown) => {}
            }
            self.remove_if_empty(counter);
        }
        effects
    }

    /// A request that was admitted here is denied by another shard: it keeps nothing. True if its reply is still
    /// outstanding.
    pub(crate) fn withdraw(&mut self, id: LateId, now: (Nanos, Nanos)) -> bool {
        let Some(request) = self.requests.get_mut(&id) else {
            return false;
        };
        let paid = std::mem::take(&mut request.payments);
        request.payments = paid.iter().map(|_| Payment::None).collect();
        let charges: SmallVec<[OwnedCharge; 2]> = request.charges.clone();
        for (charge, payment) in charges.into_iter().zip(paid) {
            match payment {
                Payment::None => {}
                Payment::Share => self.stop_waiting(&charge),
                Payment::Credit { charged } => self.add_credit(charge, charged, now),
            }
        }
        true
    }

    /// Units that this node's share does not count yet. The caller counts them from now on.
    pub(crate) fn take_unshared(&mut self, counter: u128) -> u64 {
        let Some(account) = self.accounts.get_mut(&counter) else {
            return 0;
        };
        let unshared = account.waiting - account.shared;
        account.shared = account.waiting;
        unshared
    }

    /// Refunds credits of `counters` that were not used in time. Each request expires those of its own counters, so the
    /// cost does not depend on how many counters are late. Credits whose counter has moved to another store stay charged.
    pub(crate) fn expire(
        &mut self,
        counters: impl IntoIterator<Item = u128>,
        now: Nanos,
        holds: impl Fn(&OwnedCharge) -> bool,
    ) -> Vec<LateEffect> {
        let mut effects = Vec::new();
        for counter in counters {
            let Some(account) = self.accounts.get_mut(&counter) else {
                continue;
            };
            while account.credits.front().is_some_and(|oldest| oldest.until <= now)
                && let Some(credit) = account.credits.pop_front()
            {
                if holds(&credit.charge) {
                    effects.push(LateEffect::Refund { charge: credit.charge, charged: credit.charged });
                }
            }
            self.remove_if_empty(counter);
        }
        effects
    }

    /// The store has lost its counts: credits of counters that it `holds` are void.
    pub(crate) fn void_credits(&mut self, holds: impl Fn(&OwnedCharge) -> bool) {
        self.accounts.retain(|_, account| {
            account.credits.retain(|credit| !holds(&credit.charge));
            !account.is_empty()
        });
    }

    /// A counter was reset at the store's time `at`. What the store had charged by then is gone, also where the reply is
    /// still outstanding: a refund of it would take units from later charges.
    pub(crate) fn reset(&mut self, counter: u128, at: Nanos) {
        if let Some(account) = self.accounts.get_mut(&counter) {
            account.credits.clear();
            account.reset_at = at;
        }
        self.remove_if_empty(counter);
    }

    /// All units that are waiting, to be saved for a restart.
    pub(crate) fn all_waiting(&self) -> impl Iterator<Item = OwnedCharge> {
        self.requests.values().flat_map(|request| {
            let pairs = request.charges.iter().zip(&request.payments);
            let waiting = pairs.filter(|(_, payment)| **payment == Payment::Share);
            waiting.map(|(charge, _)| charge.clone())
        })
    }

    /// How many of the waiting units of a counter this node's share does not count.
    pub(crate) fn unshared(&self, counter: u128) -> u64 {
        self.accounts.get(&counter).map_or(0, |account| account.waiting - account.shared)
    }

    fn stop_waiting(&mut self, charge: &OwnedCharge) {
        if let Some(account) = self.accounts.get_mut(&charge.counter()) {
            account.waiting -= charge.units();
            account.shared = account.shared.min(account.waiting);
        }
    }

    /// The store does not count units that were admitted: credits pay for them, or they become pending.
    fn resolve_uncounted(&mut self, charge: &OwnedCharge, admitted: Nanos, at: Nanos, effects: &mut Vec<LateEffect>) {
        let (counter, units) = (charge.counter(), charge.units());
        let Some(account) = self.accounts.get_mut(&counter) else {
            return;
        };
        account.waiting -= units;
        let shared = account.shared.min(units);
        account.shared -= shared;
        if account.credit_units(at).is_some_and(|(credits, _)| credits >= units) {
            self.spend_credits(counter, units, at);
            return;
        }
        effects.push(LateEffect::WriteBack { charge: charge.clone(), admitted, unshared: units - shared });
        self.remove_if_empty(counter);
    }

    fn add_credit(&mut self, charge: OwnedCharge, charged: Nanos, (now, at): (Nanos, Nanos)) {
        let account = self.accounts.entry(charge.counter()).or_default();
        if charged < account.reset_at {
            return;
        }
        account.credits.push_back(Credit {
            pays_until: at.plus(credit_ttl(&charge.limit)),
            charge,
            charged,
            until: now.plus(CREDIT_TTL),
        });
    }

    /// Spends credits that were charged in the window of `at`, oldest first. The rest of the last one stays a credit.
    fn spend_credits(&mut self, counter: u128, units: u64, at: Nanos) {
        let Some(account) = self.accounts.get_mut(&counter) else {
            return;
        };
        let mut left = units;
        account.credits.retain_mut(|credit| {
            if left == 0 || !credit.pays_at(at) {
                return true;
            }
            let has = credit.charge.units();
            let rest = credit.charge.minus(left);
            left = left.saturating_sub(has);
            let stays = rest.is_some();
            if let Some(rest) = rest {
                credit.charge = rest;
            }
            stays
        });
        self.remove_if_empty(counter);
    }

    fn remove_if_empty(&mut self, counter: u128) {
        if self.accounts.get(&counter).is_some_and(LateAccount::is_empty) {
            self.accounts.remove(&counter);
        }
    }
}

impl LateAccount {
    /// The units of credits that can pay at the store's time `at`, and when the oldest was charged.
    fn credit_units(&self, at: Nanos) -> Option<(u64, Nanos)> {
        let credits = self.credits.iter().filter(|credit| credit.pays_at(at));
        let each = credits.map(|credit| (credit.charge.units(), credit.charged));
        each.reduce(|(units, oldest), (more, charged)| (units.saturating_add(more), oldest.min(charged)))
    }

    fn is_empty(&self) -> bool {
        self.waiting == 0 && self.open == 0 && self.credits.is_empty()
    }
}

#[cfg(test)]
mod tests;
