//! Conditions of a rule: attributes and the values that they must have.
//!
//! A condition on an absent attribute does not hold. Matching allocates nothing.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::glob::Glob;
use super::net_map::NetMap;
use crate::request::{PRIORITY, Request};

/// When a rule applies: every condition of `all` holds, and no condition of `none`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Match {
    pub(crate) all: Box<[Condition]>,
    pub(crate) none: Box<[Condition]>,
}

impl Match {
    pub(crate) fn matches(&self, request: &Request<'_>) -> bool {
        self.all.iter().all(|condition| condition.matches(request))
            && !self.none.iter().any(|condition| condition.matches(request))
    }

    /// Every condition, of `not` too.
    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Condition> {
        self.all.iter().chain(&self.none)
    }

    /// The texts and patterns that conditions on the attribute `name` have.
    pub(crate) fn texts(&self, name: &str) -> impl Iterator<Item = &TextMatcher> {
        self.conditions().filter_map(move |condition| match &condition.matcher {
            AttributeMatcher::Texts(texts) if condition.attribute.name() == name => Some(texts),
            _ => None,
        })
    }
}

/// One attribute and its accepted values.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: Attribute,
    pub(crate) matcher: AttributeMatcher,
}

/// An attribute of a request, resolved from its name as far as possible.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    Ip,
    /// The name an API key is listed under, never the key.
    ApiKey,
    /// One of three values in every request. A missing or unknown value counts as `normal`.
    Priority,
    Text(Arc<str>),
}

impl Attribute {
    pub(crate) fn name(&self) -> &str {
        match self {
            Attribute::Ip => "ip",
            Attribute::ApiKey => "api_key",
            Attribute::Priority => PRIORITY,
            Attribute::Text(name) => name,
        }
    }

    /// Whether `request` has the attribute that rules call `name`.
    pub(crate) fn is_present(name: &str, request: &Request<'_>) -> bool {
        match name {
            "ip" => request.ip.is_some(),
            "api_key" => request.api_key.is_some(),
            PRIORITY => true,
            name => request.text(name).is_some(),
        }
    }
}

/// The accepted values of an attribute.
#[derive(Clone, Debug)]
pub(crate) enum AttributeMatcher {
    Nets(NetMatcher),
    Texts(TextMatcher),
}

/// A few networks are searched one by one, many by lookup.
#[derive(Clone, Debug)]
pub(crate) struct NetMatcher {
    pub(crate) nets: Box<[IpNet]>,
    lookup: Option<Box<NetMap<()>>>,
}

impl NetMatcher {
    const MAX_LINEAR_SEARCH: usize = 8;

    pub(crate) fn new(nets: Vec<IpNet>) -> Self {
        let lookup = (nets.len() > Self::MAX_LINEAR_SEARCH).then(|| {
            let mut map = NetMap::default();
            nets.iter().for_each(|net| *map.entry(*net) = ());
            Box::new(map)
        });
        NetMatcher { nets: nets.into(), lookup }
    }

    pub(crate) fn matches(&self, ip: IpAddr) -> bool {
        match &self.lookup {
            None => self.nets.iter().any(|net| net.contains(&ip)),
            Some(map) => map.containing(ip).next().is_some(),
        }
    }
}

/// Literals in ascending order, and patterns.
#[derive(Clone, Debug)]
pub(crate) struct TextMatcher {
    pub(crate) literals: Box<[Box<str>]>,
    pub(crate) globs: Box<[Glob]>,
}

impl TextMatcher {
    pub(crate) fn new(mut literals: Vec<Box<str>>, globs: Vec<Glob>) -> Self {
        literals.sort_unstable();
        TextMatcher { literals: literals.into(), globs: globs.into() }
    }

    /// Up to this many literals are compared one by one, because a comparison checks lengths first.
    const MAX_LINEAR_SEARCH: usize = 8;

    pub(crate) fn matches(&self, text: &str) -> bool {
        let literally = if self.literals.len() <= Self::MAX_LINEAR_SEARCH {
            self.literals.iter().any(|known| **known == *text)
        } else {
            self.literals.binary_search_by(|known| (**known).cmp(text)).is_ok()
        };
        literally || self.globs.iter().any(|glob| glob.matches(text))
    }
}

impl Condition {
    pub(crate) fn matches(&self, request: &Request<'_>) -> bool {
        match (&self.attribute, &self.matcher) {
            (Attribute::Ip, AttributeMatcher::Nets(nets)) => request.ip.is_some_and(|ip| nets.matches(ip)),
            (Attribute::ApiKey, AttributeMatcher::Texts(texts)) => {
                request.api_key.is_some_and(|key| match key.name {
                    Some(name) => texts.matches(name),
                    // A key without a name is present nevertheless.
                    None => texts.globs.iter().any(Glob::matches_everything),
                })
            }
            (Attribute::Priority, AttributeMatcher::Texts(texts)) => texts.matches(request.priority().name()),
            (Attribute::Text(name), AttributeMatcher::Texts(texts)) => {
                request.text(name).is_some_and(|text| texts.matches(text))
            }
            _ => false,
        }
    }

    /// The value of the attribute in `request`, fit to be shown: of an API key only its name.
    pub(crate) fn actual_value<'r>(&self, request: &'r Request<'_>) -> Option<Cow<'r, str>> {
        match &self.attribute {
            Attribute::Ip => request.ip.map(|ip| Cow::Owned(ip.to_string())),
            Attribute::ApiKey => {
                let key = request.api_key.as_ref()?;
                Some(Cow::Borrowed(key.name.unwrap_or("a key without a name")))
            }
            Attribute::Priority => Some(Cow::Borrowed(request.priority().name())),
            Attribute::Text(name) => request.text(name).map(Cow::Borrowed),
        }
    }
}

/// Prints the accepted values: `GET or POST`, at most five of them.
impl fmt::Display for AttributeMatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MAX_SHOWN: usize = 5;
        let all: Vec<String> = match self {
            AttributeMatcher::Nets(matcher) => matcher.nets.iter().map(ToString::to_string).collect(),
            AttributeMatcher::Texts(texts) => {
                let literals = texts.literals.iter().map(ToString::to_string);
                let globs = texts.globs.iter().map(|glob| glob.as_str().to_owned());
                literals.chain(globs).collect()
            }
        };
        let first = &all[..all.len().min(MAX_SHOWN)];
        f.write_str(&first.join(" or "))?;
        match all.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, " or one of {more} more"),
        }
    }
}
