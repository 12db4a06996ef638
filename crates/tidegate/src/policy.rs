//! What a limiter decides by: the rules in force and the keys they apply to, always swapped as one.
//!
//! [`Policy::load`] reads them from disk; a [`Follower`] keeps a limiter's policy as the files say.
//! Kept true: a policy is complete or does not come into force, the keys' tiers are the tiers of the
//! very rules beside them, and whatever happens to the files, the last good policy stays.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::rules::{Faults, RuleSet, SourceFile, parse};

use crate::identity::keys::KeysError;
use crate::identity::{Canon, KeyTable};
use crate::live::{Live, Snapshot, State, Target, Watch, Why};

/// The rules and keys of one moment.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules.
    pub rules: Arc<RuleSet>,
    /// The listed keys, if there is a list.
    pub keys: Option<Arc<KeyTable>>,
    /// Where the keys came from.
    keys_path: Option<PathBuf>,
    canon: Canon,
}

/// Why a policy cannot come into force.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file is missing, too large or not a file.
    #[error(transparent)]
    Files(#[from] Why),
    /// A file cannot be read.
    #[error("{0}; check the path and its permissions")]
    Read(io::Error),
    /// The rules have faults.
    #[error(transparent)]
    Rules(#[from] Faults),
    /// The keys have faults.
    #[error(transparent)]
    Keys(#[from] KeysError),
}

impl Policy {
    /// Rules without a list of keys.
    pub fn of(rules: RuleSet) -> Self {
        Policy {
            canon: canon(&rules),
            rules: Arc::new(rules),
            keys: None,
            keys_path: None,
        }
    }

    /// The same rules with a list of keys, whose tiers must be those of the rules.
    #[must_use]
    pub fn with_keys(mut self, keys: KeyTable) -> Self {
        self.keys = Some(Arc::new(keys));
        self
    }

    /// Reads a rules file, or a folder of them, and the keys file they name.
    ///
    /// # Errors
    /// Every fault of the files at once.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let snapshot = Target::rules(path).read()?;
        let texts = texts(&snapshot).map_err(LoadError::Read)?;
        Policy::parse(path, &texts, None)
    }

    /// The form in which addresses are counted.
    pub fn canon(&self) -> Canon {
        self.canon
    }

    /// Rules from texts already read. Keys are read only if they are not those of `last`.
    fn parse(
        path: &Path,
        texts: &[(String, String)],
        last: Option<&Policy>,
    ) -> Result<Self, LoadError> {
        let files: Vec<SourceFile<'_>> = texts
            .iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        let rules = parse(&files)?;
        let keys_path = rules.keys_file().map(|keys| beside(path, keys));
        let unchanged =
            last.filter(|last| last.keys_path == keys_path && last.rules.tiers() == rules.tiers());
        let keys = match (unchanged, &keys_path) {
            (Some(last), _) => last.keys.clone(),
            (None, None) => None,
            (None, Some(path)) => Some(Arc::new(read_keys(path, &rules)?)),
        };
        Ok(Policy {
            canon: canon(&rules),
            rules: Arc::new(rules),
            keys,
            keys_path,
        })
    }
}

/// How these rules tell one address from another.
fn canon(rules: &RuleSet) -> Canon {
    Canon::new(rules.identity().ipv6_prefix).expect("the rules' prefix was checked when read")
}

/// A keys file is named relative to the rules that name it.
fn beside(rules: &Path, keys: &str) -> PathBuf {
    let folder = if rules.is_dir() {
        Some(rules)
    } else {
        rules.parent()
    };
    folder.map_or_else(|| keys.into(), |folder| folder.join(keys))
}

fn read_keys(path: &Path, rules: &RuleSet) -> Result<KeyTable, LoadError> {
    let snapshot = Target::keys(path).read()?;
    keys_of(path, &snapshot, rules)
}

fn keys_of(path: &Path, snapshot: &Snapshot, rules: &RuleSet) -> Result<KeyTable, LoadError> {
    let name = path.display().to_string();
    let part = snapshot
        .parts()
        .first()
        .expect("a snapshot of one file has one part");
    let reader = part.open().map_err(LoadError::Read)?;
    Ok(KeyTable::read(&name, reader, rules.tiers())?)
}

/// What happened to the files of a policy.
#[derive(Clone, Copy, Debug)]
pub enum News<'a> {
    /// The rules changed, or cannot be used.
    Rules(&'a State),
    /// The keys changed, or cannot be used.
    Keys(&'a State),
}

/// Keeps a policy as its files say, until dropped.
#[derive(Debug)]
pub struct Follower {
    rules: Watch,
    keys: Arc<KeysWatch>,
}

type Report = Arc<dyn Fn(News<'_>) + Send + Sync>;

impl Follower {
    /// Follows the rules at `path` and the keys file they name. `report` hears of every change.
    ///
    /// # Errors
    /// When no thread can be had.
    pub fn start(
        live: Arc<Live<Policy>>,
        path: &Path,
        report: impl Fn(News<'_>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let report: Report = Arc::new(report);
        let keys = Arc::new(KeysWatch {
            live: Arc::clone(&live),
            report: Arc::clone(&report),
            watch: Mutex::new(None),
        });
        let (following, root) = (Arc::clone(&keys), path.to_owned());
        let load = move |snapshot: &Snapshot| -> Result<(), String> {
            let texts = texts(snapshot).map_err(|error| error.to_string())?;
            let make = || Policy::parse(&root, &texts, Some(live.load().value()));
            live.replace_with(make).map_err(|error| error.to_string())?;
            following.follow(live.load().keys_path.as_deref());
            Ok(())
        };
        let rules = Watch::start(Target::rules(path), load, move |state| {
            report(News::Rules(state));
        })?;
        Ok(Follower { rules, keys })
    }

    /// Looks at the files now: on SIGHUP, or when an operator asks.
    pub fn poke(&self) {
        self.rules.poke();
        if let Some((_, watch)) = &*self.keys.watch.lock() {
            watch.poke();
        }
    }

    /// Whether the rules on disk are those in force, and if not, why.
    pub fn rules_state(&self) -> State {
        self.rules.state()
    }
}

fn texts(snapshot: &Snapshot) -> io::Result<Vec<(String, String)>> {
    let read = |part: &crate::live::Part| Ok((part.path().display().to_string(), part.text()?));
    snapshot.parts().iter().map(read).collect()
}

/// The watch over the keys file, wherever the rules of the moment say it is.
struct KeysWatch {
    live: Arc<Live<Policy>>,
    report: Report,
    watch: Mutex<Option<(PathBuf, Watch)>>,
}

impl KeysWatch {
    fn follow(&self, path: Option<&Path>) {
        let mut watch = self.watch.lock();
        if watch.as_ref().map(|(watched, _)| &**watched) == path {
            return;
        }
        *watch = path.and_then(|path| Some((path.to_owned(), self.start(path).ok()?)));
    }

    fn start(&self, path: &Path) -> io::Result<Watch> {
        let (live, report) = (Arc::clone(&self.live), Arc::clone(&self.report));
        let watched = path.to_owned();
        let load = move |snapshot: &Snapshot| -> Result<(), String> {
            let make = || Self::replaced(&live, &watched, snapshot);
            live.replace_with(make).map(drop)
        };
        Watch::start(Target::keys(path), load, move |state| {
            report(News::Keys(state))
        })
    }

    /// The policy in force with the keys of `snapshot`.
    fn replaced(live: &Live<Policy>, path: &Path, snapshot: &Snapshot) -> Result<Policy, String> {
        let mut policy = live.load().value().clone();
        if policy.keys_path.as_deref() != Some(path) {
            return Err("the rules no longer name this keys file".to_owned());
        }
        let keys = keys_of(path, snapshot, &policy.rules).map_err(|error| error.to_string())?;
        policy.keys = Some(Arc::new(keys));
        Ok(policy)
    }
}

impl std::fmt::Debug for KeysWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeysWatch").finish_non_exhaustive()
    }
}
