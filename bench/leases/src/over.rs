//! The excess of admissions over a limit, judged from outside.
//!
//! An admission is known to lie between its request and its reply, to the millisecond. For an interval only
//! admissions wholly inside are counted: no false alarm.

/// One admitted request, in whole milliseconds since the start of the run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AdmittedRequest {
    pub(crate) sent_ms: usize,
    pub(crate) replied_ms: usize,
}

/// The excess of the worst interval over `burst` plus its inflow, in units.
pub(crate) fn max_excess(passed: &[AdmittedRequest], burst: u64, per_sec: u64) -> u64 {
    let length = passed.iter().map(|p| p.replied_ms + 1).max().unwrap_or(0);
    let mut by_sent: Vec<Vec<usize>> = vec![Vec::new(); length];
    for one in passed {
        by_sent[one.sent_ms].push(one.replied_ms);
    }
    // For requests sent at `from` or later: the number of replies in each millisecond.
    let (mut replied, mut max) = (vec![0; length], 0);
    for (from, replies) in by_sent.iter().enumerate().rev() {
        for at in replies {
            replied[*at] += 1;
        }
        let mut inside = 0_u64;
        for (passed_ms, here) in (1..).zip(&replied[from..]) {
            inside += here;
            let allowed = burst + per_sec * passed_ms / 1_000;
            max = max.max(inside.saturating_sub(allowed));
        }
    }
    max
}

/// The maximum number of replies within any `span_ms` milliseconds.
pub(crate) fn max_within(passed: &[AdmittedRequest], span_ms: usize) -> u64 {
    let mut replies: Vec<usize> = passed.iter().map(|p| p.replied_ms).collect();
    replies.sort_unstable();
    let (mut max, mut oldest) = (0, 0);
    for (newest, at) in replies.iter().enumerate() {
        while at - replies[oldest] > span_ms {
            oldest += 1;
        }
        max = max.max(newest + 1 - oldest);
    }
    max as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(times_ms: &[(usize, usize)]) -> Vec<AdmittedRequest> {
        let passed =
            |(sent_ms, replied_ms): &(usize, usize)| AdmittedRequest { sent_ms: *sent_ms, replied_ms: *replied_ms };
        times_ms.iter().map(passed).collect()
    }

    #[test]
    fn a_burst_plus_the_inflow_may_pass() {
        // Two at once and one every 100 ms.
        assert_eq!(max_excess(&at(&[(0, 0), (0, 0), (99, 99)]), 2, 10), 0);
        assert_eq!(max_excess(&at(&[(0, 0), (0, 0), (98, 98)]), 2, 10), 1);
        assert_eq!(max_excess(&at(&[(0, 0), (5, 5), (5, 5), (6, 6), (7, 7)]), 2, 10), 3);
        assert_eq!(max_excess(&[], 2, 10), 0);
    }

    #[test]
    fn an_admission_that_may_be_outside_does_not_count() {
        assert_eq!(max_excess(&at(&[(0, 0), (0, 0), (0, 150)]), 2, 10), 0);
    }

    #[test]
    fn the_busiest_span_may_start_anywhere() {
        let passed = at(&[(0, 0), (60, 60), (70, 70), (110, 110), (200, 200)]);
        assert_eq!(max_within(&passed, 50), 3);
    }
}
