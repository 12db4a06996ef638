//! The log line about rejected requests of a proxy. A proxy seldom shows why: Envoy lets such a request pass, and nginx
//! discards the body of a sub-request.

use std::fmt::Display;

use tidegate_rules::request::Edge;
use tracing::warn;

use crate::logging::{RateLimitedLog, SanitizedText};

/// The line of one edge.
pub(crate) struct RejectionLog {
    edge: Edge,
    line: RateLimitedLog,
}

impl RejectionLog {
    pub(crate) const fn new(edge: Edge) -> Self {
        RejectionLog { edge, line: RateLimitedLog::new() }
    }

    /// Logs that a request is rejected for `reason`, or counts it for the next line.
    pub(crate) fn record(&self, reason: &dyn Display) {
        if let Some(times) = self.line.count() {
            let (edge, reason) = (self.edge.name(), reason.to_string());
            warn!(edge, times, reason = %SanitizedText(&reason), "requests rejected, the last one for this reason");
        }
    }
}
