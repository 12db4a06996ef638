//! A described request on its way to a decision: every limit that decides it, and when each is asked about.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::lot::{self, Limited, Lot};
use crate::algorithms::{Figures, Limit, Precision, Retry, Verdict};
use crate::described::{Described, Hits, Manner, ZeroHits};
use crate::engine::decision::Brought;
use crate::engine::plan::{Origin, Plan, Stance, plan};
use crate::request::{Priority, Request};
use crate::rules::{Class, Listed, Purpose, RuleKind, RuleSet, counter_name, window};
use crate::store::{Charge, ChargeSet, Outcome, Reading, Role, Source};
use crate::subject::FingerprintKey;
use crate::units::{Cost, Nanos};

/// A described request on its way to a decision.
#[derive(Debug)]
pub struct Inquiry<'r> {
    /// Every limit that decides: those of rules, then those of descriptors.
    pub(super) plan: Plan<'r>,
    /// How many of them are of rules.
    pub(super) native: usize,
    /// When each is asked about, and what was said.
    pub(super) entries: SmallVec<[Entry; 4]>,
    pub(super) cases: SmallVec<[Case<'r>; 4]>,
    pub(super) given_back: SmallVec<[Refunding<'r>; 1]>,
    pub(super) brought: Vec<Brought>,
    pub(super) domain_known: bool,
    pub(super) stance: Stance,
    pub(super) manner: Manner,
    /// How limits of descriptors are computed.
    precision: Precision,
    /// Whether a budget has room whatever a store says.
    pub(super) passes: bool,
    pub(super) ruling: Ruling,
}

/// One descriptor.
#[derive(Debug)]
pub(super) struct Case<'r> {
    pub(super) lot: Lot<'r>,
    pub(super) seat: Seat,
}

/// Where the figures of a descriptor are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seat {
    /// Nowhere: nothing is asked about it.
    None,
    /// With a charge of the plan.
    Charge(usize),
    /// With what is given back.
    GivenBack(usize),
}

/// One charge of the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) turn: Turn,
    /// Whether it is charged even if the request is refused.
    pub(super) used: bool,
    pub(super) reading: Reading,
    /// What was left before it was charged.
    pub(super) left_before: u64,
    /// Whether it has been charged.
    pub(super) spent: bool,
    /// Units that its charge's limit has beyond the limit of the descriptor.
    pub(super) spare: u64,
    /// Whether its counter is known to be at its limit and not above.
    pub(super) at_limit: bool,
}

/// When a limit is asked about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Never: it refuses everything.
    Never,
    /// First, and nothing is spent.
    Peek,
    /// Then.
    Charge,
}

/// Something to be given back, and how it stood before and after.
#[derive(Debug)]
pub(super) struct Refunding<'r> {
    pub(super) set: ChargeSet<'r>,
    pub(super) before: u64,
    pub(super) figures: Figures,
}

/// What is known of the decision so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ruling {
    pub(super) admitted: bool,
    pub(super) at: Option<Nanos>,
    pub(super) source: Source,
    pub(super) clock_stepped: bool,
}

impl Ruling {
    pub(super) fn hear(&mut self, outcome: &Outcome) {
        self.at = Some(outcome.at);
        self.source = outcome.source;
        self.clock_stepped |= outcome.clock_stepped;
    }
}

const NOT_HEARD: Reading = Reading {
    verdict: Verdict::Deny {
        retry: Retry::Never,
    },
    figures: NO_FIGURES,
};

pub(super) const NO_FIGURES: Figures = Figures {
    remaining: 0,
    reset_after: Nanos::ZERO,
    more_after: Nanos::ZERO,
};

