//! Rules that are good in themselves, before the keys they name are looked at; and what they are made of.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tidegate_core::rules::{DomainForm, Faults, RuleSet, SourceFile, parse_for, parse_with};

use super::{LoadError, Policy, Reading, canon, read_keys};
use crate::identity::KeyTable;
use crate::live::{Part, Snapshot};

/// What is read where there is nothing to read.
const NOTHING: SourceFile<'_> = SourceFile {
    name: "no rules",
    text: "version: 1\nrules: []\n",
};

/// What rules are made of, and made of again when some of it changes.
#[derive(Clone, Debug)]
pub(super) struct Made {
    pub(super) reading: Reading,
    /// Domains that came from elsewhere.
    pub(super) domains: Arc<[DomainForm]>,
    /// The files, if they are to be kept.
    pub(super) files: Arc<Files>,
}

/// Files as they were read.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// The file, or the folder.
    pub(super) root: PathBuf,
    /// Names and texts.
    pub(super) texts: Vec<(String, String)>,
}

/// Rules without the keys that belong to them.
pub(super) struct Draft {
    pub(super) rules: RuleSet,
    pub(super) keys_path: Option<PathBuf>,
    digest: [u8; 32],
    made: Made,
}

impl Files {
    pub(super) fn of(root: &Path, snapshot: &Snapshot) -> io::Result<Self> {
        let read = |part: &Part| Ok((part.path().display().to_string(), part.text()?));
        Ok(Files {
            root: root.to_owned(),
            texts: snapshot
                .parts()
                .iter()
                .map(read)
                .collect::<io::Result<_>>()?,
        })
    }
}

impl Made {
    /// Of nothing yet.
    pub(super) fn new(reading: Reading) -> Self {
        Made {
            reading,
            domains: Arc::default(),
            files: Arc::default(),
        }
    }

    /// The same domains with other files.
    pub(super) fn with_files(&self, files: Files) -> Result<Draft, Faults> {
        self.with(Arc::new(files), Arc::clone(&self.domains))
    }

    /// The same files with other domains.
    pub(super) fn with_domains(&self, domains: Vec<DomainForm>) -> Result<Draft, Faults> {
        self.with(Arc::clone(&self.files), domains.into())
    }

    fn with(&self, files: Arc<Files>, domains: Arc<[DomainForm]>) -> Result<Draft, Faults> {
        let mut sources: Vec<SourceFile<'_>> = Vec::new();
        for (name, text) in &files.texts {
            sources.push(SourceFile { name, text });
        }
        if sources.is_empty() && domains.is_empty() {
            sources.push(NOTHING);
        }
        let dialect = self.reading.dialect.clone();
        // Files alone that say nothing are more likely a mistake than meant.
        let rules = match self.reading.elsewhere || !domains.is_empty() {
            true => parse_with(&sources, &domains, dialect)?,
            false => parse_for(&sources, dialect)?,
        };
        let keys_path = rules.keys_file().map(|keys| beside(&files.root, keys));
        let digest = digest(&sources, &domains);
        let files = match self.reading.elsewhere {
            true => files,
            false => Arc::default(),
        };
        let reading = self.reading.clone();
        Ok(Draft {
            rules,
            keys_path,
            digest,
            made: Made {
                reading,
                domains,
                files,
            },
        })
    }
}

impl Draft {
    /// Of rules whose texts are not known.
    pub(super) fn of(rules: RuleSet, made: Made) -> Self {
        Draft {
            rules,
            keys_path: None,
            digest: digest(&[], &[]),
            made,
        }
    }

    /// Whether the keys of `last` mean the same under these rules.
    pub(super) fn can_keep_keys_of(&self, last: &Policy) -> bool {
        last.keys_path == self.keys_path && last.rules.tiers() == self.rules.tiers()
    }

    /// Whether these are the rules of `policy`, from the same files.
    pub(super) fn is_of(&self, policy: &Policy) -> bool {
        policy.given && policy.digest == self.digest
    }

    pub(super) fn read_keys(self) -> Result<Policy, LoadError> {
        let keys = match &self.keys_path {
            None => None,
            Some(path) => Some(Arc::new(read_keys(path, &self.rules)?)),
        };
        Ok(self.with(keys))
    }

    pub(super) fn with(self, keys: Option<Arc<KeyTable>>) -> Policy {
        Policy {
            canon: canon(&self.rules),
            rules: Arc::new(self.rules),
            keys,
            keys_path: self.keys_path,
            digest: self.digest,
            made: self.made,
            given: true,
        }
    }
}

/// Each part preceded by its length, so that no two sets of files read the same.
fn digest(files: &[SourceFile<'_>], domains: &[DomainForm]) -> [u8; 32] {
    let mut hash = Sha256::new();
    let mut part = |bytes: &[u8]| {
        hash.update((bytes.len() as u64).to_be_bytes());
        hash.update(bytes);
    };
    for file in files {
        let name = Path::new(file.name).file_name().unwrap_or_default();
        part(name.as_encoded_bytes());
        part(file.text.as_bytes());
    }
    for domain in domains {
        part(format!("{domain:?}").as_bytes());
    }
    hash.finalize().into()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn digest_of(files: &[(&str, &str)]) -> [u8; 32] {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| SourceFile { name, text })
            .collect();
        digest(&files, &[])
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
