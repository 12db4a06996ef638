//! `RateLimit-Policy`, `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), `X-RateLimit-*` and
//! `Retry-After`.

use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use tidegate_core::algorithms::Retry;
use tidegate_core::engine::{Decision, Fate, LimitView};
use tidegate_core::units::Nanos;

use super::text::{number, sf_integer, sf_string, span};
use super::{Context, ResetStyle};

/// More policies than this help nobody.
const MOST_POLICIES: usize = 8;
/// The most that jitter adds to a wait.
const MOST_JITTER: Nanos = Nanos::from_secs(30);

const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// Writes every header a decision has. No rule, no headers.
pub(super) fn write(decision: &Decision, context: &Context<'_>, headers: &mut HeaderMap) {
    if !decision.allowed() {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    let Some(binding) = decision.binding() else {
        return;
    };
    // One buffer serves all values: they are cut out of it without copying.
    let mut cutter = Cutter(BytesMut::with_capacity(256));
    for (i, view) in decision.enforced().take(MOST_POLICIES).enumerate() {
        policy(&mut cutter.0, i, &view);
    }
    headers.insert(POLICY, cutter.cut());
    for (i, view) in decision.enforced().take(MOST_POLICIES).enumerate() {
        rate_limit(&mut cutter.0, i, &view);
    }
    headers.insert(RATE_LIMIT, cutter.cut());
    number(&mut cutter.0, binding.limit.capacity());
    headers.insert(LIMIT, cutter.cut());
    number(&mut cutter.0, binding.reading.figures.remaining);
    headers.insert(REMAINING, cutter.cut());
    let reset = binding.reading.figures.reset_after;
    let reset = match context.reset {
        ResetStyle::Epoch => context.wall.plus(reset),
        ResetStyle::Delta => reset,
    };
    number(&mut cutter.0, reset.secs_up());
    headers.insert(RESET, cutter.cut());
    if let Fate::Deny(Retry::After(wait)) = decision.fate() {
        number(&mut cutter.0, retry_after_secs(wait, decision.client()));
        headers.insert(header::RETRY_AFTER, cutter.cut());
    }
}

/// What a client is told to wait: the exact wait stretched by up to 30 %, by a hash of the client,
/// so that the refused do not all come back at once. Never less than the wait, never 0.
pub(super) fn retry_after_secs(wait: Nanos, seed: u64) -> u64 {
    let most = (wait.get() / 10).saturating_mul(3).min(MOST_JITTER.get());
    let extra = (u128::from(most) * u128::from(seed)) >> 64;
    let extra = u64::try_from(extra).unwrap_or(most);
    wait.plus(Nanos::new(extra)).secs_up().max(1)
}

/// The name of a policy: the rule's, and where it has several rates, which.
pub(super) fn name<'v>(view: &LimitView<'v>) -> [Cow<'v, str>; 2] {
    let rule = Cow::Borrowed(view.rule.name().as_str());
    match view.several {
        true => [rule, format!(".{}", span(view.limit.per())).into()],
        false => [rule, "".into()],
    }
}

fn policy(out: &mut BytesMut, place: usize, view: &LimitView<'_>) {
    separate(out, place);
    sf_string(out, &name(view));
    out.put_slice(b";q=");
    sf_integer(out, view.limit.capacity());
    let window = view.limit.full_window();
    if window >= Nanos::from_secs(1) {
        out.put_slice(b";w=");
        sf_integer(out, window.secs_up());
    }
}

fn rate_limit(out: &mut BytesMut, place: usize, view: &LimitView<'_>) {
    separate(out, place);
    sf_string(out, &name(view));
    out.put_slice(b";r=");
    sf_integer(out, view.reading.figures.remaining);
    out.put_slice(b";t=");
    sf_integer(out, view.reading.figures.more_after.secs_up());
}

fn separate(out: &mut BytesMut, place: usize) {
    if place > 0 {
        out.put_slice(b", ");
    }
}

struct Cutter(BytesMut);

impl Cutter {
    fn cut(&mut self) -> HeaderValue {
        let value: Bytes = self.0.split().freeze();
        HeaderValue::from_maybe_shared(value).expect("digits and printable ASCII make a header")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stretches_a_wait_by_at_most_a_third_and_thirty_seconds() {
        for seed in [0, 1, u64::MAX / 2, u64::MAX] {
            for wait_ms in [1, 999, 1_000, 10_000, 3_600_000] {
                let wait = Nanos::from_millis(wait_ms);
                let told = retry_after_secs(wait, seed);
                assert!(told >= 1 && told >= wait.secs_up());
                let most = wait.get() + (wait.get() / 10 * 3).min(MOST_JITTER.get());
                assert!(told <= Nanos::new(most).secs_up().max(1));
            }
        }
        let spread = |seed| retry_after_secs(Nanos::from_secs(60), seed);
        assert!(spread(u64::MAX) > spread(0));
    }
}
