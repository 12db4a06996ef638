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

use super::snapshot::Snapshot;
use super::state::{State, Why};
use super::survey::{Limits, Shape, Survey};

/// How often one look tries to catch a file at rest before it leaves it to the next.
const TRIES: usize = 3;

/// How hard to look.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Zeal {
    /// After a hint: files that bear their old times need not be read again.
    Hinted,
    /// Someone asked: read whatever the times say, and try again what was refused.
    Asked,
    /// Someone asked to load again what may be unchanged.
    Reload,
}

/// How a look ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Looked {
    /// The state says what was found.
    Settled,
    /// The files moved all the while: look again soon.
    Restless,
}

pub(super) struct Intake<L, R> {
    pub(super) path: PathBuf,
    pub(super) shape: Shape,
    pub(super) limits: Limits,
    pub(super) load: L,
    pub(super) report: R,
    memory: Memory,
}

/// What earlier looks found.
#[derive(Default)]
struct Memory {
    state: Option<State>,
    /// The contents in force.
    taken: Option<Snapshot>,
    /// Contents the loader did not take, and what it said.
    refused: Option<(Snapshot, String)>,
    /// A survey that, met again, proves that nothing changed.
    proof: Option<Survey>,
    /// Whether files were touched a moment before they were read.
    is_fresh: bool,
}

impl<L, R, E> Intake<L, R>
where
    L: FnMut(&Snapshot) -> Result<(), E>,
    R: FnMut(&State),
    E: Display,
{
    pub(super) fn new(path: PathBuf, shape: Shape, limits: Limits, load: L, report: R) -> Self {
        Intake {
            path,
            shape,
            limits,
            load,
            report,
            memory: Memory::default(),
        }
    }

    pub(super) fn look(&mut self, zeal: Zeal) -> Looked {
        if zeal >= Zeal::Asked {
            self.memory.refused = None;
        }
        if zeal == Zeal::Reload {
            self.memory.taken = None;
        }
        for _ in 0..TRIES {
            match self.try_once(zeal) {
                Ok(Tried::Taken) => return self.tell(State::Current),
                Ok(Tried::AtRest(state)) => return self.settle(state),
                Ok(Tried::Moved) => {}
                Err(why) => {
                    self.memory.proof = None;
                    return self.settle(State::Stale(why));
                }
            }
        }
        self.memory.proof = None;
        self.settle(State::Stale(Why::Restless {
            path: self.path.clone(),
        }));
        Looked::Restless
    }

    fn try_once(&mut self, zeal: Zeal) -> Result<Tried, Why> {
        let seen_at = SystemTime::now();
        self.memory.is_fresh = false;
        let survey = self.survey()?;
        if let (Zeal::Hinted, Some(state)) = (zeal, &self.memory.state)
            && self.memory.proof.as_ref() == Some(&survey)
        {
            return Ok(Tried::AtRest(state.clone()));
        }
        self.memory.is_fresh = survey.is_fresh(seen_at);
        let read = Snapshot::take(&survey);
        if self.survey()? != survey {
            return Ok(Tried::Moved);
        }
        let tried = self.hand_over(read?);
        if !matches!(tried, Tried::Moved) {
            self.memory.proof = survey.is_proof(seen_at).then_some(survey);
        }
        Ok(tried)
    }

    /// Whether the files had changed so shortly before the last look that another change may not show.
    pub(super) fn is_fresh(&self) -> bool {
        self.memory.is_fresh
    }

    pub(super) fn survey(&self) -> Result<Survey, Why> {
        Survey::of(&self.path, self.shape, self.limits)
    }

    /// What becomes of these contents; they may change while the loader reads them.
    fn hand_over(&mut self, snapshot: Snapshot) -> Tried {
        let refused = |reason: String| Tried::AtRest(State::Stale(Why::Refused { reason }));
        if self.memory.taken.as_ref() == Some(&snapshot) {
            return Tried::AtRest(State::Current);
        }
        if let Some((same, reason)) = &self.memory.refused
            && *same == snapshot
        {
            return refused(reason.clone());
        }
        // A loader that panics on one file must not end the watch over all later ones.
        let loaded = catch_unwind(AssertUnwindSafe(|| {
            (self.load)(&snapshot).map_err(|e| e.to_string())
        }))
        .unwrap_or_else(|_| {
            Err("the loader panicked on these contents: please report it".to_owned())
        });
        if snapshot.is_torn() {
            return Tried::Moved;
        }
        match loaded {
            Ok(()) => {
                self.memory.taken = Some(snapshot);
                Tried::Taken
            }
            Err(reason) => {
                self.memory.refused = Some((snapshot, reason.clone()));
                refused(reason)
            }
        }
    }

    fn settle(&mut self, state: State) -> Looked {
        if self.memory.state.as_ref() == Some(&state) {
            return Looked::Settled;
        }
        self.tell(state)
    }

    fn tell(&mut self, state: State) -> Looked {
        (self.report)(&state);
        self.memory.state = Some(state);
        Looked::Settled
    }
}

/// What one try met.
enum Tried {
    /// New contents, now in force.
    Taken,
    /// Nothing new to put in force.
    AtRest(State),
    /// Files that changed meanwhile.
    Moved,
}
