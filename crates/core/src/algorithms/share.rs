//! A node's share of a limit, for when the shared count is out of reach.
//!
//! All nodes together keep admitting a fraction of the limit. The remainder of the division goes to the nodes with the
//! first ranks for the subject, so that the shares add up to the fraction exactly: a count of 10 at 80 % on three
//! nodes is 3 + 3 + 2. A limit too small to give every node a unit gives single units to as many nodes as there are
//! units, and at least to one.

use super::limit::AnyMeter;
use super::{CounterState, FixedState, Limit, LogEntry, LogState, SlidingState, StrictState};
use super::{
    fixed_window::FixedWindow, sliding_log::SlidingLog, sliding_window::SlidingWindow, strict_window::StrictWindow,
};
use crate::units::Nanos;

/// How a limit is divided among nodes that cannot count together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// The part that all nodes together may admit, in percent of the limit.
    pub percent: u32,
    /// How many nodes there are; at least one.
    pub nodes: u32,
    /// This node's rank among them for one subject, from 0. A node with an unknown rank gets no part of the remainder,
    /// but at least one unit.
    pub rank: Option<u32>,
}

impl Division {
    /// The units of `capacity` that all nodes together hold.
    pub fn total(&self, capacity: u64) -> u64 {
        let part = u128::from(capacity) * u128::from(self.percent) / 100;
        u64::try_from(part).unwrap_or(capacity).clamp(1, capacity)
    }

    fn nodes(&self) -> u64 {
        u64::from(self.nodes.max(1))
    }

    /// This node's share of `units` that all nodes together hold. It may be zero.
    pub fn divide(&self, units: u64) -> u64 {
        let (each, left) = (units / self.nodes(), units % self.nodes());
        let has_extra = self.rank.is_some_and(|rank| u64::from(rank) < left);
        each + u64::from(has_extra)
    }

    /// The units of `capacity` that this node holds.
    pub fn node_units(&self, capacity: u64) -> u64 {
        let units = self.divide(self.total(capacity));
        if self.rank.is_some() { units } else { units.max(1) }
    }

    /// The number of nodes that share the rate.
    fn sharing_nodes(&self, capacity: u64) -> u64 {
        let (total, nodes) = (self.total(capacity), self.nodes());
        match self.rank {
            Some(_) => total.min(nodes),
            None => nodes,
        }
    }
}

impl Limit {
    /// The share of this limit that one node may admit by itself; `None` if it holds no unit. Over any interval the
    /// shares of all nodes admit at most the fraction of what the limit would.
    pub fn share(&self, division: Division) -> Option<Limit> {
        let units = division.node_units(self.full_capacity());
        // A lower ceiling gives a lower share: the shares of a ceiling add up as those of the limit do.
        let usable = division.node_units(self.capacity()).min(units);
        if usable == 0 {
            return None;
        }
        let mut share = self.clone();
        share.headroom = units - usable;
        share.count = units;
        share.meter = match &self.meter {
            AnyMeter::Bucket(bucket) => {
                let over = u64::from(division.percent.min(100));
                let under = 100 * division.sharing_nodes(self.full_capacity());
                share.count = self.count;
                share.per = slowed_period(self.per, over, under);
                AnyMeter::Bucket(bucket.scaled(units, over, under))
            }
            AnyMeter::Fixed(window) => AnyMeter::Fixed(FixedWindow { limit: units, ..window.clone() }),
            AnyMeter::Sliding(window) => AnyMeter::Sliding(SlidingWindow { limit: units, ..*window }),
            AnyMeter::Strict(window) => AnyMeter::Strict(StrictWindow { limit: units, ..*window }),
            AnyMeter::Log(log) => AnyMeter::Log(SlidingLog { limit: units, ..*log }),
        };
        Some(share.tagged())
    }

    /// This limit at the rate of its `share`: it drains as the share does, and holds debt as this limit does. For units
    /// that a node counts apart from the limit, and that are charged to it later.
    pub fn at_rate_of(&self, share: &Limit) -> Limit {
        let mut slower = self.clone();
        slower.headroom = 0;
        let (AnyMeter::Bucket(bucket), AnyMeter::Bucket(own)) = (&self.meter, &share.meter) else {
            return slower; // a window of the share ends when that of the limit does
        };
        slower.meter = AnyMeter::Bucket(own.enlarged(bucket.tokens));
        slower.per = share.per;
        slower.tagged()
    }

