//! The attributes of a described request for native rules.
//!
//! The entries of all descriptors form one set. If a name occurs twice, the first value counts that is not empty.
//! `remote_address` is the client's address and `api_key` its key, as on the other edges. Credentials of another scheme
//! than `Bearer` are no key. [`client_identity`] finds requests with several keys, or with an address that cannot be
//! read.

use tidegate::identity::ip;
use tidegate::identity::keys::{KeyTextError, find_key};
use tidegate_core::units::{Cost, Nanos};
use tidegate_rules::RuleSet;
use tidegate_rules::envoy::{DescribedRequest, DescriptorEntry, Hits};
use tidegate_rules::request::{Edge, Request, normalize_name, normalize_value};

use crate::decider::ClientIdentity;
use crate::edges::common::digest_key;

/// The request that native rules decide.
pub(super) fn request<'a>(described: &'a DescribedRequest<'_>) -> Request<'a> {
    let lengths = described.descriptors.iter().map(|d| d.entries.len());
    let mut request = Request {
        edge: Edge::Envoy,
        attributes: Vec::with_capacity(1 + lengths.sum::<usize>()),
        cost: cost(described),
        // Envoy cannot delay a request.
        max_delay: Some(Nanos::ZERO),
        ..Request::default()
    };
    for (name, value) in entries(described) {
        match *name {
            "remote_address" | "ip" => request.ip = request.ip.or_else(|| ip::parse(value).ok()),
            "api_key" if request.api_key.is_some() => {}
            "api_key" => request.api_key = find_key(value.as_bytes()).ok().flatten().map(digest_key),
            name => add(&mut request, name, value),
        }
    }
    if request.text("domain").is_none() {
        let domain = ("domain".into(), described.domain.into());
        request.attributes.push(domain);
    }
    request
}

/// Whether it is clear which client sends `request`, the native form of `described`, or there is no list and no rule
/// matches or counts by what is unclear.
pub(super) fn client_identity(
    described: &DescribedRequest<'_>,
    request: &Request<'_>,
    rules: &RuleSet,
) -> ClientIdentity {
    let unclear_key = rules.uses_api_key() && has_conflicting_keys(described);
    let unclear_address = rules.uses_ip() && has_unreadable_address(described, request);
    if unclear_key || unclear_address { ClientIdentity::Ambiguous } else { ClientIdentity::Clear }
}

/// Whether there are several keys. The edge cannot know which of them the service behind Envoy reads, so a blocked key
/// could hide behind an invented one.
fn has_conflicting_keys(described: &DescribedRequest<'_>) -> bool {
    let mut first = None;
    entries(described).filter(|(name, _)| *name == "api_key").any(|(_, value)| match find_key(value.as_bytes()) {
        Ok(Some(key)) => *first.get_or_insert(key) != key,
        Err(KeyTextError::NotOneKey) => true,
        Ok(None) | Err(KeyTextError::OtherScheme) => false,
    })
}

/// Whether the client's address is described, and not as an address.
fn has_unreadable_address(described: &DescribedRequest<'_>, request: &Request<'_>) -> bool {
    request.ip.is_none() && entries(described).any(|(name, _)| matches!(*name, "remote_address" | "ip"))
}

fn entries<'a, 'v>(described: &'a DescribedRequest<'v>) -> impl Iterator<Item = &'a DescriptorEntry<'v>> {
    described.descriptors.iter().flat_map(|descriptor| &descriptor.entries)
}

/// Adds an attribute in normal form, unless it has a value already. An ambiguous path is resolved, because Envoy lets a
/// request pass whose call is rejected.
fn add<'a>(request: &mut Request<'a>, name: &'a str, value: &'a str) {
    let name = normalize_name(name.into());
    if request.text(&name).is_some() {
        return;
    }
    let value = normalize_value(&name, value.into());
    let value = value.unwrap_or_else(|ambiguous| ambiguous.resolved.into());
    request.attributes.push((name, value));
}

