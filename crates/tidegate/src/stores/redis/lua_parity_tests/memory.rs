//! The outcome computed from a shared record equals that of the memory store: verdicts and every figure.
//!
//! `run` compares the scripts with the library by their bytes; this module compares the library with the memory store.
//! Time only advances: after a step back the outcomes would differ, because the two stores drop states that are as good
//! as fresh at different moments.

use std::borrow::Cow;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeIntent, ChargeSet, Outcome, Role, RuleOptions};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::cases::{self, LimitKind, ParityRng, START};
use super::model::{self, StoredRecord};
use crate::clock::ManualClock;
use crate::stores::MemoryStore;
use crate::stores::redis::plan::ScriptPlan;

const STEPS: u64 = 20_000;

fn run(kind: LimitKind, seed: u64) {
    let mut random = ParityRng(seed);
    let pool = cases::limits(kind, &mut random);
    let rules = [RuleName::new("a"), RuleName::new("b")];
    let mut now = START;
    let memory = MemoryStore::new(ManualClock::at(Nanos::new(now * 1_000)));
    let mut denied = 0;
    for subject in 0..STEPS / 100 {
        // Limits stay the same: `run` compares conversions to another limit by their bytes.
        let limits: Vec<&Limit> = (0..4).map(|_| random.pick(&pool)).collect();
        let mut records: [StoredRecord; 2] = [None, None];
        for step in 0..100 {
            let passed = cases::step(limits[0], &mut random).max(0);
            now = now.saturating_add_signed(passed).min(1 << 52);
            let mut charges = Vec::new();
            for (i, limit) in limits.iter().enumerate().take(1 + random.below(4) as usize) {
                let limit = limit.with_ceiling(cases::ceiling(limit, &mut random));
                charges.push(Charge {
                    subject: Fingerprint::new(u128::from(subject)),
                    rule: &rules[i / 2],
                    rate: (i % 2) as u8,
                    cost: Cost::new(cases::cost(&limit, &mut random)).expect("a cost"),
                    limit: Cow::Owned(limit),
                    role: *random.pick(&[Role::Enforce, Role::Enforce, Role::Shadow, Role::Quota]),
                    options: &RuleOptions::DEFAULT,
                });
            }
            let set = ChargeSet::of(charges);
            let at = Nanos::new(now * 1_000);
            let plan = ScriptPlan::new(&set.charges, ChargeIntent::Charge, at).expect("a plan");
            let shared = &mut records[..plan.keys.len()];
            let (actual, wanted) = match random.below(10) {
                0 => (model::charge(&set, &plan, shared, ChargeIntent::Force, at), memory.force_at(&set, at)),
                1 => (model::charge(&set, &plan, shared, ChargeIntent::Peek, at), memory.peek_at(&set, at)),
                _ => (model::charge(&set, &plan, shared, ChargeIntent::Charge, at), memory.charge_at(&set, at)),
            };
            denied += u64::from(!wanted.admitted);
            let actual = Outcome { snapshots: Vec::new(), ..actual };
            assert_eq!(actual, wanted, "{kind:?}, seed {seed}, subject {subject}, step {step}: {limits:?}");
        }
    }
    assert!(denied > STEPS / 20, "{kind:?}: {denied} denied");
}

#[test]
fn shared_records_give_the_same_figures_as_memory() {
    for kind in LimitKind::ALL {
        run(kind, 3);
    }
}
