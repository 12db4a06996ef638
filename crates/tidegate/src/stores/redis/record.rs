//! A record as bytes: the counters of one subject under all rates of one rule.
//!
//! The layout is told in `scripts/record.lua`, which reads and writes the same bytes. A record
//! describes itself: a state found under other parameters can be read under present ones. Times
//! from 2^53 on are one: the end of time.

use std::sync::Arc;

use smallvec::{SmallVec, smallvec};
use tidegate_core::algorithms::{
    BucketState, FixedState, KEPT, Limit, LogEntry, LogState, Parameters, SlidingState, State,
    StrictState,
};
use tidegate_core::units::{Nanos, Tick};

/// The first byte of every record.
pub(super) const VERSION: u8 = 1;
/// The first time that a script cannot tell from the next.
pub(super) const END_OF_TIME: u64 = 1 << 53;

const BUCKET: u8 = 1;
const FIXED: u8 = 2;
const CALENDAR: u8 = 3;
const SLIDING: u8 = 4;
const STRICT: u8 = 5;
const LOG: u8 = 6;
const KIND: u8 = 7;
const MILLI: u8 = 8;
const MORE: u8 = 16;

/// What a record says of one counter: which rate, counted how. Two counters with one header are made
/// with the same parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header(SmallVec<[u8; 32]>);

/// One counter of a record.
#[derive(Clone, Debug)]
pub(super) struct Counter {
    pub(super) header: Header,
    pub(super) limit: Limit,
    pub(super) state: State,
}

/// A record that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Garbled {
    /// Written in another format.
    #[error("a record has format {0}, which this version cannot read")]
    Version(u8),
    /// Cut short, or never a record.
    #[error("a record is damaged")]
    Damaged,
}

/// The counters of a record, in order of their rates.
pub(super) fn read(bytes: &[u8]) -> Result<Vec<Counter>, Garbled> {
    let mut bytes = Bytes(bytes);
    match bytes.take(1)? {
        [VERSION] => {}
        other => return Err(Garbled::Version(other[0])),
    }
    let mut headers = Vec::new();
    loop {
        let (header, layout, more) = bytes.header()?;
        headers.push((header, layout));
        if !more {
            break;
        }
    }
    let counter = |(header, layout): (Header, Layout)| {
        let (limit, state) = bytes.state(layout)?;
        Ok(Counter {
            header,
            limit,
            state,
        })
    };
    headers.into_iter().map(counter).collect()
}

/// The headers of a record, as they begin it.
pub(super) fn heads<'h>(headers: impl ExactSizeIterator<Item = &'h Header>) -> Vec<u8> {
    let mut bytes = vec![VERSION];
    let last = headers.len() - 1;
    for (i, header) in headers.enumerate() {
        let at = bytes.len();
        bytes.extend_from_slice(&header.0);
        if i < last {
            bytes[at + 1] |= MORE;
        }
    }
    bytes
}

/// A record of these counters, each under its limit.
pub(super) fn write<'c>(
    counters: impl ExactSizeIterator<Item = (&'c Header, &'c Limit, &'c State)> + Clone,
) -> Vec<u8> {
    let mut bytes = heads(counters.clone().map(|(header, ..)| header));
    for (header, limit, state) in counters {
        write_state(&mut bytes, header, limit, state);
    }
    bytes
}

