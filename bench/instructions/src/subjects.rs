//! The decisions under measurement.

use std::hint::black_box;

use bench_subjects::{Allowance, BATCH, Governor, Harness, Key, Limitador, LimiterSubject, Throttlecrab};

/// Decisions counted in one run: enough that an unusually long one does not matter, few enough for valgrind.
pub(crate) const DECISIONS: usize = 16_000;

/// The keys of a run.
const KEYS: usize = 1_000;

/// Tidegate's name, needed also when it is absent.
pub(crate) const TIDEGATE: &str = "tidegate";

/// The suffix of a case in batches.
const BY_16: &str = " by 16";

const NAMES: [&str; 5] = [Harness::NAME, TIDEGATE, Governor::NAME, Throttlecrab::NAME, Limitador::NAME];

/// Every subject, one by one and in batches.
pub(crate) fn cases() -> impl Iterator<Item = String> {
    NAMES.iter().flat_map(|name| [(*name).to_owned(), format!("{name}{BY_16}")])
}

/// Runs one case; does nothing when this build does not include its subject.
pub(crate) fn run(case: &str) {
    let name = case.strip_suffix(BY_16).unwrap_or(case);
    let batches = name != case;
    match name {
        Harness::NAME => decide_all::<Harness>(batches),
        TIDEGATE => decide_all::<bench_subjects::Tidegate>(batches),
        Governor::NAME => decide_all::<Governor>(batches),
        Throttlecrab::NAME => decide_all::<Throttlecrab>(batches),
        Limitador::NAME => decide_all::<Limitador>(batches),
        _ => {}
    }
}

/// Every key is visited before the counted part begins: the creation of an entry is not the cost of a
/// decision.
fn decide_all<S: LimiterSubject>(batches: bool) {
    let subject = S::new(Allowance::ADMITS_ALL, KEYS);
    let keys: Vec<Key> = (0..KEYS).map(Key::number).collect();
    keys.iter().for_each(|key| {
        black_box(subject.decide(key));
    });
    // 331 and the number of keys have no common factor: every key is visited, none twice in a row.
    let order: Vec<&Key> = (0..DECISIONS).map(|n| &keys[n * 331 % KEYS]).collect();
    if batches {
        counted_batches(&subject, &order, &mut S::Scratch::default());
    } else {
        counted_singly(&subject, &order);
    }
}

/// Callgrind counts between entering and leaving this function, which it knows by name.
#[inline(never)]
fn counted_singly<S: LimiterSubject>(subject: &S, order: &[&Key]) {
    for key in order {
        black_box(subject.decide(key));
    }
}

/// As [`counted_singly`].
#[inline(never)]
fn counted_batches<S: LimiterSubject>(subject: &S, order: &[&Key], scratch: &mut S::Scratch) {
    for batch in order.as_chunks::<BATCH>().0 {
        black_box(subject.decide_batch(batch, scratch));
    }
}
