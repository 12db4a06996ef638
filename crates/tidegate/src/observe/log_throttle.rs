//! Limits how often a denial is logged: a number of lines per second, then counts.
//!
//! Under a flood of denials one line each would cost more than the denials. Each second of a rule has room for
//! [`LogThrottle::LINES_PER_SECOND`]; later denials are counted, and the count is reported once the second is over.
//! Invariant: every denial is either written or in exactly one count. Lock-free; the second is an argument.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The throttle of one rule.
#[derive(Debug, Default)]
pub struct LogThrottle {
    /// The second in the upper half, the denials in it in the lower.
    state: AtomicU64,
}

/// What to do with one denial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogAction {
    /// Write it. `skipped` denials of an earlier second were not written and are reported now.
    Write {
        /// The number of skipped denials.
        skipped: u64,
    },
    /// Do not write it; it is counted.
    Skip,
}

impl LogThrottle {
    /// Lines per rule and second: enough to see the clients and causes, little enough for any disk.
    pub const LINES_PER_SECOND: u64 = 100;

    /// Decides whether to write one denial in `second`.
    pub fn admit(&self, second: u32) -> LogAction {
        let mut found = self.state.load(Relaxed);
        loop {
            let (then, count) = unpack(found);
            // After a step back of the clock the later second stays current: its room is not given twice.
            let next = if second > then { pack(second, 1) } else { pack(then, count.saturating_add(1)) };
            match self.state.compare_exchange_weak(found, next, Relaxed, Relaxed) {
                Ok(_) if second > then => {
                    return LogAction::Write { skipped: skipped(count) };
                }
                Ok(_) if u64::from(count) < Self::LINES_PER_SECOND => {
                    return LogAction::Write { skipped: 0 };
                }
                Ok(_) => return LogAction::Skip,
                Err(now) => found = now,
            }
        }
    }

    /// Denials of a second before `second` that were not written: reported once, for rules that became quiet.
    pub fn take_skipped(&self, second: u32) -> u64 {
        let found = self.state.load(Relaxed);
        let (then, count) = unpack(found);
        if then >= second || skipped(count) == 0 {
            return 0;
        }
        let reported = pack(then, Self::LINES_PER_SECOND as u32);
        match self.state.compare_exchange(found, reported, Relaxed, Relaxed) {
            Ok(_) => skipped(count),
            // A denial came in between and has taken the count with it.
            Err(_) => 0,
        }
    }
}

fn skipped(count: u32) -> u64 {
    u64::from(count).saturating_sub(LogThrottle::LINES_PER_SECOND)
}

const fn pack(second: u32, count: u32) -> u64 {
    ((second as u64) << 32) | count as u64
}

const fn unpack(state: u64) -> (u32, u32) {
    ((state >> 32) as u32, state as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the given number of denials per second. Returns (written, reported as counts).
    fn run(denials: &[(u32, u64)], end: u32) -> (u64, u64) {
        let throttle = LogThrottle::default();
        let (mut written, mut reported) = (0, 0);
        for &(second, count) in denials {
            for _ in 0..count {
                if let LogAction::Write { skipped } = throttle.admit(second) {
                    written += 1;
                    reported += skipped;
                }
            }
        }
        reported += throttle.take_skipped(end);
        assert_eq!(throttle.take_skipped(end), 0, "a count is reported once");
        (written, reported)
    }

    #[test]
    fn a_few_denials_are_written_line_by_line() {
        assert_eq!(run(&[(1, 100), (2, 1), (9, 100)], 10), (201, 0));
    }

    #[test]
    fn a_flood_is_written_as_a_hundred_lines_and_a_count() {
        assert_eq!(run(&[(1, 5_000)], 2), (100, 4_900));
    }

    #[test]
    fn the_next_second_reports_what_the_last_one_left_out() {
        assert_eq!(run(&[(1, 150), (2, 130)], 3), (200, 80));
    }

    #[test]
    fn a_second_still_running_is_not_reported() {
        assert_eq!(run(&[(5, 150)], 5), (100, 0));
    }

    #[test]
    fn a_clock_that_steps_back_makes_no_room_for_another_hundred() {
        assert_eq!(run(&[(5, 100), (4, 50)], 6), (100, 50));
    }

    #[test]
    fn no_denial_is_lost_between_threads() {
        let throttle = LogThrottle::default();
        let total = Counter::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for i in 0..20_000_u32 {
                        if let LogAction::Write { skipped } = throttle.admit(1 + i / 4_000) {
                            total.add(1 + skipped);
                        }
                        total.add(throttle.take_skipped(1 + i / 4_000));
                    }
                });
            }
        });
        assert_eq!(total.get() + throttle.take_skipped(u32::MAX), 80_000);
    }

    use crate::observe::Counter;
}
