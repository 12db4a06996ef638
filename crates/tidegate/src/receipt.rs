//! Receipts: the sealed data that a refund or a settlement needs, namely subject, time and cost of each charge.
//!
//! A receipt is sealed text that a caller stores and presents later. It contains no client data: subjects are
//! fingerprints. The store guarantees by its id that it works once. Charges and reservations have receipts of different
//! kinds: neither is accepted as the other.

#[cfg(test)]
mod tests;

use smallvec::SmallVec;
use tidegate_core::store::{Charge, ChargeSet, Refund, Refunded, Role, RuleOptions, RunId, Settle, Used};
use tidegate_core::subject::Fingerprint;
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::RuleSet;
use tidegate_rules::engine::{Decision, LimitView};

use crate::sealed::{self, ByteReader, put_name};
use crate::secret::Secret;

/// Maximum of units in a reservation, and of bytes in the name of each: a token with all of them can be opened
/// again.
pub(crate) const MAX_UNITS: usize = 64;
pub(crate) const MAX_UNIT_NAME_BYTES: usize = 255;

/// Why a receipt is not accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum ReceiptError {
    /// The receipt was altered, forged, or sealed with another secret.
    #[error("this is not a receipt of this deployment")]
    Forged,
}

/// The kind of a receipt: its first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReceiptKind {
    /// A charge that can be refunded. Not 1, which was a charge without the run that counted it.
    Charge = 3,
    /// A reservation that can be settled.
    Reservation = 2,
}

/// The actual cost of a request, in the units of rules.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Actual {
    /// For rules without a unit; `None` if the estimate stands.
    pub cost: Option<u64>,
    /// For rules with a unit; the estimate stands for units that are not named.
    pub costs: Vec<(String, u64)>,
}

impl Actual {
    /// The actual cost for rules without a unit.
    pub fn cost(cost: u64) -> Self {
        Actual { cost: Some(cost), costs: Vec::new() }
    }

    /// The actual cost for rules that count in `unit`; all other estimates stand.
    pub fn of(unit: &str, used: u64) -> Self {
        Actual::default().and(unit, used)
    }

    /// Adds the actual cost for rules that count in `unit`.
    #[must_use]
    pub fn and(mut self, unit: &str, used: u64) -> Self {
        self.costs.push((unit.to_owned(), used));
        self
    }

    /// The memory it holds beside itself.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let names = self.costs.iter().map(|(name, _)| allocated(name.capacity())).sum::<u64>();
        names + allocated(self.costs.capacity() * size_of::<(String, u64)>())
    }

    fn used_of(&self, unit: Option<&str>) -> Option<u64> {
        match unit {
            None => self.cost,
            Some(unit) => {
                let named = self.costs.iter().find(|(name, _)| name == unit);
                named.map(|(_, used)| *used)
            }
        }
    }
}

/// The memory of an allocation of `bytes`, as allocators round it.
fn allocated(bytes: usize) -> u64 {
    match bytes {
        0 => 0,
        _ => bytes.next_multiple_of(16) as u64 + 16,
    }
}

/// The payload of the receipt of a reservation: as much memory as a node spends on one that it tracks.
#[derive(Clone)]
pub(crate) struct PackedReceipt(Box<[u8]>);

impl PackedReceipt {
    /// The id of the reservation.
    pub(crate) fn id(&self) -> u128 {
        let id = self.0[1..17].try_into().expect("16 bytes");
        u128::from_be_bytes(id)
    }

    /// The memory it holds beside itself.
    pub(crate) fn heap_bytes(&self) -> u64 {
        allocated(self.0.len())
    }

    pub(crate) fn unpack(&self) -> Receipt {
        Receipt::read(&self.0, ReceiptKind::Reservation).expect("packed from a receipt")
    }
}

/// An opened receipt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Receipt {
    kind: ReceiptKind,
    id: u128,
    charged: Nanos,
    until: Nanos,
    /// The units that a reservation named, including those that no rule counts.
    units: Vec<String>,
    charges: Vec<ReceiptCharge>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct ReceiptCharge {
    rule: String,
    rate: u8,
    tag: u32,
    subject: Fingerprint,
    cost: Cost,
    /// The run that counted the charge, if its counter lives in one process. `None` for a reservation: the store
    /// that made it remembers it.
    run: Option<RunId>,
}

