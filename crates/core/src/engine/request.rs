//! What a decision may know about a request.

use std::borrow::Cow;
use std::net::IpAddr;

use smallvec::SmallVec;

use crate::units::{Cost, Nanos};

/// A request to be decided, already identified: addresses are canonical and keys are digests.
#[derive(Clone, Debug, Default)]
pub struct Request<'a> {
    /// The client's address in canonical form (mapped addresses unwrapped, IPv6 cut to its prefix).
    pub ip: Option<IpAddr>,
    /// The client's API key, if it is one that counts.
    pub api_key: Option<ApiKey<'a>>,
    /// Every other attribute. A name given twice keeps its first value.
    pub attributes: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 8]>,
    /// What the rules without a unit are charged; one if absent.
    pub cost: Option<Cost>,
    /// What the rules with a unit are charged, by unit. Units not named are not charged.
    pub costs: SmallVec<[(Cow<'a, str>, Cost); 2]>,
    /// For callers that cannot wait: the longest delay they take where a rule names none.
    pub patience: Option<Nanos>,
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

    /// Adds an attribute.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) -> Self {
        self.attributes.push((name.into(), value.into()));
        self
    }
}
