//! Decides whether the contents on disk are loaded, and remembers the result.
//!
//! One look scans, reads and scans again. The loader gets the contents only if nothing changed meanwhile and they
//! are neither those in force nor those rejected last. Rejected contents are retried on request, since they may
//! have become valid for reasons outside the file. Every load is reported, and any other change of state once. No
//! thread and no waiting here: the caller looks again at a file that keeps changing.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::SystemTime;

use super::file_state::{FileError, FileState};
use super::scan::{FileScan, PathKind, SizeLimits};
use super::snapshot::FileSnapshot;

/// Attempts of one look to read a file while it is stable.
const MAX_ATTEMPTS: usize = 3;

/// How thorough a look is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LookMode {
    /// After a hint: files with unchanged timestamps are not read again.
    Hinted,
    /// On request: read whatever the timestamps are, and retry rejected contents.
    Requested,
    /// On request: load again even if unchanged.
    Reload,
}

/// The result of a look.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LookOutcome {
    /// The state describes what was found.
    Done,
    /// The files changed during every attempt: look again soon.
    Unstable,
}

pub(super) struct Reloader<L, R> {
    pub(super) path: PathBuf,
    pub(super) path_kind: PathKind,
    pub(super) limits: SizeLimits,
    pub(super) load: L,
    pub(super) report: R,
    known: ReloaderState,
}

/// The results of earlier looks.
#[derive(Default)]
struct ReloaderState {
    file_state: Option<FileState>,
    /// The contents in force.
    loaded: Option<FileSnapshot>,
    /// Contents that the loader rejected, and its error.
    rejected: Option<(FileSnapshot, String)>,
    /// A scan that, found again, proves that nothing changed.
    stable_scan: Option<FileScan>,
    /// Whether a file was modified a moment before it was read.
    is_fresh: bool,
}

impl<L, R, E> Reloader<L, R>
where
    L: FnMut(&FileSnapshot) -> Result<(), E>,
    R: FnMut(&FileState),
    E: Display,
{
    pub(super) fn new(path: PathBuf, path_kind: PathKind, limits: SizeLimits, load: L, report: R) -> Self {
        Reloader { path, path_kind, limits, load, report, known: ReloaderState::default() }
    }

    pub(super) fn look(&mut self, mode: LookMode) -> LookOutcome {
        if mode >= LookMode::Requested {
            self.known.rejected = None;
        }
        if mode == LookMode::Reload {
            self.known.loaded = None;
        }
        for _ in 0..MAX_ATTEMPTS {
            match self.try_once(mode) {
                Ok(LookAttempt::Loaded) => return self.report_state(FileState::Current),
                Ok(LookAttempt::Unchanged(state)) => return self.report_change(state),
                Ok(LookAttempt::Changed) => {}
                Err(error) => {
                    self.known.stable_scan = None;
                    return self.report_change(FileState::Stale(error));
                }
            }
        }
        self.known.stable_scan = None;
        self.report_change(FileState::Stale(FileError::Changing { path: self.path.clone() }));
        LookOutcome::Unstable
    }

    fn try_once(&mut self, mode: LookMode) -> Result<LookAttempt, FileError> {
        let seen_at = SystemTime::now();
        self.known.is_fresh = false;
        let scan = self.scan()?;
        if let (LookMode::Hinted, Some(state)) = (mode, &self.known.file_state)
            && self.known.stable_scan.as_ref() == Some(&scan)
        {
            return Ok(LookAttempt::Unchanged(state.clone()));
        }
        self.known.is_fresh = scan.is_fresh(seen_at);
        let read = FileSnapshot::read(&scan);
        if self.scan()? != scan {
            return Ok(LookAttempt::Changed);
        }
        let attempt = self.load_snapshot(read?);
        if !matches!(attempt, LookAttempt::Changed) {
            self.known.stable_scan = scan.proves_unchanged(seen_at).then_some(scan);
        }
        Ok(attempt)
    }

    /// Whether the files had changed so shortly before the last look that another change may not be visible.
    pub(super) fn is_fresh(&self) -> bool {
        self.known.is_fresh
    }

    pub(super) fn scan(&self) -> Result<FileScan, FileError> {
        FileScan::of(&self.path, self.path_kind, self.limits)
    }

    /// Loads these contents, which may change while the loader reads them.
    fn load_snapshot(&mut self, snapshot: FileSnapshot) -> LookAttempt {
        let rejected = |reason: String| LookAttempt::Unchanged(FileState::Stale(FileError::Rejected { reason }));
        if self.known.loaded.as_ref() == Some(&snapshot) {
            return LookAttempt::Unchanged(FileState::Current);
        }
        if let Some((same, reason)) = &self.known.rejected
            && *same == snapshot
        {
            return rejected(reason.clone());
        }
        // A loader that panics on one file must not end the watch over all later ones.
        let loaded = catch_unwind(AssertUnwindSafe(|| (self.load)(&snapshot).map_err(|e| e.to_string())))
            .unwrap_or_else(|_| Err("the loader panicked on these contents; please report it".to_owned()));
        if snapshot.is_torn() {
            return LookAttempt::Changed;
        }
        match loaded {
            Ok(()) => {
                self.known.loaded = Some(snapshot);
                LookAttempt::Loaded
            }
            Err(reason) => {
                self.known.rejected = Some((snapshot, reason.clone()));
                rejected(reason)
            }
        }
    }

    fn report_change(&mut self, state: FileState) -> LookOutcome {
        if self.known.file_state.as_ref() == Some(&state) {
            return LookOutcome::Done;
        }
        self.report_state(state)
    }

    fn report_state(&mut self, state: FileState) -> LookOutcome {
        (self.report)(&state);
        self.known.file_state = Some(state);
        LookOutcome::Done
    }
}

/// The result of one attempt.
enum LookAttempt {
    /// New contents are in force.
    Loaded,
    /// Nothing new came into force.
    Unchanged(FileState),
    /// Files changed meanwhile.
    Changed,
}