/// The cost of the most expensive descriptor. `None` if no descriptor is charged.
fn cost(described: &DescribedRequest<'_>) -> Option<Cost> {
    let costs = described.descriptors.iter().map(|d| match d.hits {
        Hits::Charge(cost) | Hits::Used(cost) => Some(cost),
        Hits::Check | Hits::Refund(_) => None,
    });
    costs.max().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_rules::SourceFile;
    use tidegate_rules::envoy::Descriptor;

    fn described<'a>(descriptors: &[&[(&'a str, &'a str)]]) -> DescribedRequest<'a> {
        let descriptor = |entries: &&[(&'a str, &'a str)]| Descriptor {
            entries: entries.iter().map(|(k, v)| (*k, (*v).into())).collect(),
            limit_override: None,
            hits: Hits::Charge(Cost::ONE),
        };
        DescribedRequest { domain: "shop", descriptors: descriptors.iter().map(descriptor).collect() }
    }

    #[test]
    fn all_entries_are_one_set_and_the_first_value_counts() {
        let described = described(&[
            &[("remote_address", "203.0.113.9"), ("path", "/a")],
            &[("path", "/b"), ("api_key", "k1"), ("ip", "192.0.2.1")],
        ]);
        let request = request(&described);
        assert_eq!(request.ip, Some("203.0.113.9".parse().unwrap()));
        assert_eq!(request.text("path"), Some("/a"));
        assert_eq!(request.text("domain"), Some("shop"));
        assert_eq!(request.attributes.len(), 2);
        assert_eq!(request.api_key, Some(digest_key("k1")));
        assert_eq!(request.max_delay, Some(Nanos::ZERO));
        assert_eq!(request.edge, Edge::Envoy);
    }

    /// Both were sent, and the request had neither the limit of the user nor that of a guest.
    #[test]
    fn an_empty_value_does_not_hide_another() {
        let described = described(&[&[("user", ""), ("domain", "")], &[("user", "ada")]]);
        let request = request(&described);
        assert_eq!((request.text("user"), request.text("domain")), (Some("ada"), Some("shop")));
    }

    #[test]
    fn an_empty_key_counts_as_absent() {
        let described = described(&[&[("api_key", "")], &[("api_key", "k1")]]);
        assert_eq!(request(&described).api_key, Some(digest_key("k1")));
    }

    /// Envoy passes the whole header: a blocked key in it was an unknown key.
    #[test]
    fn a_key_is_known_with_its_scheme() {
        for value in ["k1", "Bearer k1", "bearer \tk1 "] {
            let described = described(&[&[("api_key", value)]]);
            assert_eq!(request(&described).api_key, Some(digest_key("k1")), "{value:?}");
        }
        let basic = described(&[&[("api_key", "Basic YTpi")], &[("api_key", "Bearer k1")]]);
        assert_eq!(request(&basic).api_key, Some(digest_key("k1")));
        let other = described(&[&[("api_key", "Basic YTpi")]]);
        assert_eq!(request(&other).api_key, None);
    }

    #[test]
    fn two_keys_or_an_unreadable_address_are_ambiguous_if_rules_use_them() {
        let parsed = |by: &str| {
            let text = format!("version: 1\nrules:\n  - {{ name: r, by: {by}, rate: 1/hour }}\n");
            let (name, text) = ("r", &*text);
            tidegate_rules::parse(&[SourceFile { name, text }]).unwrap()
        };
        let (by_key, by_ip, by_user) = (parsed("api_key|ip"), parsed("ip"), parsed("user"));
        let is_ambiguous = |described: &DescribedRequest<'_>, rules| {
            client_identity(described, &request(described), rules) == ClientIdentity::Ambiguous
        };
        let two = described(&[&[("api_key", "a")], &[("path", "/"), ("api_key", "b")]]);
        assert!(is_ambiguous(&two, &by_key));
        assert!(!is_ambiguous(&two, &by_ip));
        let joined = described(&[&[("api_key", "a,b")]]);
        assert!(is_ambiguous(&joined, &by_key));
        let same =
            described(&[&[("api_key", "a")], &[("api_key", "Bearer a"), ("api_key", ""), ("api_key", "Basic b")]]);
        assert!(!is_ambiguous(&same, &by_key));
        // No block of an address holds for such a client.
        for value in ["10.0.0.0/8", "unknown", ""] {
            let unreadable = described(&[&[("remote_address", value)]]);
            assert_eq!(request(&unreadable).ip, None);
            assert_eq!((is_ambiguous(&unreadable, &by_ip), is_ambiguous(&unreadable, &by_user)), (true, false));
        }
        let another = described(&[&[("remote_address", "unknown"), ("ip", "192.0.2.1")]]);
        assert!(!is_ambiguous(&another, &by_ip));
    }

    /// The tier of the first key decided, and the service behind Envoy may have read the second.
    #[test]
    fn two_keys_are_ambiguous_if_keys_have_tiers() {
        let with_tiers =
            "version: 1\ntiers: [free, pro]\nrules:\n  - { name: r, by: ip, rate: 1/hour, tiers: { pro: 9/hour } }\n";
        let rules = tidegate_rules::parse(&[SourceFile { name: "r", text: with_tiers }]).unwrap();
        let described = described(&[&[("remote_address", "203.0.113.9"), ("api_key", "a"), ("api_key", "b")]]);
        assert_eq!(client_identity(&described, &request(&described), &rules), ClientIdentity::Ambiguous);
    }

    #[test]
    fn attributes_have_their_normal_form() {
        let described = described(&[&[
            ("path", "/login/?x=1"),
            ("method", "post"),
            ("header.X-Team", "Red"),
            ("raw_path", "/login/?x=1"),
        ]]);
        let request = request(&described);
        assert_eq!(request.text("path"), Some("/login"));
        assert_eq!(request.text("method"), Some("POST"));
        assert_eq!(request.text("header.x-team"), Some("Red"));
        assert_eq!(request.text("raw_path"), Some("/login/?x=1"));
        let ambiguous = self::described(&[&[("path", "/a/..;x/login")]]);
        assert_eq!(super::request(&ambiguous).text("path"), Some("/login"));
    }

    #[test]
    fn a_domain_among_the_entries_stays() {
        let described = described(&[&[("domain", "other")]]);
        assert_eq!(request(&described).text("domain"), Some("other"));
    }

    #[test]
    fn the_cost_is_that_of_the_most_expensive_descriptor() {
        let mut described = described(&[&[("a", "1")], &[("b", "1")], &[("c", "1")]]);
        described.descriptors[1].hits = Hits::Used(Cost::new(7).unwrap());
        described.descriptors[2].hits = Hits::Refund(Cost::new(9).unwrap());
        assert_eq!(request(&described).cost, Cost::new(7));
    }
}
