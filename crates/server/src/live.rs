//! Rules and keys in force: read at the start, again when their files change or a control plane says
//! so, last good ones kept.
//!
//! The following itself is the library's, or that of [`xds`]; here the news become log lines
//! and metrics, and the series of rules are found when they come into force.

mod left_out;
mod reload_costs;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate::clock::Clock;
use tidegate::live::State;
use tidegate::{Follower, News, Policy, Reading};
use tidegate_core::rules::{SourceFile, Warning};
use tracing::{info, warn};

use self::left_out::LeftOut;
use self::reload_costs::ReloadCosts;
use crate::config::RulesFrom;
use crate::first_config::ConfigSource;
use crate::logs::Shown;
use crate::service::Service;
use crate::xds::{self, Following};

/// The rules that run when none are named.
pub(crate) const BUILT_IN: &str = include_str!("builtin.yaml");

/// Longer than it takes to read the largest files that are accepted.
const RELOAD_WITHIN: Duration = Duration::from_secs(10);

const FILE: SourceFile<'_> = SourceFile {
    name: "built-in",
    text: BUILT_IN,
};

/// What keeps rules and keys up to date. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Live {
    follower: Option<Follower>,
    following: Option<Following>,
    standing: Arc<Mutex<Standing>>,
    left_out: Arc<LeftOut>,
}

/// What came of a reload that somebody requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum ReloadOutcome {
    /// Other rules or keys are in force.
    Done,
    /// The files say what is in force already.
    Unchanged,
    /// The files cannot be used, and what was in force stays.
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

/// Why what is on disk is not in force. Nothing: it is.
#[derive(Default, Debug)]
struct Standing {
    rules: Option<String>,
    keys: Option<String>,
    xds: Option<String>,
    /// The version whose warnings were logged last, and these.
    linted: Option<(u64, Vec<Warning>)>,
}

/// The rules at `path`, or the built-in ones.
pub(crate) fn policy(path: Option<&Path>, reading: impl Into<Reading>) -> Result<Policy, String> {
    match path {
        None => Policy::parse_for(&[FILE], reading).map_err(|error| error.to_string()),
        Some(path) => Policy::load_for(path, reading).map_err(|error| error.to_string()),
    }
}

/// What to decide by at the start: nothing yet, if a control plane will say it, or if there is to be a
/// start without.
pub(crate) fn first(from: &RulesFrom, reading: Reading) -> Result<Policy, String> {
    let none = || Policy::none(reading.clone()).map_err(|error| error.to_string());
    match (&from.path, &from.xds) {
        (None, Some(_)) => none(),
        (path, _) => {
            policy(path.as_deref(), reading.clone()).or_else(|why| match from.may_be_bad {
                // Why is told by whoever follows the files.
                true => none(),
                false => Err(why),
            })
        }
    }
}

impl Live {
    /// Goes on watching where rules come from; what was there at first is in force already.
    pub(crate) fn start(service: &Arc<Service>, from: &RulesFrom) -> std::io::Result<Self> {
        let standing = Arc::<Mutex<Standing>>::default();
        // One for both sources: what is in force comes from files and control plane together.
        let costs = Arc::<ReloadCosts>::default();
        let path = from.path.as_deref();
        let left_out = Arc::new(LeftOut::of(path, from.pick));
        tokio::spawn(left_out::keep_looking(Arc::downgrade(&left_out)));
        let follower = match &from.path {
            None => {
                in_force(service, "rules", &mut locked(&standing));
                None
            }
            Some(path) => {
                let (telling, known) = (Arc::clone(service), Arc::clone(&standing));
                let policy = Arc::clone(service.limiter.policy());
                let telling_left_out = Arc::clone(&left_out);
                let costs = Arc::clone(&costs);
                let tell = move |news: News<'_>| {
                    tell(&telling, &known, news);
                    if let News::Rules(_) = news {
                        telling_left_out.warn();
                    }
                    if let News::Rules(State::Current) | News::Keys(State::Current) = news {
                        costs.warn(&telling);
                    }
                };
                Some(Follower::start(policy, path, tell)?)
            }
        };
        let plane = from.xds.clone();
        let following = plane.map(|plane| {
            let (telling, known) = (Arc::clone(service), Arc::clone(&standing));
            let tell = move |news: xds::News<'_>| {
                let is_taken = matches!(news, xds::News::Taken { .. });
                tell_xds(&telling, &known, news);
                if is_taken {
                    costs.warn(&telling);
                }
            };
            Following::start(plane, taking(service), Arc::new(tell))
        });
        Ok(Live {
            follower,
            following,
            standing,
            left_out,
        })
    }

    /// Waits for the first word of the control plane, if there is one.
    pub(crate) async fn answered(&self) {
        if let Some(following) = &self.following {
            following.answered().await;
        }
    }

    /// Reads the files again, waits for the outcome and logs it. Blocks.
    pub(crate) fn reload(&self, service: &Service) -> ReloadOutcome {
        let reload = self.reloaded(service);
        self.left_out.warn();
        let (status, version) = (reload.status(), service.limiter.policy().version());
        match &reload {
            ReloadOutcome::Rejected { why } => warn!(status, version, why, "reload"),
            _ => info!(status, version, "reload"),
        }
        reload
    }

    fn reloaded(&self, service: &Service) -> ReloadOutcome {
        let Some(follower) = &self.follower else {
            return ReloadOutcome::NoFiles;
        };
        let before = service.limiter.policy().version();
        if !follower.look(RELOAD_WITHIN) {
            return ReloadOutcome::Slow;
        }
        match self.stale() {
            Some(why) => ReloadOutcome::Rejected { why },
            None if service.limiter.policy().version() == before => ReloadOutcome::Unchanged,
            None => ReloadOutcome::Done,
        }
    }

    /// Why what is on disk is not in force, if it is not.
    pub(crate) fn stale(&self) -> Option<String> {
        locked(&self.standing).stale()
    }
}

