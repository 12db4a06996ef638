//! Rules and keys in force: read at the start, again when their files change, last good ones kept.
//!
//! The rules are one watch. The keys file they name is another, so that a new key does not compile
//! the rules again; it is read with the tiers of the rules in force. Kept true: rules and keys come
//! into force together, under one lock, and rules whose keys cannot be read do not come into force.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tidegate::identity::KeyTable;
use tidegate::live::{Snapshot, State, Target, Watch};
use tidegate_core::rules::{self, RuleSet, SourceFile};
use tracing::{info, warn};

use crate::service::Service;

/// The rules that run when none are named.
pub(crate) const BUILT_IN: &str = include_str!("builtin.yaml");

/// What keeps rules and keys up to date. Stops when dropped.
pub(crate) struct Live {
    shared: Arc<Shared>,
    rules: Option<Watch>,
}

struct Shared {
    service: Arc<Service>,
    current: Mutex<Current>,
}

struct Current {
    rules: Arc<RuleSet>,
    keys: Option<Keys>,
    generation: u64,
    hash: String,
}

/// The keys file in use.
struct Keys {
    path: PathBuf,
    tiers: Vec<Box<str>>,
    table: Arc<KeyTable>,
    watch: Watch,
    generation: u64,
}

/// Reads the built-in rules.
pub(crate) fn built_in() -> RuleSet {
    let file = SourceFile { name: "built-in", text: BUILT_IN };
    rules::parse(&[file]).expect("a test reads the built-in rules")
}

impl Live {
    /// Puts the rules at `path` in force and goes on watching them.
    pub(crate) fn start(service: Arc<Service>, path: &Path) -> Result<Self, String> {
        let current = Current {
            rules: Arc::clone(&service.limiter.policy().rules),
            keys: None,
            generation: 0,
            hash: String::new(),
        };
        let shared = Arc::new(Shared { service, current: Mutex::new(current) });
        let loading = Arc::clone(&shared);
        let base = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
        let base = base.to_owned();
        let telling = Arc::clone(&shared);
        let watch = Watch::start(
            Target::rules(path),
            move |snapshot| loading.load_rules(snapshot, &base),
            move |state| telling.tell("rules", state),
        );
        let watch = watch.map_err(|error| format!("cannot watch {}: {error}", path.display()))?;
        match watch.state() {
            State::Current => Ok(Live { shared, rules: Some(watch) }),
            State::Stale(why) => Err(why.to_string()),
        }
    }

    /// The built-in rules, which never change.
    pub(crate) fn fixed(service: Arc<Service>) -> Self {
        let rules = Arc::clone(&service.limiter.policy().rules);
        let hash = hex(&Sha256::digest(BUILT_IN));
        let current = Current { rules, keys: None, generation: 0, hash };
        let shared = Arc::new(Shared { service, current: Mutex::new(current) });
        let mut current = shared.current();
        shared.put_in_force(&mut current);
        drop(current);
        Live { shared, rules: None }
    }

    /// Looks at the files now.
    pub(crate) fn poke(&self) {
        let Some(watch) = &self.rules else { return };
        watch.poke();
        if let Some(keys) = &self.shared.current().keys {
            keys.watch.poke();
        }
    }

    /// The digest of the rules in force.
    pub(crate) fn hash(&self) -> String {
        self.shared.current().hash.clone()
    }

    /// Why what is on disk is not in force, if it is not.
    pub(crate) fn stale(&self) -> Option<String> {
        let stale = |watch: &Watch| match watch.state() {
            State::Current => None,
            State::Stale(why) => Some(why.to_string()),
        };
        let rules = self.rules.as_ref().and_then(stale);
        rules.or_else(|| self.shared.current().keys.as_ref().and_then(|keys| stale(&keys.watch)))
    }
}

impl Shared {
    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load_rules(self: &Arc<Self>, snapshot: &Snapshot, base: &Path) -> Result<(), String> {
        let mut texts = Vec::new();
        let mut hash = Sha256::new();
        for part in snapshot.parts() {
            let name = part.path().display().to_string();
            texts.push((name, part.text().map_err(|error| error.to_string())?));
            hash.update(part.sha256());
        }
        let files: Vec<_> = texts.iter().map(|(name, text)| SourceFile { name, text }).collect();
        let rules = rules::parse(&files).map_err(|faults| faults.to_string())?;
        let wanted = rules.keys_file().map(|file| base.join(file));
        let fresh = self.keys_for(wanted.as_deref(), rules.tiers())?;
        let mut current = self.current();
        current.rules = Arc::new(rules);
        current.hash = hex(&hash.finalize());
        let old = match fresh {
            Fresh::Same => None,
            Fresh::Other(keys) => {
                current.generation = keys.as_ref().map_or(0, |keys| keys.generation);
                std::mem::replace(&mut current.keys, keys)
            }
        };
        self.put_in_force(&mut current);
        drop(current);
        // Only now: its thread may be waiting for the lock.
        drop(old);
        Ok(())
    }

