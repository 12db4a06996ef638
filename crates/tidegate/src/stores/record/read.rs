//! Decodes records. Invariant: bytes that no script writes are an error, never a panic.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::algorithms::{
    BucketState, CounterState, FixedState, Limit, LogEntry, LogState, MAX_LOG_ENTRIES, Parameters, SlidingState,
    StrictState, TRACKED_SUB_WINDOWS,
};
use tidegate_core::units::{Nanos, Tick};

use super::{
    BUCKET, CALENDAR, END_OF_TIME, FIXED, KIND_MASK, LOG, MILLI_FLAG, MORE_FLAG, RecordCounter, RecordError,
    RecordHeader, SLIDING, STRICT, VERSION,
};

/// Decodes the counters of a record, in order of their rates.
pub(in crate::stores) fn read(bytes: &[u8]) -> Result<Vec<RecordCounter>, RecordError> {
    let mut bytes = RecordReader(bytes);
    match bytes.take(1)? {
        [VERSION] => {}
        other => return Err(RecordError::Version(other[0])),
    }
    let mut headers = Vec::new();
    loop {
        let (header, layout, more) = bytes.header()?;
        headers.push((header, layout));
        if !more {
            break;
        }
    }
    let counter = |(header, layout): (RecordHeader, StateLayout)| {
        let (limit, state) = bytes.state(layout)?;
        Ok(RecordCounter { header, limit, state })
    };
    headers.into_iter().map(counter).collect()
}

/// The layout of a state, from its header.
struct StateLayout {
    kind: u8,
    tick: Tick,
    count_len: usize,
    numbers: [u64; 3],
}

/// The bytes not yet read.
struct RecordReader<'b>(&'b [u8]);

impl<'b> RecordReader<'b> {
    fn take(&mut self, len: usize) -> Result<&'b [u8], RecordError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(RecordError::Damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self, len: usize) -> Result<u64, RecordError> {
        let mut word = [0; 8];
        let room = word.get_mut(..len).ok_or(RecordError::Damaged)?;
        room.copy_from_slice(self.take(len)?);
        Ok(u64::from_le_bytes(word))
    }

    fn time(&mut self) -> Result<u64, RecordError> {
        let ticks = self.number(7)?;
        Ok(if ticks < END_OF_TIME { ticks } else { u64::MAX })
    }

    /// A number that is exact in a script.
    fn exact(&mut self, len: usize) -> Result<u64, RecordError> {
        let number = self.number(len)?;
        (number < END_OF_TIME).then_some(number).ok_or(RecordError::Damaged)
    }

    /// The index of a window of `width` ticks that begins before the end of time.
    fn index(&mut self, width: u64) -> Result<u64, RecordError> {
        let index = self.exact(7)?;
        let began = index.checked_mul(width).filter(|at| *at < END_OF_TIME);
        began.map(|_| index).ok_or(RecordError::Damaged)
    }

    fn count(&mut self, len: usize) -> Result<u32, RecordError> {
        u32::try_from(self.number(len)?).map_err(|_| RecordError::Damaged)
    }

    fn header(&mut self) -> Result<(RecordHeader, StateLayout, bool), RecordError> {
        let whole = self.0;
        let start = self.take(6)?;
        let flags = start[1];
        let kind = flags & KIND_MASK;
        let (counted, count) = match kind {
            BUCKET | LOG => (false, 2),
            FIXED => (true, 3),
            CALENDAR | SLIDING | STRICT => (true, 1),
            _ => return Err(RecordError::Damaged),
        };
        let nibbles = count + usize::from(counted);
        let mut lengths: SmallVec<[usize; 4]> = SmallVec::new();
        for byte in self.take(nibbles.div_ceil(2))? {
            lengths.extend([usize::from(byte & 15), usize::from(byte >> 4)]);
        }
        let count_len = if counted { lengths.remove(0) } else { 0 };
        let mut numbers = [0; 3];
        for (number, len) in numbers.iter_mut().zip(&lengths[..count]) {
            *number = self.exact(*len)?;
        }
        let mut header = RecordHeader(whole[..whole.len() - self.0.len()].into());
        header.0[1] &= !MORE_FLAG;
        let tick = if flags & MILLI_FLAG == 0 { Tick::Micro } else { Tick::Milli };
        let layout = StateLayout { kind, tick, count_len, numbers };
        Ok((header, layout, flags & MORE_FLAG != 0))
    }

    fn state(&mut self, layout: StateLayout) -> Result<(Limit, CounterState), RecordError> {
        let [a, b, c] = layout.numbers;
        let size = layout.count_len;
        // A record does not contain the limit's capacity: reading it under another limit needs only the
        // parameters of its algorithm.
        let limit = u64::from(u32::MAX / 2);
        let (parameters, state) = match layout.kind {
            BUCKET => {
                let (last, level) = (self.exact(7)?, self.exact(7)?);
                let parameters = Parameters::Bucket { per_token: a, per_tick: b, tokens: 1, max_delay: None };
                (parameters, CounterState::Bucket(BucketState { last, level }))
            }
            FIXED | CALENDAR => {
                let around = match layout.kind {
                    CALENDAR => Some([self.time()?, self.time()?]),
                    _ => None,
                };
                let end = self.time()?;
                let parameters = match around {
                    None => Parameters::Fixed { limit, width: a, phase: b, guard: c },
                    Some([start, after]) => {
                        Parameters::Calendar { limit, guard: a, edges: edges([start, end, after], layout.tick) }
                    }
                };
                let (count, next) = (self.count(size)?, self.count(size)?);
                (parameters, CounterState::Fixed(FixedState { end, count, next }))
            }
            SLIDING => {
                let state =
                    SlidingState { index: self.index(a)?, current: self.count(size)?, previous: self.count(size)? };
                let parameters = Parameters::Sliding { limit, width: a };
                (parameters, CounterState::Sliding(state))
            }
            STRICT => {
                let index = self.index(a)?;
                let mut counts = [0; TRACKED_SUB_WINDOWS];
                for count in &mut counts {
                    *count = self.count(size)?;
                }
                let parameters = Parameters::Strict { limit, sub_window: a };
                (parameters, CounterState::Strict(StrictState { index, counts }))
            }
            LOG => {
                let (width, grain) = (a, b);
                self.number(7)?;
                let entries = self.number(2)?;
                if entries > MAX_LOG_ENTRIES {
                    return Err(RecordError::Damaged);
                }
                let entry = |_| {
                    let (stamp, units) = (self.exact(7)?, self.count(4)?);
                    Ok(LogEntry { stamp, units })
                };
                let entries: Result<_, RecordError> = (0..entries).map(entry).collect();
                let parameters = Parameters::Log { limit, width, grain };
                (parameters, CounterState::Log(LogState::from_entries(entries?)))
            }
            _ => return Err(RecordError::Damaged),
        };
        let limit = Limit::from_parameters(&parameters, layout.tick).ok_or(RecordError::Damaged)?;
        Ok((limit, state))
    }
}

