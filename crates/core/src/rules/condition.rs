//! The conditions under which a rule applies: attributes and what they must be.
//!
//! A condition on an absent attribute does not hold. Matching allocates nothing.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;

use super::glob::Glob;
use super::nets::NetMap;
use crate::request::{PRIORITY, Request};

/// When a rule applies: all of the first hold and none of the second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Match {
    pub(crate) all: Box<[Condition]>,
    pub(crate) none: Box<[Condition]>,
}

impl Match {
    pub(crate) fn holds(&self, request: &Request<'_>) -> bool {
        self.all.iter().all(|condition| condition.holds(request))
            && !self.none.iter().any(|condition| condition.holds(request))
    }
}

/// One attribute and what it must be: any of these.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) attribute: Attribute,
    pub(crate) wanted: Wanted,
}

/// The name of a fact about a request, resolved as far as it can be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    Ip,
    /// The name an API key is listed under, never the key.
    ApiKey,
    /// One of three in every request: without the attribute, or with another word, it is normal.
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

    /// Whether `request` has it, by the name a rule uses. An empty text counts as absent here: it
    /// says nothing about who asks.
    pub(crate) fn is_present(name: &str, request: &Request<'_>) -> bool {
        match name {
            "ip" => request.ip.is_some(),
            "api_key" => request.api_key.is_some(),
            PRIORITY => true,
            name => request.text(name).is_some_and(|text| !text.is_empty()),
        }
    }
}

/// What an attribute must be.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Nets(Nets),
    Texts(Texts),
}

/// A few networks are looked through, many are looked up.
#[derive(Clone, Debug)]
pub(crate) enum Nets {
    Few(Box<[IpNet]>),
    Many(Box<[IpNet]>, Box<NetMap<()>>),
}

impl Nets {
    const FEW: usize = 8;

    pub(crate) fn new(nets: Vec<IpNet>) -> Self {
        if nets.len() <= Self::FEW {
            return Nets::Few(nets.into());
        }
        let mut map = NetMap::default();
        for net in &nets {
            map.entry(*net);
        }
        Nets::Many(nets.into(), Box::new(map))
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, IpNet> {
        match self {
            Nets::Few(nets) | Nets::Many(nets, _) => nets.iter(),
        }
    }

    fn hold(&self, ip: IpAddr) -> bool {
        match self {
            Nets::Few(nets) => nets.iter().any(|net| net.contains(&ip)),
            Nets::Many(_, map) => map.holding(ip).next().is_some(),
        }
    }
}

/// Texts in ascending order, and patterns.
#[derive(Clone, Debug)]
pub(crate) struct Texts {
    pub(crate) literals: Box<[Box<str>]>,
    pub(crate) globs: Box<[Glob]>,
}

impl Texts {
    pub(crate) fn new(mut literals: Vec<Box<str>>, globs: Vec<Glob>) -> Self {
        literals.sort_unstable();
        Texts {
            literals: literals.into(),
            globs: globs.into(),
        }
    }

    /// A few texts are compared one by one, which looks at lengths first.
    const FEW: usize = 8;

    pub(crate) fn hold(&self, text: &str) -> bool {
        let literally = if self.literals.len() <= Self::FEW {
            self.literals.iter().any(|known| **known == *text)
        } else {
            self.literals
                .binary_search_by(|known| (**known).cmp(text))
                .is_ok()
        };
        literally || self.globs.iter().any(|glob| glob.matches(text))
    }
}

impl Condition {
    pub(crate) fn holds(&self, request: &Request<'_>) -> bool {
        match (&self.attribute, &self.wanted) {
            (Attribute::Ip, Wanted::Nets(nets)) => request.ip.is_some_and(|ip| nets.hold(ip)),
            (Attribute::ApiKey, Wanted::Texts(texts)) => {
                request.api_key.is_some_and(|key| match key.name {
                    Some(name) => texts.hold(name),
                    // A key without a name is there nevertheless.
                    None => texts.globs.iter().any(Glob::is_anything),
                })
            }
            (Attribute::Priority, Wanted::Texts(texts)) => texts.hold(request.priority().name()),
            (Attribute::Text(name), Wanted::Texts(texts)) => {
                request.text(name).is_some_and(|text| texts.hold(text))
            }
            _ => false,
        }
    }

    /// What `request` has for the attribute, fit to be shown: of an API key only its name.
    pub(crate) fn found<'r>(&self, request: &'r Request<'_>) -> Option<Cow<'r, str>> {
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

/// Prints what is wanted: `GET or POST`, at most five of them.
impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MOST: usize = 5;
        let all: Vec<String> = match self {
            Wanted::Nets(nets) => nets.iter().map(ToString::to_string).collect(),
            Wanted::Texts(texts) => {
                let literals = texts.literals.iter().map(ToString::to_string);
                let globs = texts.globs.iter().map(|glob| glob.as_str().to_owned());
                literals.chain(globs).collect()
            }
        };
        let told = &all[..all.len().min(MOST)];
        f.write_str(&told.join(" or "))?;
        match all.len().saturating_sub(MOST) {
            0 => Ok(()),
            more => write!(f, " or one of {more} more"),
        }
    }
}
