//! What settings are written in.

use clap::ValueEnum;
use serde::Deserialize;

use crate::edges::envoy::LimitHeaders;

/// The forms of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// For machines.
    Json,
    /// Text on a terminal, else JSON.
    #[default]
    Auto,
}

/// The least that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// What needs someone.
    Error,
    /// What may need someone.
    Warn,
    /// What happens.
    #[default]
    Info,
    /// What happens inside.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// As a filter has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            LogLevel::Error => "error",
            LogLevel::Warn => "warn",
            LogLevel::Info => "info",
            LogLevel::Debug => "debug",
            LogLevel::Trace => "trace",
        }
    }
}

/// How the log shows whose counter denied a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogSubjects {
    /// The first characters of each value.
    #[default]
    Masked,
    /// Whole values.
    Clear,
}

/// What `X-RateLimit-Reset` counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResetFormat {
    /// Seconds since 1970.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// Headers that Envoy is asked to put on its answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EnvoyHeaders {
    /// Those of the other edges.
    #[default]
    Ours,
    /// Those of the reference service.
    Reference,
    /// None.
    Off,
}

impl EnvoyHeaders {
    /// The headers themselves.
    pub(super) fn limit_headers(self) -> LimitHeaders {
        match self {
            EnvoyHeaders::Ours => LimitHeaders::Standard,
            EnvoyHeaders::Reference => LimitHeaders::Reference(Box::default()),
            EnvoyHeaders::Off => LimitHeaders::Off,
        }
    }
}