    /// One of `parts` equal parts of a state, as a state of this limit's `share`. The sum is rounded up, not each
    /// count; the excess counts with the youngest units.
    pub fn split(&self, state: &CounterState, share: &Limit, parts: u32) -> CounterState {
        let parts = parts.max(1);
        let part = |units: u32| units.div_ceil(parts);
        let mut splitter = CumulativeSplit { parts: u64::from(parts), total: 0, assigned: 0 };
        match (&self.meter, &share.meter, state) {
            (AnyMeter::Bucket(bucket), AnyMeter::Bucket(own), CounterState::Bucket(level)) => {
                CounterState::Bucket(bucket.split(level, own, u64::from(parts)))
            }
            (_, _, CounterState::Fixed(window)) => {
                CounterState::Fixed(FixedState { end: window.end, count: part(window.count), next: part(window.next) })
            }
            (_, _, CounterState::Sliding(window)) => CounterState::Sliding(SlidingState {
                index: window.index,
                current: splitter.next(window.current),
                previous: splitter.next(window.previous),
            }),
            (_, _, CounterState::Strict(window)) => {
                let counts = window.counts.map(|count| splitter.next(count));
                CounterState::Strict(StrictState { index: window.index, counts })
            }
            (_, _, CounterState::Log(log)) => {
                let mut entries: Vec<LogEntry> = log.entries().collect();
                for entry in entries.iter_mut().rev() {
                    entry.units = splitter.next(entry.units);
                }
                entries.retain(|entry| entry.units > 0);
                CounterState::Log(LogState::from_entries(entries))
            }
            (_, _, CounterState::Bucket(_)) => {
                unreachable!("a state is read only under the limit that made or adopted it")
            }
        }
    }
}

/// Divides counts, youngest first, so that their sum is rounded and not each of them.
struct CumulativeSplit {
    parts: u64,
    total: u64,
    assigned: u64,
}

