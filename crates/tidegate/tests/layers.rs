//! The allowed dependencies between modules of the library: they point one way.

use std::path::Path;

use tidegate_testkit::layers::{AllowedUses, violations};

const ALLOWED_USES: [AllowedUses<'_>; 22] = [
    ("clock", &[]),
    ("hex", &[]),
    ("secret", &["hex"]),
    ("sealed", &["hex", "secret"]),
    ("receipt", &["sealed", "secret"]),
    ("counted_permits", &[]),
    ("permit_set", &[]),
    ("adaptive", &["counted_permits"]),
    ("runtime", &["clock"]),
    ("owned_charge", &[]),
    ("stores", &["clock", "counted_permits", "permit_set", "runtime", "secret"]),
    ("quota", &[]),
    ("throttle", &["clock", "quota", "stores"]),
    ("ahead", &["owned_charge", "runtime"]),
    ("shard", &["clock", "owned_charge", "permit_set", "runtime", "stores"]),
    // Puts `ahead` and `shard` together, which do not know each other.
    ("resilience", &["ahead", "runtime", "shard"]),
    ("identity", &["hex"]),
    ("live", &[]),
    ("policy", &["identity", "live"]),
    (
        "limiter",
        &[
            "adaptive",
            "clock",
            "identity",
            "live",
            "permit_set",
            "policy",
            "receipt",
            "resilience",
            "runtime",
            "sealed",
            "secret",
            // Settings and events of `shard`, by way of `resilience`.
            "shard",
            "stores",
        ],
    ),
    ("http", &["clock", "limiter"]),
    ("observe", &["ahead", "limiter", "resilience", "shard"]),
];

#[test]
fn no_module_uses_one_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    assert_eq!(violations(&src, &ALLOWED_USES), Vec::<String>::new());
}
