//! Resources of a control plane as the domains that files have too: one set of checks holds for both.
//!
//! Fields that are not known are passed over. What is known and not as it should be is told for every
//! resource at once.

use tidegate_core::described::Metadata;
use tidegate_core::rules::{DomainForm, LimitForm, NodeForm, Place};

use super::follow::Resources;
use super::wire::RESOURCE;
use crate::protobuf::{Fields, Malformed};

/// The domains that resources are about.
///
/// # Errors
/// Every resource that cannot be read.
pub(crate) fn domains(resources: &Resources<'_>) -> Result<Vec<DomainForm>, String> {
    let (mut domains, mut faults) = (Vec::new(), Vec::new());
    for (at, (kind, bytes)) in resources.iter().enumerate() {
        let read = match *kind {
            RESOURCE => domain(Fields::of(bytes)).map_err(|error| error.to_string()),
            other => Err(format!("`{}` was not asked for", other.escape_default())),
        };
        match read {
            Ok(domain) => domains.push(domain),
            Err(why) => faults.push(format!("resource {at}: {why}")),
        }
    }
    match faults.is_empty() {
        true => Ok(domains),
        false => Err(faults.join("\n")),
    }
}

type Read<T> = Result<T, Malformed>;

fn domain(fields: Fields<'_>) -> Read<DomainForm> {
    let (mut name, mut domain, mut nodes) = ("", String::new(), Vec::new());
    for field in fields {
        let field = field?;
        match field.number {
            1 => name = field.text()?,
            2 => domain = field.text()?.to_owned(),
            3 => nodes.push(node(field.message()?)?),
            _ => {}
        }
    }
    let file = format!("xds/{}", name.escape_default());
    let place = Place {
        file: file.into(),
        line: 0,
    };
    Ok(DomainForm {
        place,
        domain,
        nodes,
    })
}

fn node(fields: Fields<'_>) -> Read<NodeForm> {
    let mut node = NodeForm::default();
    for field in fields {
        let field = field?;
        match field.number {
            1 => node.key = field.text()?.to_owned(),
            2 => node.value = field.text()?.to_owned(),
            3 => node.limit = Some(limit(field.message()?)?),
            4 => node.nodes.push(self::node(field.message()?)?),
            5 => node.shadow_mode = field.bool()?,
            6 => node.detailed_metric = field.bool()?,
            7 => node.quota_mode = field.bool()?,
            8 => node.metadata = Some(structure(field.message()?)?),
            _ => {}
        }
    }
    Ok(node)
}

fn limit(fields: Fields<'_>) -> Read<LimitForm> {
    let mut limit = LimitForm::default();
    for field in fields {
        let field = field?;
        match field.number {
            1 => limit.unit = unit(field.uint64()?),
            2 => limit.requests_per_unit = field.uint32()?,
            3 => limit.unlimited = field.bool()?,
            4 => limit.name = field.text()?.to_owned(),
            5 => limit.replaces.push(replaced(field.message()?)?),
            _ => {}
        }
    }
    Ok(limit)
}

/// The name of a unit by its number. One that is not known keeps its number, and is a fault later.
fn unit(number: u64) -> String {
    match number {
        0 => String::new(),
        1 => "second".to_owned(),
        2 => "minute".to_owned(),
        3 => "hour".to_owned(),
        4 => "day".to_owned(),
        5 => "month".to_owned(),
        6 => "year".to_owned(),
        7 => "week".to_owned(),
        other => other.to_string(),
    }
}

fn replaced(fields: Fields<'_>) -> Read<String> {
    let mut name = String::new();
    for field in fields {
        let field = field?;
        if field.number == 1 {
            name = field.text()?.to_owned();
        }
    }
    Ok(name)
}

fn structure(fields: Fields<'_>) -> Read<Metadata> {
    let mut map: Vec<(Box<str>, Metadata)> = Vec::new();
    for field in fields {
        let field = field?;
        if field.number != 1 {
            continue;
        }
        let (mut name, mut told) = ("", Metadata::Null);
        for field in field.message()? {
            let field = field?;
            match field.number {
                1 => name = field.text()?,
                2 => told = value(field.message()?)?,
                _ => {}
            }
        }
        map.push((name.into(), told));
    }
    Ok(Metadata::Map(map))
}

