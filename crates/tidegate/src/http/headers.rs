//! The headers `RateLimit-Policy`, `RateLimit` (draft-ietf-httpapi-ratelimit-headers-11), `X-RateLimit-*`,
//! `Retry-After` and the decision's id.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use smallvec::SmallVec;
use tidegate_core::algorithms::Retry;
use tidegate_core::units::Nanos;
use tidegate_rules::engine::{Decision, DecisionKind, LimitView};

use super::text::{number, put, sf_integer, sf_text, span};
use super::{ResetStyle, ResponseContext};

/// Maximum of policies in a header: more are of no use to a client.
const MAX_POLICIES: usize = 8;
/// Maximum of jitter added to a wait.
const MAX_JITTER: Nanos = Nanos::from_secs(30);

/// The decision's id.
pub const ID: HeaderName = HeaderName::from_static("x-tidegate-id");

pub(super) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) const RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(super) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// All headers of a decision. The values are written into one buffer and sliced from it afterwards.
#[derive(Default)]
pub(super) struct HeaderValues {
    /// Each name and the end of its value; the value begins at the end of the previous one.
    ends: SmallVec<[(HeaderName, usize); 8]>,
}

impl HeaderValues {
    /// Writes the values at the start of `out`. Without a binding rule there are no headers of limits.
    pub(super) fn write(decision: &Decision, context: &ResponseContext<'_>, out: &mut Vec<u8>) -> Self {
        let mut values = HeaderValues::default();
        if let Some(binding) = decision.binding() {
            values.limits(decision, &binding, context, out);
        }
        sf_text(out, context.id);
        values.end(ID, out);
        values
    }

    fn limits(
        &mut self,
        decision: &Decision,
        binding: &LimitView<'_>,
        context: &ResponseContext<'_>,
        out: &mut Vec<u8>,
    ) {
        for (i, view) in decision.enforced().take(MAX_POLICIES).enumerate() {
            policy(out, i, &view);
        }
        self.end(POLICY, out);
        for (i, view) in decision.enforced().take(MAX_POLICIES).enumerate() {
            rate_limit(out, i, &view);
        }
        self.end(RATE_LIMIT, out);
        number(out, binding.limit.capacity());
        self.end(LIMIT, out);
        number(out, binding.reading.figures.remaining);
        self.end(REMAINING, out);
        let reset = binding.reading.figures.reset_after;
        let reset = match context.reset {
            ResetStyle::Epoch => context.wall.plus(reset),
            ResetStyle::Delta => reset,
        };
        number(out, reset.secs_up());
        self.end(RESET, out);
        if let DecisionKind::Deny(Retry::After(wait)) = decision.kind() {
            number(out, retry_after_secs(wait, decision.client_hash()));
            self.end(header::RETRY_AFTER, out);
        }
    }

    fn end(&mut self, name: HeaderName, out: &[u8]) {
        self.ends.push((name, out.len()));
    }

    /// The end of the last value.
    pub(super) fn len(&self) -> usize {
        self.ends.last().map_or(0, |(_, end)| *end)
    }

    /// Calls `each` with every name and value, from the buffer they were written to.
    pub(super) fn each(&self, text: &[u8], mut each: impl FnMut(&HeaderName, &[u8])) {
        let mut start = 0;
        for (name, end) in &self.ends {
            each(name, &text[start..*end]);
            start = *end;
        }
    }

    /// Slices the values from the buffer they were written to, without copying.
    pub(super) fn insert_into(self, text: &Bytes, headers: &mut HeaderMap) {
        let mut start = 0;
        for (name, end) in self.ends {
            let value = HeaderValue::from_maybe_shared(text.slice(start..end));
            headers.insert(name, value.expect("digits and printable ASCII make a header"));
            start = end;
        }
    }
}

/// The value of `Retry-After`: the exact wait plus up to 30 %, by a hash of the client, so that denied clients do not
/// all retry at once. Never less than the wait, never 0.
pub(super) fn retry_after_secs(wait: Nanos, client_hash: u64) -> u64 {
    let max = (wait.get() / 10).saturating_mul(3).min(MAX_JITTER.get());
    let extra = (u128::from(max) * u128::from(client_hash)) >> 64;
    let extra = u64::try_from(extra).unwrap_or(max);
    wait.plus(Nanos::new(extra)).secs_up().max(1)
}

/// The quoted name of a policy: the rule's name, and for a rule with several rates the period.
pub(super) fn policy_name(out: &mut Vec<u8>, view: &LimitView<'_>, text: impl Fn(&mut Vec<u8>, &str)) {
    put(out, "\"");
    text(out, view.rule.name().as_str());
    if view.has_several_rates {
        put(out, ".");
        span(out, view.limit.per());
    }
    put(out, "\"");
}

fn policy(out: &mut Vec<u8>, place: usize, view: &LimitView<'_>) {
    separate(out, place);
    policy_name(out, view, sf_text);
    put(out, ";q=");
    sf_integer(out, view.limit.capacity());
    let window = view.limit.full_window();
    if window >= Nanos::from_secs(1) {
        put(out, ";w=");
        sf_integer(out, window.secs_up());
    }
}

fn rate_limit(out: &mut Vec<u8>, place: usize, view: &LimitView<'_>) {
    separate(out, place);
    policy_name(out, view, sf_text);
    put(out, ";r=");
    sf_integer(out, view.reading.figures.remaining);
    put(out, ";t=");
    sf_integer(out, view.reading.figures.more_after.secs_up());
}

fn separate(out: &mut Vec<u8>, place: usize) {
    if place > 0 {
        put(out, ", ");
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
                let seconds = retry_after_secs(wait, seed);
                assert!(seconds >= 1 && seconds >= wait.secs_up());
                let max = wait.get() + (wait.get() / 10 * 3).min(MAX_JITTER.get());
                assert!(seconds <= Nanos::new(max).secs_up().max(1));
            }
        }
        let spread = |seed| retry_after_secs(Nanos::from_secs(60), seed);
        assert!(spread(u64::MAX) > spread(0));
    }
}
