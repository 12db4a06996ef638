//! Where rules come from: files that are watched, and a control plane.
//!
//! `watcher` reads the files and puts each valid policy in force, and `xds` receives limits from a control
//! plane. Knows no edge.

pub(crate) mod watcher;
pub(crate) mod xds;
