//! The environment of the reference rate limit service, read as settings of this one.
//!
//! Under `--envoy-compat` a deployment swaps the image and nothing else: what its variables say becomes
//! a layer below flags, `TIDEGATE_*` and the file, and above the defaults. Pure: variables in, settings
//! out. A variable is honoured, or known and without meaning here, which is told once; or it asks for
//! what is not here and would change limits, and then nothing starts. [`table`] has them all.

mod answers;
mod listeners;
mod rules;
mod store;
pub(crate) mod table;
mod values;

#[cfg(test)]
mod tests;

pub(crate) use values::Fault;
use values::{Lookup, Values};

use std::path::Path;
use std::time::Duration;

use tidegate::live::Pick;
use tracing::{info, warn};

use crate::config::{Layer, LogFormat, LogLevel, Settings};
use crate::edges::envoy::LimitHeaders;
use crate::store_choice::StoreUrl;
use answers::Answers;
use listeners::Listeners;
use rules::{Rules, Source};
use table::{Standing, VARIABLES, Variable};

/// The longest wait for the store where `REDIS_TIMEOUT` is not set. The reference waits 10 s; its callers
/// give up long before, and the deadline of each caps its own wait.
const MAX_STORE_WAIT: Duration = Duration::from_secs(1);

/// What the environment of a reference deployment asks for.
#[derive(Clone, Debug)]
pub(crate) struct Compat {
    pub(crate) listeners: Listeners,
    pub(crate) rules: Rules,
    pub(crate) answers: Answers,
    pub(crate) store: Option<StoreUrl>,
    /// Milliseconds.
    pub(crate) store_budget: Duration,
    pub(crate) log_level: Option<LogLevel>,
    pub(crate) log_format: Option<LogFormat>,
    /// What an operator should know.
    pub(crate) warnings: Vec<String>,
    /// Variables that are set and mean nothing here.
    pub(crate) idle: Vec<&'static Variable>,
}

/// Why this environment cannot be followed: every fault at once.
#[derive(Debug, thiserror::Error)]
#[error("--envoy-compat: {}", list(.0))]
pub(crate) struct BadEnvironment(Vec<Fault>);

fn list(faults: &[Fault]) -> String {
    let lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
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
pub(crate) enum Told {
    Headers,
    NoHeaders,
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

impl Compat {
    /// From the variables that `lookup` finds.
    ///
    /// # Errors
    /// What cannot be read, and what is not here and would change limits.
    pub(crate) fn read(lookup: Lookup<'_>, token: AdminToken) -> Result<Self, BadEnvironment> {
        let values = &mut Values::new(lookup);
        let listeners = listeners::read(values, token);
        let rules = rules::read(values);
        let answers = answers::read(values);
        let store = store::address(values);
        let store_budget = values.span("REDIS_TIMEOUT");
        let levels = "write error, warn, info, debug or trace";
        let log_level = values.read("LOG_LEVEL", levels, log_level);
        let log_format =
            values
                .text("LOG_FORMAT")
                .map(|format| match format.eq_ignore_ascii_case("json") {
                    true => LogFormat::Json,
                    false => LogFormat::Text,
                });
        let idle = VARIABLES
            .iter()
            .filter(|known| known.standing == Standing::Idle && values.is_set(known.name));
        let compat = Compat {
            listeners,
            rules,
            answers,
            store,
            store_budget: store_budget.unwrap_or(MAX_STORE_WAIT),
            log_level,
            log_format,
            idle: idle.collect(),
            warnings: std::mem::take(&mut values.warnings),
        };
        match values.faults.is_empty() {
            true => Ok(compat),
            false => Err(BadEnvironment(std::mem::take(&mut values.faults))),
        }
    }

    /// What of it is a setting as flags have them.
    pub(crate) fn layer(&self) -> Layer {
        let listeners = &self.listeners;
        let tls = listeners.tls.as_ref();
        let (rules, xds) = match &self.rules.source {
            Source::Folder { path, .. } => (Some(path.clone()), None),
            Source::Xds(plane) => (None, Some((**plane).clone())),
        };
        Layer {
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
            envoy_metadata: Some(self.answers.metadata),
            store: self.store.clone(),
            store_budget: Some(self.store_budget),
            log_level: self.log_level,
            log_format: self.log_format,
            ..Layer::default()
        }
    }

    /// What of it has no flag. `told` is what was said by flags and the like, which wins.
    pub(crate) fn apply(&self, told: Told, settings: &mut Settings) {
        let answers = &self.answers;
        settings.envoy.manner = answers.manner;
        settings.envoy.near_ratio = Some(answers.near);
        settings.envoy.healthy_when_configured = answers.healthy_when_configured;
        if told == Told::NoHeaders {
            settings.envoy.headers = match &answers.headers {
                Some(names) => LimitHeaders::Three(Box::new(names.clone())),
                None => LimitHeaders::Off,
            };
        }
        settings.counter_prefix = self.rules.counter_prefix.as_str().into();
        let from = &mut settings.rules;
        from.may_be_bad = true;
        from.may_be_late = self.rules.start_without;
        match &self.rules.source {
            // Other rules than those of the deployment are read as ours.
            Source::Folder { path, dot_files } if from.path.as_ref() == Some(path) => {
                let dot_files = *dot_files;
                from.pick = Pick::Every { dot_files };
            }
            _ => {}
        }
    }

    /// Tells what an operator should know.
    pub(crate) fn tell(&self) {
        for warning in &self.warnings {
            warn!("{warning}");
        }
        if !self.idle.is_empty() {
            let why = |known: &&Variable| format!("{}: {}", known.name, known.says);
            let variables = self.idle.iter().map(why).collect::<Vec<_>>().join("; ");
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
