//! Instructions that one request takes, counted by callgrind, against a record.
//!
//! A path runs from the bytes of a request to the bytes of its response: the connection code of the service is
//! driven over a pipe in memory, on one thread. The library paths are beside it. Instructions do not depend on what
//! else the machine does, so a path that takes more than [`TOLERANCE`] over its record fails `make test`.
//!
//! The counts are those of an optimised build; `scripts/test` runs it. In a build for debugging the paths are
//! only run, not counted.

mod http2_client;
mod paths;
mod pipe;
mod record;
mod valgrind;

use record::Record;

/// How much more than recorded a path may take. Hash seeds are random, so that two runs of one build differ by less
/// than a percent; an inlining that is lost or a second hash costs more than this.
const TOLERANCE: f64 = 1.03;

/// Set to write the record instead of comparing with it.
const WRITE_RECORD: &str = "TIDEGATE_RECORD_INSTRUCTIONS";

/// Callgrind counts between entering and leaving this function, which it knows by name.
#[inline(never)]
fn counted_section(work: &mut dyn FnMut()) {
    work();
}

#[test]
#[cfg_attr(
    debug_assertions,
    ignore = "counts an optimised build: cargo test --profile profiling -p tidegate-server instruction_counts"
)]
fn no_path_takes_more_instructions_than_recorded() {
    let recorded = Record::read().expect("a record that can be read");
    let mut counted = Record::default();
    let mut slower = Vec::new();
    for path in paths::ALL {
        let count = valgrind::count(path).expect("callgrind counts a path");
        let was = recorded.get(path.name);
        let change = was.map(|was| count / was);
        eprintln!(
            "{:<28} {count:>10.1} instructions, recorded {:>10.1}, {:+.1}%",
            path.name,
            was.unwrap_or(f64::NAN),
            100.0 * (change.unwrap_or(f64::NAN) - 1.0)
        );
        counted.set(path.name, count);
        if change.is_none_or(|change| change > TOLERANCE) {
            slower.push(path.name);
        }
    }
    if std::env::var_os(WRITE_RECORD).is_some() {
        counted.write().expect("a record that can be written");
        return;
    }
    assert!(
        slower.is_empty(),
        "more than 3% over the record, or not in it: {slower:?}; profile them with \
         `valgrind --tool=callgrind`, or record a count that is meant with {WRITE_RECORD}=1"
    );
}
