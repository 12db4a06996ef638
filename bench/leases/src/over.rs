//! How much more passed than a limit allows, judged from outside.
//!
//! An admission is known to lie between its question and its answer, to the millisecond. For an interval
//! only what lies wholly inside is counted: no false alarm.

/// One admitted request, in whole milliseconds since the run began.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Passed {
    pub(crate) asked_ms: usize,
    pub(crate) answered_ms: usize,
}

/// By how many units the worst interval exceeds `burst` and what flows in during it.
pub(crate) fn over(passed: &[Passed], burst: u64, per_sec: u64) -> u64 {
    let length = passed.iter().map(|p| p.answered_ms + 1).max().unwrap_or(0);
    let mut by_asked: Vec<Vec<usize>> = vec![Vec::new(); length];
    for one in passed {
        by_asked[one.asked_ms].push(one.answered_ms);
    }
    // Of those asked for at `from` or later, how many were answered in each millisecond.
    let (mut answered, mut most) = (vec![0; length], 0);
    for (from, answers) in by_asked.iter().enumerate().rev() {
        for at in answers {
            answered[*at] += 1;
        }
        let mut inside = 0_u64;
        for (passed_ms, here) in (1..).zip(&answered[from..]) {
            inside += here;
            let allowed = burst + per_sec * passed_ms / 1_000;
            most = most.max(inside.saturating_sub(allowed));
        }
    }
    most
}

/// The most that were answered within any `span_ms` milliseconds.
pub(crate) fn busiest(passed: &[Passed], span_ms: usize) -> u64 {
    let mut answers: Vec<usize> = passed.iter().map(|p| p.answered_ms).collect();
    answers.sort_unstable();
    let (mut most, mut oldest) = (0, 0);
    for (newest, at) in answers.iter().enumerate() {
        while at - answers[oldest] > span_ms {
            oldest += 1;
        }
        most = most.max(newest + 1 - oldest);
    }
    most as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(times_ms: &[(usize, usize)]) -> Vec<Passed> {
        let passed = |(asked_ms, answered_ms): &(usize, usize)| Passed {
            asked_ms: *asked_ms,
            answered_ms: *answered_ms,
        };
        times_ms.iter().map(passed).collect()
    }

    #[test]
    fn a_burst_and_what_flows_in_may_pass() {
        // Two at once and one every 100 ms.
        assert_eq!(over(&at(&[(0, 0), (0, 0), (99, 99)]), 2, 10), 0);
        assert_eq!(over(&at(&[(0, 0), (0, 0), (98, 98)]), 2, 10), 1);
        assert_eq!(
            over(&at(&[(0, 0), (5, 5), (5, 5), (6, 6), (7, 7)]), 2, 10),
            3
        );
        assert_eq!(over(&[], 2, 10), 0);
    }

    #[test]
    fn what_may_have_been_elsewhere_does_not_count() {
        assert_eq!(over(&at(&[(0, 0), (0, 0), (0, 150)]), 2, 10), 0);
    }

    #[test]
    fn the_busiest_span_need_not_begin_at_the_beginning() {
        let passed = at(&[(0, 0), (60, 60), (70, 70), (110, 110), (200, 200)]);
        assert_eq!(busiest(&passed, 50), 3);
    }
}
