//! Keeps rules and keys up to date: reads them at the start, and again when their files change or a control plane
//! sends new ones.
//!
//! Invariant: the last valid rules and keys stay in force until valid ones replace them. The library watches the
//! files and [`xds`] the control plane; this module turns their events into log lines and metrics, and looks up the
//! series of rules when they come into force.

mod ignored_files;
mod reload_warnings;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tidegate::clock::Clock;
use tidegate::live::FileState;
use tidegate::{Policy, PolicyEvent, PolicyFollower, PolicyOptions};
use tidegate_rules::{SourceFile, Warning};
use tracing::{info, warn};

use self::ignored_files::IgnoredFiles;
use self::reload_warnings::ReloadWarnings;
use crate::config::RulesSource;
use crate::decider::{ConfigSource, DeciderControl};
use crate::logging::SanitizedText;
use crate::policy::xds::{self, XdsSubscription};

/// The rules that run without `--rules`.
pub(crate) const BUILT_IN_RULES: &str = include_str!("builtin.yaml");

/// Longer than it takes to read the largest files that are accepted.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(10);

const BUILT_IN_FILE: SourceFile<'_> = SourceFile { name: "built-in", text: BUILT_IN_RULES };

/// Watches the sources of rules and keys. Stops when dropped.
pub(crate) struct PolicyWatcher {
    decider: Arc<DeciderControl>,
    follower: Option<PolicyFollower>,
    control_plane: Option<XdsSubscription>,
    status: Arc<PolicyStatus>,
    ignored_files: Arc<IgnoredFiles>,
}

/// The result of a requested reload.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReloadOutcome {
    /// Other rules or keys are in force.
    Done,
    /// The files match what is in force already.
    Unchanged,
    /// The files cannot be used. What was in force stays.
    Rejected { why: String },
    /// The files are still being read.
    Slow,
    /// The rules did not come from files.
    NoFiles,
}

impl ReloadOutcome {
    pub(crate) fn status(&self) -> &'static str {
        match self {
            ReloadOutcome::Done => "reloaded",
            ReloadOutcome::Unchanged => "unchanged",
            ReloadOutcome::Rejected { .. } => "rejected",
            ReloadOutcome::Slow => "reading",
            ReloadOutcome::NoFiles => "no-files",
        }
    }
}

/// What is in force, and what is not.
#[derive(Default, Debug)]
struct PolicyStatus {
    /// Locked for moments, because threads that serve requests read it. Locked after `logged_warnings`.
    stale: Mutex<StaleReasons>,
    /// The version whose warnings were logged last, with these warnings. Locked while a policy is linted, which can take
    /// long, by threads that may block. So the last of them has the last policy.
    logged_warnings: Mutex<Option<(u64, Vec<Warning>)>>,
}

/// Why the configuration of each source is not in force. None: it is.
#[derive(Default, Debug)]
struct StaleReasons {
    rules: Option<String>,
    keys: Option<String>,
    xds: Option<String>,
}

/// The rules at `path`, or the built-in ones.
pub(crate) fn load_policy(path: Option<&Path>, reading: impl Into<PolicyOptions>) -> Result<Policy, String> {
    match path {
        None => Policy::parse_for(&[BUILT_IN_FILE], reading).map_err(|error| error.to_string()),
        Some(path) => Policy::load_for(path, reading).map_err(|error| error.to_string()),
    }
}

/// The policy at the start. Empty if only a control plane sends rules, or if bad rules are allowed and the files
/// have faults, which the file watcher reports.
pub(crate) fn initial_policy(from: &RulesSource, reading: PolicyOptions) -> Result<Policy, String> {
    let no_policy = |reading| Policy::none(reading).map_err(|error| error.to_string());
    if from.path.is_none() && from.xds.is_some() {
        return no_policy(reading);
    }
    match load_policy(from.path.as_deref(), reading.clone()) {
        Err(_) if from.allow_bad_rules => no_policy(reading),
        loaded => loaded,
    }
}

