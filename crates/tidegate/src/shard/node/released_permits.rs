//! The permits that were released at this node, so that no other node brings them back.
//!
//! A node that granted or renewed a permit restores it into a store that may have lost it, and does not know that the
//! permit was released at another node meanwhile. So each node remembers what was released at it until the permit would
//! have expired, and after a loss releases it again. A second release of a permit does nothing: every holder has an id of
//! its own, and a holder that acquires again is removed from here (`remove`).
//!
//! Bounded: when it is full, the release whose permit would expire first is evicted. Knows no store; time is injected.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::store::PermitRequest;
use tidegate_core::subject::{Fingerprint, RuleName};
use tidegate_core::units::Nanos;

/// Counter and holder of a permit.
pub(super) type PermitKey = (u128, u128);

/// The releases of this node.
#[derive(Debug, Default)]
pub(super) struct ReleasedPermits {
    by_key: BTreeMap<PermitKey, ReleasedPermit>,
    by_end: BTreeSet<(Nanos, PermitKey)>,
    /// Those to send to the store again.
    unsynced: BTreeSet<PermitKey>,
}

/// A permit that the store has released.
#[derive(Clone, Debug)]
pub(super) struct ReleasedPermit {
    pub(super) subject: Fingerprint,
    pub(super) rule: RuleName,
    /// When it has expired at every node.
    pub(super) until: Nanos,
    /// When the store last released it, by the store's clock.
    released_at: Nanos,
}

impl ReleasedPermits {
    /// The store has released a permit at its time `at`.
    pub(super) fn insert(&mut self, permit: &PermitRequest<'_>, at: Nanos, now: Nanos, max: usize) {
        let key = (permit.counter(), permit.holder);
        self.remove(key);
        self.expire(now);
        if self.by_key.len() >= max
            && let Some((_, first)) = self.by_end.first().copied()
        {
            self.remove(first);
        }
        let until = now.plus(permit.ttl);
        let (subject, rule) = (permit.subject, permit.rule.clone());
        let released = ReleasedPermit { subject, rule, until, released_at: at };
        self.by_key.insert(key, released);
        self.by_end.insert((until, key));
    }

    /// The holder has a permit again, or the release has expired.
    pub(super) fn remove(&mut self, key: PermitKey) {
        if let Some(released) = self.by_key.remove(&key) {
            self.by_end.remove(&(released.until, key));
            self.unsynced.remove(&key);
        }
    }

    /// Lists the releases for which `is_missing` returns true as unsynced, by subject and time of the release.
    pub(super) fn mark_unsynced(&mut self, is_missing: impl Fn(Fingerprint, Nanos) -> bool) {
        let missing = self.by_key.iter().filter(|(_, released)| is_missing(released.subject, released.released_at));
        self.unsynced.extend(missing.map(|(key, _)| *key));
    }

    /// Whether there is a release for which `is_missing` returns true.
    pub(super) fn any(&self, is_missing: impl Fn(Fingerprint, Nanos) -> bool) -> bool {
        self.by_key.values().any(|released| is_missing(released.subject, released.released_at))
    }

    /// The releases to send to the store again, by holder. Walks no others.
    pub(super) fn unsynced(&self) -> impl Iterator<Item = (u128, &ReleasedPermit)> {
        self.unsynced.iter().filter_map(|key| Some((key.1, self.by_key.get(key)?)))
    }

    fn expire(&mut self, now: Nanos) {
        while let Some((until, key)) = self.by_end.first().copied()
            && until <= now
        {
            self.remove(key);
        }
    }
}
