//! The allowed dependencies between modules of the server, and between edges: they point one way.

use std::path::Path;

use tidegate_testkit::layers::{
    AllowedUses, ForbiddenUses, forbidden_uses, violations, violations_from_inside, violations_inside,
};

const ALLOWED_USES: [AllowedUses<'_>; 12] = [
    ("config", &[]),
    ("protobuf", &[]),
    ("logging", &["config"]),
    ("net", &["config", "logging"]),
    ("store_condition", &[]),
    ("state", &["config", "logging", "store_condition"]),
    ("decider", &["config", "logging", "net", "state", "store_condition"]),
    ("policy", &["config", "logging", "protobuf", "decider"]),
    ("edges", &["config", "logging", "net", "protobuf", "store_condition", "decider", "policy"]),
    ("app", &["config", "logging", "net", "state", "decider", "policy", "edges"]),
    ("doctor", &["config", "logging", "state", "policy"]),
    ("cli", &["config", "logging", "decider", "policy", "edges", "app", "doctor"]),
];

const ALLOWED_USES_OF_EDGES: [AllowedUses<'_>; 6] = [
    ("common", &[]),
    ("http", &["common"]),
    ("proxy_auth", &["common"]),
    ("envoy", &["common"]),
    ("resp", &["common"]),
    ("admin", &["common"]),
];

/// Edges use the store through the `Decider` alone. What it returns is named by `tidegate` and by the `Decider`.
const FORBIDDEN_USES: [ForbiddenUses<'_>; 2] = [("edges", STORES), ("net", STORES)];
const STORES: &[&str] = &[
    "redis",
    "tidegate::ahead",
    "tidegate::resilience",
    "tidegate::runtime",
    "tidegate::store",
    "tidegate::stores",
    "tidegate_core::store",
];

fn src() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

#[test]
fn no_module_uses_one_above_it() {
    assert_eq!(violations(&src(), &ALLOWED_USES), Vec::<String>::new());
}

#[test]
fn no_edge_uses_a_store() {
    assert_eq!(forbidden_uses(&src(), &FORBIDDEN_USES), Vec::<String>::new());
}

#[test]
fn no_edge_uses_another() {
    let found = violations_inside(&src(), "edges", &ALLOWED_USES_OF_EDGES);
    assert_eq!(found, Vec::<String>::new());
}

#[test]
fn only_the_admin_edge_knows_where_rules_come_from() {
    const EVERY_EDGE: &[&str] = &["config", "logging", "net", "protobuf", "decider", "edges"];
    const ADMIN: &[&str] = &["config", "logging", "net", "protobuf", "store_condition", "decider", "edges", "policy"];
    let allowed_uses = ALLOWED_USES_OF_EDGES.map(|(edge, _)| (edge, if edge == "admin" { ADMIN } else { EVERY_EDGE }));
    assert_eq!(violations_from_inside(&src(), "edges", &allowed_uses), Vec::<String>::new());
}