impl PolicyWatcher {
    /// Starts to watch the sources of rules. Their first contents are in force already.
    pub(crate) fn start(decider: &Arc<DeciderControl>, from: &RulesSource) -> std::io::Result<Self> {
        let status = Arc::<PolicyStatus>::default();
        // One for both sources: the policy in force combines files and control plane.
        let reload_warnings = Arc::<ReloadWarnings>::default();
        let path = from.path.as_deref();
        let ignored_files = Arc::new(IgnoredFiles::of(path, from.pick));
        tokio::spawn(ignored_files::watch_for_ignored_files(Arc::downgrade(&ignored_files)));
        let follower = if let Some(path) = &from.path {
            let (observer, known) = (Arc::clone(decider), Arc::clone(&status));
            let (observed_files, file_warnings) = (Arc::clone(&ignored_files), Arc::clone(&reload_warnings));
            let on_event = move |event: PolicyEvent<'_>| {
                on_file_event(&observer, &known, event);
                if let PolicyEvent::Rules(_) = event {
                    observed_files.warn();
                }
                if let PolicyEvent::Rules(FileState::Current) | PolicyEvent::Keys(FileState::Current) = event {
                    file_warnings.warn(&observer);
                }
            };
            Some(PolicyFollower::start(&decider.limiter, path, on_event)?)
        } else {
            record_in_force(decider, "rules", &status);
            None
        };
        let control_plane = from.xds.clone().map(|plane| {
            let (observer, known) = (Arc::clone(decider), Arc::clone(&status));
            let on_event = move |event: xds::XdsEvent<'_>| {
                let is_applied = matches!(event, xds::XdsEvent::Applied { .. });
                on_xds_event(&observer, &known, event);
                if is_applied {
                    reload_warnings.warn(&observer);
                }
            };
            XdsSubscription::start(plane, xds_applier(decider), Arc::new(on_event))
        });
        Ok(PolicyWatcher { decider: Arc::clone(decider), follower, control_plane, status, ignored_files })
    }

    /// Waits for the first message of the control plane, if there is one.
    pub(crate) async fn wait_for_control_plane(&self) {
        if let Some(subscription) = &self.control_plane {
            subscription.wait_for_first_response().await;
        }
    }

    /// Reads the files again, waits for the result and logs it. Blocks.
    pub(crate) fn reload(&self) -> ReloadOutcome {
        let reload = self.reload_files();
        self.ignored_files.warn();
        let (status, version) = (reload.status(), self.decider.limiter.policy().version());
        match &reload {
            ReloadOutcome::Rejected { why } => warn!(status, version, error = why, "reload"),
            _ => info!(status, version, "reload"),
        }
        reload
    }

    fn reload_files(&self) -> ReloadOutcome {
        let policy = self.decider.limiter.policy();
        let Some(follower) = &self.follower else {
            return ReloadOutcome::NoFiles;
        };
        let before = policy.version();
        if !follower.look(RELOAD_TIMEOUT) {
            return ReloadOutcome::Slow;
        }
        match self.stale() {
            Some(why) => ReloadOutcome::Rejected { why },
            None if policy.version() == before => ReloadOutcome::Unchanged,
            None => ReloadOutcome::Done,
        }
    }

    /// Why the files on disk are not in force, if they are not.
    pub(crate) fn stale(&self) -> Option<String> {
        self.status.stale.lock().join()
    }
}

impl StaleReasons {
    /// Records an event. Rules that name no keys file leave no keys to be stale.
    fn record(&mut self, event: PolicyEvent<'_>, has_keys: bool) {
        let why = |state: &FileState| match state {
            FileState::Current => None,
            FileState::Stale(why) => Some(why.to_string()),
        };
        match event {
            PolicyEvent::Rules(state) => self.rules = why(state),
            PolicyEvent::Keys(state) => self.keys = why(state),
        }
        if !has_keys {
            self.keys = None;
        }
    }

    /// All reasons, one per line.
    fn join(&self) -> Option<String> {
        let all = [("rules", &self.rules), ("keys", &self.keys), ("xds", &self.xds)];
        let reasons = all.into_iter().filter_map(|(what, why)| Some(format!("{what}: {}", why.as_ref()?)));
        reasons.reduce(|one, next| format!("{one}\n{next}"))
    }
}

