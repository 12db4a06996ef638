//! Parses a `RateLimitRequest` into descriptors. Pure: no clock, no I/O, no limiter.
//!
//! Texts are borrowed from the body where possible. Invariant: any input yields a request within the bounds below or
//! one error. Nothing panics, and no value is truncated, because two truncated clients could become one. A value is
//! never an error, neither by its length nor by its bytes: the client of Envoy chooses it, and Envoy lets a request
//! without a decision pass.

use smallvec::SmallVec;
use tidegate_core::units::Cost;
use tidegate_rules::envoy::{DescribedRequest, Descriptor, DescriptorEntry, DescriptorOverride, Hits, Unit};

use super::error::EnvoyError;
use crate::protobuf::{ProtobufField, ProtobufFields, for_each_field};

pub(super) mod value;

/// Maximum size of a request: the 60 KiB of headers that Envoy accepts, in every descriptor.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// Maximum entries of a descriptor.
pub(crate) const MAX_ENTRIES: usize = 16;
/// Maximum length of the key of an entry and of a domain, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 256;

/// A parsed request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EnvoyRequest<'a> {
    /// The domain and its descriptors.
    pub(super) described: DescribedRequest<'a>,
    /// The hits of the request as a whole, as sent: 0 if absent.
    pub(super) hits_addend: u32,
}

/// The hits of one descriptor, as sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnHits {
    pub(super) addend: Option<u64>,
    pub(super) is_negative: bool,
}

/// Parses a message with at most `max_descriptors`.
pub(super) fn parse_request(message: &[u8], max_descriptors: usize) -> Result<EnvoyRequest<'_>, EnvoyError> {
    let mut described = DescribedRequest::default();
    let mut own: SmallVec<[OwnHits; 4]> = SmallVec::new();
    let mut hits_addend = 0;
    for_each_field!(ProtobufFields::of(message), field: {
        1 => described.domain = check_length("domain", field.text()?, MAX_KEY_BYTES)?,
        2 => {
            let at = described.descriptors.len();
            if at == max_descriptors {
                return Err(too_many("descriptors", max_descriptors));
            }
            let (descriptor, hits) = descriptor(field, at)?;
            described.descriptors.push(descriptor);
            own.push(hits);
        },
        3 => hits_addend = field.uint32()?,
    });
    for (descriptor, own) in described.descriptors.iter_mut().zip(own) {
        descriptor.hits = hits(own, hits_addend);
    }
    validate(EnvoyRequest { described, hits_addend })
}

/// Checks that a request has a domain and descriptors.
pub(super) fn validate(request: EnvoyRequest<'_>) -> Result<EnvoyRequest<'_>, EnvoyError> {
    match &request.described {
        described if described.domain.is_empty() => Err(EnvoyError::NoDomain),
        described if described.descriptors.is_empty() => Err(EnvoyError::NoDescriptors),
        _ => Ok(request),
    }
}

/// The hits of a descriptor: its own if set, otherwise those of its request.
pub(super) fn hits(own: OwnHits, of_request: u32) -> Hits {
    let number = own.addend.unwrap_or(u64::from(of_request.max(1)));
    match (Cost::new(number), own) {
        (None, _) => Hits::Check,
        (Some(cost), own) if own.is_negative => Hits::Refund(cost),
        (Some(cost), own) if own.addend.is_some() => Hits::Used(cost),
        (Some(cost), _) => Hits::Charge(cost),
    }
}

/// A unit by its number in the protocol.
pub(super) fn unit(number: u64) -> Option<Unit> {
    Unit::ALL.into_iter().find(|unit| u64::from(unit_number(*unit)) == number)
}

/// The number of a unit in the protocol. The week was added last.
pub(super) const fn unit_number(unit: Unit) -> u8 {
    match unit {
        Unit::Second => 1,
        Unit::Minute => 2,
        Unit::Hour => 3,
        Unit::Day => 4,
        Unit::Month => 5,
        Unit::Year => 6,
        Unit::Week => 7,
    }
}

/// Checks the length of a text.
pub(super) fn check_length<'a>(what: &'static str, text: &'a str, max: usize) -> Result<&'a str, EnvoyError> {
    match text.len() {
        length if length > max => Err(EnvoyError::TooLong { what, max }),
        _ => Ok(text),
    }
}

pub(super) fn too_many(what: &'static str, max: usize) -> EnvoyError {
    EnvoyError::TooMany { what, max }
}

fn descriptor(field: ProtobufField<'_>, at: usize) -> Result<(Descriptor<'_>, OwnHits), EnvoyError> {
    let mut descriptor = Descriptor { entries: SmallVec::new(), limit_override: None, hits: Hits::Check };
    let mut hits = OwnHits::default();
    let mut own: Option<LimitOverride> = None;
    for_each_field!(field.message()?, field: {
        1 => {
            if descriptor.entries.len() == MAX_ENTRIES {
                return Err(too_many("entries in one descriptor", MAX_ENTRIES));
            }
            descriptor.entries.push(entry(field)?);
        },
        // A message that occurs twice is merged, and the last value of each field counts.
        2 => own.get_or_insert_default().read(field)?,
        3 => read_wrapper(field, hits.addend.get_or_insert_default())?,
        4 => hits.is_negative = field.bool()?,
    });
    descriptor.limit_override = own.map(|own| own.limit(at)).transpose()?;
    Ok((descriptor, hits))
}

fn entry(field: ProtobufField<'_>) -> Result<DescriptorEntry<'_>, EnvoyError> {
    let (mut key, mut value) = ("", &[][..]);
    for_each_field!(field.message()?, field: {
        1 => key = check_length("key", field.text()?, MAX_KEY_BYTES)?,
        2 => value = field.bytes()?,
    });
    Ok((key, value::decode(value)))
}

/// An override limit of the caller, as sent.
#[derive(Clone, Copy, Default)]
struct LimitOverride {
    requests: u32,
    unit: u64,
    /// The number of units in the window. 0, if absent, means 1.
    times: u64,
}

impl LimitOverride {
    fn read(&mut self, field: ProtobufField<'_>) -> Result<(), EnvoyError> {
        for_each_field!(field.message()?, field: {
            1 => self.requests = field.uint32()?,
            2 => self.unit = field.uint64()?,
            3 => read_wrapper(field, &mut self.times)?,
        });
        Ok(())
    }

    fn limit(self, descriptor: usize) -> Result<DescriptorOverride, EnvoyError> {
        let LimitOverride { requests, unit, times } = self;
        if times > 1 {
            return Err(EnvoyError::SeveralUnits { descriptor, times });
        }
        match self::unit(unit) {
            Some(unit) => Ok(DescriptorOverride { requests, unit }),
            None => Err(EnvoyError::UnknownUnit { descriptor, unit }),
        }
    }
}

/// Reads the number in a `UInt64Value` or a `UInt32Value`.
fn read_wrapper(field: ProtobufField<'_>, number: &mut u64) -> Result<(), EnvoyError> {
    for_each_field!(field.message()?, field: { 1 => *number = field.uint64()?, });
    Ok(())
}

#[cfg(test)]
pub(super) mod tests;
