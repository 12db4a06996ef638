//! The time to parse 100,000 rules: `cargo run --release -p tidegate-rules --example parse_speed`.

use std::fmt::Write;
use std::hint::black_box;
use std::time::Instant;

use tidegate_rules::{SourceFile, parse};

fn main() {
    let mut text = String::from("version: 1\nrules:\n");
    for i in 0..100_000 {
        let rule = writeln!(
            text,
            "  - name: rule-{i}\n    match: {{ path: /api/v1/r{i}/**, method: GET }}\n    by: api_key\n    rate: {}/minute burst 200",
            100 + i % 500
        );
        rule.expect("a string takes what is written to it");
    }
    let files = [SourceFile { name: "rules.yaml", text: &text }];
    for _ in 0..5 {
        let start = Instant::now();
        let set = parse(&files).expect("these rules are valid");
        let took = start.elapsed();
        eprintln!("{} bytes, {} rules: {took:?}", text.len(), set.rules().len());
        black_box(set);
    }
}
