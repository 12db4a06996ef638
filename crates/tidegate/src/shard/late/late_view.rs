//! How many units one node may have unconfirmed of a counter, by the newest state that it has seen.
//!
//! All nodes together may have `min(phi, left / limit) * left`, where `left` is what the state leaves and `phi` is
//! `share_percent`. Far from the limit that is `phi` of what is left, and lateness costs nothing. Near the limit it
//! shrinks with the square of what is left, and next to nothing is admitted by an old state. Of a limit of which nothing
//! is used it is at least one unit, so that a limit of 1 is not denied to everybody. Pure: knows no ledger.

use tidegate_core::algorithms::{CounterState, Division, Figures, Retry, Verdict};
use tidegate_core::store::{Charge, LimitReading, OnStoreLate};
use tidegate_core::units::{Cost, Nanos};

use crate::shard::late::ledger::{CREDIT_TTL, Claim, Payment};

/// One charge of a late request, judged by the newest state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LateView {
    pub(crate) claim: Claim,
    verdict: Verdict,
    /// The figures of the limit without this charge.
    before: Figures,
    /// The figures of the limit with this charge.
    after: Figures,
}

impl LateView {
    /// `newest` is the newest state of the counter, if it was ever seen. `pending` are the units of the write-back
    /// queue, and `waiting` those that the store may have counted since.
    pub(crate) fn new(
        charge: &Charge<'_>,
        newest: Option<CounterState>,
        division: Division,
        (waiting, pending): (u64, u64),
        now: Nanos,
    ) -> Self {
        let limit = charge.limit.as_ref();
        let mut state = newest.unwrap_or_else(|| limit.fresh(now));
        let at = limit.advance(&mut state, now);
        let left = limit.remaining(&state, at);
        if let Some(unconfirmed) = Cost::new(waiting.saturating_add(pending)) {
            limit.spend(&mut state, at, unconfirmed);
        }
        let (verdict, before) = (limit.judge(&state, at, charge.cost), limit.figures(&state, at));
        limit.spend(&mut state, at, charge.cost);
        let share = match charge.options.on_late {
            OnStoreLate::Local => late_share(left, limit.capacity(), division),
            OnStoreLate::Deny => 0,
        };
        LateView {
            claim: Claim::new(charge, share.saturating_sub(pending)),
            verdict,
            before,
            after: limit.figures(&state, at),
        }
    }

    /// The reading of this limit when its charge was paid for by `payment`.
    pub(crate) fn reading(&self, payment: Payment, admitted: bool) -> LimitReading {
        let (verdict, figures) = match (payment, self.verdict) {
            (Payment::None, denied @ Verdict::Deny { .. }) => (denied, self.before),
            // By then the reply is here, or its units are refunded.
            (Payment::None, Verdict::Allow { .. }) => {
                let retry = Retry::After(CREDIT_TTL);
                (Verdict::Deny { retry }, self.before)
            }
            (_, Verdict::Allow { delay }) => (Verdict::Allow { delay }, self.after),
            (_, Verdict::Deny { .. }) => (Verdict::Allow { delay: Nanos::ZERO }, self.after),
        };
        let figures = if admitted { figures } else { self.before };
        LimitReading { verdict, figures }
    }
}

/// This node's share: what it may have unconfirmed when the newest state leaves `left` of `capacity`.
fn late_share(left: u64, capacity: u64, division: Division) -> u64 {
    let wide = u128::from(left);
    let by_share = wide * u128::from(division.percent.min(100)) / 100;
    let by_square = wide * wide / u128::from(capacity.max(1));
    let all = u64::try_from(by_share.min(by_square)).unwrap_or(left);
    let is_unused = left > 0 && left >= capacity;
    division.divide(all.max(u64::from(is_unused)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late_shares(left: u64, capacity: u64, nodes: u32) -> Vec<u64> {
        let of_rank = |rank| Division { percent: 80, nodes, rank: Some(rank) };
        let share_of = |i| late_share(left, capacity, of_rank(i));
        (0..nodes).map(share_of).collect()
    }

    #[test]
    fn the_shares_shrink_with_the_square_of_what_is_left() {
        assert_eq!(late_shares(100, 100, 4), [20, 20, 20, 20]);
        assert_eq!(late_shares(80, 100, 4), [16, 16, 16, 16]);
        assert_eq!(late_shares(50, 100, 4), [7, 6, 6, 6]);
        assert_eq!(late_shares(25, 100, 4), [2, 2, 1, 1]);
        assert_eq!(late_shares(10, 100, 4), [1, 0, 0, 0]);
        assert_eq!(late_shares(9, 100, 4), [0, 0, 0, 0]);
        assert_eq!(late_shares(0, 100, 4), [0, 0, 0, 0]);
    }

    /// A store that was late all the time denied every request under such a limit.
    #[test]
    fn one_node_has_the_unit_of_an_unused_limit_of_1() {
        assert_eq!(late_shares(1, 1, 1), [1]);
        assert_eq!(late_shares(1, 1, 4), [1, 0, 0, 0]);
        assert_eq!(late_shares(0, 1, 1), [0]);
        assert_eq!(late_shares(2, 2, 4), [1, 0, 0, 0]);
        assert_eq!(late_shares(1, 2, 4), [0, 0, 0, 0]);
    }

    /// Unlike a share during an outage, a late share may be zero on every node: a late request is denied then.
    #[test]
    fn a_node_without_a_rank_gets_no_remainder() {
        let without_rank = Division { percent: 80, nodes: 8, rank: None };
        assert_eq!(late_share(100, 100, without_rank), 10);
        assert_eq!(late_share(20, 100, without_rank), 0);
        assert_eq!(late_share(1, 1, without_rank), 0);
    }
}
