//! What `serve` is told: flags and environment over a file over defaults.
//!
//! Every setting is an `Option` in [`Layer`], whichever layer it comes from; [`Settings`] is what
//! comes out, complete and checked. Unknown names are errors, in the file and in the environment.

mod environment;
mod layer;
mod name_list;
mod quantity;
mod settle;
mod values;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Reading;
use tidegate::live::Pick;
use tidegate::resilience::Tolerance;
use tidegate_core::rules::Dialect;
use tidegate_core::store::Abilities;
use tidegate_core::units::Nanos;

pub(crate) use self::environment::{UnknownVariable, check as check_environment};
pub(crate) use self::layer::Layer;
pub(crate) use self::quantity::{Size, millis};
pub(crate) use self::values::{EnvoyHeaders, LogFormat, LogLevel, LogSubjects, Reset};
use crate::address::Address;
use crate::edges::envoy::EnvoyOptions;
use crate::envoy_compat::BadEnvironment;
use crate::net::tls::Files;
use crate::net::watch::Age;
use crate::store_choice::{NoSuchStore, StoreChoice};
use crate::xds::ControlPlane;

/// Everything `serve` needs to know.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) rules: RulesFrom,
    pub(crate) merge_domains: bool,
    /// What keeps the counters of descriptors apart from those of others in the same store.
    pub(crate) counter_prefix: Arc<str>,
    pub(crate) store: StoreChoice,
    pub(crate) require_store: bool,
    pub(crate) data: Option<PathBuf>,
    pub(crate) nodes: Option<u32>,
    pub(crate) store_budget: Duration,
    pub(crate) clock: Tolerance,
    pub(crate) http: Address,
    pub(crate) grpc: Address,
    pub(crate) grpc_age: Option<Age>,
    pub(crate) grpc_tls: Option<Files>,
    pub(crate) envoy: EnvoyOptions,
    pub(crate) resp: Address,
    pub(crate) resp_password_file: Option<PathBuf>,
    pub(crate) admin: Address,
    pub(crate) metrics: Address,
    pub(crate) metrics_path: String,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) shadow: bool,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) memory_cap: Size,
    pub(crate) log_level: LogLevel,
    pub(crate) log_format: LogFormat,
    pub(crate) log_subjects: LogSubjects,
    pub(crate) drain: Duration,
    pub(crate) drain_delay: Duration,
    pub(crate) reset: Reset,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_peer: Option<usize>,
    pub(crate) idle: Duration,
}

/// Where rules come from.
#[derive(Clone, Debug)]
pub(crate) struct RulesFrom {
    /// A file, or a folder.
    pub(crate) path: Option<PathBuf>,
    /// Which files of a folder count.
    pub(crate) pick: Pick,
    /// A control plane.
    pub(crate) xds: Option<ControlPlane>,
    /// Whether to start with files that cannot be used, and to decide nothing until they can.
    pub(crate) may_be_bad: bool,
    /// Whether doors open before the control plane has said anything.
    pub(crate) may_be_late: bool,
}

impl Settings {
    /// How rules are read.
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            dialect: Dialect {
                store: self.abilities(),
                merge_domains: self.merge_domains,
                prefix: Arc::clone(&self.counter_prefix),
            },
            pick: self.rules.pick,
            elsewhere: self.rules.xds.is_some(),
        }
    }

    /// What the store can do for rules.
    pub(crate) fn abilities(&self) -> Abilities {
        match (&self.store, &self.data) {
            (StoreChoice::Memory, Some(_)) => Abilities::JOURNAL,
            (store, _) => store.abilities(),
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BadConfig {
    /// The file is not there or cannot be read.
    #[error("{}: {source}", file.display())]
    Unreadable {
        file: PathBuf,
        source: std::io::Error,
    },
    /// The file does not say what a configuration says.
    #[error("{}: {reason}", file.display())]
    Malformed { file: PathBuf, reason: String },
    /// A store there is no code for.
    #[error(transparent)]
    NoSuchStore(#[from] NoSuchStore),
    /// A variable that looks like a setting and is none.
    #[error(transparent)]
    Variable(#[from] UnknownVariable),
    /// The environment of the reference service asks for what cannot be done.
    #[error(transparent)]
    Environment(#[from] BadEnvironment),
    /// Nobody could reach it.
    #[error(
        "--http, --grpc, --resp and --admin are all off, so nobody could ask anything; open one of them"
    )]
    NothingOpen,
    /// A setting that has no effect without another one.
    #[error("{given} needs {missing}; write both, or neither")]
    MissingSetting {
        given: &'static str,
        missing: &'static str,
    },
    /// One node of several that would count alone.
    #[error(
        "{given} needs a store that nodes share, and counters are in memory; name one with --store, or leave {given} out"
    )]
    NeedsSharedStore { given: &'static str },
    /// An alarm that would come before its warning.
    #[error(
        "--clock-alarm {alarm} is below --clock-warn {warn}, so nobody would be warned; write more"
    )]
    AlarmBeforeWarning { warn: Nanos, alarm: Nanos },
    /// Nothing where only something makes sense.
    #[error("{flag} is 0, which has no meaning; write 1 or more, or leave it out")]
    Zero { flag: &'static str },
    /// A list of names with something in it that is none.
    #[error(
        "{flag} has `{found}`, which is no name; write whole names with commas between them, and no `*`"
    )]
    NoName { flag: &'static str, found: String },
    /// Too little for the tables alone.
    #[error("--memory-cap is below 16MiB, which a few thousand clients would fill; write more")]
    TooLittleMemory,
}

impl BadConfig {
    /// Whether a file or the name of a variable is wrong, rather than what was asked for.
    pub(crate) fn is_of_a_file(&self) -> bool {
        matches!(
            self,
            BadConfig::Unreadable { .. } | BadConfig::Malformed { .. } | BadConfig::Variable(_)
        )
    }
}
