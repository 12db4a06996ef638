//! Rules and keys that change while the service runs.
//!
//! [`Watch`] notices that a file or folder has changed, waits until it has come to rest and hands
//! its complete contents to a loader; [`LiveValue`] holds what the loader made of them, for readers on
//! the request path. Kept true: only complete contents are handed over, only what the loader took
//! comes into force, and whatever goes wrong with the files, the last good value stays.
//!
//! The rules and the keys file are two watches, so that a new key does not compile the rules
//! again. Neither knows what the files mean.
//!
//! Read in this order: `debounce` (when to look), `scan` (what is there), `snapshot` (what it
//! holds), `reloader` (whether to hand it over), `watch` (the thread around them).

mod debounce;
mod deferred_drop;
mod file_state;
mod ignored_files;
mod live_value;
mod reloader;
mod scan;
mod snapshot;
mod watch;

pub use debounce::{Debouncer, NextLook, WatchTiming};
pub use file_state::{FileError, FileState};
pub use ignored_files::ignored_rule_files;
pub use live_value::{LiveValue, ReplaceFailure, Versioned};
pub use scan::{FileFilter, SizeLimits};
pub use snapshot::{FileSnapshot, SnapshotFile, SnapshotReader};
pub use watch::{Target, Watch, WatchHandle};
