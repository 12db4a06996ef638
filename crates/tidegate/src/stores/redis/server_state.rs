//! The state of a server that is remembered between calls. It outlives connections and addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tidegate_core::store::{HashSlot, RestorePoint};
use tidegate_core::units::Nanos;

use super::acknowledged_writes::AcknowledgedWrites;

/// The server's time, its epoch and the writes it has acknowledged.
pub(super) struct ServerState {
    last_seen: AtomicU64,
    /// 0 while it is unknown.
    data_epoch: AtomicU64,
    /// The writes that must not be lost.
    pub(super) acknowledged: Mutex<AcknowledgedWrites>,
    /// The run that replied to the last heartbeat. 0 if none did.
    acknowledged_run: AtomicU64,
    /// When a heartbeat was last acknowledged, by the clock of this process.
    last_heartbeat_at: Mutex<Option<Instant>>,
    /// Hash slots that were received and may lack counts.
    incomplete_hash_slots: Mutex<Vec<HashSlot>>,
    /// The moment up to which the server has the counts that this node remembers.
    pub(super) restore_point: Mutex<RestorePoint>,
    /// The moment since which data is whole, if that is later than the epoch's.
    raised_since: AtomicU64,
    /// The hash slot of the register that has this node's last heartbeat, if the server is of a cluster.
    pub(super) registered_in: Mutex<Option<HashSlot>>,
}

/// The state of a primary when hash slots leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceState {
    /// Until a moment ago it had all counts that this node remembers.
    Whole,
    /// Its loss is known, but this node has not restored all of it.
    Unrestored,
    /// It is unreachable, or restarted and has not replied to a heartbeat since: its loss is unknown.
    Unverified,
}

impl Default for ServerState {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        ServerState {
            last_seen: AtomicU64::new(now.map_or(0, |now| Nanos::from(now).get())),
            data_epoch: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            acknowledged_run: AtomicU64::new(0),
            last_heartbeat_at: Mutex::default(),
            incomplete_hash_slots: Mutex::default(),
            restore_point: Mutex::default(),
            raised_since: AtomicU64::new(0),
            registered_in: Mutex::default(),
        }
    }
}

impl ServerState {
    /// The server's time at its last reply. It selects the calendar windows to send.
    pub(super) fn last_seen(&self) -> Nanos {
        Nanos::new(self.last_seen.load(Ordering::Relaxed))
    }

    pub(super) fn note_seen(&self, at: Nanos) {
        self.last_seen.store(at.get(), Ordering::Relaxed);
    }

    /// The epoch of the server's data, if known.
    pub(super) fn data_epoch(&self) -> Option<u64> {
        match self.data_epoch.load(Ordering::Relaxed) {
            0 => None,
            epoch => Some(epoch),
        }
    }

    pub(super) fn note_data_epoch(&self, epoch: u64) {
        self.data_epoch.store(epoch, Ordering::Relaxed);
    }

    /// The initial state of another server that received this server's data.
    pub(super) fn of_moved_data(&self) -> ServerState {
        let epoch = self.data_epoch.load(Ordering::Relaxed);
        ServerState {
            data_epoch: AtomicU64::new(epoch),
            raised_since: AtomicU64::new(self.raised_since().get()),
            restore_point: Mutex::new(self.restore_point.lock().after_data_moved()),
            ..ServerState::default()
        }
    }

    /// The moment after the last acknowledged write.
    pub(super) fn acknowledged_until(&self) -> Nanos {
        Nanos::from_millis(self.acknowledged.lock().millis().saturating_add(1))
    }

    /// Records that this run replied to a heartbeat at `at`, and that its name is `name`.
    pub(super) fn note_heartbeat(&self, run: u64, name: &[u8], at: Nanos) {
        self.acknowledged.lock().note_heartbeat(name, at);
        self.acknowledged_run.store(run, Ordering::Release);
        *self.last_heartbeat_at.lock() = Some(Instant::now());
    }

    /// Whether the server, in its run `run`, had all counts that this node remembers until a moment ago.
    pub(super) fn is_complete(&self, run: Option<u64>) -> bool {
        self.is_complete_at(Instant::now(), run)
    }

    fn is_complete_at(&self, now: Instant, run: Option<u64>) -> bool {
        let last = *self.last_heartbeat_at.lock();
        let silence = last.map(|at| now.saturating_duration_since(at));
        let is_recent = silence.is_some_and(|silence| silence < MAX_SILENCE);
        let may_lack = !self.incomplete_hash_slots.lock().is_empty();
        is_recent && !may_lack && self.has_acknowledged(run) && self.restore_point.lock().is_restored()
    }

