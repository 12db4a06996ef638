//! The condition of this node's store, for `/readyz?verbose`.
//!
//! A node without its store is ready: it decides by its share of each limit. So is a node whose durable counts are not
//! safe: a probe that took it out of service would leave fewer nodes with the same store. The verbose page names the
//! cause of a failure without address, user or secret.

use serde_json::{Value, json};

use crate::store_condition::StoreCondition;

/// Whether the caller wants the condition of the store: `?verbose`, `?verbose=1`.
pub(super) fn is_verbose(query: Option<&str>) -> bool {
    let mut names = query.unwrap_or_default().split('&');
    names.any(|pair| pair.split('=').next() == Some("verbose"))
}

pub(super) fn store_json(condition: &StoreCondition) -> Value {
    let outage = condition.outage.as_ref().map(|outage| {
        json!({
            "kind": outage.cause.kind.name(),
            "cause": &*outage.cause.text,
            "seconds": outage.since.elapsed().as_secs(),
        })
    });
    let durability = condition.durability.as_ref().map(|(kind, cause)| json!({"kind": kind, "cause": cause}));
    let errors: serde_json::Map<String, Value> =
        condition.errors.iter().map(|(kind, count)| (kind.name().to_owned(), json!(count))).collect();
    json!({
        "kind": condition.kind,
        "exact": condition.is_exact,
        "outage": outage,
        "durability": durability,
        "errors": errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::store_health::StoreHealth;
    use std::time::Instant;
    use tidegate_core::store::{FailureCause, FailureKind};

    #[test]
    fn the_verbose_page_has_its_own_query() {
        for (query, want) in [
            (None, false),
            (Some(""), false),
            (Some("verbose"), true),
            (Some("a=1&verbose=1"), true),
            (Some("verbosely"), false),
        ] {
            assert_eq!(is_verbose(query), want, "{query:?}");
        }
    }

    #[test]
    fn a_failure_is_described_by_its_kind_and_cause() {
        let health = StoreHealth::default();
        let cause = FailureCause::new(FailureKind::Auth, "WRONGPASS: correct the password");
        let _line = health.opened(Instant::now(), &cause, 0);
        let condition = StoreCondition {
            kind: "shared",
            is_exact: false,
            outage: health.outage(),
            durability: None,
            errors: vec![(FailureKind::Auth, 5)],
        };
        let page = store_json(&condition);
        assert_eq!(page["outage"]["kind"], "auth");
        assert_eq!(page["outage"]["cause"], "WRONGPASS: correct the password");
        assert_eq!(page["errors"], json!({"auth": 5}));
        let well = StoreCondition { outage: None, ..condition };
        assert_eq!(store_json(&well)["outage"], Value::Null);
        assert_eq!(store_json(&well)["durability"], Value::Null);
        let not_durable =
            StoreCondition { durability: Some(("replica", "no replica is connected".to_owned())), ..well };
        let want = json!({"kind": "replica", "cause": "no replica is connected"});
        assert_eq!(store_json(&not_durable)["durability"], want);
    }
}
