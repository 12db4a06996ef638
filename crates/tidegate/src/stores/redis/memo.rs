//! What is remembered of a server between calls. It outlives connections and addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;
use tidegate_core::store::{RestorePoint, Slot};
use tidegate_core::units::Nanos;

use super::acknowledged::Acknowledged;

/// The server's time and its epoch, as last told.
pub(super) struct Memo {
    last_seen: AtomicU64,
    /// 0 as long as it is not known.
    epoch: AtomicU64,
    /// What must not be lost.
    pub(super) acknowledged: Mutex<Acknowledged>,
    /// The run that replied to the last heartbeat. 0 if none did.
    met: AtomicU64,
    /// When a heartbeat was last acknowledged, by the clock of this process.
    last_heartbeat_at: Mutex<Option<Instant>>,
    /// Hash slots that have come here and may lack counts.
    lacking: Mutex<Vec<Slot>>,
    /// Whether there are such.
    lacks: AtomicBool,
    /// Up to when it has what this node remembers.
    pub(super) restore_point: Mutex<RestorePoint>,
    /// Since when data is whole, if that is later than the epoch says.
    since: AtomicU64,
    /// The hash slot in which this node last signed in, if the server is of a cluster.
    pub(super) signed_in: Mutex<Option<Slot>>,
}

/// What is known of a primary when hash slots leave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SourceState {
    /// It had all that this node remembers until a moment ago.
    Whole,
    /// It is known what it has lost, but this node has not restored all of it.
    Unrestored,
    /// It cannot be reached, or has restarted and not replied to a heartbeat since: what it has lost is not known.
    Unmet,
}

impl Default for Memo {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Memo {
            last_seen: AtomicU64::new(now.map_or(0, |now| Nanos::from(now).get())),
            epoch: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            met: AtomicU64::new(0),
            last_heartbeat_at: Mutex::default(),
            lacking: Mutex::default(),
            lacks: AtomicBool::new(false),
            restore_point: Mutex::default(),
            since: AtomicU64::new(0),
            signed_in: Mutex::default(),
        }
    }
}

impl Memo {
    /// The server's time when it last answered, to know which windows of a calendar are near.
    pub(super) fn last_seen(&self) -> Nanos {
        Nanos::new(self.last_seen.load(Ordering::Relaxed))
    }

    pub(super) fn note_seen(&self, at: Nanos) {
        self.last_seen.store(at.get(), Ordering::Relaxed);
    }

    /// The epoch of the server's data, if it is known.
    pub(super) fn epoch(&self) -> Option<u64> {
        match self.epoch.load(Ordering::Relaxed) {
            0 => None,
            epoch => Some(epoch),
        }
    }

    pub(super) fn note_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// That of another server to which data was moved.
    pub(super) fn of_moved_data(&self) -> Memo {
        let epoch = self.epoch.load(Ordering::Relaxed);
        Memo {
            epoch: AtomicU64::new(epoch),
            since: AtomicU64::new(self.raised_since().get()),
            restore_point: Mutex::new(self.restore_point.lock().of_moved_data()),
            ..Memo::default()
        }
    }

    /// Nothing is known to be written from then on.
    pub(super) fn acknowledged_until(&self) -> Nanos {
        Nanos::from_millis(self.acknowledged.lock().millis().saturating_add(1))
    }

    /// This run replied to a heartbeat at `at`, and calls itself `name`.
    pub(super) fn note_heartbeat(&self, run: u64, name: &[u8], at: Nanos) {
        self.acknowledged.lock().note_heartbeat(name, at);
        self.met.store(run, Ordering::Release);
        *self.last_heartbeat_at.lock() = Some(Instant::now());
    }

    /// Whether the server, which is in its run `run`, has had all that this node remembers until a moment ago.
    pub(super) fn has_all(&self, run: Option<u64>) -> bool {
        self.has_all_at(Instant::now(), run)
    }

    fn has_all_at(&self, now: Instant, run: Option<u64>) -> bool {
        let last = *self.last_heartbeat_at.lock();
        let silence = last.map(|at| now.saturating_duration_since(at));
        let is_recent = silence.is_some_and(|silence| silence < MAX_SILENCE);
        let may_lack = self.lacks.load(Ordering::Acquire);
        is_recent && !may_lack && self.has_met(run) && self.restore_point.lock().is_restored()
    }

