//! What to read, and how often to look at it.

use std::path::PathBuf;

use tidegate_core::units::Nanos;

use super::file_state::FileError;
use super::scan::{FileFilter, FileScan, PathKind, SizeLimits};
use super::snapshot::FileSnapshot;

/// The path to watch, and how.
#[derive(Clone, Debug)]
pub struct Target {
    pub(super) path: PathBuf,
    pub(super) path_kind: PathKind,
    pub(super) limits: SizeLimits,
    pub(super) timing: WatchTiming,
}

impl Target {
    /// A rules file, or a folder of them.
    pub fn rules(path: impl Into<PathBuf>) -> Self {
        let (path, timing) = (path.into(), WatchTiming::default());
        Target { path, path_kind: PathKind::FileOrFolder(FileFilter::Rules), limits: SizeLimits::RULES, timing }
    }

    /// Selects other files of a rules folder. Has no effect on a keys file.
    #[must_use]
    pub fn filter(mut self, filter: FileFilter) -> Self {
        if let PathKind::FileOrFolder(picked) = &mut self.path_kind {
            *picked = filter;
        }
        self
    }

    /// A keys file.
    pub fn keys(path: impl Into<PathBuf>) -> Self {
        let (path, timing) = (path.into(), WatchTiming::default());
        Target { path, path_kind: PathKind::File, limits: SizeLimits::KEYS, timing }
    }

    /// Reads the current contents, once.
    ///
    /// # Errors
    /// Why they cannot be used.
    pub fn read(&self) -> Result<FileSnapshot, FileError> {
        FileSnapshot::read(&FileScan::of(&self.path, self.path_kind, self.limits)?)
    }

    /// Sets other intervals.
    #[must_use]
    pub fn timing(self, timing: WatchTiming) -> Self {
        Target { timing, ..self }
    }

    /// Sets other size limits.
    #[must_use]
    pub fn limits(self, limits: SizeLimits) -> Self {
        Target { limits, ..self }
    }
}

/// Intervals of a watch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchTiming {
    /// How often to scan for changes.
    pub scan_interval: Nanos,
    /// How long no hint must come before a look.
    pub quiet: Nanos,
    /// The longest wait for quiet.
    pub max_delay: Nanos,
    /// How long without any look before one is made anyway.
    pub poll: Nanos,
    /// The same after a look at files that had just changed: they may change again with the same timestamp.
    pub fresh_poll: Nanos,
}

impl Default for WatchTiming {
    /// An editor's save or a folder's swap takes a few milliseconds: 100 ms of quiet is plenty. A scan every 250 ms
    /// and a delay of at most 400 ms leave as much again to read and check, so that a change is in force within a
    /// second. The polls are only for files that change without a new timestamp.
    fn default() -> Self {
        WatchTiming {
            scan_interval: Nanos::from_millis(250),
            quiet: Nanos::from_millis(100),
            max_delay: Nanos::from_millis(400),
            poll: Nanos::from_secs(30),
            fresh_poll: Nanos::from_secs(3),
        }
    }
}
