//! Random steps of many subjects: the commands to send, and the expected replies.

use std::borrow::Cow;
use std::rc::Rc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{CounterState, Limit, LogEntry, LogState, MAX_LOG_ENTRIES, Parameters};
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::cases::{self, ParityRng, START};
use super::model::{self, StoredRecord};
use super::wire::WireClient;
use super::{CALL_ID, ScriptHashes};
use crate::stores::redis::plan::ScriptPlan;
use crate::stores::redis::port::PERMITS;
use crate::stores::redis::record;
use crate::stores::redis::reservations::{keys_beside_records, ledgers};
use crate::stores::redis::scripts::{self, Script};

/// A charge: its rule, its rate, its limit in the pool, the ceiling of that, its cost, and its role.
#[derive(Clone, Copy)]
pub(super) struct ChargeChoice {
    rule: usize,
    rate: u8,
    limit: usize,
    up_to: u64,
    cost: u64,
    role: Role,
}

/// One subject with its own time and its own records under two rules.
pub(super) struct ParitySubject {
    pub(super) id: Fingerprint,
    pub(super) now: u64,
    /// For each rule and rate, the index of its current limit.
    pub(super) limits: [[usize; 3]; 2],
    pub(super) records: [StoredRecord; 2],
    /// The last charge, which may be refunded.
    pub(super) charged: Option<(u64, Vec<ChargeChoice>)>,
    pub(super) refunds: u64,
}

/// The expected reply.
pub(super) enum ExpectedReply {
    Charge { admitted: bool, found: Vec<Option<Vec<u8>>> },
    Draw { units: u64, found: Option<Vec<u8>> },
    Code(i64),
    Number(i64),
}

pub(super) struct ParityRun {
    pub(super) random: ParityRng,
    pub(super) pool: Rc<[Limit]>,
    pub(super) rules: [RuleName; 2],
    pub(super) wire: WireClient,
    pub(super) hashes: ScriptHashes,
    /// The number of each outcome, so that no test passes by never testing one.
    pub(super) admitted: u64,
    pub(super) denied: u64,
}

impl ParityRun {
    fn charges(&mut self, subject: &ParitySubject) -> Vec<ChargeChoice> {
        let mut charges = Vec::new();
        let several = self.random.chance(12);
        for rule in 0..2 {
            for rate in 0..3 {
                let wanted =
                    if several { self.random.chance(45) } else { charges.is_empty() && self.random.chance(30) };
                if wanted {
                    let limit = subject.limits[rule][usize::from(rate)];
                    let role = match self.random.below(12) {
                        0 => Role::Shadow,
                        1 => Role::Quota,
                        _ => Role::Enforce,
                    };
                    let up_to = cases::ceiling(&self.pool[limit], &mut self.random);
                    let cost = cases::cost(&self.pool[limit].with_ceiling(up_to), &mut self.random);
                    charges.push(ChargeChoice { rule, rate, limit, up_to, cost, role });
                }
            }
        }
        if charges.is_empty() {
            charges.push(ChargeChoice {
                rule: 0,
                rate: 0,
                limit: subject.limits[0][0],
                up_to: u64::MAX,
                cost: 1,
                role: Role::Enforce,
            });
        }
        if self.random.chance(3) {
            charges.push(charges[0]); // a counter named twice
        }
        if self.random.chance(2) {
            charges.reverse();
        }
        charges
    }

