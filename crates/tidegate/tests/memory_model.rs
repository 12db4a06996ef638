//! The memory store against a plain map that forgets nothing: the same results for any sequence of operations, while
//! tables grow, split, purge and are swept, and slabs are reused.

use std::borrow::Cow;
use std::collections::HashMap;

use tidegate::clock::{Clock, ManualClock};
use tidegate::stores::MemoryStore;
use tidegate_core::algorithms::{Algorithm, CounterState, Limit, Moment, Precision, Spec, Verdict};
use tidegate_core::store::{
    Charge, ChargeSet, Inspection, LimitReading, Outcome, Refund, Refunded, Restore, Role, RuleOptions, Source,
};
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::{Cost, Nanos};

/// The specification of the store, in the plainest code.
struct CounterModel {
    began: Nanos,
    counters: HashMap<u128, ModelCounter>,
    refunds: HashMap<u128, Nanos>,
}

#[derive(Clone)]
struct ModelCounter {
    limit: Limit,
    state: CounterState,
    fresh_at: Nanos,
}

impl CounterModel {
    /// Whether a counter that is fresh at `at` may have been evicted by `now`. The store rounds up to whole seconds;
    /// the difference shows only if the limit of the counter changes in between.
    fn forgotten(&self, at: Nanos, now: Nanos) -> bool {
        at.since(self.began).secs_up().max(1) <= now.since(self.began).get() / 1_000_000_000
    }

    /// The state of a counter under the limit of `charge`, at the current time.
    fn read(&self, charge: &Charge<'_>, now: Nanos) -> (CounterState, Moment) {
        let known = self.counters.get(&charge.counter());
        let live = known.filter(|counter| !self.forgotten(counter.fresh_at, now));
        let mut state = match live {
            Some(old) => charge.limit.adopt(&old.limit, old.state.clone(), now),
            None => charge.limit.fresh(now),
        };
        let at = charge.limit.advance(&mut state, now);
        (state, at)
    }

    fn write(&mut self, charge: &Charge<'_>, state: CounterState, at: Moment) {
        let counter = ModelCounter {
            limit: charge.limit.clone().into_owned(),
            fresh_at: charge.limit.fresh_at(&state, at),
            state,
        };
        self.counters.insert(charge.counter(), counter);
    }

    fn reading(&self, charge: &Charge<'_>, verdict: Verdict, now: Nanos) -> LimitReading {
        let (state, at) = self.read(charge, now);
        LimitReading { verdict, figures: charge.limit.figures(&state, at) }
    }

    fn spend(&mut self, charge: &Charge<'_>, force: bool, now: Nanos) -> Verdict {
        let (mut state, at) = self.read(charge, now);
        let verdict = charge.limit.judge(&state, at, charge.cost);
        if verdict.allows() || force {
            charge.limit.spend(&mut state, at, charge.cost);
            self.write(charge, state, at);
        }
        verdict
    }

