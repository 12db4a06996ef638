//! Rules and keys in force: read at the start, again when their files change, last good ones kept.
//!
//! The following itself is the library's; here the news become log lines and metrics, and the
//! series of rules are found when they come into force.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use sha2::{Digest, Sha256};
use tidegate::live::{State, Target};
use tidegate::{Follower, News, Policy};
use tidegate_core::rules::{self, RuleSet, SourceFile};
use tracing::{info, warn};

use crate::service::Service;

/// The rules that run when none are named.
pub(crate) const BUILT_IN: &str = include_str!("builtin.yaml");

/// What keeps rules and keys up to date. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Live(Option<Follower>);

/// The built-in rules.
pub(crate) fn built_in() -> RuleSet {
    let file = SourceFile {
        name: "built-in",
        text: BUILT_IN,
    };
    rules::parse(&[file]).expect("a test reads the built-in rules")
}

/// What to decide by at the start.
pub(crate) fn policy(path: Option<&Path>) -> Result<Policy, String> {
    match path {
        None => Ok(Policy::of(built_in())),
        Some(path) => Policy::load(path).map_err(|error| error.to_string()),
    }
}

impl Live {
    /// Goes on watching the rules at `path`, which are in force already.
    pub(crate) fn start(service: &Arc<Service>, path: Option<&Path>) -> std::io::Result<Self> {
        let Some(path) = path else {
            in_force(service, None);
            return Ok(Live(None));
        };
        let (telling, watched) = (Arc::clone(service), path.to_owned());
        let policy = Arc::clone(service.limiter.policy());
        let follower = Follower::start(policy, path, move |news| tell(&telling, &watched, news))?;
        Ok(Live(Some(follower)))
    }

    /// Looks at the files now.
    pub(crate) fn poke(&self) {
        if let Some(follower) = &self.0 {
            follower.poke();
        }
    }

    /// Why what is on disk is not in force, if it is not.
    pub(crate) fn stale(&self) -> Option<String> {
        match self.0.as_ref()?.rules_state() {
            State::Current => None,
            State::Stale(why) => Some(why.to_string()),
        }
    }
}

fn tell(service: &Service, path: &PathBuf, news: News<'_>) {
    let (what, state) = match news {
        News::Rules(state) => ("rules", state),
        News::Keys(state) => ("keys", state),
    };
    match state {
        State::Current => in_force(service, Some(path)),
        State::Stale(why) => {
            service.metrics.reload.successful.set(0);
            service.metrics.reload.rejected.inc();
            warn!(what, %why, "not taken, the last good ones stay in force");
        }
    }
}

fn in_force(service: &Service, path: Option<&PathBuf>) {
    let policy = service.limiter.policy().get();
    service.metrics.load(&policy.rules);
    let reload = &service.metrics.reload;
    reload.successful.set(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    reload
        .success_epoch_secs
        .set(now.map_or(0, |now| now.as_secs()));
    let hash = hash(path);
    info!(
        version = policy.version(),
        rules = policy.rules.rules().len(),
        keys = policy.keys.as_ref().map(|keys| keys.len()),
        hash = hash.get(..12).unwrap_or_default(),
        "rules in force"
    );
    *reload.hash.lock() = hash;
}

/// A digest of the files, the same on every node that has the same ones.
fn hash(path: Option<&PathBuf>) -> String {
    let mut hash = Sha256::new();
    match path.map(|path| Target::rules(path).read()) {
        None => hash.update(BUILT_IN),
        Some(Ok(snapshot)) => snapshot
            .parts()
            .iter()
            .for_each(|part| hash.update(part.sha256())),
        // Gone again since: the next news will tell.
        Some(Err(_)) => return String::new(),
    }
    hash.finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_rules_are_good_and_raise_no_warning() {
        assert_eq!(rules::lint(&built_in()), []);
    }
}
