//! Permits of one subject, by holder and by expiry.
//!
//! Every operation costs a few comparisons however many permits are open: none walks all of them. Knows neither
//! limits nor stores; time is an argument.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::units::Nanos;

/// Permits, each with a value of type `T`.
#[derive(Clone, Debug)]
pub(crate) struct PermitSet<T> {
    by_holder: BTreeMap<u128, (Nanos, T)>,
    by_end: BTreeSet<(Nanos, u128)>,
}

impl<T> Default for PermitSet<T> {
    fn default() -> Self {
        PermitSet { by_holder: BTreeMap::new(), by_end: BTreeSet::new() }
    }
}

impl<T> PermitSet<T> {
    /// Approximate memory of one permit in bytes, without `T`.
    pub(crate) const PERMIT_BYTES: u64 = 128;

    /// The number of permits, including expired ones that have not been removed.
    pub(crate) fn len(&self) -> usize {
        self.by_holder.len()
    }

    #[cfg(feature = "rules")]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_holder.is_empty()
    }

    /// The expiry of a holder's permit, and its value.
    pub(crate) fn get(&self, holder: u128) -> Option<(Nanos, &T)> {
        let (until, known) = self.by_holder.get(&holder)?;
        Some((*until, known))
    }

    /// Inserts or replaces the permit of a holder. Returns the previous value.
    pub(crate) fn put(&mut self, holder: u128, until: Nanos, known: T) -> Option<T> {
        let before = self.by_holder.insert(holder, (until, known));
        let before = before.map(|(ended, known)| {
            self.by_end.remove(&(ended, holder));
            known
        });
        self.by_end.insert((until, holder));
        before
    }

    pub(crate) fn remove(&mut self, holder: u128) -> Option<T> {
        let (until, known) = self.by_holder.remove(&holder)?;
        self.by_end.remove(&(until, holder));
        Some(known)
    }

    /// Removes one permit that has expired by `now`.
    pub(crate) fn pop_ended(&mut self, now: Nanos) -> Option<(u128, T)> {
        let (until, holder) = *self.by_end.first()?;
        if until > now {
            return None;
        }
        Some((holder, self.remove(holder)?))
    }

    /// When the last permit expires.
    pub(crate) fn last_end(&self) -> Option<Nanos> {
        self.by_end.last().map(|(until, _)| *until)
    }

    /// Every permit in the order of holders: holder, expiry, value.
    #[cfg(feature = "rules")]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u128, Nanos, &T)> {
        let permits = self.by_holder.iter();
        permits.map(|(holder, (until, known))| (*holder, *until, known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: fn(u64) -> Nanos = Nanos::from_secs;

    #[test]
    fn permits_expire_in_the_order_of_their_expiry_and_only_once() {
        let mut set = PermitSet::default();
        for (holder, until) in [(1, 30), (2, 10), (3, 20)] {
            assert_eq!(set.put(holder, AT(until), holder), None);
        }
        assert_eq!(set.put(2, AT(40), 7), Some(2), "renewed");
        assert_eq!(set.pop_ended(AT(19)), None);
        assert_eq!(set.pop_ended(AT(35)), Some((3, 3)));
        assert_eq!(set.remove(1), Some(1));
        assert_eq!(set.pop_ended(AT(35)), None);
        assert_eq!((set.len(), set.last_end()), (1, Some(AT(40))));
        assert_eq!(set.get(2), Some((AT(40), &7)));
        assert_eq!(set.pop_ended(AT(40)), Some((2, 7)));
        assert!(set.is_empty());
    }
}