impl Header {
    /// The header of the `rate`-th rate of a rule.
    pub(super) fn of(rate: u8, limit: &Limit) -> Self {
        let milli = if limit.tick() == Tick::Milli {
            MILLI
        } else {
            0
        };
        let parameters = limit.parameters();
        let (kind, numbers): (u8, SmallVec<[u64; 3]>) = match &parameters {
            Parameters::Bucket {
                per_token,
                per_tick,
                ..
            } => (BUCKET, smallvec![*per_token, *per_tick]),
            Parameters::Fixed {
                width,
                phase,
                guard,
                ..
            } => (FIXED, smallvec![*width, *phase, *guard]),
            Parameters::Calendar { guard, .. } => (CALENDAR, smallvec![*guard]),
            Parameters::Sliding { width, .. } => (SLIDING, smallvec![*width]),
            Parameters::Strict { part, .. } => (STRICT, smallvec![*part]),
            Parameters::Log { width, grain, .. } => (LOG, smallvec![*width, *grain]),
        };
        let mut bytes: SmallVec<[u8; 32]> = SmallVec::new();
        bytes.extend_from_slice(&[rate, kind | milli]);
        bytes.extend_from_slice(&limit.tag().to_le_bytes());
        // A count goes up to twice the limit.
        let counts = (!matches!(kind, BUCKET | LOG)).then(|| len(2 * limit.capacity()));
        let lengths: SmallVec<[usize; 4]> = counts
            .into_iter()
            .chain(numbers.iter().map(|number| len(*number)))
            .collect();
        for pair in lengths.chunks(2) {
            let high = pair.get(1).copied().unwrap_or(0);
            bytes.push((pair[0] | (high << 4)) as u8);
        }
        for number in numbers {
            bytes.extend_from_slice(&number.to_le_bytes()[..len(number)]);
        }
        Header(bytes)
    }

    /// Which rate of its rule.
    pub(super) fn rate(&self) -> u8 {
        self.0[0]
    }

    fn is_calendar(&self) -> bool {
        self.0[1] & KIND == CALENDAR
    }

    /// How counters of this kind are laid out: see `scripts/books.lua`.
    pub(super) fn shape(&self) -> u8 {
        match self.0[1] & KIND {
            BUCKET => 1,
            kind => (kind << 3) | (self.0[6] & 15),
        }
    }

    /// Bytes of a count, where there are counts.
    fn count_len(&self) -> usize {
        usize::from(self.0[6] & 15)
    }
}

/// Bytes that a number needs.
fn len(number: u64) -> usize {
    (64 - number.leading_zeros() as usize).div_ceil(8)
}

fn write_state(bytes: &mut Vec<u8>, header: &Header, limit: &Limit, state: &State) {
    let size = header.count_len();
    let time = |bytes: &mut Vec<u8>, ticks: u64| {
        bytes.extend_from_slice(&ticks.min(END_OF_TIME).to_le_bytes()[..7]);
    };
    let count = |bytes: &mut Vec<u8>, units: u32| {
        bytes.extend_from_slice(&u64::from(units).to_le_bytes()[..size]);
    };
    match state {
        State::Bucket(held) => {
            time(bytes, held.last);
            time(bytes, held.level);
        }
        State::Fixed(held) => {
            let around = limit.windows_around(held.end);
            let around = around.filter(|_| header.is_calendar());
            if let Some((start, after)) = around {
                for edge in [start, after, held.end] {
                    time(bytes, edge);
                }
            } else {
                time(bytes, held.end);
            }
            count(bytes, held.count);
            count(bytes, held.next);
        }
        State::Sliding(held) => {
            time(bytes, held.index);
            count(bytes, held.current);
            count(bytes, held.previous);
        }
        State::Strict(held) => {
            time(bytes, held.index);
            for units in held.counts {
                count(bytes, units);
            }
        }
        State::Log(held) => {
            let sum = held.entries().map(|entry| u64::from(entry.units)).sum();
            time(bytes, sum);
            let entries = u16::try_from(held.entries().len()).unwrap_or(u16::MAX);
            bytes.extend_from_slice(&entries.to_le_bytes());
            for entry in held.entries() {
                time(bytes, entry.stamp);
                bytes.extend_from_slice(&entry.units.to_le_bytes());
            }
        }
    }
}

/// What a header says about the state that belongs to it.
struct Layout {
    kind: u8,
    tick: Tick,
    count_len: usize,
    numbers: [u64; 3],
}

/// Bytes still to be read.
struct Bytes<'b>(&'b [u8]);

