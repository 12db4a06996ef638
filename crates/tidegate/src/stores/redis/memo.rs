//! What is remembered of a server between calls. It outlives connections and addresses.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;
use tidegate_core::store::Slot;
use tidegate_core::units::Nanos;

/// The server's time and its epoch, as last told.
pub(super) struct Memo {
    last_seen: AtomicU64,
    /// 0 as long as it is not known.
    epoch: AtomicU64,
    /// The last moment at which something was written that must not be lost, in milliseconds of the server's clock, and
    /// the run of the server that acknowledged it.
    acknowledged: Mutex<Option<(u64, u64)>>,
    /// Where this node last signed in, if the server is of a cluster: the slot, and the key in it.
    pub(super) signed_in: Mutex<Option<(Slot, Vec<u8>)>>,
}

impl Default for Memo {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Memo {
            last_seen: AtomicU64::new(now.map_or(0, |now| Nanos::from(now).get())),
            epoch: AtomicU64::new(0),
            acknowledged: Mutex::default(),
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

    /// When another run than this one last acknowledged something that must not be lost, in milliseconds of the
    /// server's clock. 0 if none did.
    pub(super) fn acknowledged_before(&self, run: Option<u64>) -> u64 {
        let last = *self.acknowledged.lock();
        let earlier = last.filter(|(known, _)| run != Some(*known));
        earlier.map_or(0, |(_, millis)| millis)
    }

    /// This run acknowledged a beat of `at`. The register has its whole milliseconds.
    pub(super) fn note_beat(&self, run: u64, at: Nanos) {
        self.acknowledge(run, at.get() / 1_000_000);
    }

    /// This run acknowledged a refund or a settlement of `at`. Only a later beat shows that it is not lost.
    pub(super) fn note_refund(&self, run: Option<u64>, at: Nanos) {
        if let Some(run) = run {
            self.acknowledge(run, at.get().div_ceil(1_000_000));
        }
    }

    fn acknowledge(&self, run: u64, millis: u64) {
        let mut acknowledged = self.acknowledged.lock();
        *acknowledged = match *acknowledged {
            Some((known, last)) if known == run => Some((run, last.max(millis))),
            _ => Some((run, millis)),
        };
    }

    /// What was charged before this may have been refunded or settled, and the store does not know of it any more.
    pub(super) fn data_since(&self) -> Nanos {
        let since = Nanos::from_millis(self.epoch.load(Ordering::Relaxed) >> RANDOM_BITS);
        // Earlier versions drew all bits.
        if since > self.last_seen().plus(Nanos::from_secs(86_400)) {
            return Nanos::ZERO;
        }
        since
    }
}

/// Bits of an epoch that are random. Those above are the time at which the store's data began.
const RANDOM_BITS: u32 = 20;

/// The random bits of a new epoch: the one that a store has lost must not come back. The store adds the time.
pub(super) fn draw_epoch() -> u64 {
    (RandomState::new().hash_one(0) % (1 << RANDOM_BITS)).max(1)
}

#[cfg(test)]
mod tests {
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
    fn what_another_run_acknowledged_last_is_known() {
        let memo = Memo::default();
        assert_eq!(memo.acknowledged_before(Some(1)), 0);
        let at = |micros: u64| Nanos::new(micros * 1_000);
        memo.note_beat(1, at(5_900));
        assert_eq!(memo.acknowledged_before(Some(1)), 0);
        assert_eq!(memo.acknowledged_before(Some(2)), 5);
        memo.note_refund(Some(1), at(7_100));
        memo.note_beat(1, at(6_000));
        assert_eq!(memo.acknowledged_before(None), 8);
        memo.note_beat(2, at(1_000));
        assert_eq!(memo.acknowledged_before(Some(1)), 1);
    }

    #[test]
    fn an_epoch_of_an_earlier_version_says_nothing() {
        let memo = Memo::default();
        memo.note_epoch(0xfedc_ba98_7654_3210);
        assert_eq!(memo.data_since(), Nanos::ZERO);
    }
}