    /// The keys for other rules: those in use if nothing about them changes, else read anew.
    fn keys_for(self: &Arc<Self>, wanted: Option<&Path>, tiers: &[Box<str>]) -> Result<Fresh, String> {
        let current = self.current();
        let used = current.keys.as_ref();
        let Some(path) = wanted else {
            return Ok(if used.is_some() { Fresh::Other(None) } else { Fresh::Same });
        };
        if used.is_some_and(|used| used.path == path && *used.tiers == *tiers) {
            return Ok(Fresh::Same);
        }
        let generation = current.generation.max(used.map_or(0, |keys| keys.generation)) + 1;
        drop(current);
        let slot: Arc<Mutex<Option<Arc<KeyTable>>>> = Arc::default();
        let (shared, loading, telling) = (Arc::downgrade(self), Arc::clone(&slot), Arc::downgrade(self));
        let names = tiers.to_vec();
        let load = move |snapshot: &Snapshot| {
            let table = Arc::new(read_keys(snapshot, &names)?);
            *loading.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(&table));
            if let Some(shared) = shared.upgrade() {
                shared.load_keys(table, generation);
            }
            Ok::<(), String>(())
        };
        let tell = move |state: &State| {
            if let Some(shared) = telling.upgrade() {
                shared.tell("keys", state);
            }
        };
        let watch = Watch::start(Target::keys(path), load, tell).map_err(|error| error.to_string())?;
        let table = slot.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match (table, watch.state()) {
            (Some(table), _) => {
                let (path, tiers) = (path.to_owned(), tiers.to_vec());
                Ok(Fresh::Other(Some(Keys { path, tiers, table, watch, generation })))
            }
            (None, State::Stale(why)) => Err(why.to_string()),
            (None, State::Current) => Err(format!("{}: was not read", path.display())),
        }
    }

    /// Takes keys read again, unless the rules have moved on to another file meanwhile.
    fn load_keys(&self, table: Arc<KeyTable>, generation: u64) {
        let mut current = self.current();
        match &mut current.keys {
            Some(keys) if keys.generation == generation => keys.table = table,
            _ => return,
        }
        self.put_in_force(&mut current);
    }

    fn put_in_force(&self, current: &mut Current) {
        let keys = current.keys.as_ref().map(|keys| Arc::clone(&keys.table));
        let (service, rules) = (&self.service, &current.rules);
        // The counters first, so that a decision under the new rules finds them.
        service.metrics.load_rules(rules);
        let listed = keys.as_ref().map(|keys| keys.len());
        service.limiter.enforce(Arc::clone(rules), keys);
        let reload = &service.metrics.reload;
        reload.successful.set(1);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        reload.success_epoch_secs.set(now.map_or(0, |now| now.as_secs()));
        *reload.hash.lock() = current.hash.clone();
        let hash = current.hash.get(..12).unwrap_or_default();
        info!(rules = rules.rules().len(), keys = listed, hash, "rules in force");
    }

    fn tell(&self, what: &'static str, state: &State) {
        let reload = &self.service.metrics.reload;
        match state {
            State::Current => reload.successful.set(1),
            State::Stale(why) => {
                reload.successful.set(0);
                reload.rejected.inc();
                warn!(what, why = %why, "not taken, the last good ones stay in force");
            }
        }
    }
}

enum Fresh {
    Same,
    Other(Option<Keys>),
}

fn read_keys(snapshot: &Snapshot, tiers: &[Box<str>]) -> Result<KeyTable, String> {
    let part = snapshot.parts().first().ok_or("no keys file")?;
    let reader = part.open().map_err(|error| error.to_string())?;
    let name = part.path().display().to_string();
    KeyTable::read(&name, BufReader::new(reader), tiers).map_err(|error| error.to_string())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_rules_are_good() {
        assert!(!built_in().rules().is_empty());
    }
}