impl CumulativeSplit {
    fn next(&mut self, count: u32) -> u32 {
        self.total += u64::from(count);
        let assigned = self.total.div_ceil(self.parts);
        let part = assigned - self.assigned;
        self.assigned = assigned;
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

fn slowed_period(per: Nanos, over: u64, under: u64) -> Nanos {
    let span = (u128::from(per.get()) * u128::from(under)).div_ceil(u128::from(over.max(1)));
    Nanos::new(u64::try_from(span).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Precision, Spec};
    use crate::units::Cost;

    fn division(nodes: u32, rank: Option<u32>) -> Division {
        Division { percent: 80, nodes, rank }
    }

    fn limit(algorithm: Algorithm, count: u64) -> Limit {
        let spec = Spec::new(algorithm, count, Nanos::from_secs(60));
        Limit::compile(&spec, Precision::Memory).unwrap()
    }

    #[test]
    fn the_shares_of_all_nodes_add_up_to_the_fraction() {
        for nodes in 1..20 {
            for capacity in 1..200 {
                let units = |rank| division(nodes, Some(rank)).node_units(capacity);
                let sum: u64 = (0..nodes).map(units).sum();
                assert_eq!(sum, (capacity * 4 / 5).max(1), "{capacity} on {nodes}");
            }
        }
    }

    #[test]
    fn divided_parts_add_up_to_the_whole() {
        for nodes in 1..20 {
            for units in 0..100 {
                let part = |rank| division(nodes, Some(rank)).divide(units);
                assert_eq!((0..nodes).map(part).sum::<u64>(), units);
            }
        }
        assert_eq!(division(8, None).divide(7), 0);
    }

    #[test]
    fn a_node_of_unknown_rank_holds_at_least_one_unit() {
        assert_eq!(division(8, None).node_units(5), 1);
        assert_eq!(division(3, None).node_units(10), 2);
    }

    /// A client that takes all units of each node, as often as it likes, gets the fraction of the rate.
    #[test]
    fn greedy_clients_get_the_fraction_and_no_more() {
        for algorithm in Algorithm::ALL {
            for (count, nodes) in [(1_u64, 4), (2, 4), (7, 3), (10, 4), (100, 7)] {
                let limit = limit(algorithm, count);
                let mut admitted = 0;
                for rank in 0..nodes {
                    let Some(share) = limit.share(division(nodes, Some(rank))) else { continue };
                    let mut state = share.fresh(Nanos::ZERO);
                    for tenth in 0..6_000 {
                        let now = Nanos::from_millis(tenth * 100);
                        let at = share.advance(&mut state, now);
                        while share.judge(&state, at, Cost::ONE).allows() {
                            share.spend(&mut state, at, Cost::ONE);
                            admitted += 1;
                        }
                    }
                }
                let total = (count * 4 / 5).max(1);
                // Ten windows, and a burst before the first.
                let max = if algorithm.takes_burst() { total + count * 8 } else { total * 10 };
                assert!(admitted <= max, "{algorithm} {count}/{nodes}: {admitted}");
                // A window of two counts with a limit of one unit admits it every other time.
                let least = match algorithm {
                    Algorithm::SlidingWindow => max / 2,
                    _ => max * 8 / 11,
                };
                assert!(admitted >= least, "{algorithm} {count}/{nodes}: {admitted}");
            }
        }
    }

    #[test]
    fn the_parts_of_a_state_hold_all_of_it_and_at_most_the_rounding_more() {
        for algorithm in Algorithm::ALL {
            let limit = limit(algorithm, 100);
            let mut state = limit.fresh(Nanos::ZERO);
            for second in 0..30 {
                let at = limit.advance(&mut state, Nanos::from_secs(second));
                limit.spend(&mut state, at, Cost::new(2).unwrap());
            }
            let now = Nanos::from_secs(30);
            let at = limit.advance(&mut state, now);
            let used = limit.used(&state, at);
            for nodes in [1, 3, 4, 7] {
                let share = limit.share(division(nodes, Some(0))).unwrap();
                let mut part = limit.split(&state, &share, nodes);
                let at = share.advance(&mut part, now);
                let held = share.used(&part, at);
                assert!(held * u64::from(nodes) >= used, "{algorithm}");
                assert!(held <= used.div_ceil(u64::from(nodes)), "{algorithm}");
            }
        }
    }

    #[test]
    fn a_rate_too_fine_to_be_exact_is_rounded_down() {
        let spec = Spec::new(Algorithm::TokenBucket, 999_983, Nanos::from_secs(86_400 * 365));
        let limit = Limit::compile(&spec.burst(1_000_000), Precision::Memory).unwrap();
        let share = limit.share(division(1_009, Some(0))).unwrap();
        let mut state = share.with_used(share.capacity(), Nanos::ZERO);
        let at = share.advance(&mut state, Nanos::from_secs(86_400 * 365));
        let refilled = share.remaining(&state, at);
        let exact = 999_983 * 8 / 10 / 1_009;
        assert!(refilled <= exact && refilled >= exact - 1, "{refilled} of {exact}");
    }

    /// Units beyond twice the share were not kept.
    #[test]
    fn a_limit_at_the_rate_of_its_share_holds_its_own_debt_and_drains_as_the_share_does() {
        for algorithm in Algorithm::ALL {
            for nodes in [1, 4, 1_000] {
                let limit = limit(algorithm, 1_000);
                let Some(share) = limit.share(division(nodes, Some(0))) else { continue };
                let slower = limit.at_rate_of(&share);
                let used = |limit: &Limit, state: &mut CounterState, secs| {
                    let at = limit.advance(state, Nanos::from_secs(secs));
                    limit.used(state, at)
                };
                let mut debt = slower.with_used(2_000, Nanos::ZERO);
                assert_eq!(used(&slower, &mut debt, 0), 2_000, "{algorithm} on {nodes}");
                let units = share.full_capacity();
                let (mut own, mut part) = (slower.with_used(units, Nanos::ZERO), share.with_used(units, Nanos::ZERO));
                for secs in 0..200 {
                    let (own, part) = (used(&slower, &mut own, secs), used(&share, &mut part, secs));
                    assert_eq!(own, part, "{algorithm} on {nodes} after {secs} s");
                }
            }
        }
    }

    #[test]
    fn a_limit_too_large_to_be_exact_at_the_rate_of_its_share_holds_what_is_exact() {
        let spec = Spec::new(Algorithm::TokenBucket, 999_983, Nanos::from_secs(86_400 * 365));
        let limit = Limit::compile(&spec.burst(1_000_000), Precision::Memory).unwrap();
        for nodes in [1, 8, 1_000_000_000] {
            let share = limit.share(division(nodes, None)).unwrap();
            let slower = limit.at_rate_of(&share);
            let mut state = slower.with_used(u64::MAX, Nanos::ZERO);
            let at = slower.advance(&mut state, Nanos::ZERO);
            let used = slower.used(&state, at);
            assert!(used >= 2 * share.full_capacity() && used <= 2_000_000, "{nodes}: {used}");
        }
    }
}
