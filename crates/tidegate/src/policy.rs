//! What a limiter decides by: the rules in force and the keys they apply to, always swapped as one.
//!
//! [`Policy::load`] reads them from disk; a [`Follower`] keeps a limiter's policy as the files say.
//! Kept true: a policy is complete or does not come into force, the keys' tiers are the tiers of the
//! very rules beside them, and whatever happens to the files, the last good policy stays. Files that
//! are valid only together come into force together, in whatever order they were saved.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tidegate_core::rules::{Faults, RuleSet, SourceFile, parse};

use crate::identity::keys::KeysError;
use crate::identity::{Canon, KeyTable};
use crate::live::{Bell, Live, Snapshot, State, Target, Watch, Why};

/// The rules and keys of one moment.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules.
    pub rules: Arc<RuleSet>,
    /// The listed keys, if there is a list.
    pub keys: Option<Arc<KeyTable>>,
    /// Where the keys came from.
    keys_path: Option<PathBuf>,
    digest: [u8; 32],
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
    /// Rules without a list of keys. Their texts are not known here, so the digest is of nothing.
    pub fn of(rules: RuleSet) -> Self {
        Draft {
            rules,
            keys_path: None,
            digest: digest(&[]),
        }
        .with(None)
    }

    /// Rules from texts, without a list of keys.
    ///
    /// # Errors
    /// Every fault of the texts at once.
    pub fn parse(files: &[SourceFile<'_>]) -> Result<Self, Faults> {
        let draft = Draft {
            rules: parse(files)?,
            keys_path: None,
            digest: digest(files),
        };
        Ok(draft.with(None))
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
        Draft::parse(path, &texts)?.read_keys()
    }

    /// The form in which addresses are counted.
    pub fn canon(&self) -> Canon {
        self.canon
    }

    /// Which rules these are: a SHA-256 over the names and texts of their files, wherever the files
    /// are kept. Nodes with equal digests decide by equal rules.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Rules that are good in themselves, before the keys they name are looked at.
struct Draft {
    rules: RuleSet,
    keys_path: Option<PathBuf>,
    digest: [u8; 32],
}

impl Draft {
    fn parse(path: &Path, texts: &[(String, String)]) -> Result<Self, Faults> {
        let files: Vec<SourceFile<'_>> = texts
            .iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        let rules = parse(&files)?;
        Ok(Draft {
            keys_path: rules.keys_file().map(|keys| beside(path, keys)),
            digest: digest(&files),
            rules,
        })
    }

    /// Whether the keys of `last` mean the same under these rules.
    fn can_keep_keys_of(&self, last: &Policy) -> bool {
        last.keys_path == self.keys_path && last.rules.tiers() == self.rules.tiers()
    }

    fn read_keys(self) -> Result<Policy, LoadError> {
        let keys = match &self.keys_path {
            None => None,
            Some(path) => Some(Arc::new(read_keys(path, &self.rules)?)),
        };
        Ok(self.with(keys))
    }

    fn with(self, keys: Option<Arc<KeyTable>>) -> Policy {
        Policy {
            canon: canon(&self.rules),
            rules: Arc::new(self.rules),
            keys,
            keys_path: self.keys_path,
            digest: self.digest,
        }
    }
}

/// Each part preceded by its length, so that no two sets of files read the same.
fn digest(files: &[SourceFile<'_>]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for file in files {
        let name = Path::new(file.name).file_name().unwrap_or_default();
        for part in [name.as_encoded_bytes(), file.text.as_bytes()] {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
    }
    hash.finalize().into()
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
    /// The rules came into force, or cannot be used.
    Rules(&'a State),
    /// The keys came into force, or cannot be used.
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
    /// Follows the rules at `path` and the keys file they name. `report` hears of all that comes
    /// into force, and once of what does not.
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
            tie: Arc::default(),
            watches: Mutex::default(),
        });
        let (following, root) = (Arc::clone(&keys), path.to_owned());
        let load = move |snapshot: &Snapshot| load_rules(&live, &root, &following, snapshot);
        let following = Arc::clone(&keys);
        let rules = Watch::start(Target::rules(path), load, move |state| {
            if *state == State::Current {
                following.stop_awaiting();
            }
            report(News::Rules(state));
        })?;
        keys.tie.connect(&rules);
        Ok(Follower { rules, keys })
    }

    /// Looks at the files now, also at those refused before: on SIGHUP, or when an operator asks.
    pub fn poke(&self) {
        self.rules.poke();
        match &self.keys.watches.lock().in_force {
            Some((_, watch)) => watch.poke(),
            // A watch that could not be started is started with the rules, if they name keys.
            None if self.keys_state().is_some() => self.rules.reload(),
            None => {}
        }
    }

    /// Whether the rules on disk are those in force, and if not, why.
    pub fn rules_state(&self) -> State {
        self.rules.state()
    }

    /// Whether the keys on disk are those in force, and if not, why; nothing if the rules name none.
    pub fn keys_state(&self) -> Option<State> {
        self.keys.tie.keys_state.lock().clone()
    }
}

