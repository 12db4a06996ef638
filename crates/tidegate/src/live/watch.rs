//! Watches a file or folder on a thread of its own and hands its contents to a loader.
//!
//! A thin shell: `debounce` says when to look, `reloader` what to do with what is seen; here are only
//! the thread, the bell that wakes it and the clock. Whether something has changed is found by surveys, a few times a second:
//! events of the kernel are missing for some mounts and for folders further up. Dropping the [`Watch`] stops the thread and
//! waits for it.

use std::fmt::Display;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_core::units::Nanos;

use super::debounce::{Debouncer, NextLook, WatchTiming};
use super::file_state::{FileError, FileState};
use super::reloader::{LookMode, LookOutcome, Reloader};
use super::scan::{FileFilter, FileScan, PathKind, SizeLimits};
use super::snapshot::FileSnapshot;

/// Surveys take no more than this part of the time, however many files there are.
const SCAN_TIME_SHARE: u64 = 20;

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    path_kind: PathKind,
    limits: SizeLimits,
    timing: WatchTiming,
}

impl Target {
    /// A rules file, or a folder of them.
    pub fn rules(path: impl Into<PathBuf>) -> Self {
        let (path, timing) = (path.into(), WatchTiming::default());
        Target {
            path,
            path_kind: PathKind::FileOrFolder(FileFilter::Rules),
            limits: SizeLimits::RULES,
            timing,
        }
    }

    /// With other files of a folder of rules. A keys file stays what it is.
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
        Target {
            path,
            path_kind: PathKind::File,
            limits: SizeLimits::KEYS,
            timing,
        }
    }

    /// Reads what is there now, once.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(&self) -> Result<FileSnapshot, FileError> {
        FileSnapshot::read(&FileScan::of(&self.path, self.path_kind, self.limits)?)
    }

    /// Watched at another pace.
    #[must_use]
    pub fn timing(self, timing: WatchTiming) -> Self {
        Target { timing, ..self }
    }

    /// Read up to other limits.
    #[must_use]
    pub fn limits(self, limits: SizeLimits) -> Self {
        Target { limits, ..self }
    }
}

/// A watch under way. Ends when dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<WatchShared>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks once, here and now, then goes on watching in the background.
    ///
    /// `load` gets complete contents that differ from the last; what it refuses is not handed
    /// over again until it changes or someone asks. `report` hears of all that was taken, and of
    /// every other change of state once, also of the first. When this returns, [`state`](Self::state) says whether the first look succeeded; it
    /// is for the caller to decide whether to start without. Fails only if no thread can be had.
    pub fn start<L, E, R>(target: Target, load: L, mut report: R) -> io::Result<Self>
    where
        L: FnMut(&FileSnapshot) -> Result<(), E> + Send + 'static,
        E: Display + 'static,
        R: FnMut(&FileState) + Send + 'static,
    {
        let Target {
            path,
            path_kind: shape,
            limits,
            timing: pace,
        } = target;
        let path = std::path::absolute(path)?;
        let shared = Arc::new(WatchShared::default());
        let shared_status = Arc::clone(&shared);
        let report_state = move |state: &FileState| {
            shared_status.status().state = Some(state.clone());
            report(state);
        };
        let reloader = Reloader::new(path, shape, limits, load, report_state);
        let mut worker = WatchThread {
            reloader,
            last_scan: None,
            scan_duration: Nanos::ZERO,
            shared: Arc::clone(&shared),
            start: Instant::now(),
        };
        let mut debouncer = Debouncer::new(pace, worker.now());
        worker.has_changed();
        worker.look(&mut debouncer, LookMode::Requested);
        let run = move || worker.run(debouncer);
        let thread = thread::Builder::new()
            .name("tidegate-watch".to_owned())
            .spawn(run)?;
        Ok(Watch {
            shared,
            thread: Some(thread),
        })
    }

    /// Looks now, without waiting for quiet: on SIGHUP, or when an operator asks. What was refused
    /// is handed over once more: what the loader holds it against may have changed.
    pub fn poke(&self) {
        self.shared.poke();
    }

    /// Looks now and hands over even what is unchanged: because what the loader makes of it may
    /// have (keys name tiers, and the rules say which tiers there are).
    pub fn reload(&self) {
        self.shared.wake(|wake| wake.mode = Some(LookMode::Reload));
    }

    /// To ask for a look from elsewhere, such as from another watch.
    pub fn handle(&self) -> WatchHandle {
        WatchHandle(Arc::clone(&self.shared))
    }

    /// Whether what is on disk is in force, and if not, why.
    pub fn state(&self) -> FileState {
        let status = self.shared.status();
        status
            .state
            .clone()
            .expect("the first look, made before the watch exists, sets a state")
    }
}

