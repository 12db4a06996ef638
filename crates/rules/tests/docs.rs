//! The examples of docs/rules.md are valid rules.
#![allow(clippy::unwrap_used)]

use tidegate_rules::{SourceFile, parse};

/// Every fenced YAML block, with its first line. A block that begins with `- ` is a rule on its own.
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
fn every_example_of_the_documentation_is_parsed() {
    let examples = examples(include_str!("../../../docs/rules.md"));
    assert!(examples.len() > 5);
    for (line, example) in examples {
        let text = if example.starts_with("- ") {
            format!("version: 1\ntiers: [free, pro, enterprise]\nrules:\n{example}")
        } else if example.contains("version: 1") {
            example
        } else {
            format!("version: 1\nrules: []\n{example}")
        };
        let name = format!("docs/rules.md, example at line {line}");
        let file = SourceFile { name: &name, text: &text };
        parse(&[file]).unwrap_or_else(|errors| panic!("{errors}"));
    }
}
