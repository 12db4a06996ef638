//! Permit calls between a node and its store, with the deliberate mistakes of [`Variant`].

use tidegate_core::store::{PermitReply, PermitRequest, StoreResult};
use tidegate_core::units::Nanos;

use super::link::ModelLink;
use super::permits::ModelPermits;
use super::store_log::{PermitEvent, PermitVerb};
use crate::variant::Variant;

/// Longer than any run.
const UNLIMITED: Nanos = Nanos::from_secs(1_000_000);

impl ModelLink {
    /// Calls the store about a permit and logs the result.
    pub(super) async fn call_permit(&self, request: &PermitRequest<'_>, verb: PermitVerb) -> StoreResult<PermitReply> {
        self.call_for(vec![request.subject], |model, now| {
            let reply = self.apply(&mut model.permits, request, verb, now);
            self.log.record_permit(PermitEvent {
                now: self.sim.now(),
                node: self.node,
                counter: request.counter(),
                holder: request.holder,
                verb,
                max_open: request.max_permits,
                granted: reply.granted,
                open: reply.in_use,
            });
            reply
        })
        .await
    }

    fn apply(
        &self,
        permits: &mut ModelPermits,
        request: &PermitRequest<'_>,
        verb: PermitVerb,
        now: Nanos,
    ) -> PermitReply {
        let unlimited = PermitRequest { ttl: UNLIMITED, ..*request };
        let request = match self.variant {
            Variant::PermitsNeverExpire => &unlimited,
            _ => request,
        };
        match (verb, self.variant) {
            // A renewal that acquires a permit again.
            (PermitVerb::Renew, Variant::RenewsReleased) => permits.acquire(request, now),
            (PermitVerb::Acquire, _) => permits.acquire(request, now),
            (PermitVerb::Renew, _) => permits.renew(request, now),
            (PermitVerb::Release, Variant::ReleasesNothing) => permits.renew(request, now),
            // The store reads a release and frees the permit of nobody.
            (PermitVerb::Release, Variant::ReleasesOnce) if self.log.has_released(request.holder) => {
                permits.release(&PermitRequest { holder: !request.holder, ..*request }, now)
            }
            (PermitVerb::Release, Variant::ReleasesAnother) => {
                let another = permits.other_holder(request, now);
                let other = PermitRequest { holder: another.unwrap_or(request.holder), ..*request };
                permits.release(&other, now);
                permits.release(request, now)
            }
            (PermitVerb::Release, _) => permits.release(request, now),
        }
    }
}
