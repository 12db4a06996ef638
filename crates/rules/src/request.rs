//! The request, as far as a decision may know it, and the normal form of its attributes, which rules and the requests of
//! every edge share.
//!
//! | attribute | normal form |
//! |---|---|
//! | `path` | see [`normalize_path`] |
//! | `method` | upper case |
//! | `host` | see [`normalize_host`] |
//! | `header.NAME` | the name in lower case; the value as it is |
//!
//! Every other attribute is compared as sent. A caller that wants a path compared as sent uses another name:
//! `raw_path`.

mod host;
mod path;

use std::borrow::Cow;
use std::net::IpAddr;

pub use self::host::{HostError, check_host, normalize_host};
pub(crate) use self::path::normalize_pattern;
pub use self::path::{AmbiguousPathError, normalize_path};

use tidegate_core::units::{Cost, Nanos};

/// A request to be decided. Edges fill in the fields; the limiter makes addresses canonical and looks keys up, both
/// under the rules it decides by.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The edge that received it, for metrics and logs.
    pub edge: Edge,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The client's API key. Where keys are listed, an unlisted key counts as absent.
    pub api_key: Option<ApiKey<'a>>,
    /// SHA-256 of an unlisted key, where keys are listed. Only the allow and block lists read it.
    pub unlisted_key: Option<[u8; 32]>,
    /// Every other attribute. Of a name given twice the first value counts that is not empty. A request of [`Edge::Library`] may have
    /// `ip` and `api_key` here too: the limiter reads them as edges do.
    pub attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// The cost for rules without a unit; one if absent.
    pub cost: Option<Cost>,
    /// The costs for rules with a unit, by unit: nothing for `None`, and one for a unit that is not listed. See
    /// [`Request::cost_in`].
    pub costs: Vec<(Cow<'a, str>, Option<Cost>)>,
    /// The maximum delay that the caller accepts where a rule names none.
    pub max_delay: Option<Nanos>,
    /// The maximum time that the caller waits for the decision. It caps the budget of every rule for its store.
    pub max_wait: Option<Nanos>,
}

/// The attribute with the priority of a request.
pub const PRIORITY: &str = "priority";

tidegate_core::named_enum! {
    /// The priority of a request, as its sender states it.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Priority {
        /// Shed last.
        Critical = "critical",
        /// The default, also for an unknown priority.
        #[default]
        Normal = "normal",
        /// Shed first.
        Sheddable = "sheddable",
    }
}

impl Priority {
    /// The priority with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Priority::ALL.into_iter().find(|known| known.name() == name)
    }
}

tidegate_core::named_enum! {
    /// The edges that receive requests.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub enum Edge {
        /// A call in the same program.
        #[default]
        Library = "library",
        /// `POST /v1/check` and related paths.
        Http = "http",
        /// A proxy's auth sub-request.
        Auth = "auth",
        /// The Envoy rate limit protocol.
        Envoy = "envoy",
        /// The protocol of Redis clients.
        Resp = "resp",
    }
}

/// An API key: never the key itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ApiKey<'a> {
    /// SHA-256 of the key.
    pub digest: [u8; 32],
    /// Its tier's position in the rules' list of tiers.
    pub tier: Option<u16>,
    /// The name it is listed under.
    pub name: Option<&'a str>,
}

impl<'a> Request<'a> {
    /// The text of an attribute that is neither `ip` nor `api_key`. An empty text counts as absent, for every purpose:
    /// were it present to `match` alone, a client could send one and have neither the rule for users nor that for guests.
    pub fn text(&self, name: &str) -> Option<&str> {
        let mut present = self.attributes.iter().filter(|(_, value)| !value.is_empty());
        present.find(|(known, _)| known == name).map(|(_, value)| value.as_ref())
    }

    /// Its priority, by the attribute `priority`.
    pub fn priority(&self) -> Priority {
        self.text(PRIORITY).and_then(Priority::from_name).unwrap_or_default()
    }

    /// The cost for a rule that counts in `unit`, or for one without a unit; `None` if the request states a cost of
    /// zero for it. A cost that is not stated is one: an absent or misspelt cost is never free.
    pub fn cost_in(&self, unit: Option<&str>) -> Option<Cost> {
        let Some(unit) = unit else { return Some(self.cost.unwrap_or(Cost::ONE)) };
        self.costs.iter().find(|(name, _)| name == unit).map_or(Some(Cost::ONE), |(_, cost)| *cost)
    }

    /// Adds an attribute. `ip` and `api_key` may be given here as well as by their fields: the limiter parses the
    /// address and looks the key up. An `ip` that is no address counts as absent, so that all such requests share one
    /// counter.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }
}

/// The prefix of attributes that are headers.
pub const HEADER_PREFIX: &str = "header.";

/// The name of an attribute in normal form.
pub fn normalize_name(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with(HEADER_PREFIX) && name.bytes().any(|b| b.is_ascii_uppercase()) {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        name
    }
}

/// The value of the attribute `name` in normal form. Does not copy a value that is in normal form already.
///
/// # Errors
/// For a `path` that servers interpret differently.
pub fn normalize_value<'v>(name: &str, value: Cow<'v, str>) -> Result<Cow<'v, str>, AmbiguousPathError> {
    match name {
        "path" => normalize_cow(value, normalize_path),
        "method" => normalize_cow(value, |text| Ok(normalize_method(text))),
        "host" => normalize_cow(value, |text| Ok(normalize_host(text))),
        _ => Ok(value),
    }
}

/// Normalizes a borrowed or an owned text.
fn normalize_cow<'v>(
    value: Cow<'v, str>,
    normalize: impl for<'t> Fn(&'t str) -> Result<Cow<'t, str>, AmbiguousPathError>,
) -> Result<Cow<'v, str>, AmbiguousPathError> {
    let text = match value {
        Cow::Borrowed(text) => return normalize(text),
        Cow::Owned(text) => text,
    };
    let changed = match normalize(&text)? {
        Cow::Borrowed(same) if same.len() == text.len() => None,
        other => Some(other.into_owned()),
    };
    Ok(Cow::Owned(changed.unwrap_or(text)))
}

/// A method in upper case.
pub fn normalize_method(method: &str) -> Cow<'_, str> {
    if method.bytes().any(|b| b.is_ascii_lowercase()) {
        Cow::Owned(method.to_ascii_uppercase())
    } else {
        Cow::Borrowed(method)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(name: &str, value: &str, want: &str) {
        for value in [value.into(), value.to_owned().into(), want.into()] {
            let normal = normalize_value(name, value);
            assert_eq!(normal.as_deref(), Ok(want));
        }
    }

    #[test]
    fn methods_and_hosts_have_one_form_each() {
        check("path", "/login/?x=1", "/login");
        check("method", "post", "POST");
        check("method", "POST", "POST");
        check("host", "API.Example.com:8443", "api.example.com");
        check("host", "example.com.", "example.com");
        check("host", "2001:db8::1", "[2001:db8::1]");
    }

    #[test]
    fn the_first_value_counts_that_is_not_empty() {
        let request = Request::default().with("user", "").with("user", "ada").with("user", "eve");
        assert_eq!((request.text("user"), request.text("team")), (Some("ada"), None));
    }

    #[test]
    fn other_attributes_are_compared_as_sent() {
        check("raw_path", "/Login/?x=1", "/Login/?x=1");
        check("user", "Ada", "Ada");
        check("header.x-method", "post", "post");
    }

    #[test]
    fn the_name_of_a_header_has_no_case() {
        assert_eq!(normalize_name("header.X-Client".into()), "header.x-client");
        assert_eq!(normalize_name("Team".into()), "Team");
    }
}
