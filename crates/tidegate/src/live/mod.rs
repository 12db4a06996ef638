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
//! Reading order: `debounce` (when to look), `scan` (which files exist), `snapshot` (their contents), `reloader`
//! (whether to load them), `watch` (the thread around them).

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
