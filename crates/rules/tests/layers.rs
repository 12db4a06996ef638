//! The allowed dependencies between modules of the rules: they point one way.

use std::path::Path;

use tidegate_testkit::layers::{AllowedUses, violations};

const ALLOWED_USES: [AllowedUses<'_>; 5] = [
    ("request", &[]),
    ("envoy", &[]),
    ("language", &["request", "envoy"]),
    ("engine", &["request", "envoy", "language"]),
    ("event", &["request", "engine"]),
];

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(violations(&src, &ALLOWED_USES), Vec::<String>::new());
}
