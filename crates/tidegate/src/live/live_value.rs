//! The value in force: read by many, replaced as a whole.
//!
//! Readers take a guard in a few nanoseconds and see one version for as long as they hold it, so a decision never
//! mixes two. A failed replacement leaves the value as it was, and is remembered as the last failure until one
//! succeeds.

use std::fmt::Display;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption, Guard};
use parking_lot::Mutex;

use super::deferred_drop::DeferredDrop;

/// A value that can be replaced while others read it.
#[derive(Debug)]
pub struct LiveValue<T> {
    current: ArcSwap<Versioned<T>>,
    failure: ArcSwapOption<ReplaceFailure>,
    /// Held while a replacement is made: a replacement that began earlier cannot overwrite a later one.
    replacing: Mutex<()>,
    retired: DeferredDrop<Versioned<T>>,
}

/// A value and its version, swapped together. Dereferences to the value.
#[derive(Debug)]
pub struct Versioned<T> {
    version: u64,
    value: T,
}

/// Why the last replacement failed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplaceFailure {
    /// The error message.
    pub message: String,
    /// The number of failures since the value in force was set.
    pub times: u64,
}

impl<T: Send + Sync + 'static> LiveValue<T> {
    /// A first value, as version 1.
    pub fn new(value: T) -> Self {
        LiveValue {
            current: ArcSwap::from_pointee(Versioned { version: 1, value }),
            failure: ArcSwapOption::empty(),
            replacing: Mutex::new(()),
            retired: DeferredDrop::default(),
        }
    }

    /// The value in force, for a short read on the request path. Do not hold the guard across awaits.
    pub fn load(&self) -> Guard<Arc<Versioned<T>>> {
        self.current.load()
    }

    /// The value in force, to hold for longer.
    pub fn get(&self) -> Arc<Versioned<T>> {
        self.current.load_full()
    }

    /// The version in force.
    pub fn version(&self) -> u64 {
        self.load().version
    }

    /// Why the last replacement failed; `None` if it succeeded.
    pub fn failure(&self) -> Option<Arc<ReplaceFailure>> {
        self.failure.load_full()
    }

    /// Makes a new value, puts it in force and returns its version. If `make` fails or panics, the last good value
    /// stays. Other replacements wait meanwhile; readers never wait.
    pub fn replace_with<E: Display>(&self, make: impl FnOnce() -> Result<T, E>) -> Result<u64, E> {
        self.replace_if_changed(|| make().map(Some))
    }

    /// As `replace_with`, but `make` may return `None` if the value in force is the one it would make. That value
    /// then stays, with its version.
    pub fn replace_if_changed<E: Display>(&self, make: impl FnOnce() -> Result<Option<T>, E>) -> Result<u64, E> {
        let _replacing = self.replacing.lock();
        match make() {
            Ok(None) => {
                self.failure.store(None);
                Ok(self.version())
            }
            Ok(Some(value)) => {
                let version = self.version() + 1;
                self.retired.retire(self.current.swap(Arc::new(Versioned { version, value })));
                self.failure.store(None);
                Ok(version)
            }
            Err(error) => {
                let times = self.failure().map_or(0, |failure| failure.times) + 1;
                self.failure.store(Some(Arc::new(ReplaceFailure { message: error.to_string(), times })));
                Err(error)
            }
        }
    }
}

impl<T> Versioned<T> {
    /// The version, counted from 1.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The value.
    pub fn value(&self) -> &T {
        &self.value
    }
}

impl<T> Deref for Versioned<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replacement_is_seen_with_its_version() {
        let live = LiveValue::new("old");
        let held = live.get();
        assert_eq!(live.replace_with(|| Ok::<_, String>("new")), Ok(2));
        assert_eq!((*live.load().value(), live.version()), ("new", 2));
        assert_eq!((*held.value(), held.version()), ("old", 1), "a reader keeps the version it holds");
    }

    #[test]
    fn a_value_that_is_in_force_already_keeps_its_version() {
        let live = LiveValue::new("same");
        assert!(live.replace_with(|| Err("bad")).is_err());
        assert_eq!(live.replace_if_changed(|| Ok::<_, String>(None)), Ok(1));
        assert_eq!((*live.load().value(), live.version()), ("same", 1));
        assert_eq!(live.failure(), None);
    }

    #[test]
    fn a_failed_replacement_leaves_the_last_good_value() {
        let live = LiveValue::new("good");
        for times in 1..=2 {
            assert_eq!(live.replace_with(|| Err("line 3 is wrong")), Err("line 3 is wrong"));
            let message = "line 3 is wrong".to_owned();
            assert_eq!(live.failure().as_deref(), Some(&ReplaceFailure { message, times }));
        }
        assert_eq!((*live.load().value(), live.version()), ("good", 1));
        assert_eq!(live.replace_with(|| Ok::<_, String>("better")), Ok(2));
        assert_eq!(live.failure(), None);
    }

    #[test]
    fn a_panic_in_a_replacement_does_not_lock_out_the_next() {
        let live = LiveValue::new(1);
        let panics = || live.replace_with(|| -> Result<i32, String> { panic!("on purpose") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(panics)).is_err());
        assert_eq!(*live.load().value(), 1);
        assert_eq!(live.replace_with(|| Ok::<_, String>(2)), Ok(2));
    }

    #[test]
    fn readers_never_see_a_version_with_another_value() {
        let live = LiveValue::new(1u64);
        std::thread::scope(|threads| {
            threads.spawn(|| (2..=20_000).for_each(|n| _ = live.replace_with(|| Ok::<_, String>(n))));
            let mut last = 0;
            while last < 20_000 {
                let seen = live.load();
                assert_eq!(seen.version(), *seen.value());
                assert!(seen.version() >= last, "versions never go back");
                last = seen.version();
            }
        });
    }
}