    /// Hash slots have come from the server of `source`, with what it had lost.
    pub(super) fn receive_slots(&self, source: &Memo, state: SourceState, slots: &[Slot]) {
        self.raise_since(source.data_since());
        if state == SourceState::Unmet {
            self.raise_since(source.acknowledged_until());
        }
        if state != SourceState::Whole {
            self.lacking.lock().extend(slots);
            self.lacks.store(true, Ordering::Release);
        }
    }

    /// The hash slots that have come since the last call and may lack counts.
    pub(super) fn take_lacking(&self) -> Vec<Slot> {
        if !self.lacks.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut lacking = self.lacking.lock();
        self.lacks.store(false, Ordering::Release);
        self.restore_point.lock().may_lack_counts();
        std::mem::take(&mut *lacking)
    }

    /// Whether this run has replied to the last heartbeat, or none was sent yet. Before it has, data that it lacks
    /// is not known to be lost.
    pub(super) fn has_met(&self, run: Option<u64>) -> bool {
        let met = self.met.load(Ordering::Acquire);
        met == 0 || run == Some(met)
    }

    /// What was charged before this may have been refunded or settled, and the store does not know of it any more.
    pub(super) fn data_since(&self) -> Nanos {
        let raised = self.raised_since();
        let since = Nanos::from_millis(self.epoch.load(Ordering::Relaxed) >> RANDOM_BITS);
        // Earlier versions drew all bits.
        if since > self.last_seen().plus(Nanos::from_secs(86_400)) {
            return raised;
        }
        since.max(raised)
    }

    pub(super) fn raised_since(&self) -> Nanos {
        Nanos::new(self.since.load(Ordering::Relaxed))
    }

    /// Some of the data is whole only since then.
    pub(super) fn raise_since(&self, since: Nanos) {
        self.since.fetch_max(since.get(), Ordering::Relaxed);
    }
}

/// How long ago the last heartbeat may be if nothing can have happened since. Nodes leave five in that time.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// Bits of an epoch that are random. Those above are the time at which the store's data began.
const RANDOM_BITS: u32 = 20;

/// The random bits of a new epoch: the one that a store has lost must not come back. The store adds the time.
pub(super) fn draw_epoch() -> u64 {
    (RandomState::new().hash_one(0) % (1 << RANDOM_BITS)).max(1)
}

#[cfg(test)]
mod tests {
    use tidegate_core::store::{HeartbeatReply, Life};

    use super::*;

    #[test]
    fn an_epoch_says_since_when_data_is_whole() {
        let memo = Memo::default();
        assert_eq!(memo.data_since(), Nanos::ZERO, "not known");
        let millis = memo.last_seen().get() / 1_000_000;
        memo.note_epoch(millis << RANDOM_BITS | draw_epoch());
        assert_eq!(memo.data_since(), Nanos::from_millis(millis));
    }

    #[test]
    fn an_epoch_of_an_earlier_version_says_nothing() {
        let memo = Memo::default();
        memo.note_epoch(0xfedc_ba98_7654_3210);
        assert_eq!(memo.data_since(), Nanos::ZERO);
    }

    #[test]
    fn a_server_has_all_once_a_heartbeat_says_that_it_was_restored() {
        let (memo, life, begun) = (Memo::default(), Life(3), Instant::now());
        let has_all = |run| memo.has_all_at(begun, Some(run));
        let beat = |restored| {
            memo.note_heartbeat(7, b"run", Nanos::from_secs(1));
            let reply = HeartbeatReply {
                life,
                epoch: 1,
                at: Nanos::from_secs(1),
                found: Nanos::ZERO,
            };
            memo.restore_point.lock().note(restored, &reply);
        };
        assert!(!has_all(7), "no heartbeat yet");
        beat(None);
        assert!(!has_all(7), "not restored");
        beat(Some(life));
        assert!(has_all(7));
        assert!(!has_all(8), "another run");
        let later = Instant::now() + MAX_SILENCE;
        assert!(!memo.has_all_at(later, Some(7)), "silent since");
        memo.receive_slots(&Memo::default(), SourceState::Unrestored, &[Slot(5)]);
        assert!(!has_all(7), "hash slots have come");
        assert_eq!(memo.take_lacking(), [Slot(5)]);
        assert_eq!(memo.take_lacking(), [], "once");
        assert!(!has_all(7), "and are not restored yet");
        beat(Some(life));
        assert!(has_all(7));
    }
}
