//! `CL.THROTTLE` compared with the original: the module redis-cell in a real Redis, with the same calls.
//!
//! The two get each call one after the other, so time passes in between. A unit takes two hours or more to refill,
//! longer than any run: so allowed and remaining cannot depend on when each call came. Seconds can, and each side
//! must report those that the time of its own calls explains: the module rounds down, we round up.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use tidegate_testkit::RedisProgram;

use crate::resp::{RespClient, command};
use crate::server::TestServer;

const CALLS: usize = 100_000;
const KEYS: u64 = 2_000;
/// Calls to one side before the other gets the same.
const BATCH: usize = 250;

/// A reproducible random generator.
struct SeededRng(u64);

impl SeededRng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }

    fn between(&mut self, min: u64, max: u64) -> u64 {
        min + self.below(max - min + 1)
    }
}

/// A call on one of the keys. Each key always has the same limit.
struct ThrottleCall {
    key: u64,
    burst: i64,
    count: u64,
    period_secs: u64,
    quantity: Option<u64>,
}

impl ThrottleCall {
    fn draw(rng: &mut SeededRng) -> Self {
        let key = rng.below(KEYS);
        let mut own = SeededRng(0x5eed + key * 7_919);
        own.below(2);
        let burst = i64::try_from(own.below(40)).unwrap() - 2;
        let count = [1, 2, 3, 7, 30, 1_000][own.below(6) as usize];
        let limit = u64::try_from(burst + 1).unwrap_or(0);
        ThrottleCall {
            key,
            burst,
            count,
            period_secs: count * own.between(7_200, 200_000) + own.below(count),
            quantity: match rng.below(10) {
                0 => Some(0),
                1 => Some(rng.between(2, 5)),
                2 => Some(limit),
                3 => Some(limit + 1),
                4 => Some(rng.below(1_000)),
                5 => Some(1),
                _ => None,
            },
        }
    }

    fn words(&self) -> Vec<String> {
        let numbers = [self.burst.to_string(), self.count.to_string(), self.period_secs.to_string()];
        let words = ["CL.THROTTLE".to_owned(), format!("key:{}", self.key)].into_iter();
        let quantity = self.quantity.map(|quantity| quantity.to_string());
        words.chain(numbers).chain(quantity).collect()
    }

    /// How long `units` take to refill.
    fn seconds(&self, units: i64) -> f64 {
        units as f64 * self.period_secs as f64 / self.count as f64
    }
}

/// Bounds on when something happened, as seen from outside.
#[derive(Clone, Copy)]
struct TimeSpan {
    earliest: Instant,
    latest: Instant,
}

/// One of the two, and when it was first charged for each key.
struct OracleSide {
    redis: RespClient,
    first: HashMap<u64, TimeSpan>,
    round: fn(f64) -> f64,
}

impl OracleSide {
    fn new(redis: RespClient, round: fn(f64) -> f64) -> Self {
        let first = HashMap::new();
        OracleSide { redis, first, round }
    }

    /// Runs a batch, and checks the seconds of every reply.
    fn run_batch(&mut self, calls: &[ThrottleCall]) -> Vec<Vec<i64>> {
        let earliest = Instant::now();
        for call in calls {
            let words = call.words();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.redis.send(&command(&words));
        }
        let replies = calls.iter().map(|_| self.redis.receive().unwrap().integers());
        let replies: Vec<_> = replies.collect();
        let latest = Instant::now();
        for (call, reply) in calls.iter().zip(&replies) {
            self.judge(call, reply, TimeSpan { earliest, latest });
        }
        replies
    }

    fn judge(&mut self, call: &ThrottleCall, reply: &[i64], now: TimeSpan) {
        let &[limited, limit, remaining, retry, reset] = reply else { panic!("{reply:?}") };
        let quantity = i64::try_from(call.quantity.unwrap_or(1)).unwrap();
        if limited == 0 && quantity > 0 {
            self.first.entry(call.key).or_insert(now);
        }
        let passed = self.first.get(&call.key).map(|first| {
            let least = now.earliest.saturating_duration_since(first.latest);
            (least, now.latest.duration_since(first.earliest))
        });
        let used = (limit - remaining).max(0);
        let expected = |units: i64| match passed {
            Some(passed) if units > 0 => self.expected_seconds(call.seconds(units), passed),
            _ => 0..=0,
        };
        assert!(expected(used).contains(&reset), "{:?}: {reply:?}", call.words());
        let right = match (limited, quantity > limit) {
            (1, false) => expected(used + quantity - limit).contains(&retry),
            _ => retry == -1,
        };
        assert!(right, "{:?}: {reply:?}", call.words());
    }

    /// The seconds that may be reported of a wait that has been running for this long.
    fn expected_seconds(&self, wait: f64, (least, most): (Duration, Duration)) -> std::ops::RangeInclusive<i64> {
        // The module stores whole nanoseconds per unit.
        let grain = 1e-6;
        let shortest = (self.round)(wait - most.as_secs_f64() - grain) as i64;
        shortest..=(self.round)(wait - least.as_secs_f64() + grain) as i64
    }
}

#[test]
fn a_hundred_thousand_calls_get_the_replies_of_the_module() {
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/libredis_cell.so");
    assert!(std::path::Path::new(module).exists(), "no redis-cell: run scripts/tools");
    let original = tidegate_testkit::TestRedis::start(RedisProgram::Redis7, &["--loadmodule", module]);
    let server = TestServer::with_resp("version: 1\nrules: []\n", &[]);
    let mut theirs = OracleSide::new(RespClient::connect(original.address()), f64::floor);
    let mut ours = OracleSide::new(server.redis(), f64::ceil);
    let mut rng = SeededRng(0x0c3a);
    let (mut allowed, mut denied, mut never) = (0, 0, 0);
    for _ in 0..CALLS / BATCH {
        let calls: Vec<_> = (0..BATCH).map(|_| ThrottleCall::draw(&mut rng)).collect();
        let replies = theirs.run_batch(&calls).into_iter().zip(ours.run_batch(&calls));
        for (call, (theirs, ours)) in calls.iter().zip(replies) {
            assert_eq!(theirs[..3], ours[..3], "{:?}", call.words());
            match (ours[0], ours[3]) {
                (0, _) => allowed += 1,
                (_, -1) => never += 1,
                _ => denied += 1,
            }
        }
    }
    let few = [allowed, denied, never].into_iter().min();
    assert!(few > Some(5_000), "{allowed} allowed, {denied} denied, {never} can never pass");
}