    /// Charges one by one, and rolls all of it back if the request is denied.
    fn charge(&mut self, set: &ChargeSet<'_>, verb: ModelVerb, now: Nanos) -> Outcome {
        let touched = set.charges.iter().map(Charge::counter);
        let before: Vec<_> = touched.map(|id| (id, self.counters.get(&id).cloned())).collect();
        let force = verb == ModelVerb::Force;
        let mut verdicts = vec![Verdict::Allow { delay: Nanos::ZERO }; set.charges.len()];
        let shadow = |charge: &Charge<'_>| charge.role == Role::Shadow;
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| !shadow(c)) {
            verdicts[i] = self.spend(charge, force, now);
        }
        let admitted = force || set.admits(|i| verdicts[i].allows());
        if !admitted {
            self.roll_back(&before);
        }
        for (i, charge) in set.charges.iter().enumerate().filter(|(_, c)| shadow(c)) {
            verdicts[i] = self.spend(charge, force, now);
            if !admitted {
                self.roll_back(&before);
            }
        }
        if verb == ModelVerb::Peek {
            self.roll_back(&before);
        }
        let readings = set.charges.iter().zip(&verdicts);
        let readings = readings.map(|(c, verdict)| self.reading(c, *verdict, now)).collect();
        Outcome::new(admitted, readings, now, Source::Exact)
    }

    fn roll_back(&mut self, before: &[(u128, Option<ModelCounter>)]) {
        for (id, counter) in before {
            match counter {
                Some(counter) => self.counters.insert(*id, counter.clone()),
                None => self.counters.remove(id),
            };
        }
    }

    fn refund(&mut self, refund: &Refund<'_>, now: Nanos) -> Refunded {
        if now >= refund.expires_at {
            return Refunded::Lapsed;
        }
        let made = self.refunds.get(&refund.id);
        if made.is_some_and(|until| !self.forgotten(*until, now)) {
            return Refunded::Already;
        }
        self.refunds.insert(refund.id, refund.expires_at);
        for charge in &refund.set.charges {
            let known = self.counters.get(&charge.counter());
            // Under another limit a unit has another worth: nothing is refunded.
            let same = |counter: &ModelCounter| counter.limit.tag() == charge.limit.tag();
            if known.is_some_and(|c| same(c) && !self.forgotten(c.fresh_at, now)) {
                let (mut state, at) = self.read(charge, now);
                charge.limit.refund(&mut state, at, refund.charged_at, charge.cost);
                self.write(charge, state, at);
            }
        }
        Refunded::Done
    }

    fn draw(&mut self, charge: &Charge<'_>, now: Nanos) -> u64 {
        let (mut state, at) = self.read(charge, now);
        let there = charge.limit.remaining(&state, at);
        let requested = charge.cost.get();
        let share = there.div_ceil(2).max(requested.div_ceil(8));
        let Some(units) = Cost::new(share.min(there).min(requested)) else {
            return 0;
        };
        charge.limit.spend(&mut state, at, units);
        self.write(charge, state, at);
        units.get()
    }

    fn restore(&mut self, restore: &Restore<'_>, now: Nanos) {
        let limit = &restore.charge.limit;
        let (mut state, _) = self.read(&restore.charge, now);
        limit.merge(&mut state, &restore.state, now);
        let at = limit.advance(&mut state, now);
        if limit.fresh_at(&state, at) > now {
            self.write(&restore.charge, state, at);
        }
    }

    fn inspect(&self, charge: &Charge<'_>, now: Nanos) -> Option<Inspection> {
        let (state, at) = self.read(charge, now);
        let figures = charge.limit.figures(&state, at);
        (figures.reset_after > Nanos::ZERO).then(|| Inspection {
            used: charge.limit.used(&state, at),
            figures,
            source: Source::Exact,
        })
    }

    fn reset(&mut self, charge: &Charge<'_>, now: Nanos) -> u64 {
        let removed = self.counters.remove(&charge.counter());
        u64::from(removed.is_some_and(|counter| !self.forgotten(counter.fresh_at, now)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ModelVerb {
    Charge,
    Peek,
    Force,
}

struct ModelRng(u64);

impl ModelRng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0) % n
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Subjects whose counters fall into two shards, so that a few thousand of them split its tables.
fn subject(rule: &RuleName, number: u64) -> Fingerprint {
    let hi = (mix(number) >> 8) | (number % 2) << 60;
    let id = u128::from(hi) << 64;
    Fingerprint::new(id ^ rule.counter(Fingerprint::new(0), 0))
}

struct ModelRun {
    rules: [RuleName; 2],
    limits: Vec<Limit>,
    random: ModelRng,
    /// Subjects come and go: those in use are the last few thousand before this one.
    newest: u64,
}

impl ModelRun {
    fn new(seed: u64) -> Self {
        let spans = [1_500, 40_000, 900_000].map(Nanos::from_millis);
        let specs = Algorithm::ALL
            .into_iter()
            .flat_map(|algorithm| spans.map(|span| Spec::new(algorithm, 3 + span.get() / 300_000_000_000, span)));
        let compile = |spec: Spec| Limit::compile(&spec, Precision::Memory).expect("a limit");
        ModelRun {
            rules: [RuleName::new("one"), RuleName::new("two")],
            limits: specs.map(compile).collect(),
            random: ModelRng(seed),
            newest: 0,
        }
    }

    /// Draws everything a charge is made of, for [`ModelRun::charge`].
    fn draw(&mut self) -> [u64; 5] {
        self.newest += self.random.below(2);
        let near = if self.random.below(3) == 0 { 50 } else { 12_000 };
        let age = self.random.below(near);
        [
            self.newest.saturating_sub(age),
            self.random.below(2),
            self.random.below(60),
            1 + self.random.below(3),
            self.random.below(8),
        ]
    }

    /// Usually a subject keeps its limit; sometimes it changes. A third of the requests may use only a part of it.
    fn charge(&self, [number, rule, other, cost, role]: [u64; 5]) -> Charge<'_> {
        let usual = mix(number) % self.limits.len() as u64;
        let limit = if other < 2 { usual + other + 1 } else { usual };
        let limit = &self.limits[limit as usize % self.limits.len()];
        let rule = &self.rules[rule as usize];
        Charge {
            subject: subject(rule, number),
            rule,
            rate: 0,
            limit: match other {
                40.. => Cow::Owned(limit.with_ceiling(limit.full_capacity() * 4 / 5)),
                _ => Cow::Borrowed(limit),
            },
            cost: Cost::new(cost).expect("a cost"),
            options: &RuleOptions::DEFAULT,
            role: match role {
                0 => Role::Shadow,
                1 => Role::Quota,
                _ => Role::Enforce,
            },
        }
    }
}

fn run(seed: u64, steps: u64) {
    let began = Nanos::from_secs(1_700_000_000);
    let clock = ManualClock::at(began);
    let store = MemoryStore::new(clock.clone());
    let mut world = ModelRun::new(seed);
    let mut model = CounterModel { began, counters: HashMap::new(), refunds: HashMap::new() };
    for step in 0..steps {
        clock.advance(Nanos::from_millis(world.random.below(14)));
        let now = clock.now();
        let verb = world.random.below(40);
        let size = if world.random.below(4) == 0 { 4 } else { 1 };
        let mut drawn: Vec<_> = (0..size).map(|_| world.draw()).collect();
        // A counter may occur twice in a request, but not under two limits.
        let other = drawn[0][2];
        drawn.iter_mut().for_each(|draw| draw[2] = other);
        let past = now.since(Nanos::from_millis(world.random.below(3_000)));
        let set = ChargeSet::of(drawn.iter().map(|draw| world.charge(*draw)));
        let first = &set.charges[0];
        match verb {
            0 | 1 => {
                let refund = Refund {
                    id: u128::from(mix(step / 100)),
                    charged_at: past,
                    expires_at: past.plus(Nanos::from_secs(2)),
                    set: set.clone(),
                };
                let want = model.refund(&refund, now);
                assert_eq!(store.refund_at(&refund, now), want, "{seed}:{step}");
            }
            2 => assert_eq!(store.draw_at(first, now).units, model.draw(first, now)),
            3 => {
                let restore = Restore { charge: first.clone(), state: first.limit.with_used(1 + step % 3, past) };
                model.restore(&restore, now);
                assert_eq!(store.restore_at(&[restore], now), Ok(()));
            }
            4 => assert_eq!(
                store.inspect_at(&set, now),
                set.charges.iter().map(|c| model.inspect(c, now)).collect::<Vec<_>>(),
                "{seed}:{step}"
            ),
            5 => {
                let want: u64 = set.charges.iter().map(|c| model.reset(c, now)).sum();
                assert_eq!(store.reset_at(&set, now), want, "{seed}:{step}");
            }
            6 => _ = store.sweep(3),
            7 => assert_eq!(store.force_at(&set, now), model.charge(&set, ModelVerb::Force, now), "{seed}:{step}"),
            8 | 9 => assert_eq!(store.peek_at(&set, now), model.charge(&set, ModelVerb::Peek, now), "{seed}:{step}"),
            _ => assert_eq!(store.charge_at(&set, now), model.charge(&set, ModelVerb::Charge, now), "{seed}:{step}"),
        }
    }
    let stats = store.stats();
    assert_eq!(stats.overflow, 0);
    assert!(stats.converted > steps / 200, "limits changed: {stats:?}");
    assert!(stats.keys > 8_192, "tables were split: {stats:?}");
    assert!(stats.swept > 1_000, "counters expired: {stats:?}");
    assert!((stats.keys as usize) < model.counters.len(), "and were evicted: {stats:?}");
}

#[test]
fn the_store_behaves_like_a_map_that_forgets_nothing() {
    run(1, 200_000);
    run(2, 200_000);
}
