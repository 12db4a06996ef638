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

/// What `X-RateLimit-Reset` counts in.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reset {
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

/// A number of bytes, written `512MiB`, `1GiB`, `64KiB` or plain.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct Size(pub(crate) u64);

impl EnvoyHeaders {
    /// The headers themselves.
    pub(super) fn names(self) -> LimitHeaders {
        match self {
            EnvoyHeaders::Ours => LimitHeaders::Ours,
            EnvoyHeaders::Reference => LimitHeaders::Three(Box::default()),
            EnvoyHeaders::Off => LimitHeaders::Off,
        }
    }
}

impl std::str::FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!(
                "`{}` is no size; write 512MiB, 1GiB or 67108864",
                text.escape_default()
            )
        };
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => return Err(bad()),
        };
        let number: u64 = digits.parse().map_err(|_| bad())?;
        number.checked_mul(unit).map(Size).ok_or_else(bad)
    }
}

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
