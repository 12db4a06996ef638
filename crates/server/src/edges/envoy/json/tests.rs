mod mutations;

use super::*;
use serde_json::json;
use tidegate_core::units::Cost;

fn parse_request(value: &Value) -> Result<EnvoyRequest<'_>, EnvoyError> {
    super::parse_request(value, 16)
}

fn parse_error(value: Value) -> String {
    parse_request(&value).unwrap_err().to_string()
}

fn with(descriptor: Value) -> Value {
    json!({"domain": "shop", "descriptors": [descriptor]})
}

#[test]
fn names_and_numbers_are_read_in_both_forms() {
    for value in [
        json!({"domain": "shop", "hitsAddend": 3, "descriptors": [
            {"entries": [{"key": "a", "value": "b"}]},
            {"limit": {"requestsPerUnit": 5, "unit": "WEEK"}, "hitsAddend": "7", "isNegativeHits": true}]}),
        json!({"domain": "shop", "hits_addend": "3", "descriptors": [
            {"entries": [{"key": "a", "value": "b"}], "limit": null},
            {"limit": {"requests_per_unit": 5.0, "unit": 7}, "hits_addend": 7, "is_negative_hits": true}]}),
    ] {
        let read = parse_request(&value).unwrap();
        assert_eq!((read.described.domain, read.hits_addend), ("shop", 3));
        let [first, second] = &read.described.descriptors[..] else {
            panic!("{read:?}");
        };
        assert_eq!(first.entries[..], [("a", "b".into())]);
        assert_eq!(first.hits, Hits::Charge(Cost::new(3).unwrap()));
        let own = DescriptorOverride { requests: 5, unit: Unit::Week };
        assert_eq!((first.limit_override, second.limit_override), (None, Some(own)));
        assert_eq!(second.hits, Hits::Refund(Cost::new(7).unwrap()));
    }
}

#[test]
fn invalid_json_requests_are_rejected() {
    for (value, want) in [
        (json!([]), "an object is expected"),
        (json!({"domains": "a"}), "it has an unknown field"),
        (json!({"domain": 7}), "a text is expected"),
        (json!({"domain": "a", "descriptors": {}}), "a list is expected"),
        (json!({"domain": "a"}), "descriptor list must not be empty"),
        (json!({}), "domain must not be empty"),
        (json!({"hitsAddend": 4_294_967_296_u64}), "more than 32 bits"),
        (json!({"hitsAddend": -1}), "a whole number is expected"),
        (json!({"hitsAddend": 1.5}), "a whole number is expected"),
        (with(json!({"entries": [{"kee": "a"}]})), "unknown field"),
        (with(json!({"isNegativeHits": 1})), "neither true nor false"),
        (with(json!({"limit": {"unit": "FORTNIGHT"}})), "has an override limit"),
        (with(json!({"limit": {}})), "has an override limit"),
        (with(json!({"entries": vec![json!({}); 17]})), "more than 16"),
        (with(json!({"entries": [{"key": "x".repeat(257)}]})), "more than 256"),
    ] {
        let error = parse_error(value.clone());
        assert!(error.contains(want), "{value} gives {error}");
    }
}
