//! Times the decisions of one subject on one or more pinned threads.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use bench_subjects::{BATCH, Key, LimiterSubject};

use crate::clock::thread_cpu_nanos;

/// Decisions between two reads of the clock: enough that a read costs nothing.
const STRIDE: usize = 1_024;

/// One key per call, or [`BATCH`] of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStyle {
    /// One by one.
    Singly,
    /// In batches of 16.
    Batches,
}

/// One round: each thread walks its own order for about `length`.
pub(crate) struct TimedRound<'a> {
    /// The keys, shared by all threads.
    pub(crate) keys: &'a [Key],
    /// One order of visits for each thread.
    pub(crate) orders: &'a [Vec<u32>],
    /// Where in its order a round starts, from 0 to 1, so that rounds see different parts.
    pub(crate) start: f64,
    /// One by one or in batches.
    pub(crate) calls: CallStyle,
    /// The length of the round.
    pub(crate) length: Duration,
}

/// Nanoseconds per decision, by two clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DecisionTime {
    /// Wall time: includes other processes that got the core meanwhile.
    pub(crate) wall_nanos: f64,
    /// Processor time of the thread: excludes other processes, but also the wait for a lock.
    pub(crate) cpu_nanos: f64,
}

/// A type-erased subject, so that several can take turns outside the timed loop.
pub(crate) trait DynSubject {
    /// The name in tables.
    fn name(&self) -> &'static str;
    /// Visits every key once.
    fn fill(&self, keys: &[Key]);
    /// Runs one round and returns the mean of the threads.
    fn run(&self, round: &TimedRound<'_>) -> DecisionTime;
}

impl<S: LimiterSubject> DynSubject for S {
    fn name(&self) -> &'static str {
        S::NAME
    }

    fn fill(&self, keys: &[Key]) {
        keys.iter().for_each(|key| {
            black_box(self.decide(key));
        });
    }

    fn run(&self, round: &TimedRound<'_>) -> DecisionTime {
        let together = Barrier::new(round.orders.len());
        let cores = core_affinity::get_core_ids().unwrap_or_default();
        let taken: Vec<DecisionTime> = thread::scope(|scope| {
            let workers: Vec<_> = round
                .orders
                .iter()
                .enumerate()
                .map(|(thread, order)| {
                    let (together, core) = (&together, cores.get(thread).copied());
                    scope.spawn(move || {
                        core.map(core_affinity::set_for_current);
                        together.wait();
                        run_order(self, round, order)
                    })
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker does not panic")).collect()
        });
        let mean = |field: fn(&DecisionTime) -> f64| taken.iter().map(field).sum::<f64>() / taken.len() as f64;
        DecisionTime { wall_nanos: mean(|taken| taken.wall_nanos), cpu_nanos: mean(|taken| taken.cpu_nanos) }
    }
}

/// Walks the order from `round.start` until the time is up.
fn run_order<S: LimiterSubject>(subject: &S, round: &TimedRound<'_>, order: &[u32]) -> DecisionTime {
    let strides = order.len() / STRIDE;
    let first = (round.start * strides as f64) as usize % strides;
    let mut scratch = S::Scratch::default();
    let mut decisions = 0_usize;
    let (begun, cpu_begun) = (Instant::now(), thread_cpu_nanos());
    for stride in order.chunks_exact(STRIDE).cycle().skip(first) {
        match round.calls {
            CallStyle::Singly => singly(subject, round.keys, stride),
            CallStyle::Batches => in_batches(subject, round.keys, stride, &mut scratch),
        }
        decisions += STRIDE;
        if begun.elapsed() >= round.length {
            break;
        }
    }
    DecisionTime {
        wall_nanos: begun.elapsed().as_nanos() as f64 / decisions as f64,
        cpu_nanos: (thread_cpu_nanos() - cpu_begun) / decisions as f64,
    }
}

#[inline]
fn singly<S: LimiterSubject>(subject: &S, keys: &[Key], stride: &[u32]) {
    for index in stride {
        black_box(subject.decide(&keys[*index as usize]));
        finish();
    }
}

#[inline]
fn in_batches<S: LimiterSubject>(subject: &S, keys: &[Key], stride: &[u32], scratch: &mut S::Scratch) {
    for indices in stride.as_chunks::<BATCH>().0 {
        let batch = indices.map(|index| &keys[index as usize]);
        black_box(subject.decide_batch(&batch, scratch));
        finish();
    }
}

/// Ends a call before the next begins, as for a caller who has other work in between.
///
/// Without it the processor prefetches the keys of later calls, even past locked instructions: the harness
/// alone then took a sixth of the time of the same fetches in front of a limiter, and nothing could be
/// subtracted. The fence itself is part of the harness and so of no net figure.
#[inline]
#[cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "the only way to this instruction"))]
fn finish() {
    // SAFETY: it needs SSE2, which every x86-64 processor has.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::x86_64::_mm_lfence();
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
