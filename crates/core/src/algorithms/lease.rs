//! How long leased units may stay unused, so that every bound still holds.
//!
//! Units admitted in an interval were charged in it or up to one lease lifetime before. A bucket compensates with a
//! burst that is smaller by the refill of one lifetime: `B - r l + r (D + l)` is `B + r D` again. A window does not
//! distinguish times inside it, so there a lease ends with the window (of a strict window: with the sub-window), and no
//! count is reduced.

use super::limit::AnyMeter;
use super::spec::{Algorithm, Spec, SpecError};
use crate::units::Nanos;

/// A shorter lifetime would not outlast a few round trips to the store.
pub(super) const MIN_TTL: Nanos = Nanos::from_millis(5);

/// The lifetime of a lease and the burst that remains of `burst`. At most half of a burst is given up.
pub(super) fn ttl_and_burst(spec: &Spec, burst: u64, wanted: Nanos) -> Result<(Nanos, u64), SpecError> {
    match spec.algorithm {
        Algorithm::SlidingLog | Algorithm::LeakyQueue => return Err(SpecError::NotLeasable),
        Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingWindowStrict => {
            return Ok((wanted, burst));
        }
        Algorithm::TokenBucket | Algorithm::LeakyBucket => {}
    }
    let (count, window) = (u128::from(spec.count), u128::from(spec.window.length().get()));
    let half = u128::from(burst) * window / (2 * count);
    let ttl = wanted.min(Nanos::new(u64::try_from(half).unwrap_or(u64::MAX)));
    let refilled_in = |span: Nanos| (count * u128::from(span.get())).div_ceil(window);
    let left = u128::from(burst).saturating_sub(refilled_in(ttl));
    match u64::try_from(left) {
        Ok(left) if left > 0 && ttl >= MIN_TTL => Ok((ttl, left)),
        _ => {
            let least = (2 * count * u128::from(MIN_TTL.get())).div_ceil(window);
            let least = least.max(refilled_in(MIN_TTL) + 1);
            let least = u64::try_from(least).unwrap_or(u64::MAX);
            Err(SpecError::BurstBelowLeases { least })
        }
    }
}

/// The first tick after `tick` at which a charge would count in another window.
pub(super) fn next_edge(meter: &AnyMeter, tick: u64) -> Option<u64> {
    match meter {
        AnyMeter::Bucket(_) => None,
        AnyMeter::Fixed(window) => {
            let end = window.grid.bounds(tick).1;
            let guarded = end.saturating_sub(window.guard);
            Some(if tick < guarded { guarded } else { end })
        }
        AnyMeter::Sliding(window) => Some((tick / window.width).saturating_add(1).saturating_mul(window.width)),
        AnyMeter::Strict(window) => {
            Some((tick / window.sub_window).saturating_add(1).saturating_mul(window.sub_window))
        }
        // Never leased.
        AnyMeter::Log(_) => Some(tick),
    }
}
