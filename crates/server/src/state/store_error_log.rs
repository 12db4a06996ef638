//! The log line about requests that get an error because the store did not reply. Any client can cause thousands of
//! them during an outage, so one line every 10 s counts them and names the last cause.

use tidegate_core::store::{FailureCause, StoreError};
use tracing::warn;

use crate::logging::rate_limited_log::RateLimitedLog;

static UNANSWERED_LOG: RateLimitedLog = RateLimitedLog::new();

/// Logs that a request got an error, with its cause.
pub(crate) fn log_store_error(error: &StoreError) {
    if let Some(times) = UNANSWERED_LOG.count() {
        let cause = FailureCause::of(error);
        warn!(times, %cause, "store gave no reply");
    }
}
