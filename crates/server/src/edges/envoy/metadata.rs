//! The dynamic metadata of a response: the request, and the metadata of the rules of all descriptors that passed.

use std::fmt::Write;

use tidegate_rules::Metadata;
use tidegate_rules::envoy::{Descriptor, DescriptorOverride, Hits, Status};

use super::wire::EnvoyRequest;

type MetadataFields = Vec<(Box<str>, Metadata)>;

pub(super) fn dynamic_metadata(request: &EnvoyRequest<'_>, statuses: &[Status<'_>]) -> MetadataFields {
    let descriptors = request.described.descriptors.iter().map(descriptor_metadata);
    let mut fields: MetadataFields = vec![
        ("domain".into(), text(request.described.domain)),
        ("descriptors".into(), Metadata::List(descriptors.collect())),
    ];
    if request.hits_addend != 0 {
        let hits = Metadata::Number(request.hits_addend.into());
        fields.push(("hitsAddend".into(), hits));
    }
    let passed = statuses.iter().filter(|status| !status.over_limit);
    let merged = passed.filter_map(|status| status.metadata).fold(None, merge);
    if let Some(merged) = merged {
        fields.push(("metadata".into(), merged));
    }
    fields
}

fn descriptor_metadata(descriptor: &Descriptor<'_>) -> Metadata {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|(key, value)| text(&format!("{key}={value}")));
    let mut fields: MetadataFields = vec![("entries".into(), Metadata::List(entries.collect()))];
    if let Some(own) = descriptor.limit_override {
        fields.push(("limit".into(), text(&override_text(own))));
    }
    let own_hits = match descriptor.hits {
        Hits::Charge(_) => None,
        Hits::Check => Some(0),
        Hits::Used(cost) | Hits::Refund(cost) => Some(cost.get()),
    };
    if let Some(hits) = own_hits {
        // The protocol has only floating point numbers here. No count of hits reaches 2^53.
        let hits = Metadata::Number(hits as f64);
        fields.push(("hitsAddend".into(), hits));
    }
    Metadata::Map(fields)
}

/// A limit in the text form of its message, without default values.
fn override_text(own: DescriptorOverride) -> String {
    let mut out = String::new();
    if own.requests != 0 {
        let _ = write!(out, "requests_per_unit:{} ", own.requests);
    }
    out + "unit:" + &own.unit.name().to_ascii_uppercase()
}

/// Merges `more` into `known`. Existing values stay, and maps are merged name by name.
fn merge(known: Option<Metadata>, more: &Metadata) -> Option<Metadata> {
    Some(match (known, more) {
        (None, more) => more.clone(),
        (Some(Metadata::Map(mut known)), Metadata::Map(more)) => {
            for (name, value) in more {
                match known.iter_mut().find(|(known, _)| known == name) {
                    None => known.push((name.clone(), value.clone())),
                    Some((_, found)) => {
                        let before = std::mem::replace(found, Metadata::Null);
                        *found = merge(Some(before), value).unwrap_or(Metadata::Null);
                    }
                }
            }
            Metadata::Map(known)
        }
        (Some(known), _) => known,
    })
}

fn text(text: &str) -> Metadata {
    Metadata::Text(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(fields: &[(&str, Metadata)]) -> Metadata {
        let field = |(name, value): &(&str, Metadata)| ((*name).into(), value.clone());
        Metadata::Map(fields.iter().map(field).collect())
    }

    #[test]
    fn maps_are_merged_and_the_first_value_counts() {
        let first = map(&[("a", text("1")), ("m", map(&[("x", text("1"))]))]);
        let second =
            map(&[("a", text("2")), ("m", map(&[("x", text("2")), ("y", text("2"))])), ("b", Metadata::Bool(true))]);
        let both =
            map(&[("a", text("1")), ("m", map(&[("x", text("1")), ("y", text("2"))])), ("b", Metadata::Bool(true))]);
        assert_eq!(merge(merge(None, &first), &second), Some(both));
    }
}
