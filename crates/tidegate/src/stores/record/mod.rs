//! The record format: the counters of one subject under all rates of one rule, as bytes.
//!
//! `redis/scripts/record.lua` documents the layout and reads and writes the same bytes. The journal on disk uses
//! the format too. A record describes itself, so a state written under other parameters can be read under the
//! present ones. All times from 2^53 on are equal: the end of time.

mod read;

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::{CounterState, Limit, Parameters};
use tidegate_core::units::Tick;

pub(super) use self::read::read;

/// The first byte of every record.
pub(super) const VERSION: u8 = 1;
/// The first time that a script cannot distinguish from the next one.
pub(super) const END_OF_TIME: u64 = 1 << 53;

const BUCKET: u8 = 1;
const FIXED: u8 = 2;
const CALENDAR: u8 = 3;
const SLIDING: u8 = 4;
const STRICT: u8 = 5;
const LOG: u8 = 6;
const KIND_MASK: u8 = 7;
const MILLI_FLAG: u8 = 8;
const MORE_FLAG: u8 = 16;

/// The header of one counter: its rate and its parameters. Two counters with equal headers have the same
/// parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RecordHeader(SmallVec<[u8; 32]>);

/// One counter of a record.
#[derive(Clone, Debug)]
pub(super) struct RecordCounter {
    pub(super) header: RecordHeader,
    pub(super) limit: Limit,
    pub(super) state: CounterState,
}

/// A record that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum RecordError {
    /// The format version is unknown.
    #[error("a record has format {0}, which this version cannot read")]
    Version(u8),
    /// The bytes are truncated, or are no record.
    #[error("a record is damaged")]
    Damaged,
}

/// The first bytes of a record: the version and the headers.
pub(super) fn encode_headers<'h>(headers: impl ExactSizeIterator<Item = &'h RecordHeader>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    let last = headers.len() - 1;
    for (i, header) in headers.enumerate() {
        let at = bytes.len();
        bytes.extend_from_slice(&header.0);
        if i < last {
            bytes[at + 1] |= MORE_FLAG;
        }
    }
    bytes
}

/// Encodes a record of `counters`.
pub(super) fn write<'c>(
    counters: impl ExactSizeIterator<Item = (&'c RecordHeader, &'c Limit, &'c CounterState)> + Clone,
) -> Vec<u8> {
    let mut bytes = encode_headers(counters.clone().map(|(header, ..)| header));
    for (header, limit, state) in counters {
        write_state(&mut bytes, header, limit, state);
    }
    bytes
}

impl RecordHeader {
    /// The header of the `rate`-th rate of a rule.
    pub(super) fn of(rate: u8, limit: &Limit) -> Self {
        let milli = if limit.tick() == Tick::Milli { MILLI_FLAG } else { 0 };
        let parameters = limit.parameters();
        let (kind, numbers): (u8, SmallVec<[u64; 3]>) = match &parameters {
            Parameters::Bucket { per_token, per_tick, .. } => (BUCKET, smallvec![*per_token, *per_tick]),
            Parameters::Fixed { width, phase, guard, .. } => (FIXED, smallvec![*width, *phase, *guard]),
            Parameters::Calendar { guard, .. } => (CALENDAR, smallvec![*guard]),
            Parameters::Sliding { width, .. } => (SLIDING, smallvec![*width]),
            Parameters::Strict { sub_window, .. } => (STRICT, smallvec![*sub_window]),
            Parameters::Log { width, grain, .. } => (LOG, smallvec![*width, *grain]),
        };
        let mut bytes: SmallVec<[u8; 32]> = SmallVec::new();
        bytes.extend_from_slice(&[rate, kind | milli]);
        bytes.extend_from_slice(&limit.tag().to_le_bytes());
        // A count goes up to twice the limit.
        let counts = (!matches!(kind, BUCKET | LOG)).then(|| byte_len(2 * limit.full_capacity()));
        let lengths: SmallVec<[usize; 4]> =
            counts.into_iter().chain(numbers.iter().map(|number| byte_len(*number))).collect();
        for pair in lengths.chunks(2) {
            let high = pair.get(1).copied().unwrap_or(0);
            bytes.push((pair[0] | (high << 4)) as u8);
        }
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes()[..byte_len(number)]);
        }
        RecordHeader(bytes)
    }

    /// The index of the rate in its rule.
    pub(super) fn rate(&self) -> u8 {
        self.0[0]
    }

    /// The tag of the limit.
    #[cfg(feature = "disk")]
    pub(super) fn tag(&self) -> u32 {
        u32::from_le_bytes([self.0[2], self.0[3], self.0[4], self.0[5]])
    }

    fn is_calendar(&self) -> bool {
        self.0[1] & KIND_MASK == CALENDAR
    }

    /// The layout of the state, as `redis/scripts/accounts.lua` numbers it.
    pub(super) fn shape(&self) -> u8 {
        match self.0[1] & KIND_MASK {
            BUCKET => 1,
            kind => (kind << 3) | (self.0[6] & 15),
        }
    }

    /// The width of a count in bytes, for kinds that have counts.
    fn count_len(&self) -> usize {
        usize::from(self.0[6] & 15)
    }
}

/// The number of bytes that `number` needs.
fn byte_len(number: u64) -> usize {
    (64 - number.leading_zeros() as usize).div_ceil(8)
}

fn write_state(bytes: &mut Vec<u8>, header: &RecordHeader, limit: &Limit, state: &CounterState) {
    let size = header.count_len();
    let time = |bytes: &mut Vec<u8>, ticks: u64| {
        bytes.extend_from_slice(&ticks.min(END_OF_TIME).to_le_bytes()[..7]);
    };
    let count = |bytes: &mut Vec<u8>, units: u32| {
        bytes.extend_from_slice(&u64::from(units).to_le_bytes()[..size]);
    };
    match state {
        CounterState::Bucket(bucket) => {
            time(bytes, bucket.last);
            time(bytes, bucket.level);
        }
        CounterState::Fixed(fixed) => {
            let around = limit.windows_around(fixed.end);
            let around = around.filter(|_| header.is_calendar());
            if let Some((start, after)) = around {
                for edge in [start, after, fixed.end] {
                    time(bytes, edge);
                }
            } else {
                time(bytes, fixed.end);
            }
            count(bytes, fixed.count);
            count(bytes, fixed.next);
        }
        CounterState::Sliding(sliding) => {
            time(bytes, sliding.index);
            count(bytes, sliding.current);
            count(bytes, sliding.previous);
        }
        CounterState::Strict(strict) => {
            time(bytes, strict.index);
            for units in strict.counts {
                count(bytes, units);
            }
        }
        CounterState::Log(log) => {
            let sum = log.entries().map(|entry| u64::from(entry.units)).sum();
            time(bytes, sum);
            let entries = u16::try_from(log.entries().len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&entries.to_le_bytes());
            for entry in log.entries() {
                time(bytes, entry.stamp);
                bytes.extend_from_slice(&entry.units.to_le_bytes());
            }
        }
    }
}
