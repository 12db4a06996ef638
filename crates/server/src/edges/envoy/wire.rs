//! From the bytes of a `RateLimitRequest` to descriptors. Pure: no clock, no I/O, no limiter.
//!
//! What can borrows from the body. Kept true: whatever the bytes, the answer is a request within the
//! bounds below or one fault; nothing panics, and nothing is cut short to fit, because two clients cut
//! short could become one. A value is never a fault, neither its length nor its bytes: the client of
//! Envoy chooses it, and Envoy lets pass what got no verdict.

use smallvec::SmallVec;
use tidegate_core::envoy::{
    DescribedRequest, Descriptor, DescriptorEntry, DescriptorOverride, Hits, Unit,
};
use tidegate_core::units::Cost;

use super::error::EnvoyError;
use crate::protobuf::{ProtobufField, ProtobufFields};

pub(super) mod value;

/// The most bytes a request may have: the 60 KiB of headers that Envoy takes, in every descriptor.
pub(crate) const MAX_MESSAGE_BYTES: usize = 1 << 20;
/// The most descriptors a request may have.
pub(crate) const MAX_DESCRIPTORS: usize = 16;
/// The most entries a descriptor may have.
pub(crate) const MAX_ENTRIES: usize = 16;
/// The longest key of an entry, and the longest domain, in bytes.
pub(crate) const MAX_KEY_BYTES: usize = 256;

/// A request as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct EnvoyRequest<'a> {
    /// What it is about.
    pub(super) described: DescribedRequest<'a>,
    /// The hits of the request as a whole, as written: 0 if it says nothing.
    pub(super) hits_addend: u32,
}

/// The hits of one descriptor, as written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct OwnHits {
    pub(super) addend: Option<u64>,
    pub(super) is_negative: bool,
}

/// Reads a `RateLimitRequest`.
pub(super) fn parse_request(message: &[u8]) -> Result<EnvoyRequest<'_>, EnvoyError> {
    let mut described = DescribedRequest::default();
    let mut own: SmallVec<[OwnHits; 4]> = SmallVec::new();
    let mut hits_addend = 0;
    for field in ProtobufFields::of(message) {
        let field = field?;
        match field.number {
            1 => described.domain = check_length("domain", field.text()?, MAX_KEY_BYTES)?,
            2 => {
                let at = described.descriptors.len();
                if at == MAX_DESCRIPTORS {
                    return Err(too_many("descriptors", MAX_DESCRIPTORS));
                }
                let (descriptor, hits) = descriptor(field, at)?;
                described.descriptors.push(descriptor);
                own.push(hits);
            }
            3 => hits_addend = field.uint32()?,
            _ => {} // of a newer protocol
        }
    }
    for (descriptor, own) in described.descriptors.iter_mut().zip(own) {
        descriptor.hits = hits(own, hits_addend);
    }
    validate(EnvoyRequest {
        described,
        hits_addend,
    })
}

/// Whether a request says enough to be decided.
pub(super) fn validate(request: EnvoyRequest<'_>) -> Result<EnvoyRequest<'_>, EnvoyError> {
    match &request.described {
        described if described.domain.is_empty() => Err(EnvoyError::NoDomain),
        described if described.descriptors.is_empty() => Err(EnvoyError::NoDescriptors),
        _ => Ok(request),
    }
}

/// What a descriptor is charged, by its own word or else by that of its request.
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
    Unit::ALL
        .into_iter()
        .find(|unit| u64::from(unit_number(*unit)) == number)
}

/// The number of a unit in the protocol. The week came last.
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

/// A text that is not longer than it may be.
pub(super) fn check_length<'a>(
    what: &'static str,
    text: &'a str,
    most: usize,
) -> Result<&'a str, EnvoyError> {
    match text.len() {
        length if length > most => Err(EnvoyError::TooLong { what, most }),
        _ => Ok(text),
    }
}

pub(super) fn too_many(what: &'static str, most: usize) -> EnvoyError {
    EnvoyError::TooMany { what, most }
}

fn descriptor(
    field: ProtobufField<'_>,
    at: usize,
) -> Result<(Descriptor<'_>, OwnHits), EnvoyError> {
    let mut descriptor = Descriptor {
        entries: SmallVec::new(),
        limit_override: None,
        hits: Hits::Check,
    };
    let mut hits = OwnHits::default();
    let mut own: Option<LimitOverride> = None;
    for field in field.message()? {
        let field = field?;
        match field.number {
            1 => {
                if descriptor.entries.len() == MAX_ENTRIES {
                    return Err(too_many("entries in one descriptor", MAX_ENTRIES));
                }
                descriptor.entries.push(entry(field)?);
            }
            // A message that comes twice is one, and what the second says last counts.
            2 => own.get_or_insert_default().read(field)?,
            3 => read_wrapper(field, hits.addend.get_or_insert_default())?,
            4 => hits.is_negative = field.bool()?,
            _ => {} // of a newer protocol
        }
    }
    descriptor.limit_override = own.map(|own| own.limit(at)).transpose()?;
    Ok((descriptor, hits))
}

fn entry(field: ProtobufField<'_>) -> Result<DescriptorEntry<'_>, EnvoyError> {
    let (mut key, mut value) = ("", &[][..]);
    for field in field.message()? {
        let field = field?;
        match field.number {
            1 => key = check_length("key", field.text()?, MAX_KEY_BYTES)?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((key, value::decode(value)))
}

/// A limit of the caller's, as written.
#[derive(Clone, Copy, Default)]
struct LimitOverride {
    requests: u32,
    unit: u64,
    /// How many units the window has; none written is one.
    times: u64,
}

impl LimitOverride {
    fn read(&mut self, field: ProtobufField<'_>) -> Result<(), EnvoyError> {
        for field in field.message()? {
            let field = field?;
            match field.number {
                1 => self.requests = field.uint32()?,
                2 => self.unit = field.uint64()?,
                3 => read_wrapper(field, &mut self.times)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn limit(self, descriptor: usize) -> Result<DescriptorOverride, EnvoyError> {
        let LimitOverride {
            requests,
            unit,
            times,
        } = self;
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
    for field in field.message()? {
        let field = field?;
        if field.number == 1 {
            *number = field.uint64()?;
        }
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod mutations;
#[cfg(test)]
mod tests;
