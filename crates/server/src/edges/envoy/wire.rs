//! From the bytes of a `RateLimitRequest` to descriptors. Pure: no clock, no I/O, no limiter.
//!
//! What can borrows from the body. Kept true: whatever the bytes, the answer is a request within the
//! bounds below or one fault; nothing panics, and nothing is cut short to fit, because two clients cut
//! short could become one. A value is never a fault, neither its length nor its bytes: the client of
//! Envoy chooses it, and Envoy lets pass what got no verdict.

use smallvec::SmallVec;
use tidegate_core::described::{Described, Descriptor, DescriptorEntry, Hits, OwnLimit, Unit};
use tidegate_core::units::Cost;

use super::error::Fault;
use crate::protobuf::{Field, Fields};

pub(super) mod value;

/// The most bytes a request may have: the 60 KiB of headers that Envoy takes, in every descriptor.
pub(crate) const LARGEST: usize = 1 << 20;
/// The most descriptors a request may have.
pub(crate) const MOST_DESCRIPTORS: usize = 16;
/// The most entries a descriptor may have.
pub(crate) const MOST_ENTRIES: usize = 16;
/// The longest key of an entry, and the longest domain, in bytes.
pub(crate) const LONGEST_KEY: usize = 256;

/// A request as asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Asked<'a> {
    /// What it is about.
    pub(super) described: Described<'a>,
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
pub(super) fn asked(message: &[u8]) -> Result<Asked<'_>, Fault> {
    let mut described = Described::default();
    let mut own: SmallVec<[OwnHits; 4]> = SmallVec::new();
    let mut hits_addend = 0;
    for field in Fields::of(message) {
        let field = field?;
        match field.number {
            1 => described.domain = short("domain", field.text()?, LONGEST_KEY)?,
            2 => {
                let at = described.descriptors.len();
                if at == MOST_DESCRIPTORS {
                    return Err(too_many("descriptors", MOST_DESCRIPTORS));
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
    complete(Asked {
        described,
        hits_addend,
    })
}

/// Whether a request says enough to be decided.
pub(super) fn complete(asked: Asked<'_>) -> Result<Asked<'_>, Fault> {
    match &asked.described {
        described if described.domain.is_empty() => Err(Fault::NoDomain),
        described if described.descriptors.is_empty() => Err(Fault::NoDescriptors),
        _ => Ok(asked),
    }
}

/// What a descriptor is charged, by its own word or else by that of its request.
pub(super) fn hits(own: OwnHits, of_request: u32) -> Hits {
    let number = own.addend.unwrap_or(u64::from(of_request.max(1)));
    match (Cost::new(number), own) {
        (None, _) => Hits::Nothing,
        (Some(cost), own) if own.is_negative => Hits::GivenBack(cost),
        (Some(cost), own) if own.addend.is_some() => Hits::Used(cost),
        (Some(cost), _) => Hits::Asked(cost),
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
pub(super) fn short<'a>(what: &'static str, text: &'a str, most: usize) -> Result<&'a str, Fault> {
    match text.len() {
        length if length > most => Err(Fault::TooLong { what, most }),
        _ => Ok(text),
    }
}

pub(super) fn too_many(what: &'static str, most: usize) -> Fault {
    Fault::TooMany { what, most }
}

fn descriptor(field: Field<'_>, at: usize) -> Result<(Descriptor<'_>, OwnHits), Fault> {
    let mut descriptor = Descriptor {
        entries: SmallVec::new(),
        own: None,
        hits: Hits::Nothing,
    };
    let mut hits = OwnHits::default();
    let mut own: Option<Override> = None;
    for field in field.message()? {
        let field = field?;
        match field.number {
            1 => {
                if descriptor.entries.len() == MOST_ENTRIES {
                    return Err(too_many("entries in one descriptor", MOST_ENTRIES));
                }
                descriptor.entries.push(entry(field)?);
            }
            // A message that comes twice is one, and what the second says last counts.
            2 => own.get_or_insert_default().read(field)?,
            3 => wrapped(field, hits.addend.get_or_insert_default())?,
            4 => hits.is_negative = field.bool()?,
            _ => {} // of a newer protocol
        }
    }
    descriptor.own = own.map(|own| own.limit(at)).transpose()?;
    Ok((descriptor, hits))
}

fn entry(field: Field<'_>) -> Result<DescriptorEntry<'_>, Fault> {
    let (mut key, mut value) = ("", &[][..]);
    for field in field.message()? {
        let field = field?;
        match field.number {
            1 => key = short("key", field.text()?, LONGEST_KEY)?,
            2 => value = field.bytes()?,
            _ => {}
        }
    }
    Ok((key, value::read(value)))
}

/// A limit of the caller's, as written.
#[derive(Clone, Copy, Default)]
struct Override {
    requests: u32,
    unit: u64,
    /// How many units the window has; none written is one.
    times: u64,
}

impl Override {
    fn read(&mut self, field: Field<'_>) -> Result<(), Fault> {
        for field in field.message()? {
            let field = field?;
            match field.number {
                1 => self.requests = field.uint32()?,
                2 => self.unit = field.uint64()?,
                3 => wrapped(field, &mut self.times)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn limit(self, descriptor: usize) -> Result<OwnLimit, Fault> {
        let Override {
            requests,
            unit,
            times,
        } = self;
        if times > 1 {
            return Err(Fault::SeveralUnits { descriptor, times });
        }
        match self::unit(unit) {
            Some(unit) => Ok(OwnLimit { requests, unit }),
            None => Err(Fault::NoSuchUnit { descriptor, unit }),
        }
    }
}

/// Reads the number in a `UInt64Value` or a `UInt32Value`.
fn wrapped(field: Field<'_>, number: &mut u64) -> Result<(), Fault> {
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
