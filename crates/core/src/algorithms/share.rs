//! A node's part of a limit, for when the shared count is out of reach.
//!
//! All nodes together keep admitting a fraction of the limit. What does not divide evenly goes to the
//! nodes that come first for the subject at hand, so that the parts add up to the fraction exactly:
//! a count of 10 at 80 % on three nodes is 3 + 3 + 2. A limit too small to give every node a unit
//! gives single units to as many nodes as there are units, and at least to one.

use super::limit::Shape;
use super::{FixedState, Limit, LogEntry, LogState, SlidingState, State, StrictState};
use crate::units::Nanos;

/// How a limit is divided among nodes that cannot count together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// What all nodes together may admit, in hundredths of the limit.
    pub percent: u32,
    /// How many nodes there are; at least one.
    pub nodes: u32,
    /// This node's place among them for one subject, from 0. Unknown, it holds no part of what
    /// cannot be divided, but one unit at least.
    pub place: Option<u32>,
}

impl Division {
    /// What all nodes together hold of `capacity`.
    pub fn whole(&self, capacity: u64) -> u64 {
        let part = u128::from(capacity) * u128::from(self.percent) / 100;
        u64::try_from(part).unwrap_or(capacity).clamp(1, capacity)
    }

    fn nodes(&self) -> u64 {
        u64::from(self.nodes.max(1))
    }

    /// This node's part of `units` that all nodes together hold. It may be nothing.
    pub fn divide(&self, units: u64) -> u64 {
        let (each, left) = (units / self.nodes(), units % self.nodes());
        let more = self.place.is_some_and(|place| u64::from(place) < left);
        each + u64::from(more)
    }

    /// What this node holds of `capacity`.
    pub fn units(&self, capacity: u64) -> u64 {
        let (whole, nodes) = (self.whole(capacity), self.nodes());
        let (each, left) = (whole / nodes, whole % nodes);
        match self.place {
            Some(place) => each + u64::from(u64::from(place) < left),
            None => each.max(1),
        }
    }

    /// Among how many nodes the rate is divided.
    fn holders(&self, capacity: u64) -> u64 {
        let (whole, nodes) = (self.whole(capacity), self.nodes());
        match self.place {
            Some(_) => whole.min(nodes),
            None => nodes,
        }
    }
}

impl Limit {
    /// The part of this limit that one node may admit by itself; nothing if it holds no unit of it.
    /// Over any interval the parts of all nodes admit at most the fraction of what the limit would.
    pub fn share(&self, division: Division) -> Option<Limit> {
        let units = division.units(self.whole());
        // Of less that may be used less is held: the parts of a ceiling add up as those of the limit do.
        let usable = division.units(self.capacity()).min(units);
        if usable == 0 {
            return None;
        }
        let mut share = self.clone();
        share.kept_back = units - usable;
        share.count = units;
        share.shape = match &self.shape {
            Shape::Bucket(bucket) => {
                let (over, under) = (
                    u64::from(division.percent.min(100)),
                    100 * division.holders(self.whole()),
                );
                share.count = self.count;
                share.per = slower(self.per, over, under);
                Shape::Bucket(bucket.sharing(units, over, under))
            }
            Shape::Fixed(window) => {
                let mut window = window.clone();
                window.limit = units;
                Shape::Fixed(window)
            }
            Shape::Sliding(window) => Shape::Sliding(window.with_limit(units)),
            Shape::Strict(window) => Shape::Strict(window.with_limit(units)),
            Shape::Log(log) => Shape::Log(log.with_limit(units)),
        };
        Some(share.tagged())
    }

    /// One of `parts` equal parts of what a state holds, as a state of this limit's `share`. Rounded
    /// up as a whole; what is rounded counts with the youngest.
    pub fn split(&self, state: &State, share: &Limit, parts: u32) -> State {
        let parts = parts.max(1);
        let part = |units: u32| units.div_ceil(parts);
        match (&self.shape, &share.shape, state) {
            (Shape::Bucket(whole), Shape::Bucket(own), State::Bucket(level)) => {
                State::Bucket(whole.split(level, own, u64::from(parts)))
            }
            (_, _, State::Fixed(held)) => State::Fixed(FixedState {
                end: held.end,
                count: part(held.count),
                next: part(held.next),
            }),
            (_, _, State::Sliding(held)) => {
                let mut cut = Cut::new(parts);
                State::Sliding(SlidingState {
                    index: held.index,
                    current: cut.next(held.current),
                    previous: cut.next(held.previous),
                })
            }
            (_, _, State::Strict(held)) => {
                let mut cut = Cut::new(parts);
                State::Strict(StrictState {
                    index: held.index,
                    counts: held.counts.map(|count| cut.next(count)),
                })
            }
            (_, _, State::Log(held)) => {
                let mut cut = Cut::new(parts);
                let mut entries: Vec<LogEntry> = held.entries().collect();
                for entry in entries.iter_mut().rev() {
                    entry.units = cut.next(entry.units);
                }
                entries.retain(|entry| entry.units > 0);
                State::Log(LogState::from_entries(entries))
            }
            (_, _, State::Bucket(_)) => {
                unreachable!("a state is read only under the limit that made or adopted it")
            }
        }
    }
}