impl Receipt {
    /// The receipt of a decision that charged something. `new_id` makes the id the first time; `run_of` is the
    /// store's `run_id`.
    pub(crate) fn of(
        decision: &Decision,
        new_id: impl FnOnce() -> u128,
        run_of: impl Fn(&RuleOptions) -> Option<RunId>,
    ) -> Option<Self> {
        let id = decision.charge_id(new_id)?;
        let resets = decision.limits().filter(is_charged);
        let resets = resets.map(|view| view.reading.figures.reset_after);
        let entries = charges_of(decision, run_of);
        (!entries.is_empty()).then_some(Receipt {
            kind: ReceiptKind::Charge,
            id,
            charged: decision.at(),
            until: decision.at().plus(resets.max().unwrap_or(Nanos::ZERO)),
            units: Vec::new(),
            charges: entries,
        })
    }

    /// The receipt of an admitted reservation with the units that it named, within [`MAX_UNITS`] and
    /// [`MAX_UNIT_NAME_BYTES`].
    pub(crate) fn of_reservation<'u>(
        decision: &Decision,
        id: u128,
        ttl: Nanos,
        units: impl Iterator<Item = &'u str>,
    ) -> Self {
        Receipt {
            kind: ReceiptKind::Reservation,
            id,
            charged: decision.at(),
            until: decision.at().plus(ttl),
            units: units.map(str::to_owned).collect(),
            charges: charges_of(decision, |_| None),
        }
    }

    /// The id of the charge.
    pub(crate) fn id(&self) -> u128 {
        self.id
    }

    /// The TTL of a reservation.
    pub(crate) fn ttl(&self) -> Nanos {
        self.until.since(self.charged)
    }

    /// Whether nothing was charged: no rule applied.
    pub(crate) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// The first unit of the actual cost that was not reserved: it would correct nothing.
    pub(crate) fn unreserved_unit<'a>(&self, actual: &'a Actual) -> Option<&'a str> {
        let mut units = actual.costs.iter().map(|(unit, _)| unit.as_str());
        units.find(|unit| !self.units.iter().any(|named| named == unit))
    }

    /// The settlement for this actual cost, or for an unknown one. A rule that has changed since is left out, as
    /// in a refund.
    pub(crate) fn settle<'r>(&self, rules: &'r RuleSet, actual: Option<&Actual>) -> Settle<'r> {
        let (mut set, mut used) = (ChargeSet::default(), SmallVec::new());
        for entry in &self.charges {
            let Some((charge, unit)) = entry.charge(rules) else {
                continue;
            };
            let known = actual.and_then(|actual| actual.used_of(unit));
            used.push(known.unwrap_or(charge.cost.get()));
            set.charges.push(charge);
        }
        Settle {
            id: self.id,
            charged_at: self.charged,
            expires_at: self.until,
            set,
            used: match actual {
                Some(_) => Used::Known(used),
                None => Used::Unknown,
            },
        }
    }

    /// The refund of this receipt. A rule that has changed since is left out: the current worth of a former unit
    /// is unknown, and refunding too little is the safe side.
    ///
    /// # Errors
    /// The result, if there is nothing left to refund: every rule has changed, or the charges were counted by
    /// other runs than the store's, which `run_of` names.
    pub(crate) fn refund<'r>(
        &self,
        rules: &'r RuleSet,
        run_of: impl Fn(&RuleOptions) -> Option<RunId>,
    ) -> Result<Refund<'r>, Refunded> {
        let (mut set, mut unknown) = (ChargeSet::default(), false);
        for entry in &self.charges {
            let Some((charge, _)) = entry.charge(rules) else {
                continue;
            };
            if entry.run == run_of(charge.options) {
                set.charges.push(charge);
            } else {
                unknown = true;
            }
        }
        match (set.charges.is_empty(), unknown) {
            (false, _) => Ok(Refund { id: self.id, charged_at: self.charged, expires_at: self.until, set }),
            (true, true) => Err(Refunded::Unknown),
            (true, false) => Err(Refunded::Lapsed),
        }
    }

    /// The receipt of a reservation in little memory.
    pub(crate) fn pack(&self) -> PackedReceipt {
        PackedReceipt(self.payload().into())
    }

    /// Seals the receipt as text.
    pub(crate) fn seal(&self, secret: &Secret) -> String {
        sealed::seal(self.payload(), secret)
    }

    fn payload(&self) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8];
        bytes.extend(self.id.to_be_bytes());
        bytes.extend(self.charged.get().to_be_bytes());
        bytes.extend(self.until.get().to_be_bytes());
        if self.kind == ReceiptKind::Reservation {
            let count = u16::try_from(self.units.len()).expect("a reservation names few units");
            bytes.extend(count.to_be_bytes());
            self.units.iter().for_each(|unit| put_name(&mut bytes, unit));
        }
        for entry in &self.charges {
            put_name(&mut bytes, &entry.rule);
            bytes.push(entry.rate);
            bytes.extend(entry.tag.to_be_bytes());
            bytes.extend(entry.subject.bits().to_be_bytes());
            bytes.extend(entry.cost.get().to_be_bytes());
            if self.kind == ReceiptKind::Charge {
                bytes.extend(entry.run.map_or(0, RunId::bits).to_be_bytes());
            }
        }
        bytes
    }

    /// Opens sealed text.
    pub(crate) fn open(text: &str, kind: ReceiptKind, secret: &Secret) -> Result<Self, ReceiptError> {
        let payload = sealed::open(text, secret);
        payload.and_then(|payload| Receipt::read(&payload, kind)).ok_or(ReceiptError::Forged)
    }

    fn read(payload: &[u8], kind: ReceiptKind) -> Option<Self> {
        let mut from = ByteReader(payload);
        if from.take()? != [kind as u8] {
            return None;
        }
        let mut receipt = Receipt {
            kind,
            id: u128::from_be_bytes(from.take()?),
            charged: Nanos::new(u64::from_be_bytes(from.take()?)),
            until: Nanos::new(u64::from_be_bytes(from.take()?)),
            units: Vec::new(),
            charges: Vec::new(),
        };
        if kind == ReceiptKind::Reservation {
            for _ in 0..u16::from_be_bytes(from.take()?) {
                receipt.units.push(from.take_name()?);
            }
        }
        while !from.0.is_empty() {
            receipt.charges.push(ReceiptCharge {
                rule: from.take_name()?,
                rate: u8::from_be_bytes(from.take()?),
                tag: u32::from_be_bytes(from.take()?),
                subject: Fingerprint::new(u128::from_be_bytes(from.take()?)),
                cost: Cost::new(u64::from_be_bytes(from.take()?))?,
                run: if kind == ReceiptKind::Charge { RunId::new(u64::from_be_bytes(from.take()?)) } else { None },
            });
        }
        Some(receipt)
    }
}