fn edges(ticks: [u64; 3], tick: Tick) -> Arc<[Nanos]> {
    let known = ticks.into_iter().filter(|edge| *edge < u64::MAX);
    known.map(|edge| tick.start(edge)).collect()
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithms::{Algorithm, Precision, Spec};

    use super::*;
    use crate::stores::record::write;

    fn limit(algorithm: Algorithm) -> Limit {
        let spec = Spec::new(algorithm, 100, Nanos::from_secs(60));
        Limit::compile(&spec, Precision::Double).expect("a limit")
    }

    /// Reading any bytes, and deciding with the result, ends in a decision or an error.
    #[test]
    fn damaged_records_never_panic() {
        let now = Nanos::from_secs(1_800_000_000);
        let mut seed = 1_u64;
        let mut random = |n: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % n
        };
        let mut read_at_all = 0;
        for round in 0..70_000 {
            let algorithm = Algorithm::ALL[round % 7];
            let limit = limit(algorithm);
            let (header, state) = (RecordHeader::of(0, &limit), limit.with_used(60, now));
            let mut bytes = write([(&header, &limit, &state)].into_iter());
            for _ in 0..=random(3) {
                let at = random(bytes.len() as u64) as usize;
                bytes[at] = random(256) as u8;
            }
            if random(4) == 0 {
                bytes.truncate(random(bytes.len() as u64) as usize);
            }
            for mut counter in read(&bytes).unwrap_or_default() {
                read_at_all += 1;
                for other in Algorithm::ALL {
                    let other = self::limit(other);
                    let mut adopted = other.adopt(&counter.limit, counter.state.clone(), now);
                    let at = other.advance(&mut adopted, now);
                    other.figures(&adopted, at);
                }
                counter.limit.advance(&mut counter.state, now);
            }
        }
        assert!(read_at_all > 10_000, "{read_at_all}");
    }
}
