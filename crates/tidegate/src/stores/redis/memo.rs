//! What is remembered of a server between calls. It outlives connections and addresses.

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
    /// Where this node last signed in, if the server is of a cluster: the slot, and the key in it.
    pub(super) signed_in: Mutex<Option<(Slot, Vec<u8>)>>,
}

impl Default for Memo {
    fn default() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Memo {
            last_seen: AtomicU64::new(now.map_or(0, |now| Nanos::from(now).get())),
            epoch: AtomicU64::new(0),
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
}