/// Called by the rules thread and by the keys thread.
fn on_file_event(decider: &DeciderControl, status: &PolicyStatus, event: PolicyEvent<'_>) {
    let has_keys = decider.limiter.policy().load().keys.is_some();
    let (what, state) = match event {
        PolicyEvent::Rules(state) => ("rules", state),
        PolicyEvent::Keys(state) => ("keys", state),
    };
    match state {
        FileState::Current => {
            status.stale.lock().record(event, has_keys);
            if let PolicyEvent::Rules(_) = event {
                decider.first_config.record_loaded(ConfigSource::Files);
            }
            record_in_force(decider, what, status);
        }
        FileState::Stale(why) => {
            record_rejected(decider, status, |stale| stale.record(event, has_keys));
            log_rejected(decider, ConfigSource::Files, what, &why.to_string());
        }
    }
}

/// Puts the limits from a control plane in force, beside the files.
fn xds_applier(decider: &Arc<DeciderControl>) -> xds::ApplyResources {
    let policy = Arc::clone(decider.limiter.policy());
    Arc::new(move |resources| {
        let domains = xds::decode_domains(resources)?;
        let replaced = policy.replace_with(|| policy.load().with_domains(domains));
        replaced.map(drop).map_err(|errors| errors.to_string())
    })
}

/// Called by the task that follows the control plane, for limits that are applied by a thread that may block.
fn on_xds_event(decider: &DeciderControl, status: &PolicyStatus, event: xds::XdsEvent<'_>) {
    match event {
        xds::XdsEvent::Connected => {
            // A rejected configuration stays rejected.
            let is_away = |why: &str| why.starts_with(CONTROL_PLANE_LOST) || why.starts_with(CONTROL_PLANE_SILENT);
            status.stale.lock().xds.take_if(|why| is_away(why));
            info!("connected to the control plane");
        }
        xds::XdsEvent::Applied { version } => {
            status.stale.lock().xds = None;
            let version = SanitizedText(version).to_string();
            info!(version, "the control plane sent limits");
            decider.first_config.record_loaded(ConfigSource::ControlPlane);
            record_in_force(decider, "xds", status);
        }
        xds::XdsEvent::Rejected { version, why } => {
            record_rejected(decider, status, |stale| stale.xds = Some(why.to_owned()));
            let version = SanitizedText(version).to_string();
            warn!(version, "the control plane sent limits with faults");
            log_rejected(decider, ConfigSource::ControlPlane, "xds", why);
        }
        xds::XdsEvent::Disconnected { why, wait_ms } => {
            let why = SanitizedText(why).to_string();
            let is_loaded = decider.first_config.is_loaded(ConfigSource::ControlPlane);
            let reason = if is_loaded { CONTROL_PLANE_LOST } else { CONTROL_PLANE_SILENT };
            status.stale.lock().xds.get_or_insert_with(|| format!("{reason}: {why}"));
            if is_loaded {
                warn!(error = why, wait_ms, "{CONTROL_PLANE_LOST}, what it sent last stays in force");
            } else {
                warn!(error = why, wait_ms, "{CONTROL_PLANE_SILENT}, and calls of Envoy fail until it does");
            }
        }
    }
}

const CONTROL_PLANE_LOST: &str = "the control plane is lost";
/// Before its first valid configuration.
const CONTROL_PLANE_SILENT: &str = "the control plane has sent no good limits yet";

/// Records a rejected configuration. The lock is held while the metric is set, so that it shows the last event.
fn record_rejected(decider: &DeciderControl, status: &PolicyStatus, record: impl FnOnce(&mut StaleReasons)) {
    let mut stale = status.stale.lock();
    record(&mut stale);
    decider.metrics.reload.successful.set(0);
    decider.metrics.reload.rejected.inc();
}

/// Logs a rejected configuration. The last valid configuration of that source stays in force, if there is one.
fn log_rejected(decider: &DeciderControl, source: ConfigSource, what: &str, why: &str) {
    if decider.first_config.is_loaded(source) {
        warn!(what, error = why, "rejected, the last good ones stay in force");
    } else {
        warn!(what, error = why, "rejected, and nothing is in force yet");
    }
}

