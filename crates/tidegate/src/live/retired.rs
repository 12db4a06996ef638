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
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Values on their way out.
#[derive(Debug)]
pub(super) struct Retired<T>(Arc<Mutex<Leaving<T>>>);

#[derive(Debug)]
struct Leaving<T> {
    /// With how often in a row nobody else was seen to hold it.
    values: Vec<(Arc<T>, u8)>,
    /// Whether the thread that frees them is there.
    attended: bool,
}

impl<T> Default for Retired<T> {
    fn default() -> Self {
        Retired(Arc::new(Mutex::new(Leaving {
            values: Vec::new(),
            attended: false,
        })))
    }
}

impl<T: Send + Sync + 'static> Retired<T> {
    /// Takes a value that is no longer in force.
    pub(super) fn take(&self, old: Arc<T>) {
        let mut leaving = lock(&self.0);
        leaving.values.push((old, 0));
        if leaving.attended {
            return;
        }
        let shared = Arc::clone(&self.0);
        let attend = move || while free(&shared) {};
        let thread = thread::Builder::new().name("tidegate-retire".to_owned());
        leaving.attended = thread.spawn(attend).is_ok();
        if !leaving.attended {
            leaving.values.clear(); // no thread to be had: freed here, or by the last reader
        }
    }
}

/// Frees what nobody reads any more; whether anything is left.
fn free<T>(shared: &Mutex<Leaving<T>>) -> bool {
    thread::sleep(LOOK_EVERY);
    let mut leaving = lock(shared);
    let mut freed = Vec::new();
    for (value, alone) in mem::take(&mut leaving.values) {
        let alone = if Arc::strong_count(&value) == 1 {
            alone + 1
        } else {
            0
        };
        // Twice: a reader may hold parts of a value a moment longer than the value itself.
        match alone {
            2.. => freed.push(value),
            _ => leaving.values.push((value, alone)),
        }
    }
    leaving.attended = !leaving.values.is_empty();
    let more = leaving.attended;
    drop(leaving);
    drop(freed);
    more
}

fn lock<T>(shared: &Mutex<Leaving<T>>) -> MutexGuard<'_, Leaving<T>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// Tells when and where it is dropped.
    struct Telling(mpsc::Sender<Option<String>>);

    impl Drop for Telling {
        fn drop(&mut self) {
            let name = thread::current().name().map(str::to_owned);
            drop(self.0.send(name));
        }
    }

    #[test]
    fn a_value_is_freed_after_its_last_reader_and_not_by_it() {
        let (tell, told) = mpsc::channel();
        let retired = Retired::default();
        let value = Arc::new(Telling(tell));
        let reader = Arc::clone(&value);
        retired.take(value);
        assert!(told.try_recv().is_err(), "still read");
        drop(reader);
        let freed_by = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(freed_by.as_deref(), Some("tidegate-retire"));
    }
}
