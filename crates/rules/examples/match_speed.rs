//! The time to match the rules of a request with 10 and with 10,000 rules:
//! `cargo run --release -p tidegate-rules --example match_speed`.

use std::fmt::Write;
use std::hint::black_box;
use std::time::{Duration, Instant};

use tidegate_rules::request::Request;
use tidegate_rules::{Purpose, RuleSet, SourceFile, parse};

const ROUNDS: u32 = 200_000;

fn rules(count: usize) -> RuleSet {
    let mut text = String::from("version: 1\nrules:\n  - { name: all, by: global, rate: 5/s }\n");
    for i in 1..count {
        let path = match i % 3 {
            0 => format!("/api/v1/r{i}"),
            1 => format!("/api/v1/r{i}/**"),
            _ => format!("/tenants/*/r{i}"),
        };
        let rule = format!("{{ name: r{i}, match: {{ path: {path}, method: GET }}, by: ip, rate: 9/s }}");
        writeln!(text, "  - {rule}").expect("a string takes what is written to it");
    }
    let file = SourceFile { name: "rules.yaml", text: &text };
    parse(&[file]).expect("these rules are valid")
}

fn per_request(set: &RuleSet, request: &Request<'_>) -> Duration {
    let start = Instant::now();
    for _ in 0..ROUNDS {
        black_box(set.applicable_rules(black_box(request), Purpose::Check));
    }
    start.elapsed() / ROUNDS
}

fn main() {
    let (few, many) = (rules(10), rules(10_000));
    for path in ["/api/v1/r3", "/api/v1/r4/x/y", "/tenants/acme/r5", "/nothing/here"] {
        let request = Request::default().with("method", "GET").with("path", path);
        // The minimum of several runs: other work on the machine only ever adds time.
        let best = |set| (0..9).map(|_| per_request(set, &request)).min().unwrap_or_default();
        eprintln!("{path}: 10 rules {:?}, 10,000 rules {:?}", best(&few), best(&many));
    }
}
