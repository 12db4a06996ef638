//! The environment of the reference rate limit service as settings of Tidegate.
//!
//! With `--envoy-compat` a deployment only has to replace the image. Its variables become a settings layer below flags,
//! `TIDEGATE_*` and the file, and above the defaults. Pure: variables in, settings out. A variable is honoured, or
//! known and ignored, which is logged once. A variable that requests an unsupported feature which would change limits
//! prevents the start. [`table`] lists all variables.

mod env_values;
mod listeners;
mod response_options;
mod rules;
mod store;
pub(crate) mod table;

#[cfg(test)]
mod tests;

use env_values::{EnvLookup, EnvValues};

use std::path::Path;
use std::time::Duration;

use tidegate::live::FileFilter;
use tracing::{info, warn};

use crate::config::{EnvoyHeaders, EnvoyOptions, LogFormat, LogLevel, ServerSettings, SettingsLayer};
use table::{EnvoyVariable, VariableSupport};

/// The maximum wait for the store if `REDIS_TIMEOUT` is not set. The reference service waits 10 s, but its callers give
/// up long before, and the deadline of each caps its own wait.
const MAX_STORE_WAIT: Duration = Duration::from_secs(1);

/// The settings in the environment of a reference deployment.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyCompat {
    /// The settings that have a flag.
    pub(crate) layer: SettingsLayer,
    /// Whether files whose names begin with a dot are read.
    dot_files: bool,
    /// The prefix that separates the counters from those of others in the same store.
    counter_prefix: String,
    /// Whether the listeners open before the control plane has responded.
    start_without_config: bool,
    /// How requests are decided, and the extra parts of a response.
    envoy: EnvoyOptions,
    /// Warnings for the operator.
    warnings: Vec<String>,
    /// Variables that are set and ignored.
    ignored: Vec<EnvoyVariable>,
}

/// Why this environment cannot be used: all errors at once.
#[derive(Debug, thiserror::Error)]
#[error("--envoy-compat: {}", .0.join("\n  "))]
pub(crate) struct EnvoyCompatError(Vec<String>);

impl EnvoyCompat {
    /// Reads the variables that `lookup` finds.
    ///
    /// # Errors
    /// Invalid values, and unsupported features that would change limits.
    pub(crate) fn read(lookup: EnvLookup<'_>, admin_token_file: Option<&Path>) -> Result<Self, EnvoyCompatError> {
        let values = &mut EnvValues::new(lookup);
        let mut layer = listeners::read(values, admin_token_file);
        let dot_files = rules::read(values, &mut layer);
        layer.envoy_metadata = Some(values.flag("RESPONSE_DYNAMIC_METADATA"));
        layer.store = store::address(values);
        layer.store_budget = Some(values.duration("REDIS_TIMEOUT").unwrap_or(MAX_STORE_WAIT));
        layer.log_level = values.read("LOG_LEVEL", "write error, warn, info, debug or trace", log_level);
        layer.log_format = values
            .text("LOG_FORMAT")
            .map(|format| if format.eq_ignore_ascii_case("json") { LogFormat::Json } else { LogFormat::Text });
        let compat = EnvoyCompat {
            layer,
            dot_files,
            counter_prefix: values.text("CACHE_KEY_PREFIX").unwrap_or_default(),
            start_without_config: values.flag("FORCE_START_WITHOUT_INITIAL_CONFIG"),
            envoy: response_options::read(values),
            ignored: table::variables()
                .filter(|variable| variable.support == VariableSupport::Ignored && values.is_set(variable.name))
                .collect(),
            warnings: std::mem::take(&mut values.warnings),
        };
        if values.errors.is_empty() { Ok(compat) } else { Err(EnvoyCompatError(std::mem::take(&mut values.errors))) }
    }

    /// Applies the settings that have no flag. `own_headers` are from a flag or a similar source, which takes
    /// precedence.
    pub(crate) fn apply(&self, own_headers: Option<EnvoyHeaders>, settings: &mut ServerSettings) {
        let resolved = std::mem::take(&mut settings.envoy);
        settings.envoy = EnvoyOptions {
            max_descriptors: resolved.max_descriptors,
            dynamic_metadata: resolved.dynamic_metadata,
            default_wait: resolved.default_wait,
            ..self.envoy.clone()
        };
        if own_headers.is_some() {
            settings.envoy.headers = resolved.headers;
        }
        settings.counter_prefix = self.counter_prefix.as_str().into();
        let from = &mut settings.rules;
        from.allow_bad_rules = true;
        from.allow_late_control_plane = self.start_without_config;
        // Rules other than those of the deployment are read in Tidegate's format.
        if from.path.is_some() && from.path == self.layer.rules {
            from.pick = FileFilter::Every { dot_files: self.dot_files };
        }
    }

    /// Logs the warnings and the ignored variables.
    pub(crate) fn log_warnings(&self) {
        for warning in &self.warnings {
            warn!("{warning}");
        }
        if !self.ignored.is_empty() {
            let describe = |variable: &EnvoyVariable| format!("{}: {}", variable.name, variable.meaning);
            let variables = self.ignored.iter().map(describe).collect::<Vec<_>>().join("; ");
            info!(variables, "ignored variables of the reference service");
        }
    }
}

/// The levels of the reference service. Those above `error` end its process, which no level here does.
fn log_level(text: &str) -> Option<LogLevel> {
    Some(match text.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => LogLevel::Error,
        "warn" | "warning" => LogLevel::Warn,
        "info" => LogLevel::Info,
        "debug" => LogLevel::Debug,
        "trace" => LogLevel::Trace,
        _ => return None,
    })
}
