//! The policy of a limiter: the rules in force and their keys, always replaced as one value.
//!
//! [`Policy::load`] reads a policy from disk; a [`PolicyFollower`] keeps a limiter's policy in step with its files.
//! Invariant: a policy is complete or does not come into force, and the tiers of its keys are the tiers of its
//! rules. Whatever happens to the files, the last good policy stays in force. Files that are valid only together
//! come into force together, in whatever order they were saved.

mod draft;
#[cfg(feature = "live")]
mod follower;

pub use draft::PolicyOptions;
#[cfg(feature = "live")]
pub use follower::{PolicyEvent, PolicyFollower};

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::store::Capabilities;
use tidegate_core::units::Nanos;
use tidegate_rules::{DomainConfig, RuleErrors, RuleSet, SourceFile, Warning, lint_with_keys};

use crate::identity::keys::KeyFileError;
use crate::identity::{IpNormalizer, KeyTable};
use crate::live::{FileError, FileSnapshot, Target};
use draft::{PolicyDraft, PolicyInputs, RuleFiles};

/// The rules and keys of one moment.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The rules.
    pub rules: Arc<RuleSet>,
    /// The listed keys, if there is a keys file.
    pub keys: Option<Arc<KeyTable>>,
    /// The path of the keys file.
    keys_path: Option<PathBuf>,
    digest: [u8; 32],
    ip_normalizer: IpNormalizer,
    /// The sources of the rules, from which they are built again when a source changes.
    inputs: PolicyInputs,
    /// Whether rules have been configured, even if there are none.
    configured: bool,
}

