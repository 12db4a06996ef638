//! Rates that a store cannot compute exactly.
#![allow(clippy::unwrap_used)]

use tidegate_core::store::Capabilities;
use tidegate_rules::{SourceFile, parse_with_options};

#[test]
fn a_rate_beyond_the_precision_of_a_store_is_rejected() {
    let file = SourceFile {
        name: "rules.yaml",
        text: "version: 1\nrules: [{ name: a, by: ip, rate: 999983/day burst 900000000 }]",
    };
    assert!(parse_with_options(&[file], Capabilities::MEMORY).is_ok());
    let errors = parse_with_options(&[file], Capabilities::SHARED).unwrap_err().to_string();
    assert!(errors.contains("write burst 52124995 or less"), "{errors}");
}