/// Records the policy in force and logs its warnings. Blocks: lint takes long for many rules.
fn record_in_force(decider: &DeciderControl, what: &str, status: &PolicyStatus) {
    let mut logged_warnings = status.logged_warnings.lock();
    let policy = decider.limiter.policy().get();
    if !policy.is_configured() {
        warn!("there is no configuration yet, so requests get errors");
        return;
    }
    decider.metrics.load(&policy.rules);
    // The reference decider has no keys, and the version would count the keys that are read twice at the start.
    if what != "keys" {
        decider.rule_loads.inc();
    }
    let reload = &decider.metrics.reload;
    {
        let stale = status.stale.lock();
        let successful = stale.join().is_none();
        reload.successful.set(u64::from(successful));
        if successful {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            reload.success_epoch_secs.set(now.map_or(0, |now| now.as_secs()));
        }
    }
    let hash = hex(policy.digest());
    info!(
        what,
        version = policy.version(),
        rules = policy.rules.rules().len(),
        keys = policy.keys.as_ref().map(|keys| keys.len()),
        hash = hash.get(..12).unwrap_or_default(),
        "rules in force"
    );
    *reload.hash.lock() = hash;
    let (version, warnings) = (policy.version(), policy.lint(decider.clock.now()));
    log_warnings(&warnings, what, version, logged_warnings.as_ref());
    *logged_warnings = Some((version, warnings));
}

/// Logs the warnings of `tidegate lint` about rules that come into force: the first few in full, the others as a
/// count. A warning that was logged last is not repeated for the same version, or if the rules of the files have
/// not changed.
fn log_warnings(warnings: &[Warning], what: &str, version: u64, last: Option<&(u64, Vec<Warning>)>) {
    const MAX_LOGGED: usize = 10;
    let repeated = match last {
        Some((known, last)) if *known == version || what != "rules" => &last[..],
        _ => &[],
    };
    let identity = |warning: &'_ Warning| (warning.location.clone(), warning.message.clone());
    let repeated: BTreeSet<_> = repeated.iter().map(identity).collect();
    let fresh = warnings.iter().filter(|warning| !repeated.contains(&identity(warning)));
    for warning in fresh.clone().take(MAX_LOGGED) {
        warn!("{warning}");
    }
    if let more @ 1.. = fresh.count().saturating_sub(MAX_LOGGED) {
        let cure = match what {
            "xds" => "correct those above first",
            _ => "see `tidegate lint`",
        };
        warn!(more, "the rules have more warnings; {cure}");
    }
}

fn hex(digest: &[u8; 32]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::live::FileError;
    use tidegate_core::store::Capabilities;

    #[test]
    fn the_built_in_rules_are_good_and_raise_no_warning() {
        assert_eq!(tidegate_rules::lint(&load_policy(None, Capabilities::MEMORY).unwrap().rules), []);
    }

    /// Good keys hid rules that were still rejected, and good rules hid rejected keys.
    #[test]
    fn a_policy_is_stale_unless_both_rules_and_keys_are_good() {
        let reason = "line 3".to_owned();
        let bad = &FileState::Stale(FileError::Rejected { reason });
        let good = &FileState::Current;
        let mut stale = StaleReasons::default();
        for (event, has_keys, want) in [
            (PolicyEvent::Rules(good), true, None),
            (PolicyEvent::Rules(bad), true, Some("rules: line 3")),
            (PolicyEvent::Keys(good), true, Some("rules: line 3")),
            (PolicyEvent::Keys(bad), true, Some("rules: line 3\nkeys: line 3")),
            (PolicyEvent::Rules(good), true, Some("keys: line 3")),
            (PolicyEvent::Keys(good), true, None),
            (PolicyEvent::Keys(bad), true, Some("keys: line 3")),
            (PolicyEvent::Rules(good), false, None),
        ] {
            stale.record(event, has_keys);
            assert_eq!(stale.join().as_deref(), want, "after {event:?}");
        }
    }

    /// A thread that serves requests waited for the lint of all rules.
    #[test]
    fn the_status_is_read_while_rules_are_linted() {
        let status = PolicyStatus::default();
        let _linting = status.logged_warnings.lock();
        status.stale.lock().xds = Some("lost".to_owned());
        assert_eq!(status.stale.lock().join().as_deref(), Some("xds: lost"));
    }
}
