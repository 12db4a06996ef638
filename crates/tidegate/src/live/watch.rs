//! Watches a file or folder on a thread of its own and hands its contents to a loader.
//!
//! A thin shell: `pace` says when to look, `intake` what to do with what is seen; here are only
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

use super::intake::{Intake, Looked, Zeal};
use super::pace::{Next, Pace, Settle};
use super::snapshot::Snapshot;
use super::state::{State, Why};
use super::survey::{Limits, Pick, Shape, Survey};

/// Surveys take no more than this part of the time, however many files there are.
const SURVEY_SHARE: u64 = 20;

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
        let intake = Intake::new(path, shape, limits, load, tell);
        let mut watching = Watching {
            intake,
            seen: None,
            survey_took: Nanos::ZERO,
            shared: Arc::clone(&shared),
            start: Instant::now(),
        };
        let mut settle = Settle::new(pace, watching.now());
        watching.has_changed();
        watching.look(&mut settle, Zeal::Asked);
        let run = move || watching.run(settle);
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
    zeal: Option<Zeal>,
    stop: bool,
    /// How many looks were requested since the beginning.
    requests: u64,
}

#[derive(Debug, Default)]
struct Told {
    state: Option<State>,
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
        let silent = |rung: &mut Rung| rung.zeal.is_none() && !rung.stop;
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
    /// What was there at the last survey.
    seen: Option<Result<Survey, Why>>,
    survey_took: Nanos,
    shared: Arc<Shared>,
    start: Instant,
}

impl<L, R, E> Watching<L, R>
where
    L: FnMut(&Snapshot) -> Result<(), E>,
    R: FnMut(&State),
    E: Display,
{
    fn run(mut self, mut settle: Settle) {
        let mut zeal = Zeal::Hinted;
        loop {
            let span = match settle.next(self.now()) {
                Next::Look => Nanos::ZERO,
                Next::WaitUntil(at) => at.since(self.now()),
            };
            let Rung {
                zeal: asked,
                stop,
                requests,
            } = self.shared.wait(span.min(self.survey_every(&settle)));
            if stop {
                return;
            }
            if self.has_changed() {
                settle.hint(self.now());
            }
            if let Some(asked) = asked {
                zeal = zeal.max(asked);
                settle.poke();
            }
            if settle.next(self.now()) == Next::Look {
                self.look(&mut settle, zeal);
                zeal = Zeal::Hinted;
                self.shared.finish_looks(requests);
            }
        }
    }

    fn look(&mut self, settle: &mut Settle, zeal: Zeal) {
        settle.looking(self.now());
        if self.intake.look(zeal) == Looked::Restless {
            settle.hint(self.now());
        }
        settle.looked(self.intake.is_fresh());
    }

    /// Whether a survey finds something else than the last one.
    fn has_changed(&mut self) -> bool {
        let began = self.now();
        let now = Some(self.intake.survey());
        self.survey_took = self.now().since(began);
        std::mem::replace(&mut self.seen, now) != self.seen
    }

    fn survey_every(&self, settle: &Settle) -> Nanos {
        let least = self.survey_took.get().saturating_mul(SURVEY_SHARE);
        settle.survey_every().max(Nanos::new(least))
    }

    fn now(&self) -> Nanos {
        self.start.elapsed().into()
    }
}
