//! Watches a file or folder on its own thread and passes its contents to a loader.
//!
//! A thin shell: `debounce` decides when to look, `reloader` what to do with the contents. This module has only the
//! thread, its wake-up and the clock. Changes are found by scans, a few times a second: kernel events are missing
//! for some mounts and for ancestor folders. Dropping the [`Watch`] stops the thread and waits for it.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidegate_core::units::Nanos;

use super::debounce::{Debouncer, NextLook};
use super::file_state::{FileError, FileState};
use super::reloader::{LookMode, LookOutcome, Reloader};
use super::scan::FileScan;
use super::snapshot::FileSnapshot;
use super::target::Target;

/// Scans take at most a twentieth of the time, however many files there are: after a scan there is a pause of this
/// many times its duration.
const SCAN_TIME_SHARE: u64 = 20;

/// A running watch. It ends when dropped.
#[derive(Debug)]
pub struct Watch {
    handle: WatchHandle,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Looks once before it returns, then continues in the background.
    ///
    /// `load` gets complete contents that differ from the last. Rejected contents are not loaded again until they
    /// change or a look is requested. `report` is called for every load, and once for every other change of state,
    /// including the first. After `start`, [`state`](Self::state) shows whether the first look succeeded; the caller
    /// decides whether to go on without. `start` fails only if no thread can be started.
    pub fn start<L, E, R>(target: Target, load: L, mut report: R) -> io::Result<Self>
    where
        L: FnMut(&FileSnapshot) -> Result<(), E> + Send + 'static,
        E: Display + 'static,
        R: FnMut(&FileState) + Send + 'static,
    {
        let Target { path, path_kind, limits, timing } = target;
        let path = std::path::absolute(path)?;
        let shared = Arc::new(WatchShared::default());
        let shared_status = Arc::clone(&shared);
        let report_state = move |state: &FileState| {
            shared_status.status.lock().state = Some(state.clone());
            report(state);
        };
        let reloader = Reloader::new(path, path_kind, limits, load, report_state);
        let mut worker = WatchThread {
            reloader,
            last_scan: None,
            scan_duration: Nanos::ZERO,
            shared: Arc::clone(&shared),
            start: Instant::now(),
        };
        let mut debouncer = Debouncer::new(timing, worker.now());
        worker.has_changed();
        worker.look(&mut debouncer, LookMode::Requested);
        let run = move || worker.run(debouncer);
        let thread = thread::Builder::new().name("tidegate-watch".to_owned()).spawn(run)?;
        Ok(Watch { handle: WatchHandle(shared), thread: Some(thread) })
    }

    /// Looks now, without waiting for quiet: on SIGHUP, or at an operator's request. Rejected contents are loaded
    /// again: the state that the loader checks them against may have changed.
    pub fn poke(&self) {
        self.handle.poke();
    }

    /// Looks now and loads even unchanged contents, because the result of a load may have changed (keys name tiers,
    /// and the rules define the tiers).
    pub fn reload(&self) {
        self.handle.0.wake(|request| request.mode = Some(LookMode::Reload));
    }

    /// A handle to request a look from elsewhere, such as from another watch.
    pub fn handle(&self) -> WatchHandle {
        self.handle.clone()
    }

    /// Whether the contents on disk are in force, and if not, why.
    pub fn state(&self) -> FileState {
        let state = self.handle.0.status.lock().state.clone();
        state.expect("the first look sets a state before the watch exists")
    }
}

/// Requests looks of a watch. It does not keep the watch alive, and does nothing once the watch has ended. So two
/// watches can hold each other's handles; a watch that owned the other would wait for its end.
#[derive(Clone, Debug)]
pub struct WatchHandle(Arc<WatchShared>);

impl WatchHandle {
    /// As [`Watch::poke`].
    pub fn poke(&self) {
        self.0.wake(|request| request.mode = request.mode.max(Some(LookMode::Requested)));
    }

    /// As `poke`, and waits until that look has finished, at most for `timeout`. Returns whether it has; the state
    /// then describes the result.
    pub fn look(&self, timeout: Duration) -> bool {
        let mut number = 0;
        self.0.wake(|request| {
            request.mode = request.mode.max(Some(LookMode::Requested));
            request.requests += 1;
            number = request.requests;
        });
        let mut status = self.0.status.lock();
        self.0.looked.wait_while_for(&mut status, |status| status.looks < number, timeout);
        status.looks >= number
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.handle.0.wake(|request| request.stop = true);
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != thread::current().id()
        {
            // A panic in `report` has been printed by its thread; there is no other place to report it.
            let _ = thread.join();
        }
    }
}

/// The state that the thread and the handles share.
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
    /// The number of looks requested since the start.
    requests: u64,
}

#[derive(Debug, Default)]
struct WatchStatus {
    state: Option<FileState>,
    /// The number of requested looks that have finished.
    looks: u64,
}

impl WatchShared {
    fn wake(&self, set: impl FnOnce(&mut WakeRequest)) {
        set(&mut self.wake_request.lock());
        self.wake.notify_one();
    }

    fn finish_looks(&self, requests: u64) {
        self.status.lock().looks = requests;
        self.looked.notify_all();
    }

    /// Waits until the thread is woken or `span` has passed, and takes the request.
    fn wait(&self, span: Nanos) -> WakeRequest {
        let mut request = self.wake_request.lock();
        let is_idle = |request: &mut WakeRequest| request.mode.is_none() && !request.stop;
        self.wake.wait_while_for(&mut request, is_idle, span.duration());
        let requests = request.requests;
        std::mem::replace(&mut request, WakeRequest { requests, ..WakeRequest::default() })
    }
}

/// The state that the thread owns.
struct WatchThread<L, R> {
    reloader: Reloader<L, R>,
    /// The result of the last scan.
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
            let WakeRequest { mode: requested, stop, requests } =
                self.shared.wait(span.min(self.scan_interval(&debouncer)));
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

    /// Whether a scan differs from the last one.
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
