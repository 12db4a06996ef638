//! The limits that stored states were made under, by tag: what a changed rule needs to read the
//! counts of the one before it.
//!
//! Bounded in two generations, so that callers who bring a new limit with every request cannot grow
//! it: the older half of what was noted is forgotten first. A state whose limit is forgotten counts
//! as fully used. Lock order: after any shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;
use tidegate_core::algorithms::Limit;

/// Limits of one generation. A rule set has as many as it has different rates.
const PER_GENERATION: usize = 8_192;

#[derive(Default)]
pub(super) struct Registry {
    generation: AtomicU32,
    limits: RwLock<Generations>,
}

#[derive(Default)]
struct Generations {
    young: HashMap<u32, Limit>,
    old: HashMap<u32, Limit>,
}

/// The tags a shard has noted lately: asking here costs no other lock.
#[derive(Default)]
pub(super) struct Noted {
    generation: u32,
    tags: [u32; 4],
    next: usize,
}

impl Registry {
    /// Remembers `limit`, of which a state is about to be written.
    pub(super) fn note(&self, limit: &Limit, noted: &mut Noted) {
        let generation = self.generation.load(Ordering::Acquire);
        if noted.generation != generation {
            *noted = Noted::default();
            noted.generation = generation;
        }
        if !noted.tags.contains(&limit.tag()) {
            noted.tags[noted.next % noted.tags.len()] = limit.tag();
            noted.next += 1;
            self.keep(limit);
        }
    }

    fn keep(&self, limit: &Limit) {
        if self.limits.read().young.contains_key(&limit.tag()) {
            return;
        }
        let mut limits = self.limits.write();
        if limits.young.len() >= PER_GENERATION {
            limits.old = std::mem::take(&mut limits.young);
            self.generation.fetch_add(1, Ordering::AcqRel);
        }
        limits.young.insert(limit.tag(), limit.clone());
    }

    /// The limit that had `tag`.
    pub(super) fn get(&self, tag: u32) -> Option<Limit> {
        let limits = self.limits.read();
        let found = limits.young.get(&tag).or_else(|| limits.old.get(&tag));
        found.cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::algorithms::{Algorithm, Precision, Spec};
    use tidegate_core::units::Nanos;

    fn limit(count: u64) -> Limit {
        let spec = Spec::new(Algorithm::FixedWindow, count, Nanos::from_secs(1));
        Limit::compile(&spec, Precision::Memory).expect("a limit")
    }

    #[test]
    fn limits_named_by_callers_cannot_grow_it_without_bound() {
        let (registry, mut noted) = (Registry::default(), Noted::default());
        for count in 1..=30_000 {
            registry.note(&limit(count), &mut noted);
        }
        let limits = registry.limits.read();
        assert!(limits.young.len() + limits.old.len() <= 2 * PER_GENERATION);
        drop(limits);
        assert_eq!(registry.get(limit(30_000).tag()), Some(limit(30_000)));
        assert_eq!(registry.get(limit(1).tag()), None);
    }

    #[test]
    fn a_limit_in_use_is_noted_again_in_each_generation() {
        let (registry, mut noted) = (Registry::default(), Noted::default());
        for count in 2..=30_000 {
            registry.note(&limit(1), &mut noted);
            registry.note(&limit(count), &mut Noted::default());
        }
        assert_eq!(registry.get(limit(1).tag()), Some(limit(1)));
    }
}
