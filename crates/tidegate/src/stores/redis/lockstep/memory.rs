//! What is told of a shared record is what memory would tell: verdicts and every figure.
//!
//! The scripts are held to the library by their bytes, the library to the memory store here. Time only
//! goes on: when a clock is set back, it shows that stores forget what is as good as fresh at different
//! moments.

use std::borrow::Cow;

use tidegate_core::algorithms::Limit;
use tidegate_core::store::{Charge, ChargeSet, Outcome, Role, Terms};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

use super::cases::{self, Kind, Random, START};
use super::model::{self, Stored};
use crate::clock::ManualClock;
use crate::stores::MemoryStore;
use crate::stores::redis::books::Intent;
use crate::stores::redis::plan::{Plan, Spending};

const STEPS: u64 = 20_000;

fn run(kind: Kind, seed: u64) {
    let mut random = Random(seed);
    let pool = cases::limits(kind, &mut random);
    let rules = [RuleName::new("a"), RuleName::new("b")];
    let mut now = START;
    let memory = MemoryStore::new(ManualClock::at(Nanos::new(now * 1_000)));
    let mut refused = 0;
    for subject in 0..STEPS / 100 {
        // Limits stay: what another limit makes of a state is held to the library by its bytes.
        let limits: Vec<&Limit> = (0..4).map(|_| random.pick(&pool)).collect();
        let mut records: [Stored; 2] = [None, None];
        for step in 0..100 {
            let passed = cases::step(limits[0], &mut random).max(0);
            now = now.saturating_add_signed(passed).min(1 << 52);
            let mut charges = Vec::new();
            for (i, limit) in limits.iter().enumerate().take(1 + random.below(4) as usize) {
                let limit = limit.up_to(cases::ceiling(limit, &mut random));
                charges.push(Charge {
                    subject: Fingerprint::new(u128::from(subject)),
                    rule: &rules[i / 2],
                    rate: (i % 2) as u8,
                    cost: Cost::new(cases::cost(&limit, &mut random)).expect("a cost"),
                    limit: Cow::Owned(limit),
                    role: *random.pick(&[Role::Enforce, Role::Enforce, Role::Shadow, Role::Quota]),
                    terms: &Terms::USUAL,
                });
            }
            let set = ChargeSet::of(charges);
            let at = Nanos::new(now * 1_000);
            let plan = Plan::new(&set.charges, Spending::Charge, at).expect("a plan");
            let shared = &mut records[..plan.keys.len()];
            let (told, wanted) = match random.below(10) {
                0 => (
                    model::charge(&set, &plan, shared, Intent::Force, at),
                    memory.force_at(&set, at),
                ),
                1 => (
                    model::charge(&set, &plan, shared, Intent::Peek, at),
                    memory.peek_at(&set, at),
                ),
                _ => (
                    model::charge(&set, &plan, shared, Intent::Charge, at),
                    memory.charge_at(&set, at),
                ),
            };
            refused += u64::from(!wanted.admitted);
            let told = Outcome {
                seen: Vec::new(),
                ..told
            };
            assert_eq!(
                told, wanted,
                "{kind:?}, seed {seed}, subject {subject}, step {step}: {limits:?}"
            );
        }
    }
    assert!(refused > STEPS / 20, "{kind:?}: {refused} refused");
}

#[test]
fn what_is_told_is_what_memory_would_tell() {
    for kind in Kind::ALL {
        run(kind, 3);
    }
}
