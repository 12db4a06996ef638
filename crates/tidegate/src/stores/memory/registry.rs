//! The limits that stored states were made under, by tag. A changed rule needs them to read the counts of its
//! predecessor.
//!
//! Invariant: a limit that has a live counter is not forgotten. When many limits were noted since the last round, the
//! next round of sweeps finds out which of them counters still have, and drops the others. The registry is bounded even
//! without sweeps, so that callers that supply a new limit with every request cannot grow it: then the limits noted
//! longest ago are dropped first, and their states count as fully used. Lock order: after any shard.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;
use tidegate_core::algorithms::Limit;

/// Up to this number of limits it is not worth finding out which are in use.
const MIN_LIMITS_TO_SCAN: usize = 8_192;
/// Maximum of limits noted between two rounds before those noted earlier are dropped: some 30 MiB.
const MAX_PER_ROUND: usize = 131_072;

#[derive(Default)]
pub(super) struct Registry {
    generation: AtomicU32,
    limits: RwLock<Generations>,
}

#[derive(Default)]
struct Generations {
    /// Noted, or found in use, since the generation began.
    young: HashMap<u32, Limit>,
    old: HashMap<u32, Limit>,
    /// Number of limits in use at the end of the last round.
    in_use: usize,
}

impl Generations {
    /// Begins a generation: from now on only limits noted again, or found in use, are young.
    fn begin(&mut self) {
        let noted = std::mem::take(&mut self.young);
        self.old.extend(noted);
    }
}

/// The tags a shard has noted recently: a hit here takes no other lock.
#[derive(Default)]
pub(super) struct RecentTags {
    generation: u32,
    tags: [u32; 4],
    next: usize,
}

impl Registry {
    /// Remembers `limit`, under which a state is about to be written.
    pub(super) fn note(&self, limit: &Limit, recent: &mut RecentTags) {
        let generation = self.generation.load(Ordering::Acquire);
        if recent.generation != generation {
            *recent = RecentTags::default();
            recent.generation = generation;
        }
        if !recent.tags.contains(&limit.tag()) {
            recent.tags[recent.next % recent.tags.len()] = limit.tag();
            recent.next += 1;
            self.insert(limit);
        }
    }

    fn insert(&self, limit: &Limit) {
        if self.limits.read().young.contains_key(&limit.tag()) {
            return;
        }
        let mut limits = self.limits.write();
        if limits.young.len() >= MAX_PER_ROUND.max(2 * limits.in_use) {
            limits.old.clear();
            limits.begin();
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        limits.young.insert(limit.tag(), limit.clone());
    }

    /// Begins a round over all counters, if there are enough limits to be worth one. It must end in
    /// [`Registry::end_round`].
    pub(super) fn begin_round(&self) -> Option<Round> {
        let mut limits = self.limits.write();
        let known = limits.young.len() + limits.old.len();
        (known > MIN_LIMITS_TO_SCAN.max(2 * limits.in_use)).then(|| {
            limits.begin();
            // Limits that a shard noted before may be dropped after this round: it must note them again.
            self.generation.fetch_add(1, Ordering::AcqRel);
            Round::new()
        })
    }

    /// Drops the limits that were neither found in use in `round` nor noted during it.
    pub(super) fn end_round(&self, round: &Round) {
        let mut limits = self.limits.write();
        let mut old = std::mem::take(&mut limits.old);
        old.retain(|tag, _| round.contains(tag));
        for (tag, limit) in old {
            limits.young.entry(tag).or_insert(limit);
        }
        limits.in_use = limits.young.len();
    }

    /// The limit that had `tag`.
    pub(super) fn get(&self, tag: u32) -> Option<Limit> {
        let limits = self.limits.read();
        let found = limits.young.get(&tag).or_else(|| limits.old.get(&tag));
        found.cloned()
    }
}

/// The tags found in live counters.
pub(super) type Round = HashSet<u32>;

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::algorithms::{Algorithm, Precision, Spec};
    use tidegate_core::units::Nanos;

    fn limit(count: u64) -> Limit {
        let spec = Spec::new(Algorithm::FixedWindow, count, Nanos::from_secs(1));
        Limit::compile(&spec, Precision::Memory).expect("a limit")
    }

    fn note_all(registry: &Registry, counts: std::ops::RangeInclusive<u64>) {
        let mut recent = RecentTags::default();
        counts.for_each(|count| registry.note(&limit(count), &mut recent));
    }

    fn known(registry: &Registry) -> usize {
        let limits = registry.limits.read();
        limits.young.len() + limits.old.len()
    }

    #[test]
    fn limits_supplied_by_callers_cannot_grow_it_without_bound_even_without_sweeps() {
        let registry = Registry::default();
        note_all(&registry, 1..=400_000);
        assert!(known(&registry) <= 2 * MAX_PER_ROUND);
        assert_eq!(registry.get(limit(400_000).tag()), Some(limit(400_000)));
        assert_eq!(registry.get(limit(1).tag()), None);
    }

    #[test]
    fn a_round_keeps_limits_in_use_or_noted_meanwhile_and_no_others() {
        let registry = Registry::default();
        let mut recent = RecentTags::default();
        registry.note(&limit(9_000), &mut recent);
        note_all(&registry, 1..=9_000);
        let mut round = registry.begin_round().expect("there are many");
        round.insert(limit(1).tag());
        assert_eq!(registry.get(limit(2).tag()), Some(limit(2)));
        registry.note(&limit(9_000), &mut recent);
        registry.end_round(&round);
        for count in [1, 9_000] {
            assert_eq!(registry.get(limit(count).tag()), Some(limit(count)));
        }
        assert_eq!(known(&registry), 2);
        assert!(registry.begin_round().is_none());
    }
}
