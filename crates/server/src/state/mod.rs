//! The state of a node: its store of counters, and the files in `--data-dir` that survive a restart.
//!
//! `any_store` is the configured store, and `joined_store` one that nodes share. `store_events`, `store_health` and
//! `late_replies` report its condition. `data_dir`, `membership_file`, `node_identity` and `local_admissions_file` are the files of a
//! node. Knows no edge.

pub(crate) mod any_store;
pub(crate) mod data_dir;
pub(crate) mod joined_store;
pub(crate) mod late_replies;
pub(crate) mod local_admissions_file;
pub(crate) mod membership_file;
pub(crate) mod node_identity;
pub(crate) mod store_events;
pub(crate) mod store_health;

pub(crate) use self::any_store::{AnyStore, ServerLimiter};
pub(crate) use self::node_identity::NodeIdentity;
