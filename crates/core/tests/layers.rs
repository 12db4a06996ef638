//! The allowed dependencies between modules of the core: they point one way.

use std::path::Path;

use tidegate_testkit::layers::{AllowedUses, violations};

const ALLOWED_USES: [AllowedUses<'_>; 10] = [
    ("units", &[]),
    ("sweep", &["units"]),
    ("siphash", &[]),
    ("subject", &["siphash"]),
    ("algorithms", &["units"]),
    ("rate", &["units", "algorithms"]),
    ("rule_options", &["units", "algorithms"]),
    ("source", &[]),
    ("store", &["units", "sweep", "subject", "algorithms", "rule_options", "source"]),
    ("invariants", &["units", "algorithms"]),
];

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(violations(&src, &ALLOWED_USES), Vec::<String>::new());
}
