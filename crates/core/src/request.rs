//! What a decision may know about a request.

mod host;
mod normalize;
mod path;

use std::borrow::Cow;
use std::net::IpAddr;

pub use self::host::{HostError, check_host, normalize_host};
pub use self::normalize::{HEADER_PREFIX, normalize_method, normalize_name, normalize_value};
pub(crate) use self::path::normalize_pattern;
pub use self::path::{AmbiguousPathError, normalize_path};

use crate::units::{Cost, Nanos};

/// A request to be decided. Edges fill in what they saw; the limiter makes addresses canonical and
/// looks keys up, both under the rules it will decide by.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// Which door it came through, for metrics and logs.
    pub edge: Edge,
    /// The client's address.
    pub ip: Option<IpAddr>,
    /// The client's API key. Where keys are listed, one that is not counts as absent.
    pub api_key: Option<ApiKey<'a>>,
    /// SHA-256 of a key that was shown but is not listed where keys are. Only the lists of whom to
    /// allow and to block look at it.
    pub unlisted_key: Option<[u8; 32]>,
    /// Every other attribute. A name given twice keeps its first value. A request of
    /// [`Edge::Library`] may have `ip` and `api_key` here too: the limiter reads them as edges do.
    pub attributes: Vec<(Cow<'a, str>, Cow<'a, str>)>,
    /// What the rules without a unit are charged; one if absent.
    pub cost: Option<Cost>,
    /// What the rules with a unit are charged, by unit: nothing where that is said, and one where a
    /// unit is not named. See [`Request::cost_in`].
    pub costs: Vec<(Cow<'a, str>, Option<Cost>)>,
    /// For callers that cannot wait: the longest delay they take where a rule names none.
    pub max_delay: Option<Nanos>,
    /// The longest the caller waits for the decision. It caps the budget of every rule for its store.
    pub max_wait: Option<Nanos>,
}

/// The attribute that says how much a request matters.
pub const PRIORITY: &str = "priority";

/// How much a request matters, by the word of whoever asks about it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Priority {
    /// The last to go.
    Critical,
    /// What a request is that says nothing, or nothing that is known.
    #[default]
    Normal,
    /// The first to go.
    Sheddable,
}

impl Priority {
    /// Every one, the last to go first.
    pub const ALL: [Priority; 3] = [Priority::Critical, Priority::Normal, Priority::Sheddable];

    /// As a request and a rules file write it.
    pub const fn name(self) -> &'static str {
        match self {
            Priority::Critical => "critical",
            Priority::Normal => "normal",
            Priority::Sheddable => "sheddable",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Priority::ALL.into_iter().find(|known| known.name() == name)
    }
}

/// The doors a request can come through.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Edge {
    /// A call in the same program.
    #[default]
    Library,
    /// `POST /v1/check` and its kin.
    Http,
    /// A proxy's sub-request.
    Auth,
    /// The Envoy rate limit protocol.
    Envoy,
    /// The protocol of Redis clients.
    Resp,
}

impl Edge {
    /// Every edge.
    pub const ALL: [Edge; 5] = [
        Edge::Library,
        Edge::Http,
        Edge::Auth,
        Edge::Envoy,
        Edge::Resp,
    ];

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

    /// How much it matters, by its attribute `priority`.
    pub fn priority(&self) -> Priority {
        let named = self.text(PRIORITY).and_then(Priority::from_name);
        named.unwrap_or_default()
    }

    /// What a rule that counts in `unit` is charged, or one without a unit; nothing if the request says
    /// that it costs none of it. A cost that is not stated is one: an absent or misspelt cost is never
    /// free.
    pub fn cost_in(&self, unit: Option<&str>) -> Option<Cost> {
        let Some(unit) = unit else {
            return Some(self.cost.unwrap_or(Cost::ONE));
        };
        let stated = self.costs.iter().find(|(name, _)| name == unit);
        stated.map_or(Some(Cost::ONE), |(_, cost)| *cost)
    }

    /// Adds an attribute. `ip` and `api_key` may be given here as well as by their fields: the limiter
    /// reads the address and looks the key up. An `ip` that is no address counts as absent, so that
    /// all such requests share one counter.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }
}
