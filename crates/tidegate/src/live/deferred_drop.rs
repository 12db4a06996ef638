//! Frees replaced values on a background thread.
//!
//! Freeing a hundred thousand rules takes a tenth of a second, and without this module the last reader would do it
//! in the middle of a decision. So a replaced value is retired here. A thread that runs only while there is
//! something to free drops it once no reader is left.

use std::mem;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;

/// How often to check whether readers have dropped a value.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Retired values that are not freed yet.
#[derive(Debug)]
pub(super) struct DeferredDrop<T>(Arc<Mutex<RetiredValues<T>>>);

#[derive(Debug)]
struct RetiredValues<T> {
    /// Each with the number of consecutive checks that found no reader.
    values: Vec<(Arc<T>, u8)>,
    /// Whether the thread that frees them is running.
    thread_running: bool,
}

impl<T> Default for DeferredDrop<T> {
    fn default() -> Self {
        DeferredDrop(Arc::new(Mutex::new(RetiredValues { values: Vec::new(), thread_running: false })))
    }
}

impl<T: Send + Sync + 'static> DeferredDrop<T> {
    /// Retires a value that is no longer in force.
    pub(super) fn retire(&self, old: Arc<T>) {
        let mut retired = self.0.lock();
        retired.values.push((old, 0));
        if retired.thread_running {
            return;
        }
        let shared = Arc::clone(&self.0);
        let run = move || while free_unused(&shared) {};
        let thread = thread::Builder::new().name("tidegate-retire".to_owned());
        retired.thread_running = thread.spawn(run).is_ok();
        if !retired.thread_running {
            retired.values.clear(); // no thread can be started: freed here, or by the last reader
        }
    }
}

/// Frees values without a reader. Returns whether any value is left.
fn free_unused<T>(shared: &Mutex<RetiredValues<T>>) -> bool {
    thread::sleep(CHECK_INTERVAL);
    let mut retired = shared.lock();
    let mut freed = Vec::new();
    for (value, alone) in mem::take(&mut retired.values) {
        let alone = if Arc::strong_count(&value) == 1 { alone + 1 } else { 0 };
        // Two checks: a reader may hold parts of a value a moment longer than the value itself.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Reports when and on which thread it is dropped.
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
