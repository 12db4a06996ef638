//! The permits of the model store. Each has an expiry of its own.

use std::collections::BTreeMap;

use tidegate_core::store::{PermitReply, PermitRequest, Source};
use tidegate_core::units::Nanos;

/// The expiry of each holder's permit on one counter.
type Holders = BTreeMap<u128, Nanos>;

/// Holders and expiries of permits, by counter.
#[derive(Clone, Debug, Default)]
pub(super) struct ModelPermits {
    holders: BTreeMap<u128, Holders>,
    /// Counter, holder and replaced expiry of each write, for a replica that does not have the write yet.
    journal: Vec<(u128, u128, Option<Nanos>)>,
}

impl ModelPermits {
    fn holders_of(&mut self, request: &PermitRequest<'_>, now: Nanos) -> &mut Holders {
        let holders = self.holders.entry(request.counter()).or_default();
        holders.retain(|_, until| *until > now);
        holders
    }

    fn write(&mut self, request: &PermitRequest<'_>, until: Option<Nanos>) {
        let (counter, holder) = (request.counter(), request.holder);
        let holders = self.holders.entry(counter).or_default();
        let previous = match until {
            Some(until) => holders.insert(holder, until),
            None => holders.remove(&holder),
        };
        self.journal.push((counter, holder, previous));
    }

    pub(super) fn acquire(&mut self, request: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let holders = self.holders_of(request, now);
        let own = holders.get(&request.holder).copied();
        let granted = own.is_some() || holders.len() < request.max_permits as usize;
        if granted {
            let until = now.plus(request.ttl);
            self.write(request, own.max(Some(until)));
        }
        reply(granted, self.holders_of(request, now))
    }

    pub(super) fn renew(&mut self, request: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        let granted = self.holders_of(request, now).contains_key(&request.holder);
        if granted {
            self.write(request, Some(now.plus(request.ttl)));
        }
        reply(granted, self.holders_of(request, now))
    }

    pub(super) fn release(&mut self, request: &PermitRequest<'_>, now: Nanos) -> PermitReply {
        if self.holders_of(request, now).contains_key(&request.holder) {
            self.write(request, None);
        }
        reply(false, self.holders_of(request, now))
    }

    /// Another holder of a permit on the same counter, if there is one.
    pub(super) fn other_holder(&mut self, request: &PermitRequest<'_>, now: Nanos) -> Option<u128> {
        let mut holders = self.holders_of(request, now).keys();
        holders.find(|holder| **holder != request.holder).copied()
    }

    /// The number of writes since the last call to `mark_replicated`.
    pub(super) fn unreplicated(&self) -> usize {
        self.journal.len()
    }

    /// The replica has received the oldest `writes`.
    pub(super) fn mark_replicated(&mut self, writes: usize) {
        self.journal.drain(..writes.min(self.journal.len()));
    }

    /// Rolls back to the state of the replica.
    pub(super) fn fail_over(&mut self) {
        for (counter, holder, previous) in std::mem::take(&mut self.journal).into_iter().rev() {
            let holders = self.holders.entry(counter).or_default();
            match previous {
                Some(until) => holders.insert(holder, until),
                None => holders.remove(&holder),
            };
        }
    }

    /// Releases all permits of a counter and returns their number.
    pub(super) fn release_all(&mut self, counter: u128, now: Nanos) -> u64 {
        let freed = self.holders.remove(&counter).unwrap_or_default();
        let written = freed.iter().map(|(holder, until)| (counter, *holder, Some(*until)));
        self.journal.extend(written);
        freed.values().filter(|until| **until > now).count() as u64
    }
}

fn reply(granted: bool, holders: &Holders) -> PermitReply {
    PermitReply {
        granted,
        in_use: u32::try_from(holders.len()).unwrap_or(u32::MAX),
        source: Source::Exact,
        degraded: None,
    }
}