impl Standing {
    /// Takes note of the news. Rules that name no keys file leave none to be stale.
    fn hear(&mut self, news: News<'_>, has_keys: bool) {
        let why = |state: &State| match state {
            State::Current => None,
            State::Stale(why) => Some(why.to_string()),
        };
        match news {
            News::Rules(state) => self.rules = why(state),
            News::Keys(state) => self.keys = why(state),
        }
        if !has_keys {
            self.keys = None;
        }
    }

    fn stale(&self) -> Option<String> {
        let all = [
            ("rules", &self.rules),
            ("keys", &self.keys),
            ("xds", &self.xds),
        ];
        let told = all
            .into_iter()
            .filter_map(|(what, why)| Some(format!("{what}: {}", why.as_ref()?)));
        told.reduce(|one, next| format!("{one}\n{next}"))
    }
}

fn locked(standing: &Mutex<Standing>) -> MutexGuard<'_, Standing> {
    standing.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Called by the thread of the rules and by that of the keys. The lock is held to the end, so that
/// the last to write is the one with the last policy.
fn tell(service: &Service, standing: &Mutex<Standing>, news: News<'_>) {
    let mut standing = locked(standing);
    standing.hear(news, service.limiter.policy().load().keys.is_some());
    let (what, state) = match news {
        News::Rules(state) => ("rules", state),
        News::Keys(state) => ("keys", state),
    };
    match state {
        State::Current => {
            if let News::Rules(_) = news {
                service.first_config.record_loaded(ConfigSource::Files);
            }
            in_force(service, what, &mut standing);
        }
        State::Stale(why) => not_taken(service, ConfigSource::Files, what, &why.to_string()),
    }
}

/// Puts what a control plane sends in force, beside the files.
fn taking(service: &Arc<Service>) -> xds::Take {
    let live = Arc::clone(service.limiter.policy());
    Arc::new(move |resources| {
        let domains = xds::domains(resources)?;
        let taken = live.replace_with(|| live.load().beside(domains));
        taken.map(drop).map_err(|faults| faults.to_string())
    })
}