impl<'r> Inquiry<'r> {
    /// Finds every limit that `request` and its description must pass, unless a list decides. `now`
    /// only ends expiring entries of the lists.
    pub fn new(
        rules: &'r RuleSet,
        stance: Stance,
        key: &FingerprintKey,
        request: &Request<'_>,
        described: &Described<'_>,
        manner: Manner,
        now: impl FnOnce() -> Nanos,
    ) -> Self {
        let native_stance = match manner.all_shadow {
            true => Stance::AllShadow,
            false => stance,
        };
        let plan = plan(rules, native_stance, key, request, Purpose::Check, now);
        let native = plan.set.charges.len();
        let mut inquiry = Inquiry {
            plan,
            native,
            entries: SmallVec::from_elem(Entry::of(native_turn(described), false), native),
            cases: SmallVec::new(),
            given_back: SmallVec::new(),
            brought: Vec::new(),
            domain_known: false,
            stance,
            manner,
            precision: rules.descriptors.precision,
            passes: false,
            ruling: Ruling {
                admitted: true,
                at: None,
                source: Source::Exact,
                clock_stepped: false,
            },
        };
        let lots = lot::of_each(rules, key, described);
        inquiry.domain_known = lots.is_some();
        let listed = inquiry.plan.listed.is_some();
        let lots = lots.filter(|_| !listed).unwrap_or_default();
        let unmatched = || std::iter::repeat_with(|| Lot::Unmatched);
        let lots = lots.into_iter().chain(unmatched());
        for (descriptor, lot) in described.descriptors.iter().zip(lots) {
            let case = inquiry.seated(rules, lot, descriptor.hits);
            inquiry.cases.push(case);
        }
        inquiry
    }

    /// The list that decides, if one does; then there is nothing to ask.
    pub fn listed(&self) -> Option<Listed> {
        self.plan.listed
    }

    /// The longest the caller waits for the decision.
    pub fn max_wait(&self) -> Option<Nanos> {
        self.plan.set.max_wait
    }

    /// Sets how long the caller still waits, for the questions that follow.
    pub fn set_max_wait(&mut self, max_wait: Option<Nanos>) {
        self.plan.set.max_wait = max_wait;
    }

    /// A hash of who asks.
    pub fn client(&self) -> u64 {
        self.plan.client
    }

