//! Decodes resources of a control plane into the same domains as files, so that the same checks apply to both.
//!
//! Unknown fields are skipped. Invalid known fields are reported for every resource at once.

use tidegate_rules::envoy::Metadata;
use tidegate_rules::{DescriptorConfig, DomainConfig, LimitConfig, SourceLocation};

use super::subscription::Resources;
use super::wire::RESOURCE_TYPE;
use crate::protobuf::{ProtobufError, ProtobufFields, for_each_field};

/// The domains in the resources.
///
/// # Errors
/// Every resource that cannot be decoded.
pub(crate) fn decode_domains(resources: &Resources<'_>) -> Result<Vec<DomainConfig>, String> {
    let (mut domains, mut errors) = (Vec::new(), Vec::new());
    for (at, (kind, bytes)) in resources.iter().enumerate() {
        let decoded = match *kind {
            RESOURCE_TYPE => decode_domain(ProtobufFields::of(bytes)).map_err(|error| error.to_string()),
            other => Err(format!("`{}` is not the requested type", other.escape_default())),
        };
        match decoded {
            Ok(domain) => domains.push(domain),
            Err(error) => errors.push(format!("resource {at}: {error}")),
        }
    }
    if errors.is_empty() { Ok(domains) } else { Err(errors.join("\n")) }
}

type DecodeResult<T> = Result<T, ProtobufError>;

fn decode_domain(fields: ProtobufFields<'_>) -> DecodeResult<DomainConfig> {
    let (mut name, mut domain, mut nodes) = ("", String::new(), Vec::new());
    for_each_field!(fields, field: {
        1 => name = field.text()?,
        2 => domain = field.text()?.to_owned(),
        3 => nodes.push(decode_node(field.message()?)?),
    });
    let file = format!("xds/{}", name.escape_default());
    let location = SourceLocation { file: file.into(), line: 0 };
    Ok(DomainConfig { location, domain, descriptors: nodes })
}

fn decode_node(fields: ProtobufFields<'_>) -> DecodeResult<DescriptorConfig> {
    let mut node = DescriptorConfig::default();
    for_each_field!(fields, field: {
        1 => node.key = field.text()?.to_owned(),
        2 => node.value = field.text()?.to_owned(),
        3 => node.limit = Some(decode_limit(field.message()?)?),
        4 => node.descriptors.push(decode_node(field.message()?)?),
        5 => node.shadow_mode = field.bool()?,
        6 => node.detailed_metric = field.bool()?,
        7 => node.quota_mode = field.bool()?,
        8 => node.metadata = Some(decode_struct(field.message()?)?),
    });
    Ok(node)
}

fn decode_limit(fields: ProtobufFields<'_>) -> DecodeResult<LimitConfig> {
    let mut limit = LimitConfig::default();
    for_each_field!(fields, field: {
        1 => limit.unit = unit_name(field.uint64()?),
        2 => limit.requests_per_unit = field.uint32()?,
        3 => limit.unlimited = field.bool()?,
        4 => limit.name = field.text()?.to_owned(),
        5 => limit.replaces.push(decode_replaced(field.message()?)?),
    });
    Ok(limit)
}

/// The name of a unit by its number. An unknown unit keeps its number, and is an error later.
fn unit_name(number: u64) -> String {
    match ["", "second", "minute", "hour", "day", "month", "year", "week"].get(number as usize) {
        Some(name) => (*name).to_owned(),
        None => number.to_string(),
    }
}

fn decode_replaced(fields: ProtobufFields<'_>) -> DecodeResult<String> {
    let mut name = String::new();
    for_each_field!(fields, field: { 1 => name = field.text()?.to_owned(), });
    Ok(name)
}

fn decode_struct(fields: ProtobufFields<'_>) -> DecodeResult<Metadata> {
    let mut map: Vec<(Box<str>, Metadata)> = Vec::new();
    for_each_field!(fields, field: { 1 => map.push(decode_member(field.message()?)?), });
    Ok(Metadata::Map(map))
}

fn decode_member(fields: ProtobufFields<'_>) -> DecodeResult<(Box<str>, Metadata)> {
    let (mut name, mut value) = ("", Metadata::Null);
    for_each_field!(fields, field: {
        1 => name = field.text()?,
        2 => value = decode_value(field.message()?)?,
    });
    Ok((name.into(), value))
}

fn decode_value(fields: ProtobufFields<'_>) -> DecodeResult<Metadata> {
    let mut value = Metadata::Null;
    for_each_field!(fields, field: {
        1 => value = Metadata::Null,
        2 => value = Metadata::Number(field.double()?),
        3 => value = Metadata::Text(field.text()?.into()),
        4 => value = Metadata::Bool(field.bool()?),
        5 => value = decode_struct(field.message()?)?,
        6 => value = decode_list(field.message()?)?,
    });
    Ok(value)
}