/// Cuts counts, youngest first, so that their sum is rounded and not each of them.
struct Cut {
    parts: u64,
    seen: u64,
    given: u64,
}

impl Cut {
    fn new(parts: u32) -> Self {
        Cut {
            parts: u64::from(parts),
            seen: 0,
            given: 0,
        }
    }

    fn next(&mut self, count: u32) -> u32 {
        self.seen += u64::from(count);
        let due = self.seen.div_ceil(self.parts);
        let part = due - self.given;
        self.given = due;
        u32::try_from(part).unwrap_or(u32::MAX)
    }
}

fn slower(per: Nanos, over: u64, under: u64) -> Nanos {
    let span = (u128::from(per.get()) * u128::from(under)).div_ceil(u128::from(over.max(1)));
    Nanos::new(u64::try_from(span).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithms::{Algorithm, Precision, Spec};
    use crate::units::Cost;

    fn division(nodes: u32, place: Option<u32>) -> Division {
        Division {
            percent: 80,
            nodes,
            place,
        }
    }

    fn limit(algorithm: Algorithm, count: u64) -> Limit {
        let spec = Spec::new(algorithm, count, Nanos::from_secs(60));
        Limit::compile(&spec, Precision::Memory).unwrap()
    }

    #[test]
    fn the_parts_of_all_nodes_add_up_to_the_fraction() {
        for nodes in 1..20 {
            for capacity in 1..200 {
                let units = |place| division(nodes, Some(place)).units(capacity);
                let sum: u64 = (0..nodes).map(units).sum();
                assert_eq!(sum, (capacity * 4 / 5).max(1), "{capacity} on {nodes}");
            }
        }
    }

    #[test]
    fn divided_parts_add_up_to_the_whole() {
        for nodes in 1..20 {
            for units in 0..100 {
                let part = |place| division(nodes, Some(place)).divide(units);
                assert_eq!((0..nodes).map(part).sum::<u64>(), units);
            }
        }
        assert_eq!(division(8, None).divide(7), 0);
    }

    #[test]
    fn who_does_not_know_its_place_holds_one_unit_at_least() {
        assert_eq!(division(8, None).units(5), 1);
        assert_eq!(division(3, None).units(10), 2);
    }

    /// Whoever asks each node for all it has, as often as it likes, gets the fraction of the rate.
    #[test]
    fn greedy_clients_get_the_fraction_and_no_more() {
        for algorithm in Algorithm::ALL {
            for (count, nodes) in [(1_u64, 4), (2, 4), (7, 3), (10, 4), (100, 7)] {
                let limit = limit(algorithm, count);
                let mut admitted = 0;
                for place in 0..nodes {
                    let Some(share) = limit.share(division(nodes, Some(place))) else {
                        continue;
                    };
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
                let whole = (count * 4 / 5).max(1);
                // Ten windows, and a burst before the first.
                let most = match algorithm.takes_burst() {
                    true => whole + count * 8,
                    false => whole * 10,
                };
                assert!(admitted <= most, "{algorithm} {count}/{nodes}: {admitted}");
                // A window of two counts and a single unit passes it every other time.
                let least = match algorithm {
                    Algorithm::SlidingWindow => most / 2,
                    _ => most * 8 / 11,
                };
                assert!(admitted >= least, "{algorithm} {count}/{nodes}: {admitted}");
            }
        }
    }

    #[test]
    fn a_state_is_split_into_parts_that_hold_all_of_it_and_hardly_more() {
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
        let spec = Spec::new(
            Algorithm::TokenBucket,
            999_983,
            Nanos::from_secs(86_400 * 365),
        );
        let limit = Limit::compile(&spec.burst(1_000_000), Precision::Memory).unwrap();
        let share = limit.share(division(1_009, Some(0))).unwrap();
        let mut state = share.holding(share.capacity(), Nanos::ZERO);
        let at = share.advance(&mut state, Nanos::from_secs(86_400 * 365));
        let back = share.remaining(&state, at);
        let exact = 999_983 * 8 / 10 / 1_009;
        assert!(back <= exact && back >= exact - 1, "{back} of {exact}");
    }
}
