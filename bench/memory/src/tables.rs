//! The table and goals of memory use.

use bench_report::{Goal, Table, figure};

use crate::fill::{MILLION, MemorySample};
use crate::subjects::{TIDEGATE, TIDEGATE_STRICT};

type MemorySamples = [(&'static str, Vec<MemorySample>)];

/// Bytes per key of every subject at each million, and at its worst.
pub(crate) fn bytes_per_key(measured: &MemorySamples, max_keys: usize) -> Table {
    let millions: Vec<usize> = (1..=max_keys / MILLION).collect();
    let heading = millions.iter().map(|million| format!("{million}M"));
    let heading = ["bytes per key".to_owned()].into_iter().chain(heading);
    let mut table = Table::new(heading.chain(["worst".to_owned(), "at".to_owned()]));
    for (name, samples) in measured {
        let mut cells = vec![(*name).to_owned()];
        cells.extend(millions.iter().map(|million| cell(samples, million * MILLION)));
        let worst = worst(samples);
        cells.push(figure(worst.map(|sample| sample.resident_per_key())));
        cells.push(worst.map_or_else(String::new, |s| format!("{:.2}M", s.keys as f64 / MILLION as f64)));
        table.row(cells);
    }
    table
}

/// The goals of Tidegate. The one for ten million keys only when the run went so far.
pub(crate) fn goals(measured: &MemorySamples) -> Vec<Goal> {
    let samples = |name| measured.iter().find(|(n, _)| *n == name).map_or(&[][..], |(_, s)| s);
    let (plain, strict) = (samples(TIDEGATE), samples(TIDEGATE_STRICT));
    let full = at(plain, 10 * MILLION).map(|sample| sample.resident_per_key());
    let worst_of = |samples| worst(samples).map(|sample| sample.resident_per_key());
    vec![
        Goal::at_most("bytes per key at 10M keys", full, 56.0),
        Goal::at_most("bytes per key at the worst fill", worst_of(plain), 80.0),
        Goal::at_most("bytes per key, strict window, at the worst fill", worst_of(strict), 112.0),
    ]
}

fn cell(samples: &[MemorySample], keys: usize) -> String {
    match at(samples, keys) {
        None if samples.is_empty() => figure(None),
        None => "-".to_owned(),
        Some(sample) => {
            let (resident, allocated) = (sample.resident_per_key(), sample.allocated_per_key());
            format!("{resident:.0} ({allocated:.0})")
        }
    }
}

fn at(samples: &[MemorySample], keys: usize) -> Option<&MemorySample> {
    samples.iter().find(|sample| sample.keys == keys)
}

/// Below a million keys a few large blocks dominate, and no machine runs out of memory.
fn worst(samples: &[MemorySample]) -> Option<&MemorySample> {
    let counted = samples.iter().filter(|sample| sample.keys >= MILLION);
    counted.max_by(|a, b| a.resident_per_key().total_cmp(&b.resident_per_key()))
}