fn decode_list(fields: ProtobufFields<'_>) -> DecodeResult<Metadata> {
    let mut values = Vec::new();
    for_each_field!(fields, field: { 1 => values.push(decode_value(field.message()?)?), });
    Ok(Metadata::List(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::ProtobufWriter;

    fn encode(fields: impl FnOnce(&mut ProtobufWriter<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        fields(&mut ProtobufWriter::to(&mut out));
        out
    }

    fn metadata(w: &mut ProtobufWriter<'_>) {
        let mut member = |name: &str, value: &dyn Fn(&mut ProtobufWriter<'_>)| {
            w.message(1, |w| {
                w.bytes(1, name.as_bytes());
                w.message(2, value);
            });
        };
        member("n", &|w| w.double(2, 1.5));
        member("none", &|w| w.uint(1, 0));
        member("list", &|w| {
            w.message(6, |w| {
                w.message(1, |w| w.uint(4, 1));
                w.message(1, |w| w.bytes(3, b"x"));
            });
        });
        member("map", &|w| w.message(5, |_| {}));
    }

    #[test]
    fn every_field_of_a_resource_is_read() {
        let resource = encode(|w| {
            w.bytes(1, b"shop");
            w.bytes(2, b"dom");
            w.message(3, |w| {
                w.bytes(1, b"k");
                w.bytes(2, b"v");
                w.message(3, |w| {
                    w.uint(1, 7);
                    w.uint(2, 9);
                    w.bytes(4, b"name");
                    w.message(5, |w| w.bytes(1, b"other"));
                });
                w.message(4, |w| {
                    w.bytes(1, b"below");
                    w.message(3, |w| w.uint(3, 1));
                });
                w.uint(5, 1);
                w.uint(6, 1);
                w.uint(7, 1);
                w.message(8, metadata);
                w.bytes(99, b"from the future");
            });
        });
        let below = DescriptorConfig {
            key: "below".to_owned(),
            limit: Some(LimitConfig { unlimited: true, ..LimitConfig::default() }),
            ..DescriptorConfig::default()
        };
        let want_metadata = Metadata::Map(vec![
            ("n".into(), Metadata::Number(1.5)),
            ("none".into(), Metadata::Null),
            ("list".into(), Metadata::List(vec![Metadata::Bool(true), Metadata::Text("x".into())])),
            ("map".into(), Metadata::Map(Vec::new())),
        ]);
        let node = DescriptorConfig {
            key: "k".to_owned(),
            value: "v".to_owned(),
            limit: Some(LimitConfig {
                unit: "week".to_owned(),
                requests_per_unit: 9,
                name: "name".to_owned(),
                replaces: vec!["other".to_owned()],
                ..LimitConfig::default()
            }),
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(want_metadata),
            descriptors: vec![below],
            ..DescriptorConfig::default()
        };
        let want = DomainConfig {
            location: SourceLocation { file: "xds/shop".into(), line: 0 },
            domain: "dom".to_owned(),
            descriptors: vec![node],
        };
        assert_eq!(decode_domains(&[(RESOURCE_TYPE, &resource)]), Ok(vec![want]));
    }

    #[test]
    fn every_resource_that_cannot_be_decoded_is_reported() {
        let good = encode(|w| w.bytes(2, b"dom"));
        let error = decode_domains(&[(RESOURCE_TYPE, b"\x0a"), (RESOURCE_TYPE, &good), ("other", &good)]);
        let error = error.unwrap_err();
        assert!(error.contains("resource 0: the message ends inside"), "{error}");
        assert!(error.contains("resource 2: `other` is not the requested type"), "{error}");
    }

    /// Any bytes of a control plane yield domains or an error.
    #[test]
    fn randomly_changed_bytes_are_decoded_or_rejected() {
        let good = encode(|w| {
            w.bytes(1, b"shop");
            w.message(3, |w| {
                w.bytes(1, b"k");
                w.message(3, |w| w.uint(2, 300));
                w.message(4, |w| w.message(8, metadata));
            });
        });
        // A generator of three lines. The same seed gives the same run.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut accepted, mut rejected) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = good.clone();
            for _ in 0..=next(3) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes.truncate(bytes.len() - next(4));
            match decode_domains(&[(RESOURCE_TYPE, &bytes)]) {
                Ok(_) => accepted += 1,
                Err(_) => rejected += 1,
            }
        }
        assert!(accepted > 1_000 && rejected > 1_000, "{accepted} {rejected}");
    }

    /// Every unit of the protocol, and no other.
    #[test]
    fn units_have_the_numbers_of_the_protocol() {
        let all: Vec<_> = (1..8).map(unit_name).collect();
        for known in tidegate_rules::envoy::Unit::ALL {
            assert!(all.iter().any(|name| name == known.name()), "{known:?}");
        }
        assert_eq!((unit_name(0), unit_name(8)), (String::new(), "8".to_owned()));
    }
}
