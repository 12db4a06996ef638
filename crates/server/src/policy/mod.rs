//! Where rules come from: files that are watched, and a control plane.
//!
//! `watcher` reads the files and puts each valid policy in force, `xds` receives limits from a control plane, and
//! `first_config` tracks whether there is a policy to decide by yet. Knows no edge.

pub(crate) mod first_config;
pub(crate) mod watcher;
pub(crate) mod xds;