/// Asks a watch for a look. Does not keep it alive, and asks nobody once it has ended: two watches
/// can hold each other's bells, while one that held the other would wait for its end.
#[derive(Clone, Debug)]
pub struct WatchHandle(Arc<WatchShared>);

impl WatchHandle {
    /// As [`Watch::poke`].
    pub fn poke(&self) {
        self.0.poke();
    }

    /// The same, and waits until that look is over. Whether it is after `timeout`: then the state says what
    /// was found.
    pub fn look(&self, timeout: Duration) -> bool {
        self.0.look(timeout)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.wake(|wake| wake.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic in `report` has been printed by its thread; there is no one left to tell.
            let _ = thread.join();
        }
    }
}

/// What the thread and the handle both see.
#[derive(Debug, Default)]
struct WatchShared {
    wake_request: Mutex<WakeRequest>,
    wake: Condvar,
    status: Mutex<WatchStatus>,
    looked: Condvar,
}

#[derive(Debug, Default)]
struct WakeRequest {
    mode: Option<LookMode>,
    stop: bool,
    /// How many looks were requested since the beginning.
    requests: u64,
}

#[derive(Debug, Default)]
struct WatchStatus {
    state: Option<FileState>,
    /// How many of the requested looks are over.
    looks: u64,
}

impl WatchShared {
    fn wake(&self, how: impl FnOnce(&mut WakeRequest)) {
        how(&mut self
            .wake_request
            .lock()
            .unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    fn poke(&self) {
        self.wake(|wake| wake.mode = wake.mode.max(Some(LookMode::Requested)));
    }

    fn look(&self, timeout: Duration) -> bool {
        let mut request = 0;
        self.wake(|wake| {
            wake.mode = wake.mode.max(Some(LookMode::Requested));
            wake.requests += 1;
            request = wake.requests;
        });
        let waiting = |status: &mut WatchStatus| status.looks < request;
        let waited = self
            .looked
            .wait_timeout_while(self.status(), timeout, waiting);
        let (status, _) = waited.unwrap_or_else(PoisonError::into_inner);
        status.looks >= request
    }

    fn finish_looks(&self, requests: u64) {
        self.status().looks = requests;
        self.looked.notify_all();
    }

    /// Waits until someone rings or `span` has passed, and takes what was rung.
    fn wait(&self, span: Nanos) -> WakeRequest {
        let wake = self
            .wake_request
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let silent = |wake: &mut WakeRequest| wake.mode.is_none() && !wake.stop;
        let waited = self.wake.wait_timeout_while(wake, span.duration(), silent);
        let (mut wake, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let requests = wake.requests;
        let taken = std::mem::take(&mut *wake);
        wake.requests = requests;
        taken
    }

    fn status(&self) -> MutexGuard<'_, WatchStatus> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread owns.
struct WatchThread<L, R> {
    reloader: Reloader<L, R>,
    /// What was there at the last survey.
    last_scan: Option<Result<FileScan, FileError>>,
    scan_duration: Nanos,
    shared: Arc<WatchShared>,
    start: Instant,
}

impl<L, R, E> WatchThread<L, R>
where
    L: FnMut(&FileSnapshot) -> Result<(), E>,
    R: FnMut(&FileState),
    E: Display,
{
    fn run(mut self, mut debouncer: Debouncer) {
        let mut mode = LookMode::Hinted;
        loop {
            let span = match debouncer.next_look(self.now()) {
                NextLook::Look => Nanos::ZERO,
                NextLook::WaitUntil(at) => at.since(self.now()),
            };
            let WakeRequest {
                mode: requested,
                stop,
                requests,
            } = self.shared.wait(span.min(self.scan_interval(&debouncer)));
            if stop {
                return;
            }
            if self.has_changed() {
                debouncer.hint(self.now());
            }
            if let Some(requested) = requested {
                mode = mode.max(requested);
                debouncer.poke();
            }
            if debouncer.next_look(self.now()) == NextLook::Look {
                self.look(&mut debouncer, mode);
                mode = LookMode::Hinted;
                self.shared.finish_looks(requests);
            }
        }
    }

    fn look(&mut self, debouncer: &mut Debouncer, mode: LookMode) {
        debouncer.look_started(self.now());
        if self.reloader.look(mode) == LookOutcome::Unstable {
            debouncer.hint(self.now());
        }
        debouncer.look_finished(self.reloader.is_fresh());
    }

    /// Whether a survey finds something else than the last one.
    fn has_changed(&mut self) -> bool {
        let began = self.now();
        let now = Some(self.reloader.scan());
        self.scan_duration = self.now().since(began);
        std::mem::replace(&mut self.last_scan, now) != self.last_scan
    }

    fn scan_interval(&self, debouncer: &Debouncer) -> Nanos {
        let min = self.scan_duration.get().saturating_mul(SCAN_TIME_SHARE);
        debouncer.scan_interval().max(Nanos::new(min))
    }

    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}
