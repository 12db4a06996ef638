//! Tracks whether this node has a configuration to decide by.
//!
//! Rules come from files, from a control plane, or from both. A source counts as loaded once it has delivered a
//! valid configuration, and stays loaded, because its last valid configuration stays in force. Until then no
//! request that the source could affect is decided. Native edges need the files, and without files what the control
//! plane sends. Envoy calls need both sources.

use std::sync::atomic::{
    AtomicBool,
    Ordering::{Acquire, Release},
};

use tidegate_rules::request::Edge;

use crate::config::RulesSource;

/// The configuration sources that have not been loaded yet.
#[derive(Debug)]
pub(crate) struct FirstConfig {
    has_files: bool,
    /// Whether each source is still missing, by [`ConfigSource`].
    missing: [AtomicBool; 2],
}

/// A source of configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ConfigSource {
    Files,
    ControlPlane,
}

/// No decision is possible, because a source has not delivered a valid configuration yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MissingConfigError {
    #[error(
        "no rate limit configuration loaded: the rules are missing or have faults, and nothing is decided until they \
         are good; the log names each fault, and a corrected file is loaded at once"
    )]
    Files,
    #[error(
        "no rate limit configuration loaded: the control plane has not sent a good one yet, and nothing is decided \
         until it does; see the log for the connection to it"
    )]
    ControlPlane,
}

impl FirstConfig {
    /// The state at the start. `has_rules` is whether rules from files or built-in rules are in force.
    pub(crate) fn new(from: &RulesSource, has_rules: bool) -> Self {
        let has_files = from.path.is_some();
        FirstConfig { has_files, missing: [has_files && !has_rules, from.xds.is_some()].map(AtomicBool::new) }
    }

    /// Records that a valid configuration of this source is in force. A thread that sees this also sees that
    /// configuration.
    pub(crate) fn record_loaded(&self, source: ConfigSource) {
        self.missing[source as usize].store(false, Release);
    }

    /// Whether this source has delivered a valid configuration, or is not used.
    pub(crate) fn is_loaded(&self, source: ConfigSource) -> bool {
        !self.missing[source as usize].load(Acquire)
    }

    /// Whether requests of this edge can be decided.
    pub(crate) fn require(&self, edge: Edge) -> Result<(), MissingConfigError> {
        if !self.is_loaded(ConfigSource::Files) {
            return Err(MissingConfigError::Files);
        }
        let needs_plane = edge == Edge::Envoy || !self.has_files;
        if needs_plane && !self.is_loaded(ConfigSource::ControlPlane) {
            return Err(MissingConfigError::ControlPlane);
        }
        Ok(())
    }

    /// Whether the requests of every edge can be decided. Envoy needs all sources.
    pub(crate) fn require_all(&self) -> Result<(), MissingConfigError> {
        self.require(Edge::Envoy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ConfigSource::{ControlPlane, Files};
    use tidegate::live::FileFilter;

    /// `check(sources, loaded since the start, missing for native edges and for Envoy)`.
    #[track_caller]
    fn check(
        has_path: bool,
        has_plane: bool,
        has_rules: bool,
        loaded: &[ConfigSource],
        want: [Option<MissingConfigError>; 2],
    ) {
        let from = RulesSource {
            path: has_path.then(|| "rules".into()),
            pick: FileFilter::Rules,
            xds: has_plane.then(|| "xds://plane:1".parse().unwrap()),
            allow_bad_rules: true,
            allow_late_control_plane: true,
        };
        let config = FirstConfig::new(&from, has_rules);
        for source in loaded {
            config.record_loaded(*source);
        }
        let native = [Edge::Http, Edge::Auth, Edge::Resp].map(|edge| config.require(edge).err());
        assert_eq!(native, [want[0]; 3]);
        assert_eq!(config.require(Edge::Envoy).err(), want[1]);
        assert_eq!(config.require_all().err(), want[1]);
    }

    #[test]
    fn built_in_rules_need_no_other_source() {
        check(false, false, true, &[], [None, None]);
    }

    #[test]
    fn files_must_have_been_valid_once() {
        let missing = Some(MissingConfigError::Files);
        check(true, false, true, &[], [None, None]);
        check(true, false, false, &[], [missing, missing]);
        check(true, false, false, &[Files], [None, None]);
    }

    #[test]
    fn a_control_plane_alone_must_have_sent_a_valid_configuration() {
        let missing = Some(MissingConfigError::ControlPlane);
        check(false, true, false, &[], [missing, missing]);
        check(false, true, false, &[ControlPlane], [None, None]);
    }

    #[test]
    fn beside_files_only_envoy_needs_the_control_plane() {
        let [files, plane] = [MissingConfigError::Files, MissingConfigError::ControlPlane].map(Some);
        check(true, true, true, &[], [None, plane]);
        check(true, true, true, &[ControlPlane], [None, None]);
        // What the control plane sends does not replace files with faults.
        check(true, true, false, &[ControlPlane], [files, files]);
        check(true, true, false, &[Files], [None, plane]);
    }
}
