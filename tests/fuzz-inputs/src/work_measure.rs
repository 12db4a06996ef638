//! Measures work in work units, independently of the load of the machine.
//!
//! A work unit is a fixed piece of work of the kind that parsers do: it splits a text and counts its words in
//! a tree. The subject and the unit are both measured in processor time of the thread, in turns, and the
//! minimum of each counts. A busy machine delays both alike and changes neither, so no wall clock decides a
//! test.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// The number of words in the text of one work unit.
const WORDS: u32 = 4_000;

/// The number of measurements of each: a disturbance only ever adds to one.
const ROUNDS: u32 = 7;

/// For work as long as this a disturbance is negligible: one measurement is enough.
const LONG: Duration = Duration::from_millis(200);

/// The work of `run`, in work units. Runs it several times, unless it takes long.
pub fn work_units(mut run: impl FnMut()) -> f64 {
    let text = text();
    let (mut work, mut unit) = (Duration::MAX, Duration::MAX);
    for _ in 0..ROUNDS {
        unit = unit.min(processor_time(|| _ = black_box(count_words(&text))));
        if work < LONG || work == Duration::MAX {
            work = work.min(processor_time(&mut run));
        }
    }
    work.as_secs_f64() / unit.as_secs_f64()
}

fn processor_time(run: impl FnOnce()) -> Duration {
    let begun = thread_clock();
    run();
    thread_clock().saturating_sub(begun)
}

/// The processor time that this thread has used.
fn thread_clock() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (secs, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(secs.unwrap_or(0), nanos.unwrap_or(0))
}

fn text() -> String {
    let words = (0..WORDS).map(|i| format!("word-{:x}", i.wrapping_mul(0x9e37_79b9) % 977));
    words.collect::<Vec<_>>().join(" ")
}

fn count_words(text: &str) -> BTreeMap<String, u32> {
    let mut words = BTreeMap::new();
    for word in text.split(' ') {
        *words.entry(word.to_owned()).or_default() += 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_measured_in_full() {
        let text = text();
        let ten = work_units(|| (0..10).for_each(|_| _ = black_box(count_words(&text))));
        assert!((5.0..20.0).contains(&ten), "{ten}");
    }

    /// Time in which the machine does something else is not work.
    #[test]
    fn waiting_is_not_work() {
        let none = work_units(|| std::thread::sleep(Duration::from_millis(20)));
        assert!(none < 1.0, "{none}");
    }
}
