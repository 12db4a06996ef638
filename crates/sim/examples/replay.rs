//! Replays one seed and prints its history: `replay [KIND] SEED [until MILLIS] [FROM_MS TO_MS [SUBJECT]]`. A
//! kind is `whole`, `shards`, `leased`, `lenient`, `region`, `reservations`, `permits`, `late` or `restarts`. `until`
//! stretches the run as `soak` does.

use std::io::{self, Write};

use tidegate_core::units::Nanos;
use tidegate_sim::check::judge;
use tidegate_sim::scenario::ScenarioKind;
use tidegate_sim::{Variant, world};

fn main() -> io::Result<()> {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    let kind = words.first().and_then(|word| ScenarioKind::from_name(word));
    if kind.is_some() {
        words.remove(0);
    }
    let stretch = words.iter().position(|word| word == "until");
    if let Some(at) = stretch {
        words.remove(at);
    }
    let numbers = words.iter().map(|word| word.parse::<u64>());
    let mut numbers: Vec<u64> = numbers.collect::<Result<_, _>>().map_err(|error| {
        let usage = "[KIND] SEED [until MILLIS] [FROM_MS TO_MS [SUBJECT]]";
        io::Error::other(format!("{usage}: {error}"))
    })?;
    let until = stretch.filter(|at| *at < numbers.len()).map(|at| Nanos::from_millis(numbers.remove(at)));
    let number = |at: usize, usual| numbers.get(at).copied().unwrap_or(usual);
    let (seed, from, to, subject) = (number(0, 0), number(1, 0), number(2, u64::MAX), numbers.get(3));
    let scenario = kind.unwrap_or(ScenarioKind::Single).scenario(seed);
    let scenario = match until {
        Some(until) => scenario.stretched(until),
        None => scenario,
    };
    let history = world::run(&scenario, Variant::Shipped);
    let mut lines = Vec::new();
    for ((at, node, event), shard) in history.events.iter().zip(&history.event_shards) {
        lines.push((*at, format!("node {node} shard {shard} {event:?}")));
    }
    for (at, conditions) in &history.condition_changes {
        lines.push((*at, format!("{conditions:?}")));
    }
    for at in &history.losses {
        lines.push((*at, "the store lost counts".to_owned()));
    }
    for (at, node) in &history.deaths {
        lines.push((*at, format!("node {node} died")));
    }
    for snapshot in &history.snapshots {
        lines.push((snapshot.at, format!("counters {:?}", snapshot.used)));
    }
    let ahead = scenario.counts_ahead();
    for entry in history.store_ops.iter().filter(|_| ahead) {
        lines.push((entry.sent, format!("{entry:?}")));
    }
    for event in &history.reservation_events {
        lines.push((event.now, format!("{event:?}")));
    }
    for call in &history.reservation_calls {
        lines.push((call.sent, format!("{call:?}")));
    }
    for event in &history.permit_events {
        lines.push((event.now, format!("{event:?}")));
    }
    for session in &history.permit_sessions {
        lines.push((session.sent, format!("{session:?}")));
    }
    for record in &history.records {
        if subject.is_none_or(|only| *only == record.subject as u64) {
            lines.push((record.done, format!("{record:?}")));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    let mut out = io::stdout().lock();
    writeln!(out, "{scenario:?}\n{}", scenario.rules())?;
    for finding in judge(&scenario, &history) {
        writeln!(out, "{finding}")?;
    }
    for (at, line) in lines {
        let millis = at.get() / 1_000_000;
        if (from..=to).contains(&millis) {
            writeln!(out, "{at:?} {line}")?;
        }
    }
    Ok(())
}
