//! Rules and keys that change while the service runs.
//!
//! [`Watch`] notices that a file or folder has changed, waits until it is stable and passes its complete contents
//! to a loader. [`LiveValue`] holds the loaded value for readers on the request path. Invariant: only complete
//! contents are passed on, and only contents that the loader accepts come into force. Whatever goes wrong with the
//! files, the last good value stays.
//!
//! The rules and the keys file have a watch each, so that a new key does not compile the rules again. Neither
//! watch knows the meaning of the files.
//!
//! Reading order: `target` (what to read), `scan` (which files exist), `snapshot` (their contents), `debounce` (when to
//! look), `reloader` (whether to load them), `watch` (the thread around them).

#[cfg(feature = "live")]
mod debounce;
mod deferred_drop;
mod file_state;
#[cfg(feature = "internals")]
mod ignored_files;
mod live_value;
#[cfg(feature = "live")]
mod reloader;
mod scan;
mod snapshot;
mod target;
#[cfg(feature = "live")]
mod watch;

#[cfg(feature = "live")]
pub use debounce::{Debouncer, NextLook};
pub use file_state::{FileError, FileState};
#[cfg(feature = "internals")]
pub use ignored_files::ignored_rule_files;
pub use live_value::{LiveValue, ReplaceFailure, Versioned};
pub use scan::{FileFilter, SizeLimits};
pub use snapshot::{FileSnapshot, SnapshotFile, SnapshotReader};
pub use target::{Target, WatchTiming};
#[cfg(feature = "live")]
pub use watch::{Watch, WatchHandle};
