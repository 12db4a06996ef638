//! The load on a client: tasks that each decide again as soon as they have their reply, or decisions at a
//! steady pace.

use std::future::Future as _;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use tokio::task::{JoinSet, yield_now};

use crate::{BenchError, LoadClient};

/// Waits beyond a minute count as a minute.
const MAX_WAIT_NANOS: u64 = 60_000_000_000;

/// The maximum number of decisions in flight at a steady pace: half of what our store accepts before it
/// decides by itself. A client that cannot keep the pace shows it by its waits, which count as well.
const MAX_IN_FLIGHT: usize = 2_048;

/// The number of decisions in flight, and the number of keys, drawn evenly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Concurrency {
    /// The number of keys.
    pub keys: usize,
    /// Decisions in flight.
    pub in_flight: usize,
}

/// Decisions made, and how long that took.
#[derive(Debug, Clone, Copy)]
pub struct DecisionCount {
    /// The number of decisions.
    pub decisions: u64,
    /// From the first request to the last reply.
    pub elapsed: Duration,
}

/// `in_flight` tasks, each with one decision in flight, for `length`.
pub(crate) async fn run_tasks<C: LoadClient>(
    client: &Arc<C>,
    concurrency: Concurrency,
    length: Duration,
) -> Result<DecisionCount, BenchError> {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for number in 0..concurrency.in_flight {
        let client = Arc::clone(client);
        tasks.spawn(async move {
            let mut rng = KeyRng::new(number);
            let mut decisions = 0;
            while begun.elapsed() < length {
                client.decide(rng.below(concurrency.keys)).await?;
                decisions += 1;
                // As a server does between two requests. Without it a task that need not wait would keep all
                // others from running, including those that receive its next replies.
                yield_now().await;
            }
            Ok::<u64, BenchError>(decisions)
        });
    }
    let mut decisions = 0;
    while let Some(ended) = tasks.join_next().await {
        decisions += ended??;
    }
    Ok(DecisionCount { decisions, elapsed: begun.elapsed() })
}

/// `rate` decisions per second, each started when it is due, whether or not earlier replies have arrived.
/// Waits count from the instant a decision was due.
pub(crate) async fn run_paced<C: LoadClient>(
    client: &Arc<C>,
    keys: usize,
    rate: f64,
    length: Duration,
) -> Result<(DecisionCount, Histogram<u64>), BenchError> {
    let interval = Duration::from_secs_f64(1.0 / rate);
    let mut waits = Histogram::new_with_max(MAX_WAIT_NANOS, 3)?;
    let mut rng = KeyRng::new(0);
    let mut tasks = JoinSet::new();
    let begun = Instant::now();
    let mut due = begun;
    while begun.elapsed() < length {
        while due <= Instant::now() && tasks.len() < MAX_IN_FLIGHT {
            let (client, key, since) = (Arc::clone(client), rng.below(keys), due);
            let mut decision = Box::pin(async move {
                let decided = client.decide(key).await;
                decided.map(|()| since.elapsed())
            });
            // Decisions that need not wait complete at once: a task for each would cost more than they do. A
            // spawned task is polled again, and is woken from then on.
            match decision.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(decided) => note(&mut waits, decided)?,
                Poll::Pending => drop(tasks.spawn(decision)),
            }
            due += interval;
        }
        while let Some(ended) = tasks.try_join_next() {
            note(&mut waits, ended?)?;
        }
        // It spins on its own core, because a sleep would end too late; yielding receives replies.
        yield_now().await;
    }
    while let Some(ended) = tasks.join_next().await {
        note(&mut waits, ended?)?;
    }
    let made = DecisionCount { decisions: waits.len(), elapsed: begun.elapsed() };
    Ok((made, waits))
}

fn note(waits: &mut Histogram<u64>, decided: Result<Duration, BenchError>) -> Result<(), BenchError> {
    waits.saturating_record(decided?.as_nanos() as u64);
    Ok(())
}

/// Pseudo-random numbers that are the same in every run: xorshift.
struct KeyRng(u64);

impl KeyRng {
    fn new(number: usize) -> Self {
        KeyRng((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * bound as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_drawn_evenly_and_within_bounds() {
        let mut draws = [0; 10];
        let mut rng = KeyRng::new(3);
        for _ in 0..10_000 {
            draws[rng.below(10)] += 1;
        }
        assert!(draws.iter().all(|count| (850..1_150).contains(count)), "{draws:?}");
        assert_eq!(rng.below(1), 0);
    }
}
