//! What a limiter decides by: the rules in force and the keys they apply to, always swapped as one.
//!
//! [`Policy::load`] reads them from disk; a [`Follower`] keeps a limiter's policy as the files say.
//! Kept true: a policy is complete or does not come into force, the keys' tiers are the tiers of the
//! very rules beside them, and whatever happens to the files, the last good policy stays. Files that
//! are valid only together come into force together, in whatever order they were saved.

mod follow;

pub use follow::{Follower, News};

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tidegate_core::rules::{Dialect, Faults, RuleSet, SourceFile, parse_for};
use tidegate_core::store::Abilities;

use crate::identity::keys::KeysError;
use crate::identity::{Canon, KeyTable};
use crate::live::{Snapshot, Target, Why};

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
    /// How the rules were read, and are read when they change.
    dialect: Dialect,
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
            dialect: Abilities::MEMORY.into(),
        }
        .with(None)
    }

    /// Rules from texts, without a list of keys.
    ///
    /// # Errors
    /// Every fault of the texts at once.
    pub fn parse(files: &[SourceFile<'_>]) -> Result<Self, Faults> {
        Self::parse_for(files, Abilities::MEMORY)
    }

    /// The same for a store with these abilities, or in another dialect.
    ///
    /// # Errors
    /// Every fault of the texts at once.
    pub fn parse_for(
        files: &[SourceFile<'_>],
        dialect: impl Into<Dialect>,
    ) -> Result<Self, Faults> {
        let dialect = dialect.into();
        let draft = Draft {
            rules: parse_for(files, dialect)?,
            keys_path: None,
            digest: digest(files),
            dialect,
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
        Self::load_for(path, Abilities::MEMORY)
    }

    /// The same for a store with these abilities, or in another dialect.
    ///
    /// # Errors
    /// Every fault of the files at once.
    pub fn load_for(path: &Path, dialect: impl Into<Dialect>) -> Result<Self, LoadError> {
        let snapshot = Target::rules(path).read()?;
        let texts = texts(&snapshot).map_err(LoadError::Read)?;
        Draft::parse(path, &texts, dialect.into())?.read_keys()
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
    dialect: Dialect,
}

impl Draft {
    fn parse(path: &Path, texts: &[(String, String)], dialect: Dialect) -> Result<Self, Faults> {
        let files: Vec<SourceFile<'_>> = texts
            .iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        let rules = parse_for(&files, dialect)?;
        Ok(Draft {
            keys_path: rules.keys_file().map(|keys| beside(path, keys)),
            digest: digest(&files),
            rules,
            dialect,
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
            dialect: self.dialect,
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

fn texts(snapshot: &Snapshot) -> io::Result<Vec<(String, String)>> {
    let read = |part: &crate::live::Part| Ok((part.path().display().to_string(), part.text()?));
    snapshot.parts().iter().map(read).collect()
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
}
