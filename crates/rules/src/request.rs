//! The request, as far as a decision may know it.

mod host;
mod normalize;
mod path;

use std::borrow::Cow;
use std::net::IpAddr;

pub use self::host::{HostError, check_host, normalize_host};
pub use self::normalize::{HEADER_PREFIX, normalize_method, normalize_name, normalize_value};
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
    /// Every other attribute. Of a name given twice the first value counts. A request of [`Edge::Library`] may have
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

/// The priority of a request, as its sender states it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Priority {
    /// Shed last.
    Critical,
    /// The default, also for an unknown priority.
    #[default]
    Normal,
    /// Shed first.
    Sheddable,
}

impl Priority {
    /// Every priority, in descending order.
    pub const ALL: [Priority; 3] = [Priority::Critical, Priority::Normal, Priority::Sheddable];

    /// The name in a request and in a rules file.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Critical => "critical",
            Priority::Normal => "normal",
            Priority::Sheddable => "sheddable",
        }
    }

    /// The priority with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Priority::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// The edges that receive requests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Edge {
    /// A call in the same program.
    #[default]
    Library,
    /// `POST /v1/check` and related paths.
    Http,
    /// A proxy's auth sub-request.
    Auth,
    /// The Envoy rate limit protocol.
    Envoy,
    /// The protocol of Redis clients.
    Resp,
}

impl Edge {
    /// Every edge.
    pub const ALL: [Edge; 5] = [Edge::Library, Edge::Http, Edge::Auth, Edge::Envoy, Edge::Resp];

    /// The name in metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Edge::Library => "library",
            Edge::Http => "http",
            Edge::Auth => "auth",
            Edge::Envoy => "envoy",
            Edge::Resp => "resp",
        }
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
    /// The text of an attribute that is neither `ip` nor `api_key`.
    pub fn text(&self, name: &str) -> Option<&str> {
        let found = self.attributes.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_ref())
    }

    /// Its priority, by the attribute `priority`.
    pub fn priority(&self) -> Priority {
        let named = self.text(PRIORITY).and_then(Priority::from_name);
        named.unwrap_or_default()
    }

    /// The cost for a rule that counts in `unit`, or for one without a unit; `None` if the request states a cost of
    /// zero for it. A cost that is not stated is one: an absent or misspelt cost is never free.
    pub fn cost_in(&self, unit: Option<&str>) -> Option<Cost> {
        let Some(unit) = unit else {
            return Some(self.cost.unwrap_or(Cost::ONE));
        };
        let stated = self.costs.iter().find(|(name, _)| name == unit);
        stated.map_or(Some(Cost::ONE), |(_, cost)| *cost)
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
