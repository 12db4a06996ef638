//! Rules that are valid in themselves, before their keys are read, and the sources they are built from.

use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};
use tidegate_core::store::Capabilities;
use tidegate_rules::{
    DomainConfig, ParseOptions, RuleErrors, RuleSet, SourceFile, parse_with_domains, parse_with_options,
};

use super::{LoadError, Policy, ip_normalizer, read_keys};
use crate::identity::KeyTable;
use crate::live::{FileFilter, FileSnapshot, SnapshotFile};

/// The source for a policy without files and domains.
const NOTHING: SourceFile<'_> = SourceFile { name: "no rules", text: "version: 1\nrules: []\n" };

/// Options for finding and parsing the files of a policy. Converted from a store's [`Capabilities`] or from
/// [`ParseOptions`], all other options have their defaults.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyOptions {
    /// How rules are parsed.
    pub dialect: ParseOptions,
    /// Which files of a folder are read.
    pub filter: FileFilter,
    /// Whether domains also come from another source. The policy then retains the text of its files, to parse it
    /// again with other domains.
    pub external_domains: bool,
}

impl From<ParseOptions> for PolicyOptions {
    fn from(dialect: ParseOptions) -> Self {
        PolicyOptions { dialect, filter: FileFilter::Rules, external_domains: false }
    }
}

impl From<Capabilities> for PolicyOptions {
    fn from(store: Capabilities) -> Self {
        ParseOptions::from(store).into()
    }
}

/// The sources of rules, from which they are built again when a source changes.
#[derive(Clone, Debug)]
pub(super) struct PolicyInputs {
    pub(super) options: PolicyOptions,
    /// Domains from another source than the files.
    pub(super) domains: Arc<[DomainConfig]>,
    /// The files, if they are retained.
    pub(super) files: Arc<RuleFiles>,
}

/// The text of rules files.
#[derive(Debug, Default)]
pub(super) struct RuleFiles {
    /// The path of the file or folder.
    pub(super) root: PathBuf,
    /// Names and texts.
    pub(super) texts: Vec<(String, String)>,
}

/// Rules without their keys.
pub(super) struct PolicyDraft {
    pub(super) rules: RuleSet,
    pub(super) keys_path: Option<PathBuf>,
    digest: [u8; 32],
    inputs: PolicyInputs,
}

impl RuleFiles {
    pub(super) fn of(root: &Path, snapshot: &FileSnapshot) -> io::Result<Self> {
        let read = |file: &SnapshotFile| Ok((file.path().display().to_string(), file.text()?));
        Ok(RuleFiles { root: root.to_owned(), texts: snapshot.files().iter().map(read).collect::<io::Result<_>>()? })
    }
}

impl PolicyInputs {
    /// No sources yet.
    pub(super) fn new(options: PolicyOptions) -> Self {
        PolicyInputs { options, domains: Arc::default(), files: Arc::default() }
    }

    /// The same domains with other files.
    pub(super) fn with_files(&self, files: RuleFiles) -> Result<PolicyDraft, RuleErrors> {
        self.build(Arc::new(files), Arc::clone(&self.domains))
    }

    /// The same files with other domains.
    pub(super) fn with_domains(&self, domains: Vec<DomainConfig>) -> Result<PolicyDraft, RuleErrors> {
        self.build(Arc::clone(&self.files), domains.into())
    }

    fn build(&self, files: Arc<RuleFiles>, domains: Arc<[DomainConfig]>) -> Result<PolicyDraft, RuleErrors> {
        let mut sources: Vec<SourceFile<'_>> = Vec::new();
        for (name, text) in &files.texts {
            sources.push(SourceFile { name, text });
        }
        if sources.is_empty() && domains.is_empty() {
            sources.push(NOTHING);
        }
        let dialect = self.options.dialect.clone();
        // Files without any rule are more likely a mistake than intended, unless domains may follow.
        let rules = if self.options.external_domains || !domains.is_empty() {
            parse_with_domains(&sources, &domains, dialect)?
        } else {
            parse_with_options(&sources, dialect)?
        };
        let keys_path = rules.keys_file().map(|keys| resolve_keys_path(&files.root, keys));
        let digest = digest(&sources, &domains);
        let files = if self.options.external_domains { files } else { Arc::default() };
        let options = self.options.clone();
        Ok(PolicyDraft { rules, keys_path, digest, inputs: PolicyInputs { options, domains, files } })
    }
}

