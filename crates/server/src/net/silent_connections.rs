//! A bounded table of connections in which a new connection evicts the one that has been silent longest.
//!
//! The admin and metrics listeners have few connections, so a few silent clients could occupy them all. When such a
//! listener or the share of a peer is full, the connection that has been silent longest is evicted: no request of it is
//! in flight, and since others were accepted it has neither begun a request nor read anything of a response. Time is
//! counted in accepted connections, because only another accepted connection evicts one.
//!
//! Every turn of a connection takes a lock here. On the listeners that decide requests the next connection waits or is
//! closed, and only large connections are in such a table (see `large_connections`). Time is counted there in
//! connections that have become large.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use tidegate::identity::ClientIp;

use super::unread_responses::TurnEnd;

/// The connections of one listener, or its large ones, that have not been evicted.
#[derive(Default)]
pub(crate) struct SilentConnections {
    table: Mutex<SilentTable>,
}

#[derive(Default)]
struct SilentTable {
    /// Connections registered so far. Their numbers order them by age.
    accepted: u64,
    connections: BTreeMap<u64, SilentEntry>,
}

#[derive(Default)]
struct SilentEntry {
    /// `None` for a trusted peer.
    peer: Option<ClientIp>,
    /// The number of connections registered when this one was last active.
    active_at: u64,
    progress: TurnProgress,
    is_in_flight: bool,
    waker: Option<Waker>,
}

/// The progress of a connection so far. Only a change matters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct TurnProgress {
    /// Requests that have begun.
    pub(crate) requests: u64,
    /// Bytes of responses that were sent.
    pub(crate) sent: usize,
}

/// Which connections may be evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EvictionScope {
    /// The connections of one peer.
    Peer(ClientIp),
    /// The connections of all peers that are not trusted.
    Untrusted,
    /// All connections.
    Listener,
}

/// The entry of one connection. Dropping it removes the entry.
pub(crate) struct SilentGuard {
    listener: Arc<SilentConnections>,
    number: u64,
}

impl SilentConnections {
    /// The number of open connections that have not been evicted.
    pub(crate) fn open(&self) -> usize {
        self.table.lock().connections.len()
    }

    /// Registers a connection that was just accepted. A trusted one has no `peer`.
    pub(crate) fn register(this: &Arc<Self>, peer: Option<ClientIp>) -> SilentGuard {
        let mut table = this.table.lock();
        table.accepted += 1;
        let number = table.accepted;
        let entry = SilentEntry { peer, active_at: number, ..SilentEntry::default() };
        table.connections.insert(number, entry);
        SilentGuard { listener: Arc::clone(this), number }
    }

    /// Registers a connection in a table of at most `max`. If the table is full, the connection that has been silent
    /// longest is evicted. If requests are in flight on all of them, the one with the oldest progress is.
    pub(crate) fn register_evicting(this: &Arc<Self>, max: usize) -> SilentGuard {
        if this.open() >= max && this.evict(EvictionScope::Listener).is_none() {
            let mut table = this.table.lock();
            let oldest = table.connections.iter().min_by_key(|(_, entry)| entry.active_at).map(|(&number, _)| number);
            let evicted = oldest.and_then(|number| table.connections.remove(&number));
            drop(table);
            if let Some(evicted) = evicted {
                evicted.wake();
            }
        }
        Self::register(this, None)
    }

    /// Evicts the connection that has been silent longest. None: there is none.
    pub(crate) fn evict(&self, scope: EvictionScope) -> Option<()> {
        let mut table = self.table.lock();
        let is_in_scope = |entry: &SilentEntry| match scope {
            EvictionScope::Peer(peer) => entry.peer == Some(peer),
            EvictionScope::Untrusted => entry.peer.is_some(),
            EvictionScope::Listener => true,
        };
        let silent = table.connections.iter().filter(|(_, entry)| !entry.is_in_flight && is_in_scope(entry));
        let (&number, _) = silent.min_by_key(|(_, entry)| entry.active_at)?;
        let entry = table.connections.remove(&number)?;
        drop(table);
        entry.wake();
        Some(())
    }
}

impl SilentEntry {
    /// Wakes an evicted connection.
    fn wake(self) {
        if let Some(waker) = self.waker {
            waker.wake();
        }
    }
}

