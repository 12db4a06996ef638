//! The store that `--store` names. The URL may hold a password, so errors repeat only its scheme.

use serde::Deserialize;
use tidegate_core::store::Capabilities;

/// The URL of a store. It may hold a password and is never printed.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub(crate) struct StoreUrl(String);

impl StoreUrl {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }

    /// The part before `:` that may be printed, if it is the name of a scheme and not the beginning of a secret.
    fn scheme(&self) -> &str {
        let plain = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
        match self.0.split_once(':') {
            Some((scheme, rest)) if scheme == "unix" || rest.starts_with("//") => {
                Some(scheme).filter(|scheme| scheme.chars().all(plain))
            }
            _ => None,
        }
        .unwrap_or("..")
    }
}

impl From<String> for StoreUrl {
    fn from(text: String) -> Self {
        StoreUrl(text)
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:..", self.scheme())
    }
}

/// The kinds of store.
#[derive(Clone, Debug)]
pub(crate) enum StoreChoice {
    Memory,
    Redis(StoreUrl),
}

impl StoreChoice {
    pub(crate) fn from_url(url: Option<StoreUrl>) -> Result<Self, StoreUrlError> {
        let Some(url) = url else {
            return Ok(StoreChoice::Memory);
        };
        match url.scheme() {
            _ if url.0 == "memory" => Ok(StoreChoice::Memory),
            "redis" | "rediss" | "redis+sentinel" | "rediss+sentinel" | "redis+cluster" | "rediss+cluster" | "unix" => {
                Ok(StoreChoice::Redis(url))
            }
            _ if url.0.is_empty() => Err(StoreUrlError::Empty),
            found => Err(StoreUrlError::Unknown(found.to_owned())),
        }
    }

    /// What the store can do for rules.
    pub(crate) fn capabilities(&self) -> Capabilities {
        match self {
            StoreChoice::Memory => Capabilities::MEMORY,
            StoreChoice::Redis(_) => Capabilities::SHARED,
        }
    }
}

/// Why a URL names no store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreUrlError {
    #[error("--store is empty; {FORMS}")]
    Empty,
    #[error("store `{0}` is unknown; {FORMS}")]
    Unknown(String),
}

const FORMS: &str = "write memory, redis://HOST:PORT, redis+sentinel://HOST,HOST,HOST/NAME, \
    redis+cluster://HOST:PORT or unix:PATH, and rediss instead of redis for TLS";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_url_is_reported_as_empty() {
        let error = StoreChoice::from_url(Some(StoreUrl::from(String::new()))).unwrap_err().to_string();
        assert!(error.starts_with("--store is empty; write memory, redis://HOST:PORT, "), "{error}");
    }

    #[test]
    fn an_error_never_contains_a_password() {
        for url in ["planted@host:6379", "planted", "redis+x://:planted@host", "planted:x"] {
            let store = StoreUrl::from(url.to_owned());
            assert!(!format!("{store:?}").contains("planted"));
            let error = StoreChoice::from_url(Some(store)).unwrap_err().to_string();
            assert!(!error.contains("planted"), "{error}");
        }
    }
}