/// Called by the task that follows the control plane.
fn tell_xds(service: &Service, standing: &Mutex<Standing>, news: xds::News<'_>) {
    let mut standing = locked(standing);
    match news {
        xds::News::Met => {
            // What was refused stays refused.
            let is_away = |why: &String| why.starts_with(LOST) || why.starts_with(NOTHING_SENT);
            if standing.xds.as_ref().is_some_and(is_away) {
                standing.xds = None;
            }
            info!("the control plane is met");
        }
        xds::News::Taken { version } => {
            standing.xds = None;
            let version = Shown(version).to_string();
            info!(version, "the control plane sent limits");
            service
                .first_config
                .record_loaded(ConfigSource::ControlPlane);
            in_force(service, "xds", &mut standing);
        }
        xds::News::Refused { version, why } => {
            standing.xds = Some(why.to_owned());
            let version = Shown(version).to_string();
            warn!(version, "the control plane sent limits with faults");
            not_taken(service, ConfigSource::ControlPlane, "xds", why);
        }
        xds::News::Lost { why, wait_ms } => {
            let why = Shown(why).to_string();
            let is_loaded = service.first_config.is_loaded(ConfigSource::ControlPlane);
            let away = if is_loaded { LOST } else { NOTHING_SENT };
            if standing.xds.is_none() {
                standing.xds = Some(format!("{away}: {why}"));
            }
            if is_loaded {
                warn!(why, wait_ms, "{LOST}, what it sent last stays in force");
            } else {
                warn!(
                    why,
                    wait_ms, "{NOTHING_SENT}, and calls of Envoy fail until it does"
                );
            }
        }
    }
}

const LOST: &str = "the control plane is lost";
/// Before its first good configuration.
const NOTHING_SENT: &str = "the control plane has sent no good limits yet";

/// Of files, or of the plane: the last good configuration of that source stays in force, if there is one.
fn not_taken(service: &Service, source: ConfigSource, what: &str, why: &str) {
    service.metrics.reload.successful.set(0);
    service.metrics.reload.rejected.inc();
    if service.first_config.is_loaded(source) {
        warn!(what, why, "not taken, the last good ones stay in force");
    } else {
        warn!(what, why, "not taken, and nothing is in force yet");
    }
}

fn in_force(service: &Service, what: &str, standing: &mut Standing) {
    let policy = service.limiter.policy().get();
    if !policy.is_given() {
        warn!("there is no configuration yet, so requests get errors");
        return;
    }
    service.metrics.load(&policy.rules);
    // The reference has no keys, and the version counts what is read twice at the start.
    if let (Some(statistics), true) = (&service.envoy_statistics, what != "keys") {
        statistics.loaded();
    }
    let reload = &service.metrics.reload;
    let stale = standing.stale();
    reload.successful.set(u64::from(stale.is_none()));
    if stale.is_none() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        reload
            .success_epoch_secs
            .set(now.map_or(0, |now| now.as_secs()));
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
    let (version, warnings) = (policy.version(), policy.lint(service.clock.now()));
    log_warnings(&warnings, what, version, standing.linted.as_ref());
    standing.linted = Some((version, warnings));
}

/// Logs what `tidegate lint` says of rules that come into force: the first few in words, the others counted.
/// Of what was logged last, nothing is repeated for the same version, or where the rules of the files are the same.
fn log_warnings(
    warnings: &[Warning],
    what: &str,
    version: u64,
    last: Option<&(u64, Vec<Warning>)>,
) {
    const MAX_LOGGED: usize = 10;
    let repeated = match last {
        Some((known, last)) if *known == version || what != "rules" => &last[..],
        _ => &[],
    };
    let identity = |warning: &'_ Warning| (warning.place.clone(), warning.message.clone());
    let repeated: BTreeSet<_> = repeated.iter().map(identity).collect();
    let fresh = warnings
        .iter()
        .filter(|warning| !repeated.contains(&identity(warning)));
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
    use tidegate::live::Why;
    use tidegate_core::store::Abilities;

    #[test]
    fn the_built_in_rules_are_good_and_raise_no_warning() {
        assert_eq!(
            tidegate_core::rules::lint(&policy(None, Abilities::MEMORY).unwrap().rules),
            []
        );
    }

    /// Good keys hid rules that were still refused, and good rules hid keys.
    #[test]
    fn only_good_rules_with_good_keys_are_not_stale() {
        let reason = "line 3".to_owned();
        let bad = &State::Stale(Why::Refused { reason });
        let good = &State::Current;
        let mut standing = Standing::default();
        for (news, has_keys, want) in [
            (News::Rules(good), true, None),
            (News::Rules(bad), true, Some("rules: line 3")),
            (News::Keys(good), true, Some("rules: line 3")),
            (News::Keys(bad), true, Some("rules: line 3\nkeys: line 3")),
            (News::Rules(good), true, Some("keys: line 3")),
            (News::Keys(good), true, None),
            (News::Keys(bad), true, Some("keys: line 3")),
            (News::Rules(good), false, None),
        ] {
            standing.hear(news, has_keys);
            assert_eq!(standing.stale().as_deref(), want, "after {news:?}");
        }
    }
}