impl SilentGuard {
    /// Called when the connection can do nothing more for now. `waker` wakes it when it is evicted.
    pub(super) fn end_turn(&self, progress: TurnProgress, is_in_flight: bool, waker: &Waker) -> TurnEnd {
        let mut table = self.listener.table.lock();
        let accepted = table.accepted;
        let Some(entry) = table.connections.get_mut(&self.number) else {
            return TurnEnd::Evicted;
        };
        if entry.progress != progress {
            entry.progress = progress;
            entry.active_at = accepted;
        }
        entry.is_in_flight = is_in_flight;
        match &mut entry.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
        TurnEnd::Continue
    }
}

impl Drop for SilentGuard {
    fn drop(&mut self) {
        self.listener.table.lock().connections.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::identity::IpNormalizer;

    fn peer(last: u8) -> ClientIp {
        IpNormalizer::default().client([192, 0, 2, last].into())
    }

    fn end_turn(guard: &SilentGuard, requests: u64, sent: usize, is_in_flight: bool) -> TurnEnd {
        let progress = TurnProgress { requests, sent };
        guard.end_turn(progress, is_in_flight, Waker::noop())
    }

    /// Whether the connection was evicted. A turn without progress changes nothing else.
    fn is_evicted(guard: &SilentGuard) -> bool {
        !guard.listener.table.lock().connections.contains_key(&guard.number)
    }

    #[test]
    fn the_connection_that_has_been_silent_longest_is_evicted() {
        let listener = Arc::new(SilentConnections::default());
        let enter = || SilentConnections::register(&listener, Some(peer(1)));
        let (silent, sends, reads, waits) = (enter(), enter(), enter(), enter());
        assert_eq!(end_turn(&waits, 1, 0, true), TurnEnd::Continue);
        assert_eq!(end_turn(&sends, 1, 0, false), TurnEnd::Continue);
        assert_eq!(end_turn(&reads, 0, 1, false), TurnEnd::Continue);
        let newcomer = enter();
        let evict = || listener.evict(EvictionScope::Listener).is_some();
        assert!(evict() && is_evicted(&silent));
        assert_eq!(end_turn(&silent, 0, 0, false), TurnEnd::Evicted);
        // A connection that was active since is as young as the newcomer was.
        assert_eq!(end_turn(&sends, 2, 0, false), TurnEnd::Continue);
        assert!(evict() && is_evicted(&reads));
        assert!(evict() && evict() && is_evicted(&sends) && is_evicted(&newcomer));
        assert!(!evict() && !is_evicted(&waits), "a request is in flight");
        assert_eq!(listener.open(), 1);
        drop((silent, sends, reads, waits, newcomer));
        assert_eq!(listener.open(), 0);
    }

    #[test]
    fn a_request_in_flight_protects_a_connection_unless_all_have_one() {
        let table = Arc::new(SilentConnections::default());
        let enter = || SilentConnections::register_evicting(&table, 3);
        let (first, second, silent) = (enter(), enter(), enter());
        assert_eq!(end_turn(&second, 1, 0, true), TurnEnd::Continue);
        assert_eq!(end_turn(&first, 1, 0, true), TurnEnd::Continue);
        let third = enter();
        assert!(is_evicted(&silent) && !is_evicted(&first) && !is_evicted(&second));
        assert_eq!(end_turn(&third, 1, 0, true), TurnEnd::Continue);
        // Something was sent since then.
        assert_eq!(end_turn(&first, 1, 7, true), TurnEnd::Continue);
        let _fourth = enter();
        assert!(is_evicted(&second) && !is_evicted(&first) && !is_evicted(&third));
        assert_eq!(table.open(), 3);
    }

    #[test]
    fn only_connections_in_scope_are_evicted() {
        let listener = Arc::new(SilentConnections::default());
        let enter = |peer| SilentConnections::register(&listener, peer);
        let (trusted, first, second) = (enter(None), enter(Some(peer(1))), enter(Some(peer(2))));
        let evict = |scope| listener.evict(scope).is_some();
        assert!(evict(EvictionScope::Peer(peer(2))) && is_evicted(&second));
        assert!(!evict(EvictionScope::Peer(peer(2))));
        assert!(evict(EvictionScope::Untrusted) && is_evicted(&first));
        assert!(!evict(EvictionScope::Untrusted));
        assert!(evict(EvictionScope::Listener) && is_evicted(&trusted));
    }
}
