//! Log lines about events that any client can cause: one line per interval, with the number of events it stands for.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Time between two lines of the same kind: short enough for an operator who watches, and 360 lines an hour at most.
pub(crate) const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// One kind of line.
pub(crate) struct RateLimitedLog(Mutex<RateLimitedLogState>);

struct RateLimitedLogState {
    written: Option<Instant>,
    events: u64,
}

impl RateLimitedLog {
    pub(crate) const fn new() -> Self {
        RateLimitedLog(Mutex::new(RateLimitedLogState { written: None, events: 0 }))
    }

    /// Counts one event. Returns the number of events since the last line if the next line is due.
    pub(crate) fn count(&self) -> Option<u64> {
        let mut state = self.0.lock();
        state.events += 1;
        let now = Instant::now();
        if state.written.is_some_and(|at| now < at + LOG_INTERVAL) {
            return None;
        }
        state.written = Some(now);
        Some(std::mem::take(&mut state.events))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_first_event_is_written_and_the_next_line_counts_those_between() {
        let line = RateLimitedLog::new();
        assert_eq!(line.count(), Some(1));
        for _ in 0..5_000 {
            assert_eq!(line.count(), None);
        }
        tokio::time::advance(LOG_INTERVAL).await;
        assert_eq!(line.count(), Some(5_001));
        assert_eq!(line.count(), None);
    }
}
