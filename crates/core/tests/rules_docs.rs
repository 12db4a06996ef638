//! The examples of docs/rules.md are rules.
#![allow(clippy::unwrap_used)]

use tidegate_core::rules::{SourceFile, parse};

/// Every fenced YAML block, with its first line. One that begins with `- ` is a rule on its own.
fn examples(docs: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (line, text) in docs.lines().enumerate() {
        match (&mut open, text) {
            (None, "```yaml") => open = Some((line + 2, String::new())),
            (Some(_), "```") => found.extend(open.take()),
            (Some((_, block)), text) => *block += &format!("{text}\n"),
            _ => {}
        }
    }
    found
}

#[test]
fn every_example_of_the_documentation_is_read() {
    let examples = examples(include_str!("../../../docs/rules.md"));
    assert!(examples.len() > 5);
    for (line, example) in examples {
        let text = match example.starts_with("- ") {
            true => format!("version: 1\ntiers: [free, pro, enterprise]\nrules:\n{example}"),
            false if !example.contains("version: 1") => format!("version: 1\nrules: []\n{example}"),
            false => example,
        };
        let name = format!("docs/rules.md, example at line {line}");
        let file = SourceFile {
            name: &name,
            text: &text,
        };
        parse(&[file]).unwrap_or_else(|faults| panic!("{faults}"));
    }
}