    /// Finds a place for the figures of a descriptor.
    fn seated(&mut self, rules: &'r RuleSet, lot: Lot<'r>, hits: Hits) -> Case<'r> {
        self.passes |= self.is_passing_quota(&lot, hits);
        let Lot::Limited(limited) = &lot else {
            let seat = Seat::None;
            return Case { lot, seat };
        };
        let seat = match hits {
            Hits::GivenBack(_) if limited.is_nothing() => Seat::None,
            Hits::GivenBack(cost) => {
                let charge = self.charge(rules, limited, cost);
                self.given_back.push(Refunding {
                    set: self.plan.set.part([charge]),
                    before: 0,
                    figures: NO_FIGURES,
                });
                Seat::GivenBack(self.given_back.len() - 1)
            }
            Hits::Asked(cost) => self.enter(rules, limited, cost, Entry::of(Turn::Charge, false)),
            Hits::Used(cost) => self.enter(rules, limited, cost, Entry::of(Turn::Charge, true)),
            Hits::Nothing => self.enter(rules, limited, Cost::ONE, Entry::of(Turn::Peek, false)),
        };
        Case { lot, seat }
    }

    /// Enters a charge into the plan.
    fn enter(
        &mut self,
        rules: &'r RuleSet,
        limited: &Limited<'r>,
        cost: Cost,
        mut entry: Entry,
    ) -> Seat {
        if limited.is_nothing() {
            entry.turn = Turn::Never;
        }
        let mut charge = self.charge(rules, limited, cost);
        let brought = rules.rules()[limited.rule as usize].kind() == RuleKind::Brought;
        let class = Class(self.brought.len() as u32); // at most one per descriptor
        self.plan.origins.push(Origin {
            rule: limited.rule,
            class: if brought { class } else { Class::default() },
            rate: 0,
            priority: Priority::default(),
        });
        if brought {
            self.brought.push(Brought {
                limit: charge.limit.as_ref().clone(),
                written: lot::rate(limited),
            });
        }
        if entry.turn == Turn::Peek && self.manner.zero_hits == ZeroHits::OverWhenExceeded {
            let raised = self.raised(limited, &charge);
            entry.spare = raised.capacity() - charge.limit.capacity();
            charge.limit = Cow::Owned(raised);
        }
        self.agree(&mut charge, entry.turn);
        self.plan.set.charges.push(charge);
        self.entries.push(entry);
        Seat::Charge(self.entries.len() - 1)
    }

    /// The limit of a charge, raised by one: a check for one unit passes unless its counter is above the
    /// limit. The largest that there is stays as it is.
    pub(super) fn raised(&self, limited: &Limited<'_>, charge: &Charge<'_>) -> Limit {
        let requests = u32::try_from(charge.limit.capacity()).unwrap_or(u32::MAX);
        window(requests.saturating_add(1), limited.unit, self.precision)
    }

    /// A counter that a request names under two limits is charged under the smaller, because a store
    /// reads it under one at a time.
    fn agree(&mut self, charge: &mut Charge<'r>, turn: Turn) {
        let known = self.plan.set.charges.iter_mut().zip(&self.entries);
        for (known, entry) in known.skip(self.native) {
            let same = known.subject == charge.subject && known.rule == charge.rule;
            let same = same && entry.turn == turn;
            if same && known.limit.capacity() < charge.limit.capacity() {
                charge.limit = known.limit.clone();
            } else if same && known.limit.capacity() > charge.limit.capacity() {
                known.limit = charge.limit.clone();
            }
        }
    }

    fn charge(&self, rules: &'r RuleSet, limited: &Limited<'r>, cost: Cost) -> Charge<'r> {
        Charge {
            subject: limited.subject,
            rule: counter_name(limited.unit),
            rate: 0,
            limit: limited.limit.clone(),
            cost,
            role: self.role(limited),
            terms: rules.rules()[limited.rule as usize].terms(),
        }
    }

    fn role(&self, limited: &Limited<'_>) -> Role {
        let watched = self.manner.all_shadow || self.only_watches(limited);
        match (watched, self.is_quota(limited)) {
            (true, _) => Role::Shadow,
            (false, true) => Role::Quota,
            (false, false) => Role::Enforce,
        }
    }

    /// Whether a limit is never told to be over.
    pub(super) fn only_watches(&self, limited: &Limited<'_>) -> bool {
        limited.shadow || self.stance == Stance::AllShadow
    }

    pub(super) fn is_quota(&self, limited: &Limited<'_>) -> bool {
        limited.quota || self.manner.all_quota
    }

    /// Whether a descriptor is a budget that cannot be over: then no budget refuses. Where all are
    /// budgets, what has no limit is such a one, but what is unlimited is none.
    fn is_passing_quota(&self, lot: &Lot<'_>, hits: Hits) -> bool {
        match lot {
            Lot::Unlimited => false,
            Lot::Unmatched | Lot::Exempt => self.manner.all_quota,
            Lot::Limited(limited) => {
                let never_over = self.only_watches(limited) || matches!(hits, Hits::GivenBack(_));
                self.is_quota(limited) && never_over
            }
        }
    }
}

/// A call of which every descriptor only looks, or gives back, spends nothing of the rules either.
fn native_turn(described: &Described<'_>) -> Turn {
    let spends = |hits| matches!(hits, Hits::Asked(_) | Hits::Used(_));
    match described.descriptors.iter().any(|d| spends(d.hits)) {
        true => Turn::Charge,
        false => Turn::Peek,
    }
}

impl Entry {
    const fn of(turn: Turn, used: bool) -> Self {
        Entry {
            turn,
            used,
            reading: NOT_HEARD,
            left_before: 0,
            spent: false,
            spare: 0,
            at_limit: false,
        }
    }
}