/// Puts rules in force, with the keys as they are, or as they are on disk if those cannot stay.
fn load_rules(
    live: &Live<Policy>,
    root: &Path,
    keys: &KeysWatch,
    snapshot: &Snapshot,
) -> Result<(), String> {
    let texts = texts(snapshot).map_err(|error| error.to_string())?;
    let moves = keys.tie.moves.load(SeqCst);
    let (mut named, mut source) = (None, Source::Memory);
    let loaded = live.replace_with(|| {
        let draft = Draft::parse(root, &texts)?;
        named.clone_from(&draft.keys_path);
        let last = live.load();
        if draft.can_keep_keys_of(last.value()) {
            return Ok(draft.with(last.keys.clone()));
        }
        source = Source::Disk;
        draft.read_keys()
    });
    let Err(error) = loaded.map_err(|error: LoadError| error.to_string()) else {
        keys.stop_awaiting();
        keys.follow(named.as_deref(), source);
        return Ok(());
    };
    let awaited = keys.wait_for(named.as_deref());
    keys.tie.rules_refused(moves);
    Err(match awaited {
        Ok(()) => error,
        Err(deaf) => format!("{error}; and the keys file cannot be watched: {deaf}"),
    })
}

/// Where the keys beside new rules came from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Source {
    /// They are those in force before.
    Memory,
    /// They were read with the rules, past their own watch.
    Disk,
}

fn texts(snapshot: &Snapshot) -> io::Result<Vec<(String, String)>> {
    let read = |part: &crate::live::Part| Ok((part.path().display().to_string(), part.text()?));
    snapshot.parts().iter().map(read).collect()
}

/// The watches over keys files, wherever the rules of the moment say they are.
struct KeysWatch {
    live: Arc<Live<Policy>>,
    report: Report,
    tie: Arc<Tie>,
    /// Locked by the thread of the rules while it waits for a watch over keys to end: the threads
    /// of those watches never lock it.
    watches: Mutex<Watches>,
}

#[derive(Default)]
struct Watches {
    /// Over the keys file of the rules in force.
    in_force: Option<(PathBuf, Watch)>,
    /// Over another that refused rules name: they may be good once it changes, or is there at all.
    awaited: Option<(PathBuf, Watch)>,
}

impl KeysWatch {
    /// Watches the keys file of rules that have just come into force.
    fn follow(&self, path: Option<&Path>, source: Source) {
        let mut watches = self.watches.lock();
        if let Some((watched, watch)) = &watches.in_force
            && path == Some(watched)
        {
            if source == Source::Disk {
                // It remembers what it took or refused under the old rules. Left with that, it
                // would hold a return to the old keys for no change.
                watch.reload();
            }
            return;
        }
        // The old one has ended before the new one tells anything.
        watches.in_force = None;
        *self.tie.keys_state.lock() = None;
        let Some(path) = path else { return };
        match self.start(path) {
            Ok(watch) => watches.in_force = Some((path.to_owned(), watch)),
            Err(error) => self.tie.tell(&self.report, &unwatched(path, &error)),
        }
    }

    /// Watches a keys file that refused rules name, unless it is the one in force.
    fn wait_for(&self, path: Option<&Path>) -> io::Result<()> {
        let mut watches = self.watches.lock();
        let path = path.filter(|path| watched(&watches.in_force) != Some(path));
        if watched(&watches.awaited) == path {
            return Ok(());
        }
        watches.awaited = None;
        if let Some(path) = path {
            let (tie, load) = (
                Arc::clone(&self.tie),
                |_: &Snapshot| Ok::<_, Infallible>(()),
            );
            let watch = Watch::start(Target::keys(path), load, move |_| tie.keys_moved())?;
            watches.awaited = Some((path.to_owned(), watch));
        }
        Ok(())
    }

