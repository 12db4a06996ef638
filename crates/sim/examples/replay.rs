//! Replays one seed and tells what happened: `replay [parts] SEED [FROM_MS TO_MS [SUBJECT]]`.

use std::io::{self, Write};

use tidegate_sim::check::judge;
use tidegate_sim::scenario::Scenario;
use tidegate_sim::{Variant, world};

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let in_parts = words.first().is_some_and(|word| word == "parts");
    let numbers = words.iter().skip(usize::from(in_parts));
    let numbers = numbers.map(|word| word.parse::<u64>());
    let numbers: Vec<u64> = numbers
        .collect::<Result<_, _>>()
        .map_err(|error| io::Error::other(format!("SEED [FROM_MS TO_MS [SUBJECT]]: {error}")))?;
    let number = |at: usize, usual| numbers.get(at).copied().unwrap_or(usual);
    let (seed, from, to, subject) = (
        number(0, 0),
        number(1, 0),
        number(2, u64::MAX),
        numbers.get(3),
    );
    let scenario = match in_parts {
        true => Scenario::in_parts(seed),
        false => Scenario::of(seed),
    };
    let history = world::run(&scenario, Variant::Shipped);
    let mut lines = Vec::new();
    for ((at, node, event), part) in history.events.iter().zip(&history.lines) {
        lines.push((*at, format!("node {node} part {part} {event:?}")));
    }
    for (at, weather) in &history.changes {
        lines.push((*at, format!("{weather:?}")));
    }
    for at in &history.losses {
        lines.push((*at, "the store lost counts".to_owned()));
    }
    for snapshot in &history.snapshots {
        lines.push((snapshot.at, format!("books {:?}", snapshot.used)));
    }
    for record in &history.records {
        if subject.is_none_or(|only| *only == record.subject as u64) {
            lines.push((record.done, format!("{record:?}")));
        }
    }
    lines.sort_by_key(|(at, _)| *at);
    let mut out = io::stdout().lock();
    writeln!(out, "{scenario:?}")?;
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
