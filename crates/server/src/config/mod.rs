//! The settings of `serve`: flags and environment override a file, which overrides defaults.
//!
//! Every setting is an `Option` in [`SettingsLayer`], whichever layer it comes from. [`ServerSettings`] is the
//! result, complete and checked. Unknown names are errors, in the file and in the environment.

pub(crate) mod control_plane;
pub(crate) mod envoy_compat;
pub(crate) mod envoy_options;
mod layer;
pub(crate) mod listen_address;
pub(crate) mod listener_options;
mod misspelt_variables;
mod quantity;
mod resolve;
pub(crate) mod store_choice;
mod values;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidegate::PolicyOptions;
use tidegate::live::FileFilter;
use tidegate::resilience::ClockTolerance;
use tidegate_core::store::Capabilities;
use tidegate_core::units::Nanos;
use tidegate_rules::ParseOptions;

pub(crate) use self::control_plane::{ControlPlane, XdsNodeInfo, XdsTlsFiles};
pub(crate) use self::envoy_compat::EnvoyCompat;
use self::envoy_compat::EnvoyCompatError;
pub(crate) use self::envoy_options::{EnvoyOptions, LimitHeaders, ReferenceHeaderNames};
pub(crate) use self::layer::SettingsLayer;
pub(crate) use self::listen_address::{EndpointAddress, ListenAddress};
pub(crate) use self::listener_options::{ConnectionAge, ListenerTlsFiles};
pub(crate) use self::misspelt_variables::{UnknownVariableError, check as check_environment};
pub(crate) use self::quantity::{ByteSize, millis};
use self::store_choice::StoreUrlError;
pub(crate) use self::store_choice::{StoreChoice, StoreUrl};
pub(crate) use self::values::{EnvoyHeaders, LogFormat, LogLevel, LogSubjects, ResetFormat};

/// All settings of `serve`.
#[derive(Clone, Debug)]
pub(crate) struct ServerSettings {
    pub(crate) rules: RulesSource,
    pub(crate) merge_domains: bool,
    /// Separates the counters of descriptors from those of other services in the same store.
    pub(crate) counter_prefix: Arc<str>,
    pub(crate) store: StoreChoice,
    pub(crate) require_store: bool,
    pub(crate) data_dir: Option<PathBuf>,
    pub(crate) nodes: Option<u32>,
    pub(crate) store_budget: Duration,
    pub(crate) clock: ClockTolerance,
    pub(crate) http: ListenAddress,
    pub(crate) grpc: ListenAddress,
    pub(crate) grpc_age: Option<ConnectionAge>,
    pub(crate) grpc_tls: Option<ListenerTlsFiles>,
    pub(crate) envoy: EnvoyOptions,
    pub(crate) resp: ListenAddress,
    pub(crate) resp_password_file: Option<PathBuf>,
    pub(crate) admin: ListenAddress,
    pub(crate) metrics: ListenAddress,
    pub(crate) metrics_path: String,
    pub(crate) admin_token_file: Option<PathBuf>,
    pub(crate) admin_hosts: Vec<String>,
    pub(crate) shadow: bool,
    pub(crate) secret_file: Option<PathBuf>,
    pub(crate) memory_cap: ByteSize,
    pub(crate) log_level: LogLevel,
    pub(crate) log_format: LogFormat,
    pub(crate) log_subjects: LogSubjects,
    pub(crate) shutdown_timeout: Duration,
    pub(crate) drain_delay: Duration,
    pub(crate) reset_format: ResetFormat,
    pub(crate) max_connections: usize,
    pub(crate) max_connections_per_peer: Option<usize>,
    pub(crate) idle_timeout: Duration,
}

/// The sources of rules.
#[derive(Clone, Debug)]
pub(crate) struct RulesSource {
    /// A file or a folder.
    pub(crate) path: Option<PathBuf>,
    /// Which files of a folder are read.
    pub(crate) pick: FileFilter,
    pub(crate) xds: Option<ControlPlane>,
    /// Whether to start with files that cannot be used, and to decide nothing until they can.
    pub(crate) allow_bad_rules: bool,
    /// Whether listeners open before the control plane has sent anything.
    pub(crate) allow_late_control_plane: bool,
}

impl ServerSettings {
    /// The options for parsing rules.
    pub(crate) fn parse_options(&self) -> PolicyOptions {
        PolicyOptions {
            dialect: ParseOptions {
                store: self.capabilities(),
                merge_domains: self.merge_domains,
                prefix: Arc::clone(&self.counter_prefix),
            },
            filter: self.rules.pick,
            external_domains: self.rules.xds.is_some(),
        }
    }

    /// What the store can do for rules.
    pub(crate) fn capabilities(&self) -> Capabilities {
        match (&self.store, &self.data_dir) {
            (StoreChoice::Memory, Some(_)) => Capabilities::JOURNAL,
            (store, _) => store.capabilities(),
        }
    }
}

/// Why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file is missing or unreadable.
    #[error("{}: {source}", file.display())]
    Unreadable { file: PathBuf, source: std::io::Error },
    /// The file is not a valid configuration.
    #[error("{}: {reason}", file.display())]
    Malformed { file: PathBuf, reason: String },
    /// A store of an unknown kind.
    #[error(transparent)]
    UnknownStore(#[from] StoreUrlError),
    /// A variable that looks like a setting but is not.
    #[error(transparent)]
    Variable(#[from] UnknownVariableError),
    /// The environment of the reference service sets something that is not supported.
    #[error(transparent)]
    Environment(#[from] EnvoyCompatError),
    /// No listener is enabled.
    #[error("--http, --grpc, --resp and --admin are all off, so no client can connect; open one of them")]
    NoListener,
    /// A setting that has no effect without another one.
    #[error("{given} needs {missing}; write both, or neither")]
    MissingSetting { given: &'static str, missing: &'static str },
    /// `given` means several nodes, and this node would count alone.
    #[error(
        "{given} needs a store that nodes share, and counters are in memory; name one with --store, or leave {given} out"
    )]
    NeedsSharedStore { given: &'static str },
    /// The alarm would come before its warning.
    #[error(
        "--clock-alarm {alarm} is below --clock-warn {warn}, so the alarm would come before the warning; write more"
    )]
    AlarmBeforeWarning { warn: Nanos, alarm: Nanos },
    /// Zero has no meaning for this setting.
    #[error("{flag} is 0, which has no meaning; write 1 or more, or leave it out")]
    ZeroSetting { flag: &'static str },
    /// A number outside its range, which begins at 1.
    #[error("{flag} is {found}; write 1 to {max}")]
    OutOfRange { flag: &'static str, found: usize, max: usize },
    /// An entry of a list of names is not a name.
    #[error("{flag} has `{found}`, which is no name; write whole names with commas between them, and no `*`")]
    InvalidName { flag: &'static str, found: String },
    /// No request is for such a path.
    #[error("{flag} is `{found}`, and no request is for such a path; write one such as /metrics")]
    InvalidPath { flag: &'static str, found: String },
    /// Less memory than the empty tables take.
    #[error("--memory-cap is below 16MiB, which a few thousand clients would fill; write more")]
    TooLittleMemory,
}

impl ConfigError {
    /// Whether a file or the name of a variable is wrong, rather than the value of a setting.
    pub(crate) fn is_file_error(&self) -> bool {
        matches!(self, ConfigError::Unreadable { .. } | ConfigError::Malformed { .. } | ConfigError::Variable(_))
    }
}
