//! Decides whether what is on disk is handed over, and remembers what became of it.
//!
//! One look: survey, read, survey again; only if nothing moved and the contents are neither those
//! in force nor those refused last, the loader gets them; what was refused is tried again when
//! someone asks, since it may be valid by now for reasons outside the file. All that is taken is
//! reported, and any other change of state once. No thread and no waiting here: a file that keeps
//! changing is for the caller to look at again.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::SystemTime;

use super::file_state::{FileError, FileState};
use super::scan::{FileScan, PathKind, SizeLimits};
use super::snapshot::FileSnapshot;

/// How often one look tries to catch a file at rest before it leaves it to the next.
const MAX_ATTEMPTS: usize = 3;

/// How hard to look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum LookMode {
    /// After a hint: files that bear their old times need not be read again.
    Hinted,
    /// Someone asked: read whatever the times say, and try again what was refused.
    Requested,
    /// Someone asked to load again what may be unchanged.
    Reload,
}

/// How a look ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LookOutcome {
    /// The state says what was found.
    Done,
    /// The files moved all the while: look again soon.
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

/// What earlier looks found.
#[derive(Default)]
struct ReloaderState {
    file_state: Option<FileState>,
    /// The contents in force.
    loaded: Option<FileSnapshot>,
    /// Contents the loader did not take, and what it said.
    rejected: Option<(FileSnapshot, String)>,
    /// A survey that, met again, proves that nothing changed.
    stable_scan: Option<FileScan>,
    /// Whether files were touched a moment before they were read.
    is_fresh: bool,
}

impl<L, R, E> Reloader<L, R>
where
    L: FnMut(&FileSnapshot) -> Result<(), E>,
    R: FnMut(&FileState),
    E: Display,
{
    pub(super) fn new(
        path: PathBuf,
        path_kind: PathKind,
        limits: SizeLimits,
        load: L,
        report: R,
    ) -> Self {
        Reloader {
            path,
            path_kind,
            limits,
            load,
            report,
            known: ReloaderState::default(),
        }
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
        self.report_change(FileState::Stale(FileError::Changing {
            path: self.path.clone(),
        }));
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

    /// Whether the files had changed so shortly before the last look that another change may not show.
    pub(super) fn is_fresh(&self) -> bool {
        self.known.is_fresh
    }

    pub(super) fn scan(&self) -> Result<FileScan, FileError> {
        FileScan::of(&self.path, self.path_kind, self.limits)
    }

    /// What becomes of these contents; they may change while the loader reads them.
    fn load_snapshot(&mut self, snapshot: FileSnapshot) -> LookAttempt {
        let rejected = |reason: String| {
            LookAttempt::Unchanged(FileState::Stale(FileError::Rejected { reason }))
        };
        if self.known.loaded.as_ref() == Some(&snapshot) {
            return LookAttempt::Unchanged(FileState::Current);
        }
        if let Some((same, reason)) = &self.known.rejected
            && *same == snapshot
        {
            return rejected(reason.clone());
        }
        // A loader that panics on one file must not end the watch over all later ones.
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            (self.load)(&snapshot).map_err(|e| e.to_string())
        }))
        .unwrap_or_else(|_| {
            Err("the loader panicked on these contents: please report it".to_owned())
        });
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

/// What one try met.
enum LookAttempt {
    /// New contents, now in force.
    Loaded,
    /// Nothing new to put in force.
    Unchanged(FileState),
    /// Files that changed meanwhile.
    Changed,
}
