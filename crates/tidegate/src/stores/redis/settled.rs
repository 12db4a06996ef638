//! Random reservations, on a real server and in memory side by side: every answer and every counter is
//! the same. The scripts and the ledger in memory are two implementations of one promise.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Reserve, Role, Settle, Store, Used};
use tidegate_core::units::Nanos;
use tidegate_parts::Server;

use super::claims::conformance::{Counter, Rig, anyone, set};
use super::claims::{START, Shared, on_runtime};
use crate::clock::ManualClock;
use crate::stores::memory::MemoryStore;

/// Histories, and steps of each.
const HISTORIES: u64 = 60;
const STEPS: usize = 80;

/// A reservation that was made.
struct Made<'a> {
    id: u128,
    at: Nanos,
    lasts: Nanos,
    set: ChargeSet<'a>,
}

struct Dice(u64);

impl Dice {
    /// Below `most`, by splitmix64.
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % most
    }
}

/// Both stores, at one time.
struct Pair<'r> {
    shared: &'r Shared,
    memory: MemoryStore<ManualClock>,
}

impl Pair<'_> {
    fn advance(&self, secs: u64) {
        self.shared.advance(Nanos::from_secs(secs));
        self.memory.clock().advance(Nanos::from_secs(secs));
    }

    async fn reserve<'a>(&self, reserve: Reserve<'a>) -> Option<Made<'a>> {
        let there = self.shared.store().reserve(&reserve).await;
        let there = there.expect("a server that answers");
        let here = self.memory.reserve(&reserve).await.expect("memory");
        assert_eq!((there.admitted, there.at), (here.admitted, here.at));
        assert_eq!(there.readings, here.readings);
        there.admitted.then_some(Made {
            id: reserve.id,
            at: there.at,
            lasts: reserve.lasts,
            set: reserve.set,
        })
    }

    async fn settle(&self, made: &Made<'_>, used: Used) {
        let settle = Settle {
            id: made.id,
            charged: made.at,
            until: made.at.plus(made.lasts),
            set: made.set.clone(),
            used,
        };
        let there = self.shared.store().settle(&settle).await;
        let here = self.memory.settle(&settle).await.expect("memory");
        assert_eq!(there.expect("a server that answers"), here);
    }

    async fn charge(&self, charge: Charge<'_>) {
        let set = ChargeSet::of_one(charge);
        let there = self.shared.store().charge(&set).await;
        let there = there.expect("a server that answers");
        let here = self.memory.charge(&set).await.expect("memory");
        assert_eq!(there.readings, here.readings);
    }

    async fn reset(&self, charge: Charge<'_>) {
        let set = ChargeSet::of_one(charge);
        let there = self.shared.store().reset(&set).await;
        there.expect("a server that answers");
        self.memory.reset(&set).await.expect("memory");
    }

    async fn counters_agree(&self, set: &ChargeSet<'_>) {
        let there = self.shared.store().inspect(set).await;
        let here = self.memory.inspect(set).await.expect("memory");
        assert_eq!(there.expect("a server that answers"), here);
    }
}

fn limits(dice: &mut Dice) -> [Limit; 2] {
    [(); 2].map(|()| {
        let algorithm = Algorithm::ALL[dice.below(Algorithm::ALL.len() as u64) as usize];
        let width = Nanos::from_secs([30, 120, 3_600][dice.below(3) as usize]);
        let spec = Spec::new(algorithm, 50 + dice.below(200), width);
        Limit::compile(&spec, Precision::Script).expect("a limit that fits")
    })
}

async fn history(shared: &Shared, seed: u64) {
    let mut dice = Dice(seed);
    let limits = limits(&mut dice);
    let counters = [Counter::new(), Counter::new()];
    let now = shared.time();
    let pair = Pair {
        shared,
        memory: MemoryStore::new(ManualClock::at(now)),
    };
    let mut made: Vec<Made<'_>> = Vec::new();
    for _ in 0..STEPS {
        let which = dice.below(2) as usize;
        let cost = 1 + dice.below(60);
        match dice.below(10) {
            0..4 => {
                let both = dice.below(2) == 0;
                let second = [Role::Enforce, Role::Shadow][dice.below(2) as usize];
                let mut charges = vec![counters[which].enforce(&limits[which], cost)];
                if both {
                    let (counter, limit) = (&counters[1 - which], &limits[1 - which]);
                    charges.push(counter.charge(limit, cost, second));
                }
                let reserve = Reserve {
                    id: anyone().bits(),
                    lasts: Nanos::from_secs(1 + dice.below(40)),
                    set: set(charges),
                };
                made.extend(pair.reserve(reserve).await);
            }
            4..8 if !made.is_empty() => {
                let at = dice.below(made.len() as u64) as usize;
                let used = match dice.below(5) {
                    0 => Used::Unsaid,
                    _ => Used::Known([dice.below(120), dice.below(120)].into_iter().collect()),
                };
                pair.settle(&made[at], used).await;
            }
            8 => {
                let charge = counters[which].enforce(&limits[which], cost);
                pair.charge(charge).await;
            }
            _ if dice.below(8) == 0 => {
                let charge = counters[which].enforce(&limits[which], 1);
                pair.reset(charge).await;
            }
            _ => pair.advance(dice.below(25)),
        }
        let both = [0, 1].map(|i| counters[i].enforce(&limits[i], 1));
        pair.counters_agree(&set(both)).await;
    }
}

#[test]
fn a_server_and_memory_settle_alike() {
    let server = Server::redis7();
    on_runtime(async {
        let shared = Shared::on(&server).await;
        for seed in 0..HISTORIES {
            println!("seed {seed} from {START}");
            history(&shared, seed).await;
        }
    });
}
