//! Keeps a policy in step with its files: one watch over the rules, one over their keys file.
//!
//! Invariant: only whole policies come into force, and files that are valid only together come into force
//! together, in whatever order they were saved. The watches do not own each other; a `WatchLink` lets one trigger
//! a look of the other. Knows nothing of the meaning of rules or keys.

use std::convert::Infallible;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;

use super::draft::RuleFiles;
use super::{LoadError, Policy, keys_of};
use crate::live::{FileError, FileSnapshot, FileState, LiveValue, Target, Watch, WatchHandle};

/// A change of the files of a policy.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum PolicyEvent<'a> {
    /// The rules came into force, or cannot be used.
    Rules(&'a FileState),
    /// The keys came into force, or cannot be used.
    Keys(&'a FileState),
}

/// Keeps a policy in step with its files, until dropped.
#[derive(Debug)]
pub struct PolicyFollower {
    rules: Watch,
    keys: Arc<KeysWatch>,
}

type PolicyListener = Arc<dyn Fn(PolicyEvent<'_>) + Send + Sync>;

impl PolicyFollower {
    /// Keeps `live` in step with the rules at `path` and the keys file they name.
    pub(crate) fn follow(
        live: Arc<LiveValue<Policy>>,
        path: &Path,
        report: impl Fn(PolicyEvent<'_>) + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let report: PolicyListener = Arc::new(report);
        let keys = Arc::new(KeysWatch {
            live: Arc::clone(&live),
            report: Arc::clone(&report),
            link: Arc::default(),
            watches: Mutex::default(),
        });
        let filter = live.load().inputs.options.filter;
        let (following, root) = (Arc::clone(&keys), path.to_owned());
        let load = move |snapshot: &FileSnapshot| load_rules(&live, &root, &following, snapshot);
        let following = Arc::clone(&keys);
        let target = Target::rules(path).filter(filter);
        let rules = Watch::start(target, load, move |state| {
            if *state == FileState::Current {
                following.stop_awaiting();
            }
            report(PolicyEvent::Rules(state));
        })?;
        keys.link.connect(&rules);
        Ok(PolicyFollower { rules, keys })
    }

    /// Looks at the files now, also at those rejected before: on SIGHUP, or at an operator's request.
    pub fn poke(&self) {
        self.rules.poke();
        match &self.keys.watches.lock().in_force {
            Some((_, watch)) => watch.poke(),
            // A watch that could not be started is started with the rules, if they name keys.
            None if self.keys_state().is_some() => self.rules.reload(),
            None => {}
        }
    }

    /// As `poke`, and waits until the look has finished: first of the rules, then of their keys file. Each may take
    /// up to `timeout`. Returns whether both have finished; the states then describe the result.
    pub fn look(&self, timeout: Duration) -> bool {
        self.poke();
        let rules = self.rules.handle().look(timeout);
        let keys = {
            let watches = self.keys.watches.lock();
            watches.in_force.as_ref().map(|(_, watch)| watch.handle())
        };
        rules && keys.is_none_or(|keys| keys.look(timeout))
    }

    /// Whether the rules on disk are in force, and if not, why.
    pub fn rules_state(&self) -> FileState {
        self.rules.state()
    }

    /// Whether the keys on disk are in force, and if not, why; `None` if the rules name no keys file.
    pub fn keys_state(&self) -> Option<FileState> {
        self.keys.link.keys_state.lock().clone()
    }
}

/// Puts rules in force, with the current keys, or with those on disk if the current ones do not fit the rules.
fn load_rules(live: &LiveValue<Policy>, root: &Path, keys: &KeysWatch, snapshot: &FileSnapshot) -> Result<(), String> {
    let files = RuleFiles::of(root, snapshot).map_err(|error| error.to_string())?;
    let key_changes = keys.link.key_changes.load(SeqCst);
    let (mut named, mut source) = (None, KeysSource::Memory);
    let loaded = live.replace_if_changed(|| {
        let last = live.load();
        let draft = last.inputs.with_files(files)?;
        named.clone_from(&draft.keys_path);
        if draft.can_keep_keys_of(last.value()) {
            // The rules read at the start are the first version, not the second.
            let other = !draft.is_same_as(last.value());
            return Ok(other.then(|| draft.with_keys(last.keys.clone())));
        }
        source = KeysSource::Disk;
        draft.read_keys().map(Some)
    });
    let Err(error) = loaded.map_err(|error: LoadError| error.to_string()) else {
        keys.stop_awaiting();
        keys.follow(named.as_deref(), source);
        return Ok(());
    };
    let awaited = keys.wait_for(named.as_deref());
    keys.link.rules_rejected(key_changes);
    Err(match awaited {
        Ok(()) => error,
        Err(watch_error) => format!("{error}; and the keys file cannot be watched: {watch_error}"),
    })
}

/// The source of the keys that come into force with new rules.
#[derive(Clone, Copy, PartialEq, Eq)]
enum KeysSource {
    /// The keys that were in force before.
    Memory,
    /// The keys file, read with the rules and not by its own watch.
    Disk,
}

/// The watches over keys files, wherever the current rules locate them.
struct KeysWatch {
    live: Arc<LiveValue<Policy>>,
    report: PolicyListener,
    link: Arc<WatchLink>,
    /// Lock order: the thread of the rules locks this while it waits for a watch over keys to end. The threads
    /// of those watches never lock it.
    watches: Mutex<KeysWatches>,
}

#[derive(Default)]
struct KeysWatches {
    /// Over the keys file of the rules in force.
    in_force: Option<(PathBuf, Watch)>,
    /// Over another keys file, named by rejected rules: they may be valid once it changes or exists.
    awaited: Option<(PathBuf, Watch)>,
}

impl KeysWatch {
    /// Watches the keys file of rules that have just come into force.
    fn follow(&self, path: Option<&Path>, source: KeysSource) {
        let mut watches = self.watches.lock();
        if let Some((watched, watch)) = &watches.in_force
            && path == Some(watched)
        {
            if source == KeysSource::Disk {
                // The watch remembers what it loaded or rejected under the old rules. With that memory it
                // would mistake a return to the old keys for no change.
                watch.reload();
            }
            return;
        }
        // The old watch has ended before the new one reports anything.
        watches.in_force = None;
        *self.link.keys_state.lock() = None;
        let Some(path) = path else { return };
        match self.start(path) {
            Ok(watch) => watches.in_force = Some((path.to_owned(), watch)),
            Err(error) => self.link.report_keys(&self.report, &not_watched_state(path, &error)),
        }
    }

    /// Watches the keys file of rejected rules, unless it is the one in force.
    fn wait_for(&self, path: Option<&Path>) -> io::Result<()> {
        let mut watches = self.watches.lock();
        let path = path.filter(|path| watched(&watches.in_force) != Some(path));
        if watched(&watches.awaited) == path {
            return Ok(());
        }
        watches.awaited = None;
        if let Some(path) = path {
            let (link, load) = (Arc::clone(&self.link), |_: &FileSnapshot| Ok::<_, Infallible>(()));
            let watch = Watch::start(Target::keys(path), load, move |_| link.keys_changed())?;
            watches.awaited = Some((path.to_owned(), watch));
        }
        Ok(())
    }

    /// The rules on disk are in force.
    fn stop_awaiting(&self) {
        self.link.rejected.store(false, SeqCst);
        self.watches.lock().awaited = None;
    }

    fn start(&self, path: &Path) -> io::Result<Watch> {
        let (live, link) = (Arc::clone(&self.live), Arc::clone(&self.link));
        let watched = path.to_owned();
        let load = move |snapshot: &FileSnapshot| -> Result<(), String> {
            let make = || Self::policy_with_keys(&live, &watched, snapshot);
            let loaded = live.replace_with(make).map(drop);
            // Also when they are rejected: the rejected rules may wait for exactly these keys.
            link.keys_changed();
            loaded
        };
        let (link, report) = (Arc::clone(&self.link), Arc::clone(&self.report));
        Watch::start(Target::keys(path), load, move |state| {
            link.report_keys(&report, state);
            // Also without a load: a file restored unchanged was missing for the rules.
            link.keys_changed();
        })
    }

    /// The policy in force with the keys of `snapshot`.
    fn policy_with_keys(live: &LiveValue<Policy>, path: &Path, snapshot: &FileSnapshot) -> Result<Policy, String> {
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

fn not_watched_state(path: &Path, error: &io::Error) -> FileState {
    FileState::Stale(FileError::Unreadable {
        path: path.to_owned(),
        reason: format!("no watch can be started, so changes are not noticed: {error}"),
    })
}

/// The state that the watches over rules and keys share, without owning each other.
#[derive(Default)]
struct WatchLink {
    rules: OnceLock<WatchHandle>,
    /// Whether the rules on disk were rejected, so that other keys may make them valid.
    rejected: AtomicBool,
    /// The number of changes of the keys.
    key_changes: AtomicU64,
    keys_state: Mutex<Option<FileState>>,
}

impl WatchLink {
    /// Lets keys trigger a look at the rules from now on. Triggers one at once if the rules were rejected, for
    /// keys that changed before.
    fn connect(&self, rules: &Watch) {
        let _ = self.rules.set(rules.handle());
        if self.rejected.load(SeqCst) {
            self.poke_rules();
        }
    }

    fn keys_changed(&self) {
        self.key_changes.fetch_add(1, SeqCst);
        if self.rejected.load(SeqCst) {
            self.poke_rules();
        }
    }

    /// Records that rules were rejected whose look began after `key_changes` changes of the keys. The flag is set
    /// before the comparison, and `keys_changed` counts before it reads the flag: one of the two sees the other.
    fn rules_rejected(&self, key_changes: u64) {
        self.rejected.store(true, SeqCst);
        if self.key_changes.load(SeqCst) != key_changes {
            self.poke_rules();
        }
    }

    fn poke_rules(&self) {
        if let Some(rules) = self.rules.get() {
            rules.poke();
        }
    }

    fn report_keys(&self, report: &PolicyListener, keys: &FileState) {
        *self.keys_state.lock() = Some(keys.clone());
        report(PolicyEvent::Keys(keys));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::{SourceFile, parse};

    /// A failure to watch was swallowed: the keys in force became stale without any report.
    #[test]
    fn keys_that_cannot_be_watched_are_reported_as_stale() {
        let rules =
            parse(&[SourceFile { name: "rules.yaml", text: "version: 1\nrules: [{ name: a, by: ip, rate: 1/hour }]" }]);
        let reported = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&reported);
        let keys = KeysWatch {
            live: Arc::new(LiveValue::new(Policy::of(rules.unwrap()))),
            report: Arc::new(move |event| sink.lock().push(format!("{event:?}"))),
            link: Arc::default(),
            watches: Mutex::default(),
        };
        // An empty path cannot be made absolute, which a watch needs.
        keys.follow(Some(Path::new("")), KeysSource::Disk);
        assert!(matches!(&*keys.link.keys_state.lock(), Some(FileState::Stale(FileError::Unreadable { .. }))));
        let reported = reported.lock();
        assert!(reported.len() == 1 && reported[0].contains("no watch can be started"), "{reported:?}");
    }
}