impl PolicyDraft {
    /// A draft of rules whose source text is not known.
    pub(super) fn of(rules: RuleSet, inputs: PolicyInputs) -> Self {
        PolicyDraft { rules, keys_path: None, digest: digest(&[], &[]), inputs }
    }

    /// Whether the keys of `last` have the same meaning under these rules.
    pub(super) fn can_keep_keys_of(&self, last: &Policy) -> bool {
        last.keys_path == self.keys_path && last.rules.tiers() == self.rules.tiers()
    }

    /// Whether these are the rules of `policy`, from the same files.
    pub(super) fn is_same_as(&self, policy: &Policy) -> bool {
        policy.configured && policy.digest == self.digest
    }

    pub(super) fn read_keys(self) -> Result<Policy, LoadError> {
        let keys = match &self.keys_path {
            None => None,
            Some(path) => Some(Arc::new(read_keys(path, &self.rules)?)),
        };
        Ok(self.with_keys(keys))
    }

    pub(super) fn with_keys(self, keys: Option<Arc<KeyTable>>) -> Policy {
        Policy {
            ip_normalizer: ip_normalizer(&self.rules),
            rules: Arc::new(self.rules),
            keys,
            keys_path: self.keys_path,
            digest: self.digest,
            inputs: self.inputs,
            configured: true,
        }
    }
}

/// Each text of a file is preceded by its length, so that no two sets of files hash alike. Domains are hashed field by
/// field, in the same way on every node that runs the same build.
fn digest(files: &[SourceFile<'_>], domains: &[DomainConfig]) -> [u8; 32] {
    let mut hash = DigestHasher(Sha256::new());
    let mut add_text = |bytes: &[u8]| {
        hash.write(&(bytes.len() as u64).to_be_bytes());
        hash.write(bytes);
    };
    for file in files {
        let name = Path::new(file.name).file_name().unwrap_or_default();
        add_text(name.as_encoded_bytes());
        add_text(file.text.as_bytes());
    }
    domains.iter().for_each(|domain| domain.hash(&mut hash));
    hash.0.finalize().into()
}

/// Feeds what a value hashes into a digest.
struct DigestHasher(Sha256);

impl Hasher for DigestHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// Not used: the digest has more bits.
    fn finish(&self) -> u64 {
        0
    }
}

/// Resolves the path of a keys file, which is relative to the rules that name it.
fn resolve_keys_path(rules: &Path, keys: &str) -> PathBuf {
    let folder = if rules.is_dir() { Some(rules) } else { rules.parent() };
    folder.map_or_else(|| keys.into(), |folder| folder.join(keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::envoy::Metadata;
    use tidegate_rules::{DescriptorConfig, SourceLocation};

    fn digest_of(files: &[(&str, &str)]) -> [u8; 32] {
        let files: Vec<_> = files.iter().map(|(name, text)| SourceFile { name, text }).collect();
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

    #[test]
    fn domains_with_equal_fields_have_equal_digests() {
        let domain = |number| DomainConfig {
            location: SourceLocation { file: "xds/shop".into(), line: 0 },
            domain: "shop".to_owned(),
            descriptors: vec![DescriptorConfig {
                key: "user".to_owned(),
                metadata: Some(Metadata::List(vec![Metadata::Number(number)])),
                ..DescriptorConfig::default()
            }],
        };
        let one = digest(&[], &[domain(1.5)]);
        assert_eq!(one, digest(&[], &[domain(1.5)]));
        assert_ne!(one, digest(&[], &[domain(2.5)]));
        assert_ne!(one, digest(&[], &[domain(1.5), domain(1.5)]));
    }
}
