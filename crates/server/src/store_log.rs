//! The log line about requests that get an error because the store did not reply. Any client can cause them by the
//! thousand while the store is away, so one line every 10 s counts them and names the last cause.

use tidegate_core::store::StoreError;
use tracing::warn;

use crate::net::occasional::OccasionalLine;

static UNANSWERED: OccasionalLine = OccasionalLine::new();

/// Logs that a request got an error, with its cause.
pub(crate) fn log_unanswered(error: &StoreError) {
    let (StoreError::Unavailable { source, .. } | StoreError::Refused { source, .. }) = error;
    if let Some(times) = UNANSWERED.count() {
        warn!(times, cause = %source, "store gave no answer");
    }
}
