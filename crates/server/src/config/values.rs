//! The values that settings accept.

use clap::ValueEnum;
use serde::Deserialize;

use crate::config::LimitHeaders;

/// The format of log lines.
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

/// The lowest level that is logged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogLevel {
    /// Needs an operator.
    Error,
    /// May need an operator.
    Warn,
    /// Normal events.
    #[default]
    Info,
    /// Internal events.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// The name in a log filter.
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

/// How log lines show the subject of the counter that denied a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogSubjects {
    /// The first characters of each value.
    #[default]
    Masked,
    /// Whole values.
    Clear,
}

/// The unit of `X-RateLimit-Reset`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResetFormat {
    /// Seconds since 1970.
    #[default]
    Epoch,
    /// Seconds from now.
    Delta,
}

/// The headers that Envoy adds to its responses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EnvoyHeaders {
    /// The headers of the other edges.
    #[default]
    Ours,
    /// The headers of the reference service.
    Reference,
    Off,
}

impl EnvoyHeaders {
    /// The headers of this choice.
    pub(super) fn limit_headers(self) -> LimitHeaders {
        match self {
            EnvoyHeaders::Ours => LimitHeaders::Standard,
            EnvoyHeaders::Reference => LimitHeaders::Reference(Box::default()),
            EnvoyHeaders::Off => LimitHeaders::Off,
        }
    }
}