impl<'b> Bytes<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], Garbled> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Garbled::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, len: usize) -> Result<u64, Garbled> {
        let mut word = [0; 8];
        let room = word.get_mut(..len).ok_or(Garbled::Damaged)?;
        room.copy_from_slice(self.take(len)?);
        Ok(u64::from_le_bytes(word))
    }

    fn time(&mut self) -> Result<u64, Garbled> {
        let ticks = self.number(7)?;
        Ok(if ticks < END_OF_TIME { ticks } else { u64::MAX })
    }

    fn count(&mut self, len: usize) -> Result<u32, Garbled> {
        u32::try_from(self.number(len)?).map_err(|_| Garbled::Damaged)
    }

    fn header(&mut self) -> Result<(Header, Layout, bool), Garbled> {
        let whole = self.0;
        let start = self.take(6)?;
        let marks = start[1];
        let kind = marks & KIND;
        let (counted, count) = match kind {
            BUCKET | LOG => (false, 2),
            FIXED => (true, 3),
            CALENDAR | SLIDING | STRICT => (true, 1),
            _ => return Err(Garbled::Damaged),
        };
        let nibbles = count + usize::from(counted);
        let mut lengths: SmallVec<[usize; 4]> = SmallVec::new();
        for byte in self.take(nibbles.div_ceil(2))? {
            lengths.extend([usize::from(byte & 15), usize::from(byte >> 4)]);
        }
        let count_len = if counted { lengths.remove(0) } else { 0 };
        let mut numbers = [0; 3];
        for (number, len) in numbers.iter_mut().zip(&lengths[..count]) {
            *number = self.number(*len)?;
        }
        let mut header = Header(whole[..whole.len() - self.0.len()].into());
        header.0[1] &= !MORE;
        let tick = if marks & MILLI == 0 {
            Tick::Micro
        } else {
            Tick::Milli
        };
        let layout = Layout {
            kind,
            tick,
            count_len,
            numbers,
        };
        Ok((header, layout, marks & MORE != 0))
    }

    fn state(&mut self, layout: Layout) -> Result<(Limit, State), Garbled> {
        let [a, b, c] = layout.numbers;
        let size = layout.count_len;
        // A record does not say how much was permitted: reading under another limit needs no more
        // than how it was counted.
        let limit = u64::from(u32::MAX / 2);
        let (parameters, state) = match layout.kind {
            BUCKET => {
                let (last, level) = (self.time()?, self.number(7)?);
                let parameters = Parameters::Bucket {
                    per_token: a,
                    per_tick: b,
                    tokens: 1,
                    max_delay: None,
                };
                (parameters, State::Bucket(BucketState { last, level }))
            }
            FIXED | CALENDAR => {
                let around = match layout.kind {
                    CALENDAR => Some([self.time()?, self.time()?]),
                    _ => None,
                };
                let end = self.time()?;
                let parameters = match around {
                    None => Parameters::Fixed {
                        limit,
                        width: a,
                        phase: b,
                        guard: c,
                    },
                    Some([start, after]) => Parameters::Calendar {
                        limit,
                        guard: a,
                        edges: edges([start, end, after], layout.tick),
                    },
                };
                let (count, next) = (self.count(size)?, self.count(size)?);
                (parameters, State::Fixed(FixedState { end, count, next }))
            }
            SLIDING => {
                let state = SlidingState {
                    index: self.number(7)?,
                    current: self.count(size)?,
                    previous: self.count(size)?,
                };
                let parameters = Parameters::Sliding { limit, width: a };
                (parameters, State::Sliding(state))
            }
            STRICT => {
                let index = self.number(7)?;
                let mut counts = [0; KEPT];
                for count in &mut counts {
                    *count = self.count(size)?;
                }
                let parameters = Parameters::Strict { limit, part: a };
                (parameters, State::Strict(StrictState { index, counts }))
            }
            _ => {
                let (width, grain) = (a, b);
                self.number(7)?;
                let entries = self.number(2)?;
                let entry = |_| {
                    let (stamp, units) = (self.number(7)?, self.count(4)?);
                    Ok(LogEntry { stamp, units })
                };
                let entries: Result<_, Garbled> = (0..entries).map(entry).collect();
                let parameters = Parameters::Log {
                    limit,
                    width,
                    grain,
                };
                (parameters, State::Log(LogState::from_entries(entries?)))
            }
        };
        let limit = Limit::described(&parameters, layout.tick).ok_or(Garbled::Damaged)?;
        Ok((limit, state))
    }
}

fn edges(ticks: [u64; 3], tick: Tick) -> Arc<[Nanos]> {
    let known = ticks.into_iter().filter(|edge| *edge < u64::MAX);
    known.map(|edge| tick.start(edge)).collect()
}
