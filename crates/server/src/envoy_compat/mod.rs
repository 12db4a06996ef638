//! The environment of the reference rate limit service, read as settings of this one.
//!
//! Under `--envoy-compat` a deployment swaps the image and nothing else: what its variables say becomes
//! a layer below flags, `TIDEGATE_*` and the file, and above the defaults. Pure: variables in, settings
//! out. A variable is honoured, or known and without meaning here, which is told once; or it asks for
//! what is not here and would change limits, and then nothing starts. [`table`] has them all.

mod env_values;
mod listeners;
mod response_options;
mod rules;
mod store;
pub(crate) mod table;

#[cfg(test)]
mod tests;

pub(crate) use env_values::VariableError;
use env_values::{EnvLookup, EnvValues};

use std::path::Path;
use std::time::Duration;

use tidegate::live::FileFilter;
use tracing::{info, warn};

use crate::config::{LogFormat, LogLevel, ServerSettings, SettingsLayer};
use crate::edges::envoy::LimitHeaders;
use crate::store_choice::StoreUrl;
use listeners::CompatListeners;
use response_options::ResponseOptions;
use rules::{CompatRuleSource, CompatRules};
use table::{EnvoyVariable, VARIABLES, VariableSupport};

/// The longest wait for the store where `REDIS_TIMEOUT` is not set. The reference waits 10 s; its callers
/// give up long before, and the deadline of each caps its own wait.
const MAX_STORE_WAIT: Duration = Duration::from_secs(1);

/// What the environment of a reference deployment asks for.
#[derive(Clone, Debug)]
pub(crate) struct EnvoyCompat {
    pub(crate) listeners: CompatListeners,
    pub(crate) rules: CompatRules,
    pub(crate) response_options: ResponseOptions,
    pub(crate) store: Option<StoreUrl>,
    /// Milliseconds.
    pub(crate) store_budget: Duration,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) log_format: Option<LogFormat>,
    /// What an operator should know.
    pub(crate) warnings: Vec<String>,
    /// Variables that are set and mean nothing here.
    pub(crate) ignored: Vec<&'static EnvoyVariable>,
}

/// Why this environment cannot be followed: every fault at once.
#[derive(Debug, thiserror::Error)]
#[error("--envoy-compat: {}", list(.0))]
pub(crate) struct EnvoyCompatError(Vec<VariableError>);

fn list(errors: &[VariableError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n  ")
}

/// Who may see the admin port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AdminToken {
    /// Whoever knows the token.
    Given,
    /// This machine alone.
    None,
}

/// Whether it was said which headers to send, other than by the environment of the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeaderOverride {
    Set,
    Unset,
}

impl AdminToken {
    /// By the file that holds it.
    pub(crate) fn of(file: Option<&Path>) -> Self {
        match file {
            Some(_) => AdminToken::Given,
            None => AdminToken::None,
        }
    }
}

impl EnvoyCompat {
    /// From the variables that `lookup` finds.
    ///
    /// # Errors
    /// What cannot be read, and what is not here and would change limits.
    pub(crate) fn read(lookup: EnvLookup<'_>, token: AdminToken) -> Result<Self, EnvoyCompatError> {
        let values = &mut EnvValues::new(lookup);
        let listeners = listeners::read(values, token);
        let rules = rules::read(values);
        let response_options = response_options::read(values);
        let store = store::address(values);
        let store_budget = values.duration("REDIS_TIMEOUT");
        let levels = "write error, warn, info, debug or trace";
        let log_level = values.read("LOG_LEVEL", levels, log_level);
        let log_format =
            values
                .text("LOG_FORMAT")
                .map(|format| match format.eq_ignore_ascii_case("json") {
                    true => LogFormat::Json,
                    false => LogFormat::Text,
                });
        let ignored = VARIABLES.iter().filter(|variable| {
            variable.support == VariableSupport::Ignored && values.is_set(variable.name)
        });
        let compat = EnvoyCompat {
            listeners,
            rules,
            response_options,
            store,
            store_budget: store_budget.unwrap_or(MAX_STORE_WAIT),
            log_level,
            log_format,
            ignored: ignored.collect(),
            warnings: std::mem::take(&mut values.warnings),
        };
        match values.errors.is_empty() {
            true => Ok(compat),
            false => Err(EnvoyCompatError(std::mem::take(&mut values.errors))),
        }
    }

    /// What of it is a setting as flags have them.
    pub(crate) fn layer(&self) -> SettingsLayer {
        let listeners = &self.listeners;
        let tls = listeners.tls.as_ref();
        let (rules, xds) = match &self.rules.source {
            CompatRuleSource::Folder { path, .. } => (Some(path.clone()), None),
            CompatRuleSource::Xds(plane) => (None, Some((**plane).clone())),
        };
        SettingsLayer {
            rules,
            xds,
            merge_domains: Some(self.rules.merge_domains),
            http: Some(listeners.http.clone()),
            admin: Some(listeners.admin.clone()),
            grpc: Some(listeners.grpc.clone()),
            metrics: listeners
                .metrics
                .as_ref()
                .map(|(address, _)| address.clone()),
            metrics_path: listeners.metrics.as_ref().map(|(_, path)| path.clone()),
            grpc_max_age: listeners.max_age,
            grpc_max_age_grace: listeners.max_age_grace,
            grpc_cert: tls.map(|tls| tls.certificate.clone()),
            grpc_key: tls.map(|tls| tls.key.clone()),
            grpc_client_ca: tls.and_then(|tls| tls.client_ca.clone()),
            grpc_client_san: tls
                .and_then(|tls| tls.client_san.clone())
                .map(|name| vec![name]),
            envoy_metadata: Some(self.response_options.dynamic_metadata),
            store: self.store.clone(),
            store_budget: Some(self.store_budget),
            log_level: self.log_level,
            log_format: self.log_format,
            ..SettingsLayer::default()
        }
    }

    /// What of it has no flag. `header_override` is what was said by flags and the like, which wins.
    pub(crate) fn apply(&self, header_override: HeaderOverride, settings: &mut ServerSettings) {
        let response_options = &self.response_options;
        settings.envoy.descriptor_options = response_options.descriptor_options;
        settings.envoy.near_ratio = Some(response_options.near_ratio);
        settings.envoy.healthy_when_configured = response_options.healthy_when_configured;
        if header_override == HeaderOverride::Unset {
            settings.envoy.headers = match &response_options.headers {
                Some(names) => LimitHeaders::Reference(Box::new(names.clone())),
                None => LimitHeaders::Off,
            };
        }
        settings.counter_prefix = self.rules.counter_prefix.as_str().into();
        let from = &mut settings.rules;
        from.allow_bad_rules = true;
        from.allow_late_control_plane = self.rules.start_without_config;
        match &self.rules.source {
            // Other rules than those of the deployment are read as ours.
            CompatRuleSource::Folder { path, dot_files } if from.path.as_ref() == Some(path) => {
                let dot_files = *dot_files;
                from.pick = FileFilter::Every { dot_files };
            }
            _ => {}
        }
    }

    /// Tells what an operator should know.
    pub(crate) fn log_warnings(&self) {
        for warning in &self.warnings {
            warn!("{warning}");
        }
        if !self.ignored.is_empty() {
            let describe =
                |variable: &&EnvoyVariable| format!("{}: {}", variable.name, variable.meaning);
            let variables = self
                .ignored
                .iter()
                .map(describe)
                .collect::<Vec<_>>()
                .join("; ");
            info!(
                variables,
                "set for the reference service, without meaning here"
            );
        }
    }
}

/// The levels of the reference; those above `error` end its process, which nothing here does.
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