    /// The rules on disk are in force.
    fn stop_awaiting(&self) {
        self.tie.refused.store(false, SeqCst);
        self.watches.lock().awaited = None;
    }

    fn start(&self, path: &Path) -> io::Result<Watch> {
        let (live, tie) = (Arc::clone(&self.live), Arc::clone(&self.tie));
        let watched = path.to_owned();
        let load = move |snapshot: &Snapshot| -> Result<(), String> {
            let make = || Self::replaced(&live, &watched, snapshot);
            let loaded = live.replace_with(make).map(drop);
            // Also when refused: they may be just what the refused rules wait for.
            tie.keys_moved();
            loaded
        };
        let (tie, report) = (Arc::clone(&self.tie), Arc::clone(&self.report));
        Watch::start(Target::keys(path), load, move |state| {
            tie.tell(&report, state);
            // Also without a load: a file that is back unchanged was missing for the rules.
            tie.keys_moved();
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

fn watched(watch: &Option<(PathBuf, Watch)>) -> Option<&Path> {
    watch.as_ref().map(|(path, _)| &**path)
}

fn unwatched(path: &Path, error: &io::Error) -> State {
    State::Stale(Why::Unreadable {
        path: path.to_owned(),
        reason: format!("no watch can be started, so that changes are not seen: {error}"),
    })
}

/// What the watches over rules and keys know of each other, without holding each other.
#[derive(Default)]
struct Tie {
    rules: OnceLock<Bell>,
    /// Whether the rules on disk were refused, so that other keys may make them good.
    refused: AtomicBool,
    /// How often keys were seen to change.
    moves: AtomicU64,
    keys_state: Mutex<Option<State>>,
}

impl Tie {
    /// From now on the rules can be asked to look again; once at once if they were refused, for
    /// the keys that changed before.
    fn connect(&self, rules: &Watch) {
        let _ = self.rules.set(rules.bell());
        if self.refused.load(SeqCst) {
            self.ask();
        }
    }

    fn keys_moved(&self) {
        self.moves.fetch_add(1, SeqCst);
        if self.refused.load(SeqCst) {
            self.ask();
        }
    }

    /// Rules were refused that were first looked at after so many moves of the keys. Set before
    /// compared, as `keys_moved` counts before it looks: one of the two sees the other.
    fn rules_refused(&self, moves: u64) {
        self.refused.store(true, SeqCst);
        if self.moves.load(SeqCst) != moves {
            self.ask();
        }
    }

    fn ask(&self) {
        if let Some(rules) = self.rules.get() {
            rules.poke();
        }
    }

    fn tell(&self, report: &Report, keys: &State) {
        *self.keys_state.lock() = Some(keys.clone());
        report(News::Keys(keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(files: &[(&str, &str)]) -> [u8; 32] {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        digest(&files)
    }

    #[test]
    fn equal_files_have_equal_digests_wherever_they_are() {
        let one = digest_of(&[("/etc/a.yaml", "x"), ("/etc/b.yaml", "y")]);
        assert_eq!(one, digest_of(&[("a.yaml", "x"), ("b.yaml", "y")]));
        for other in [
            &[("a.yaml", "x"), ("b.yaml", "z")][..],
            &[("a.yaml", "x"), ("c.yaml", "y")],
            &[("a.yaml", "x")],
            &[("a.yaml", "xb.yamly")],
        ] {
            assert_ne!(one, digest_of(other), "{other:?}");
        }
    }

    /// A failure to watch was swallowed: the keys in force grew old and nothing said so.
    #[test]
    fn keys_that_cannot_be_watched_are_told_as_stale() {
        let rules = parse(&[SourceFile {
            name: "rules.yaml",
            text: "version: 1\nrules: [{ name: a, by: ip, rate: 1/hour }]",
        }]);
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        let keys = KeysWatch {
            live: Arc::new(Live::new(Policy::of(rules.unwrap()))),
            report: Arc::new(move |news| telling.lock().push(format!("{news:?}"))),
            tie: Arc::default(),
            watches: Mutex::default(),
        };
        // An empty path cannot be made absolute, which a watch needs.
        keys.follow(Some(Path::new("")), Source::Disk);
        assert!(matches!(
            &*keys.tie.keys_state.lock(),
            Some(State::Stale(Why::Unreadable { .. }))
        ));
        let told = told.lock();
        assert!(
            told.len() == 1 && told[0].contains("no watch can be started"),
            "{told:?}"
        );
    }
}