impl ReceiptCharge {
    /// The charge under the current rules, and the unit it counts in; `None` if the limit has changed.
    fn charge<'r>(&self, rules: &'r RuleSet) -> Option<(Charge<'r>, Option<&'r str>)> {
        let rule = rules.rule(&self.rule)?;
        let limit = rule.limit_with_tag(usize::from(self.rate), self.tag)?;
        let charge = Charge {
            subject: self.subject,
            rule: rule.name(),
            rate: self.rate,
            limit: std::borrow::Cow::Owned(limit.for_subject(self.subject.seed())),
            cost: self.cost,
            role: Role::Enforce,
            options: rule.options(),
        };
        Some((charge, rule.unit()))
    }
}

fn is_charged(view: &LimitView<'_>) -> bool {
    view.role == Role::Enforce || view.reading.verdict.allows()
}

fn charges_of(decision: &Decision, run_of: impl Fn(&RuleOptions) -> Option<RunId>) -> Vec<ReceiptCharge> {
    let charged = decision.limits().filter(is_charged);
    let entries = charged.map(|view| ReceiptCharge {
        rule: view.rule.name().as_str().to_owned(),
        rate: view.rate,
        tag: view.limit.tag(),
        subject: view.subject,
        cost: view.cost,
        run: run_of(view.rule.options()),
    });
    entries.collect()
}

#[cfg(test)]
impl PackedReceipt {
    /// The receipt of a reservation that charged nothing.
    pub(crate) fn of_no_charge(id: u128) -> Self {
        let (kind, charged, until) = (ReceiptKind::Reservation, Nanos::ZERO, Nanos::ZERO);
        Receipt { kind, id, charged, until, units: Vec::new(), charges: Vec::new() }.pack()
    }
}
