//! Frees old values where nobody waits for them.
//!
//! Freeing a hundred thousand rules takes a tenth of a second, and the last to let go of them would
//! otherwise be a reader in the middle of a decision. So whoever replaces a value leaves the old one
//! here; a thread that lives only while there is something to free drops it once no reader is left.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// How often to look whether readers have let go.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Values on their way out.
#[derive(Debug)]
pub(super) struct DeferredDrop<T>(Arc<Mutex<RetiredValues<T>>>);

#[derive(Debug)]
struct RetiredValues<T> {
    /// With how often in a row nobody else was seen to hold it.
    values: Vec<(Arc<T>, u8)>,
    /// Whether the thread that frees them is there.
    thread_running: bool,
}

impl<T> Default for DeferredDrop<T> {
    fn default() -> Self {
        DeferredDrop(Arc::new(Mutex::new(RetiredValues {
            values: Vec::new(),
            thread_running: false,
        })))
    }
}

impl<T: Send + Sync + 'static> DeferredDrop<T> {
    /// Takes a value that is no longer in force.
    pub(super) fn retire(&self, old: Arc<T>) {
        let mut retired = lock(&self.0);
        retired.values.push((old, 0));
        if retired.thread_running {
            return;
        }
        let shared = Arc::clone(&self.0);
        let run = move || while free_unused(&shared) {};
        let thread = thread::Builder::new().name("tidegate-retire".to_owned());
        retired.thread_running = thread.spawn(run).is_ok();
        if !retired.thread_running {
            retired.values.clear(); // no thread to be had: freed here, or by the last reader
        }
    }
}

/// Frees what nobody reads any more; whether anything is left.
fn free_unused<T>(shared: &Mutex<RetiredValues<T>>) -> bool {
    thread::sleep(CHECK_INTERVAL);
    let mut retired = lock(shared);
    let mut freed = Vec::new();
    for (value, alone) in mem::take(&mut retired.values) {
        let alone = if Arc::strong_count(&value) == 1 {
            alone + 1
        } else {
            0
        };
        // Twice: a reader may hold parts of a value a moment longer than the value itself.
        match alone {
            2.. => freed.push(value),
            _ => retired.values.push((value, alone)),
        }
    }
    retired.thread_running = !retired.values.is_empty();
    let more = retired.thread_running;
    drop(retired);
    drop(freed);
    more
}

fn lock<T>(shared: &Mutex<RetiredValues<T>>) -> MutexGuard<'_, RetiredValues<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Tells when and where it is dropped.
    struct ReportsDrop(mpsc::Sender<Option<String>>);

    impl Drop for ReportsDrop {
        fn drop(&mut self) {
            let name = thread::current().name().map(str::to_owned);
            drop(self.0.send(name));
        }
    }

    #[test]
    fn a_value_is_freed_after_its_last_reader_and_not_by_it() {
        let (sender, receiver) = mpsc::channel();
        let retired = DeferredDrop::default();
        let value = Arc::new(ReportsDrop(sender));
        let reader = Arc::clone(&value);
        retired.retire(value);
        assert!(receiver.try_recv().is_err(), "still read");
        drop(reader);
        let freed_by = receiver.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(freed_by.as_deref(), Some("tidegate-retire"));
    }
}