    /// Sends one random step of a subject, and returns the expected reply.
    pub(super) fn step(&mut self, subject: &mut ParitySubject) -> ExpectedReply {
        if self.random.chance(4) {
            let (rule, rate) = (self.random.below(2) as usize, self.random.below(3) as usize);
            subject.limits[rule][rate] = self.random.below(self.pool.len() as u64) as usize;
        }
        let about = &self.pool[subject.limits[0][0]];
        let moved = subject.now.saturating_add_signed(cases::step(about, &mut self.random));
        subject.now = moved.clamp(START, (1 << 53) - (1 << 49));
        let verb = self.random.below(20);
        let mut chosen = self.charges(subject);
        if matches!(verb, 14 | 15) {
            chosen.truncate(1);
        }
        let refunding = verb == 17 && subject.charged.is_some();
        let mut charged_at = subject.now;
        if refunding && let Some((at, charged)) = &subject.charged {
            charged_at = *at;
            chosen = charged.clone();
        }
        let rules = self.rules.clone();
        let pool = Rc::clone(&self.pool);
        let charges: SmallVec<[Charge<'_>; 4]> = chosen
            .iter()
            .map(|choice| Charge {
                subject: subject.id,
                rule: &rules[choice.rule],
                rate: choice.rate,
                limit: Cow::Owned(pool[choice.limit].with_ceiling(choice.up_to)),
                cost: Cost::new(if refunding {
                    choice.cost.min(2 * pool[choice.limit].capacity())
                } else {
                    choice.cost
                })
                .expect("a cost"),
                role: choice.role,
                options: &RuleOptions::DEFAULT,
            })
            .collect();
        let set = ChargeSet::of(charges);
        let now = Nanos::new(subject.now * 1_000);
        let spending = match verb {
            18 => ChargeIntent::Force,
            _ => ChargeIntent::Charge,
        };
        let plan = ScriptPlan::new(&set.charges, spending, now).expect("a plan");
        let key_rules: Vec<usize> = plan.keys.iter().map(|key| self.rule_of(key)).collect();
        let mut records: Vec<StoredRecord> = key_rules.iter().map(|rule| subject.records[*rule].clone()).collect();
        let found: Vec<_> = records.iter().map(|r| r.as_ref().map(|(b, _)| b.clone())).collect();
        let expect = match verb {
            14 => {
                let drawn = model::draw(&set.charges, &plan, &mut records, now);
                self.send(scripts::DRAW, &plan.keys, &plan, &[], subject.now);
                ExpectedReply::Draw { units: drawn.units, found: found[0].clone() }
            }
            15 => {
                let state = self.known_state(&set.charges[0].limit, now);
                model::restore(&set.charges[0], &plan, &mut records, &state, now);
                let one = [(&plan.headers[0], set.charges[0].limit.as_ref(), &state)];
                let state_record = record::write(one.into_iter());
                self.send(scripts::RESTORE, &plan.keys, &plan, &[&state_record], subject.now);
                ExpectedReply::Code(1)
            }
            17 if refunding => {
                let again = self.random.chance(10) && subject.refunds > 0;
                subject.refunds += u64::from(!again);
                let id = format!("tg:{{{}}}r:{}", subject.id, subject.refunds).into_bytes();
                let keys: Vec<Vec<u8>> = std::iter::once(id).chain(plan.keys.clone()).collect();
                let until = subject.now + 1_000_000_000_000;
                let extra = [charged_at, until].map(|time| time.to_string().into_bytes());
                if !again {
                    let charged = Nanos::new(charged_at * 1_000);
                    model::refund(&set.charges, &plan, &mut records, charged, now);
                }
                let extra = [extra[0].as_slice(), extra[1].as_slice()];
                self.send(scripts::REFUND, &keys, &plan, &extra, subject.now);
                ExpectedReply::Code(i64::from(!again))
            }
            19 if self.random.chance(30) => {
                let reset_count = model::reset(&set.charges, &plan, &mut records, now);
                let rates: Vec<Vec<u8>> = (0..plan.keys.len())
                    .map(|key| {
                        let of_key = set.charges.iter().zip(&plan.key_of).filter(|(_, of)| **of == key);
                        of_key.map(|(charge, _)| charge.rate).collect()
                    })
                    .collect();
                let hash = self.hashes.of(scripts::RESET).to_vec();
                let permits = keys_beside_records(&set.charges, PERMITS);
                let keys = [ledgers(&set.charges), permits, plan.keys.to_vec()].concat();
                self.send_raw(&hash, &keys, &rates, subject.now);
                ExpectedReply::Number(reset_count)
            }
            _ => {
                let intent = match verb {
                    18 => ChargeIntent::Force,
                    _ => ChargeIntent::Charge,
                };
                let outcome = model::charge(&set, &plan, &mut records, intent, now);
                if outcome.admitted {
                    self.admitted += 1;
                    subject.charged = Some((subject.now, chosen));
                } else {
                    self.denied += 1;
                }
                self.send(scripts::CHARGE, &plan.keys, &plan, &[], subject.now);
                ExpectedReply::Charge { admitted: outcome.admitted, found }
            }
        };
        for (rule, stored) in key_rules.into_iter().zip(records) {
            subject.records[rule] = stored;
        }
        expect
    }

    fn rule_of(&self, key: &[u8]) -> usize {
        usize::from(key.ends_with(self.rules[1].as_str().as_bytes()))
    }

    /// A state that some node might remember: made under the limit, not far from now.
    fn known_state(&mut self, limit: &Limit, now: Nanos) -> CounterState {
        if let Parameters::Log { width, grain, .. } = limit.parameters()
            && self.random.chance(2)
        {
            return self.full_log(width, grain, limit.tick().floor(now));
        }
        let ago = Nanos::new(self.random.below(limit.full_window().get().min(1 << 50)) / 2);
        let ahead = Nanos::new(self.random.below(8_000_000_000) * self.random.below(2));
        let mut at = now.since(ago).plus(ahead);
        let mut state = limit.with_used(self.random.below(limit.capacity() + 2), at);
        for _ in 0..self.random.below(4) {
            at = at.plus(Nanos::new(self.random.below(limit.full_window().get().min(1 << 50)) / 4));
            let moment = limit.advance(&mut state, at);
            let cost = cases::cost(limit, &mut self.random);
            limit.spend(&mut state, moment, Cost::new(cost).expect("a cost"));
        }
        state
    }

    /// A log with the maximum number of entries, or nearly.
    fn full_log(&mut self, width: u64, grain: u64, now: u64) -> CounterState {
        let count = MAX_LOG_ENTRIES - self.random.below(3);
        let step = (width / (count + 1) / grain).max(1) * grain;
        let newest = now / grain * grain;
        let entries = (0..count)
            .map(|age| LogEntry { stamp: newest.saturating_sub(age * step), units: 1 + self.random.below(2) as u32 });
        CounterState::Log(LogState::from_entries(entries.collect()))
    }

    fn send(&mut self, script: Script, keys: &[Vec<u8>], plan: &ScriptPlan, extra: &[&[u8]], now: u64) {
        let mut arguments = vec![plan.bytes.clone()];
        arguments.extend(plan.heads.iter().cloned());
        arguments.extend(extra.iter().map(|part| part.to_vec()));
        let hash = self.hashes.of(script).to_vec();
        self.send_raw(&hash, keys, &arguments, now);
    }

    fn send_raw(&mut self, hash: &[u8], keys: &[Vec<u8>], arguments: &[Vec<u8>], now: u64) {
        let count = keys.len().to_string();
        let time = [now / 1_000_000, now % 1_000_000].map(|part| part.to_string());
        let head: [&[u8]; 3] = [b"EVALSHA", hash, count.as_bytes()];
        let parts = keys.iter().chain(arguments).map(Vec::as_slice);
        let time = time.iter().map(String::as_bytes);
        let id = std::iter::once(CALL_ID);
        self.wire.push(head.into_iter().chain(parts).chain(time).chain(id));
    }
}