/// Why a policy cannot come into force.
#[derive(Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum LoadError {
    /// A file is missing, too large or not a file.
    #[error(transparent)]
    Files(#[from] FileError),
    /// A file cannot be read.
    #[error("{0}; check the path and its permissions")]
    Read(io::Error),
    /// The rules are invalid.
    #[error(transparent)]
    Rules(#[from] RuleErrors),
    /// The keys are invalid.
    #[error(transparent)]
    Keys(#[from] KeyFileError),
}

impl Policy {
    /// The rules in `text`, without keys.
    ///
    /// # Errors
    /// All errors of the text at once.
    pub fn from_yaml(text: &str) -> Result<Self, RuleErrors> {
        Self::parse(&[SourceFile { name: "rules.yaml", text }])
    }

    /// Reads a rules file, or a folder of them, and the keys file they name.
    ///
    /// # Errors
    /// All errors of the files at once.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        Self::load_for(path.as_ref(), Capabilities::MEMORY)
    }

    /// Warnings about rules that are valid but probably not intended, at the time `now`. They include names of
    /// keys that are not in the keys file, if that has been read.
    pub fn lint(&self, now: Nanos) -> Vec<Warning> {
        let wanted = self.rules.key_names();
        let listed: HashSet<&str> = match &self.keys {
            Some(keys) if !wanted.is_empty() => {
                let wanted: HashSet<&str> = wanted.iter().map(String::as_str).collect();
                keys.names().filter(|name| wanted.contains(name)).collect()
            }
            _ => HashSet::new(),
        };
        let unread = self.keys.is_none() && self.rules.keys_file().is_some();
        let is_listed = |name: &str| unread || listed.contains(name);
        // Without a keys file every key is known by its digest.
        let name_of = |digest: &str| self.keys.as_deref().map_or(Some(""), |keys| keys.name_of(digest));
        lint_with_keys(&self.rules, now, is_listed, name_of)
    }

    /// The digest of these rules: a SHA-256 over the names and texts of their files, wherever the files are
    /// stored, and over the domains from another source. Nodes of one version with equal digests decide by equal
    /// rules.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

/// Not public: callers outside of this crate are the service, its tools and the tests.
#[cfg_attr(not(feature = "internals"), doc(hidden))]
impl Policy {
    /// Rules without keys. Their source text is not known here, so the digest is that of no files.
    pub fn of(rules: RuleSet) -> Self {
        PolicyDraft::of(rules, PolicyInputs::new(Capabilities::MEMORY.into())).with_keys(None)
    }

    /// No rules, in force until rules are configured.
    ///
    /// # Errors
    /// None; the empty rules are parsed like any others.
    pub fn none(options: impl Into<PolicyOptions>) -> Result<Self, RuleErrors> {
        let draft = PolicyInputs::new(options.into()).with_files(RuleFiles::default())?;
        Ok(Policy { configured: false, ..draft.with_keys(None) })
    }

    /// Rules from source texts, without keys.
    ///
    /// # Errors
    /// All errors of the texts at once.
    pub fn parse(files: &[SourceFile<'_>]) -> Result<Self, RuleErrors> {
        Self::parse_for(files, Capabilities::MEMORY)
    }

    /// As `parse`, for a store with these capabilities or with other options.
    ///
    /// # Errors
    /// All errors of the texts at once.
    pub fn parse_for(files: &[SourceFile<'_>], options: impl Into<PolicyOptions>) -> Result<Self, RuleErrors> {
        let text = |file: &SourceFile<'_>| (file.name.to_owned(), file.text.to_owned());
        let files = RuleFiles { texts: files.iter().map(text).collect(), ..RuleFiles::default() };
        let mut draft = PolicyInputs::new(options.into()).with_files(files)?;
        draft.keys_path = None;
        Ok(draft.with_keys(None))
    }

    /// As `load`, for a store with these capabilities or with other options.
    ///
    /// # Errors
    /// All errors of the files at once.
    pub fn load_for(path: &Path, options: impl Into<PolicyOptions>) -> Result<Self, LoadError> {
        let options = options.into();
        let snapshot = Target::rules(path).filter(options.filter).read()?;
        let files = RuleFiles::of(path, &snapshot).map_err(LoadError::Read)?;
        PolicyInputs::new(options).with_files(files)?.read_keys()
    }

    /// The same rules with these keys, whose tiers must be those of the rules.
    #[must_use]
    pub fn with_keys(mut self, keys: KeyTable) -> Self {
        self.keys = Some(Arc::new(keys));
        self
    }

    /// The same files and keys with these domains from another source, which replace all domains of that source.
    /// The policy must have been loaded with [`PolicyOptions::external_domains`], which retains the files.
    ///
    /// # Errors
    /// All errors of the domains, alone and together with the files.
    pub fn with_domains(&self, domains: Vec<DomainConfig>) -> Result<Self, RuleErrors> {
        let mut draft = self.inputs.with_domains(domains)?;
        draft.keys_path.clone_from(&self.keys_path);
        Ok(draft.with_keys(self.keys.clone()))
    }

    /// Whether rules have been configured, even if there are none.
    pub fn is_configured(&self) -> bool {
        self.configured
    }

    /// The form in which client addresses are counted.
    pub fn ip_normalizer(&self) -> IpNormalizer {
        self.ip_normalizer
    }
}

/// The address form that these rules set.
fn ip_normalizer(rules: &RuleSet) -> IpNormalizer {
    IpNormalizer::new(rules.identity().ipv6_prefix).expect("the IPv6 prefix is checked when the rules are parsed")
}

fn read_keys(path: &Path, rules: &RuleSet) -> Result<KeyTable, LoadError> {
    let snapshot = Target::keys(path).read()?;
    keys_of(path, &snapshot, rules)
}

fn keys_of(path: &Path, snapshot: &FileSnapshot, rules: &RuleSet) -> Result<KeyTable, LoadError> {
    let name = path.display().to_string();
    let file = snapshot.files().first().expect("a snapshot of a single file contains that file");
    let reader = file.open().map_err(LoadError::Read)?;
    Ok(KeyTable::read(&name, reader, rules.tiers())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::{DescriptorConfig, ParseOptions, SourceLocation};

    const NATIVE: &str = "version: 1\nrules: [{ name: all, by: global, rate: 1/hour }]\n";

    fn options() -> PolicyOptions {
        PolicyOptions { external_domains: true, ..ParseOptions::from(Capabilities::MEMORY).into() }
    }

    fn domain(name: &str, key: &str) -> DomainConfig {
        let node = DescriptorConfig {
            key: key.to_owned(),
            limit: Some(tidegate_rules::LimitConfig {
                unit: "day".to_owned(),
                requests_per_unit: 1,
                ..Default::default()
            }),
            ..DescriptorConfig::default()
        };
        let file = format!("xds/{name}").into();
        DomainConfig { location: SourceLocation { file, line: 0 }, domain: name.to_owned(), descriptors: vec![node] }
    }

    /// A block, an override or a match for a key that is listed under another name has no effect, nor has an override
    /// for the digest of a key that is not listed, or a match for any digest.
    #[test]
    fn unlisted_key_names_and_expired_entries_are_warned_about() {
        let text = "version: 1
tiers: [free]
keys_file: keys.txt
block: ['key:bobb', 'key:bob', { match: 192.0.2.1, until: 2020-01-01T00:00:00Z }]
rules:
  - { name: own, by: api_key|ip, rate: 9/hour, overrides: { bobb: 1/hour, bob: 2/hour, 192.0.2.7: 3/hour } }
  - { name: hex, by: api_key|ip, rate: 9/hour, overrides: { 'sha256:HEX0': 1/hour, 'SHA256:HEX1': 2/hour } }
  - { name: far, by: [user|api_key, ip], rate: 9/hour, overrides: { 'sha256:HEX2,192.0.2.7': 1/hour } }
  - { name: only, match: { api_key: [bobb, bob, 'b*'] }, by: [api_key, ip], rate: 9/hour }
  - { name: sha, match: { api_key: 'sha256:HEX1' }, by: api_key, rate: 9/hour }
";
        let (named, unnamed, unlisted) = ("0".repeat(64), "1a".repeat(32), "2".repeat(64));
        let text = text.replace("HEX0", &named).replace("SHA256:HEX1", &format!("SHA256:{}", unnamed.to_uppercase()));
        let text = &text.replace("HEX1", &unnamed).replace("HEX2", &unlisted);
        let lines = format!("sha256:{named} free bob\nsha256:{unnamed} free\n");
        let keys = KeyTable::read("keys.txt", lines.as_bytes(), &["free"]).unwrap();
        let policy = Policy::parse(&[SourceFile { name: "r", text }]).unwrap();
        let lint = |policy: &Policy, secs| -> Vec<String> {
            let warnings = policy.lint(Nanos::from_secs(secs));
            warnings.iter().map(ToString::to_string).collect()
        };
        let unread = lint(&policy, 1);
        let no_name =
            "but a match compares names, so that it has no effect; give the key a name in the keys file and write that";
        let matched = format!("r:10: rule `sha` matches api_key `sha256:{}...`, {no_name}", &unnamed[..53]);
        assert_eq!(unread, std::slice::from_ref(&matched), "names are compared when the keys are read");
        let warned = lint(&policy.with_keys(keys), 1_600_000_000);
        let effect = "but no keys file lists a key of that name, so that it has no effect; correct the name";
        let renamed = "but the keys file lists that key under a name, so that it has no effect; write `bob`";
        let unknown = "but the keys file does not list that key, so that it has no effect; correct the digest";
        let ended = "which has ended and has no effect; remove it, or write a later `until`";
        let want = [
            format!("r:4: has in `block` `192.0.2.1` (until 2020-01-01T00:00:00Z), {ended}"),
            format!("r:4: has in `block` `key:bobb`, {effect}"),
            format!("r:6: rule `own` overrides `bobb`, {effect}"),
            format!("r:7: rule `hex` overrides `sha256:{}...`, {renamed}", &named[..53]),
            format!("r:8: rule `far` overrides `sha256:{}...`, {unknown}", &unlisted[..53]),
            format!("r:9: rule `only` matches api_key `bobb`, {effect}"),
            matched,
        ];
        assert_eq!(warned, want);
    }

    fn names(policy: &Policy) -> Vec<String> {
        let rules = policy.rules.rules().iter();
        rules.map(|rule| rule.name().as_str().to_owned()).collect()
    }

    #[test]
    fn nothing_is_configured_until_rules_or_domains_are_set() {
        let none = Policy::none(options()).unwrap();
        assert!(!none.is_configured() && names(&none).is_empty());
        let empty = none.with_domains(Vec::new()).unwrap();
        assert!(empty.is_configured() && names(&empty).is_empty());
    }

    #[test]
    fn domains_change_beside_files_and_files_beside_domains() {
        let file = |text| SourceFile { name: "a", text };
        let first = Policy::parse_for(&[file(NATIVE)], options()).unwrap();
        let both = first.with_domains(vec![domain("shop", "k")]).unwrap();
        assert!(both.rules.rule("all").is_some(), "{:?}", names(&both));
        assert!(both.rules.rule("shop.k").is_some(), "{:?}", names(&both));
        assert_ne!(first.digest(), both.digest());
        let other = both.with_domains(vec![domain("mall", "k")]).unwrap();
        assert!(other.rules.rule("all").is_some() && other.rules.rule("shop.k").is_none());
        let files = RuleFiles { texts: vec![("a".to_owned(), NATIVE.replace("all", "every"))], ..RuleFiles::default() };
        let other = other.inputs.with_files(files).unwrap().with_keys(None);
        assert!(other.rules.rule("every").is_some() && other.rules.rule("mall.k").is_some());
    }

    #[test]
    fn a_domain_with_an_error_is_reported_by_the_name_of_its_resource() {
        let none = Policy::none(options()).unwrap();
        let result = none.with_domains(vec![domain("shop", "k"), domain("mall", "")]);
        let message = result.unwrap_err().to_string();
        assert!(message.contains("xds/mall") && !message.contains("xds/shop"), "{message}");
    }
}