    /// Records that hash slots came from the server of `source`, with its losses.
    pub(super) fn receive_hash_slots(&self, source: &ServerState, state: SourceState, hash_slots: &[HashSlot]) {
        self.raise_since(source.data_since());
        if state == SourceState::Unverified {
            self.raise_since(source.acknowledged_until());
        }
        if state != SourceState::Whole {
            self.incomplete_hash_slots.lock().extend(hash_slots);
        }
    }

    /// Takes the hash slots that were received since the last call and may lack counts.
    pub(super) fn take_incomplete_hash_slots(&self) -> Vec<HashSlot> {
        let mut lacking = self.incomplete_hash_slots.lock();
        if !lacking.is_empty() {
            self.restore_point.lock().mark_incomplete();
        }
        std::mem::take(&mut *lacking)
    }

    /// Whether this run has replied to the last heartbeat, or none was sent yet. Until it has, data that it lacks
    /// is not known to be lost.
    pub(super) fn has_acknowledged(&self, run: Option<u64>) -> bool {
        let acknowledged_run = self.acknowledged_run.load(Ordering::Acquire);
        acknowledged_run == 0 || run == Some(acknowledged_run)
    }

    /// The moment since which data is whole. Marks of earlier refunds and settlements may be lost.
    pub(super) fn data_since(&self) -> Nanos {
        let raised = self.raised_since();
        let since = Nanos::from_millis(self.data_epoch.load(Ordering::Relaxed) >> RANDOM_BITS);
        // In earlier versions all bits of an epoch were random.
        if since > self.last_seen().plus(Nanos::from_secs(86_400)) {
            return raised;
        }
        since.max(raised)
    }

    pub(super) fn raised_since(&self) -> Nanos {
        Nanos::new(self.raised_since.load(Ordering::Relaxed))
    }

    /// Records that some of the data is whole only since `since`.
    pub(super) fn raise_since(&self, since: Nanos) {
        self.raised_since.fetch_max(since.get(), Ordering::Relaxed);
    }
}

/// The age of the last heartbeat up to which nothing can have happened since. Nodes send five in that time.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// The number of random bits in an epoch. The bits above are the time at which the store's data began.
const RANDOM_BITS: u32 = 20;

/// Draws the random bits of a new epoch, so that a lost epoch never repeats. The store adds the time.
pub(super) fn draw_data_epoch() -> u64 {
    (RandomState::new().hash_one(0) % (1 << RANDOM_BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_core::store::{Epoch, HeartbeatReply};

    use super::*;

    #[test]
    fn an_epoch_contains_the_time_since_which_data_is_whole() {
        let server_state = ServerState::default();
        assert_eq!(server_state.data_since(), Nanos::ZERO, "unknown");
        let millis = server_state.last_seen().get() / 1_000_000;
        server_state.note_data_epoch(millis << RANDOM_BITS | draw_data_epoch());
        assert_eq!(server_state.data_since(), Nanos::from_millis(millis));
    }

    #[test]
    fn an_epoch_of_an_earlier_version_contains_no_time() {
        let server_state = ServerState::default();
        server_state.note_data_epoch(0xfedc_ba98_7654_3210);
        assert_eq!(server_state.data_since(), Nanos::ZERO);
    }

    #[test]
    fn a_server_is_complete_once_a_heartbeat_reports_that_it_was_restored() {
        let (server_state, epoch, begun) = (ServerState::default(), Epoch(3), Instant::now());
        let is_complete = |run| server_state.is_complete_at(begun, Some(run));
        let heartbeat = |restored| {
            server_state.note_heartbeat(7, b"run", Nanos::from_secs(1));
            let reply =
                HeartbeatReply { epoch, data_epoch: 1, at: Nanos::from_secs(1), last_saved_heartbeat: Nanos::ZERO };
            server_state.restore_point.lock().record(restored, &reply);
        };
        assert!(!is_complete(7), "no heartbeat yet");
        heartbeat(None);
        assert!(!is_complete(7), "not restored");
        heartbeat(Some(epoch));
        assert!(is_complete(7));
        assert!(!is_complete(8), "another run");
        let later = Instant::now() + MAX_SILENCE;
        assert!(!server_state.is_complete_at(later, Some(7)), "silent since");
        server_state.receive_hash_slots(&ServerState::default(), SourceState::Unrestored, &[HashSlot(5)]);
        assert!(!is_complete(7), "hash slots were received");
        assert_eq!(server_state.take_incomplete_hash_slots(), [HashSlot(5)]);
        assert_eq!(server_state.take_incomplete_hash_slots(), [], "once");
        assert!(!is_complete(7), "and are not restored yet");
        heartbeat(Some(epoch));
        assert!(is_complete(7));
    }
}
