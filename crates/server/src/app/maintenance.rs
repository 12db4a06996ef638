//! The work of a service that no request causes.

use std::sync::Arc;
use std::time::Duration;

use crate::decider::Decider;

const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
/// In maintenance ticks: rules that no request matches are looked for every five seconds.
const UNMATCHED_CHECK_TICKS: u64 = 50;

/// Logs counts, rules that no request matches and whether durable charges are safe.
pub(super) async fn run_maintenance(decider: Arc<Decider>) {
    let mut tick = tokio::time::interval(MAINTENANCE_INTERVAL);
    let (mut unacknowledged, mut overflowed) = (None, 0);
    for ticks in 0_u64.. {
        tick.tick().await;
        decider.log_missed_denials();
        if ticks % UNMATCHED_CHECK_TICKS == 0 {
            decider.report_unmatched();
        }
        let store = decider.limiter.store();
        store.report_health(&mut unacknowledged);
        store.report_overflow(&mut overflowed);
    }
}
