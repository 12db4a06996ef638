//! Where rules come from: files that are watched, and a control plane.
//!
//! `watcher` keeps the policy of the limiter as the files say, `xds` as a control plane says; `first_config` knows whether
//! there is a policy to decide by yet. Knows no edge.

pub(crate) mod first_config;
pub(crate) mod watcher;
pub(crate) mod xds;
