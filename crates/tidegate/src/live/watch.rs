//! Watches a file or folder on a thread of its own and hands its contents to a loader.
//!
//! A thin shell: `pace` says when to look, `intake` what to do with what is seen; here are only
//! the thread, the bell that wakes it and the clock. What was rung is a few flags and no queue, so a
//! storm of events takes no memory. Dropping the [`Watch`] stops the thread and waits for it.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidegate_core::units::Nanos;

use super::folders::Folders;
use super::intake::{Intake, Looked, Zeal};
use super::pace::{Next, Pace, Settle};
use super::snapshot::Snapshot;
use super::state::{State, Why};
use super::survey::{Limits, Pick, Shape, Survey};

/// How often to look where no events can be had (no inotify watches left, for example), so that a
/// change is still in force within about a second. Files at rest are not read for it.
const DEAF_POLL: Nanos = Nanos::from_secs(1);

/// What to watch, and how.
#[derive(Clone, Debug)]
pub struct Target {
    path: PathBuf,
    shape: Shape,
    limits: Limits,
    pace: Pace,
}

impl Target {
    /// A rules file, or a folder of them.
    pub fn rules(path: impl Into<PathBuf>) -> Self {
        let (path, pace) = (path.into(), Pace::default());
        Target {
            path,
            shape: Shape::FileOrFolder(Pick::Rules),
            limits: Limits::RULES,
            pace,
        }
    }

    /// With other files of a folder of rules. A keys file stays what it is.
    #[must_use]
    pub fn pick(mut self, pick: Pick) -> Self {
        if let Shape::FileOrFolder(picked) = &mut self.shape {
            *picked = pick;
        }
        self
    }

    /// A keys file.
    pub fn keys(path: impl Into<PathBuf>) -> Self {
        let (path, pace) = (path.into(), Pace::default());
        Target {
            path,
            shape: Shape::File,
            limits: Limits::KEYS,
            pace,
        }
    }

    /// Reads what is there now, once.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn read(&self) -> Result<Snapshot, Why> {
        Snapshot::take(&Survey::of(&self.path, self.shape, self.limits)?)
    }

    /// Watched at another pace.
    #[must_use]
    pub fn pace(self, pace: Pace) -> Self {
        Target { pace, ..self }
    }

    /// Read up to other limits.
    #[must_use]
    pub fn limits(self, limits: Limits) -> Self {
        Target { limits, ..self }
    }
}

/// A watch under way. Ends when dropped.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
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
        L: FnMut(&Snapshot) -> Result<(), E> + Send + 'static,
        E: Display + 'static,
        R: FnMut(&State) + Send + 'static,
    {
        let Target {
            path,
            shape,
            limits,
            pace,
        } = target;
        let path = std::path::absolute(path)?;
        let shared = Arc::new(Shared::default());
        let telling = Arc::clone(&shared);
        let tell = move |state: &State| {
            telling.told().state = Some(state.clone());
            report(state);
        };
        let ringing = Arc::clone(&shared);
        let folders = Folders::new(move || ringing.ring(|rung| rung.hint = true));
        let intake = Intake::new(path, shape, limits, load, tell);
        let mut watching = Watching {
            intake,
            folders,
            shared: Arc::clone(&shared),
            start: Instant::now(),
        };
        let mut settle = Settle::new(pace, watching.now());
        watching.look(&mut settle, pace, Zeal::Asked);
        let run = move || watching.run(settle, pace);
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
        self.shared.ring(|rung| rung.zeal = Some(Zeal::Reload));
    }

    /// To ask for a look from elsewhere, such as from another watch.
    pub fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.shared))
    }

    /// Whether what is on disk is in force, and if not, why.
    pub fn state(&self) -> State {
        let told = self.shared.told();
        told.state
            .clone()
            .expect("the first look, made before the watch exists, sets a state")
    }

    /// Why no events can be had, so that changes are found by polling alone; nothing if all is well.
    pub fn deaf(&self) -> Option<String> {
        self.shared.told().deaf.clone()
    }
}