fn value(fields: Fields<'_>) -> Read<Metadata> {
    let mut value = Metadata::Null;
    for field in fields {
        let field = field?;
        value = match field.number {
            1 => Metadata::Null,
            2 => Metadata::Number(field.double()?),
            3 => Metadata::Text(field.text()?.into()),
            4 => Metadata::Bool(field.bool()?),
            5 => structure(field.message()?)?,
            6 => list(field.message()?)?,
            _ => value,
        };
    }
    Ok(value)
}

fn list(fields: Fields<'_>) -> Read<Metadata> {
    let mut values = Vec::new();
    for field in fields {
        let field = field?;
        if field.number == 1 {
            values.push(value(field.message()?)?);
        }
    }
    Ok(Metadata::List(values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protobuf::Writer;

    fn written(fields: impl FnOnce(&mut Writer<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        fields(&mut Writer::to(&mut out));
        out
    }

    fn metadata(w: &mut Writer<'_>) {
        let mut member = |name: &str, value: &dyn Fn(&mut Writer<'_>)| {
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
        let resource = written(|w| {
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
        let below = NodeForm {
            key: "below".to_owned(),
            limit: Some(LimitForm {
                unlimited: true,
                ..LimitForm::default()
            }),
            ..NodeForm::default()
        };
        let told = Metadata::Map(vec![
            ("n".into(), Metadata::Number(1.5)),
            ("none".into(), Metadata::Null),
            (
                "list".into(),
                Metadata::List(vec![Metadata::Bool(true), Metadata::Text("x".into())]),
            ),
            ("map".into(), Metadata::Map(Vec::new())),
        ]);
        let node = NodeForm {
            key: "k".to_owned(),
            value: "v".to_owned(),
            limit: Some(LimitForm {
                unit: "week".to_owned(),
                requests_per_unit: 9,
                name: "name".to_owned(),
                replaces: vec!["other".to_owned()],
                ..LimitForm::default()
            }),
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
            metadata: Some(told),
            nodes: vec![below],
            ..NodeForm::default()
        };
        let want = DomainForm {
            place: Place {
                file: "xds/shop".into(),
                line: 0,
            },
            domain: "dom".to_owned(),
            nodes: vec![node],
        };
        assert_eq!(domains(&[(RESOURCE, &resource)]), Ok(vec![want]));
    }

    #[test]
    fn every_resource_that_cannot_be_read_is_told() {
        let good = written(|w| w.bytes(2, b"dom"));
        let error = domains(&[(RESOURCE, b"\x0a"), (RESOURCE, &good), ("other", &good)]);
        let error = error.unwrap_err();
        assert!(
            error.contains("resource 0: the message ends inside"),
            "{error}"
        );
        assert!(
            error.contains("resource 2: `other` was not asked for"),
            "{error}"
        );
    }

    /// Whatever a plane sends is domains or a fault.
    #[test]
    fn bytes_that_are_changed_at_random_are_read_or_refused() {
        let good = written(|w| {
            w.bytes(1, b"shop");
            w.message(3, |w| {
                w.bytes(1, b"k");
                w.message(3, |w| w.uint(2, 300));
                w.message(4, |w| w.message(8, metadata));
            });
        });
        // A generator of three lines; the same seed gives the same run.
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let (mut read, mut refused) = (0, 0);
        for _ in 0..100_000 {
            let mut bytes = good.clone();
            for _ in 0..=next(3) {
                let at = next(bytes.len());
                bytes[at] = next(256) as u8;
            }
            bytes.truncate(bytes.len() - next(4));
            match domains(&[(RESOURCE, &bytes)]) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        assert!(read > 1_000 && refused > 1_000, "{read} {refused}");
    }

    /// Every unit of the protocol, and none besides.
    #[test]
    fn units_have_the_numbers_of_the_protocol() {
        let all: Vec<_> = (1..8).map(unit).collect();
        for known in tidegate_core::described::Unit::ALL {
            assert!(all.iter().any(|name| name == known.name()), "{known:?}");
        }
        assert_eq!((unit(0), unit(8)), (String::new(), "8".to_owned()));
    }
}
