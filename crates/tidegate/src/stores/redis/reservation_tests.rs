//! Random reservations, on a real server and in memory side by side: every result and every counter is the same.
//! The scripts and the ledger in memory are two implementations of one contract.

use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::store::{Charge, ChargeSet, Counters, Reservations, Reserve, Role, Settle, Used};
use tidegate_core::units::Nanos;
use tidegate_testkit::TestRedis;

use super::conformance_tests::conformance::{ConformanceCounter, Rig, anyone, set};
use super::conformance_tests::{ConformanceRig, START, on_runtime};
use crate::clock::ManualClock;
use crate::stores::memory::MemoryStore;

/// The number of histories, and of steps in each.
const HISTORIES: u64 = 60;
const STEPS: usize = 80;

/// A reservation that was admitted.
struct MadeReservation<'a> {
    id: u128,
    at: Nanos,
    ttl: Nanos,
    set: ChargeSet<'a>,
}

struct TestRng(u64);

impl TestRng {
    /// A number below `max`, by splitmix64.
    fn below(&mut self, max: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % max
    }
}

/// Both stores, at the same time.
struct StorePair<'r> {
    redis: &'r ConformanceRig,
    memory: MemoryStore<ManualClock>,
}

impl StorePair<'_> {
    fn advance(&self, secs: u64) {
        self.redis.advance(Nanos::from_secs(secs));
        self.memory.clock().advance(Nanos::from_secs(secs));
    }

    async fn reserve<'a>(&self, reserve: Reserve<'a>) -> Option<MadeReservation<'a>> {
        let there = self.redis.store().reserve(&reserve).await;
        let there = there.expect("a server that replies");
        let here = self.memory.reserve(&reserve).await.expect("memory");
        assert_eq!((there.admitted, there.at), (here.admitted, here.at));
        assert_eq!(there.readings, here.readings);
        there.admitted.then_some(MadeReservation { id: reserve.id, at: there.at, ttl: reserve.ttl, set: reserve.set })
    }

    async fn settle(&self, made: &MadeReservation<'_>, used: Used) {
        let settle = Settle {
            id: made.id,
            charged_at: made.at,
            expires_at: made.at.plus(made.ttl),
            set: made.set.clone(),
            used,
        };
        let there = self.redis.store().settle(&settle).await;
        let here = self.memory.settle(&settle).await.expect("memory");
        assert_eq!(there.expect("a server that replies"), here);
    }

    async fn charge(&self, charge: Charge<'_>) {
        let set = ChargeSet::of_one(charge);
        let there = self.redis.store().charge(&set).await;
        let there = there.expect("a server that replies");
        let here = self.memory.charge(&set).await.expect("memory");
        assert_eq!(there.readings, here.readings);
    }

    async fn reset(&self, charge: Charge<'_>) {
        let set = ChargeSet::of_one(charge);
        let there = self.redis.store().reset(&set).await;
        there.expect("a server that replies");
        self.memory.reset(&set).await.expect("memory");
    }

    async fn counters_agree(&self, set: &ChargeSet<'_>) {
        let there = self.redis.store().inspect(set).await;
        let here = self.memory.inspect(set).await.expect("memory");
        assert_eq!(there.expect("a server that replies"), here);
    }
}

fn limits(rng: &mut TestRng) -> [Limit; 2] {
    [(); 2].map(|()| {
        let algorithm = Algorithm::ALL[rng.below(Algorithm::ALL.len() as u64) as usize];
        let width = Nanos::from_secs([30, 120, 3_600][rng.below(3) as usize]);
        let spec = Spec::new(algorithm, 50 + rng.below(200), width);
        Limit::compile(&spec, Precision::Double).expect("a limit that fits")
    })
}

async fn history(redis: &ConformanceRig, seed: u64) {
    let mut rng = TestRng(seed);
    let limits = limits(&mut rng);
    let counters = [ConformanceCounter::new(), ConformanceCounter::new()];
    let now = redis.time();
    let pair = StorePair { redis, memory: MemoryStore::new(ManualClock::at(now)) };
    let mut made: Vec<MadeReservation<'_>> = Vec::new();
    for _ in 0..STEPS {
        let which = rng.below(2) as usize;
        let cost = 1 + rng.below(60);
        match rng.below(10) {
            0..4 => {
                let both = rng.below(2) == 0;
                let second = [Role::Enforce, Role::Shadow][rng.below(2) as usize];
                let mut charges = vec![counters[which].enforce(&limits[which], cost)];
                if both {
                    let (counter, limit) = (&counters[1 - which], &limits[1 - which]);
                    charges.push(counter.charge(limit, cost, second));
                }
                let reserve =
                    Reserve { id: anyone().bits(), ttl: Nanos::from_secs(1 + rng.below(40)), set: set(charges) };
                made.extend(pair.reserve(reserve).await);
            }
            4..8 if !made.is_empty() => {
                let at = rng.below(made.len() as u64) as usize;
                let used = match rng.below(5) {
                    0 => Used::Unknown,
                    _ => Used::Known([rng.below(120), rng.below(120)].into_iter().collect()),
                };
                pair.settle(&made[at], used).await;
            }
            8 => {
                let charge = counters[which].enforce(&limits[which], cost);
                pair.charge(charge).await;
            }
            _ if rng.below(8) == 0 => {
                let charge = counters[which].enforce(&limits[which], 1);
                pair.reset(charge).await;
            }
            _ => pair.advance(rng.below(25)),
        }
        let both = [0, 1].map(|i| counters[i].enforce(&limits[i], 1));
        pair.counters_agree(&set(both)).await;
    }
}

#[test]
fn redis_and_memory_settle_reservations_alike() {
    let server = TestRedis::redis7();
    on_runtime(async {
        let redis = ConformanceRig::connect(&server).await;
        for seed in 0..HISTORIES {
            println!("seed {seed} from {START}");
            history(&redis, seed).await;
        }
    });
}