/// Asks a watch for a look. Does not keep it alive, and asks nobody once it has ended: two watches
/// can hold each other's bells, while one that held the other would wait for its end.
#[derive(Clone, Debug)]
pub struct Bell(Arc<Shared>);

impl Bell {
    /// As [`Watch::poke`].
    pub fn poke(&self) {
        self.0.poke();
    }

    /// The same, and waits until that look is over. Whether it is after `patience`: then the state says what
    /// was found.
    pub fn look(&self, patience: Duration) -> bool {
        self.0.look(patience)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.ring(|rung| rung.stop = true);
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
struct Shared {
    rung: Mutex<Rung>,
    wake: Condvar,
    told: Mutex<Told>,
    looked: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    hint: bool,
    zeal: Option<Zeal>,
    stop: bool,
    /// How many looks were requested since the beginning.
    requests: u64,
}

#[derive(Debug, Default)]
struct Told {
    state: Option<State>,
    deaf: Option<String>,
    /// How many of the requested looks are over.
    looks: u64,
}

impl Shared {
    fn ring(&self, how: impl FnOnce(&mut Rung)) {
        how(&mut self.rung.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_one();
    }

    fn poke(&self) {
        self.ring(|rung| rung.zeal = rung.zeal.max(Some(Zeal::Asked)));
    }

    fn look(&self, patience: Duration) -> bool {
        let mut request = 0;
        self.ring(|rung| {
            rung.zeal = rung.zeal.max(Some(Zeal::Asked));
            rung.requests += 1;
            request = rung.requests;
        });
        let waiting = |told: &mut Told| told.looks < request;
        let waited = self
            .looked
            .wait_timeout_while(self.told(), patience, waiting);
        let (told, _) = waited.unwrap_or_else(PoisonError::into_inner);
        told.looks >= request
    }

    fn finish_looks(&self, requests: u64) {
        self.told().looks = requests;
        self.looked.notify_all();
    }

    /// Waits until someone rings or `span` has passed, and takes what was rung.
    fn wait(&self, span: Nanos) -> Rung {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let silent = |rung: &mut Rung| !rung.hint && rung.zeal.is_none() && !rung.stop;
        let waited = self.wake.wait_timeout_while(rung, span.duration(), silent);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let requests = rung.requests;
        let taken = std::mem::take(&mut *rung);
        rung.requests = requests;
        taken
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread owns.
struct Watching<L, R> {
    intake: Intake<L, R>,
    folders: Folders,
    shared: Arc<Shared>,
    start: Instant,
}

impl<L, R, E> Watching<L, R>
where
    L: FnMut(&Snapshot) -> Result<(), E>,
    R: FnMut(&State),
    E: Display,
{
    fn run(mut self, mut settle: Settle, pace: Pace) {
        let mut zeal = Zeal::Hinted;
        loop {
            let span = match settle.next(self.now()) {
                Next::Look => Nanos::ZERO,
                Next::WaitUntil(at) => at.since(self.now()),
            };
            let Rung {
                hint,
                zeal: asked,
                stop,
                requests,
            } = self.shared.wait(span);
            if stop {
                return;
            }
            if hint {
                settle.hint(self.now());
            }
            if let Some(asked) = asked {
                zeal = zeal.max(asked);
                settle.poke();
            }
            if settle.next(self.now()) == Next::Look {
                self.look(&mut settle, pace, zeal);
                zeal = Zeal::Hinted;
                self.shared.finish_looks(requests);
            }
        }
    }

    /// Listens before reading, so that no change falls between; and once more after, because a
    /// link may have been turned meanwhile.
    fn look(&mut self, settle: &mut Settle, pace: Pace, zeal: Zeal) {
        settle.looking(self.now());
        let path: &Path = &self.intake.path.clone();
        self.folders.follow(path);
        let looked = self.intake.look(zeal);
        if self.folders.follow(path) || looked == Looked::Restless {
            settle.hint(self.now());
        }
        let deaf = self.folders.deaf();
        settle.poll_every(if deaf.is_some() {
            pace.poll.min(DEAF_POLL)
        } else {
            pace.poll
        });
        self.shared.told().deaf = deaf.map(str::to_owned);
    }

    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}
