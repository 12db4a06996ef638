//! JSON Schema of a rules file, for editors. It describes the shape of the language, not its meaning: only `parse`
//! decides whether rules are valid.

/// The schema (draft 2020-12) as JSON text.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use super::schema;
    use crate::language::access_lists::ListEntryFields;
    use crate::language::fields::MappingFields;
    use crate::language::load_shedding::{CeilingFields, SoftLimitFields};
    use crate::language::rule_options as options;
    use crate::language::rule_reader::RuleFields;
    use crate::language::top_level::{DefaultsFields, IdentityFields, TopLevelFields};
    use serde_json::Value;
    use std::collections::{BTreeMap, BTreeSet};

    /// The part of the schema at `path`.
    fn part(path: &str) -> Value {
        let schema: Value = serde_json::from_str(schema()).unwrap();
        schema.pointer(path).unwrap_or_else(|| panic!("no {path}")).clone()
    }

    #[track_caller]
    fn check_fields<'d, F: MappingFields<'d>>(path: &str) {
        let part = part(&format!("{path}/properties"));
        let found: BTreeSet<&str> = part.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(found, F::KNOWN.iter().copied().collect(), "{path}");
    }

    #[test]
    fn the_schema_has_exactly_the_fields_of_the_language() {
        check_fields::<TopLevelFields<'_>>("");
        check_fields::<IdentityFields<'_>>("/properties/identity");
        check_fields::<DefaultsFields<'_>>("/properties/defaults");
        check_fields::<RuleFields<'_>>("/$defs/rule");
        check_fields::<ListEntryFields<'_>>("/$defs/list/items/oneOf/1");
        check_fields::<CeilingFields<'_>>("/$defs/rule/properties/priority/oneOf/1");
        check_fields::<SoftLimitFields<'_>>("/$defs/rule/properties/soft");
    }

    #[test]
    fn the_schema_has_exactly_the_choices_of_the_language() {
        for (path, names) in [
            ("/$defs/algorithm", options::ALGORITHM.names()),
            ("/$defs/on_store_failure", options::ON_STORE_FAILURE.names()),
            ("/$defs/on_store_late", options::ON_STORE_LATE.names()),
            ("/$defs/durability", options::DURABILITY.names()),
            ("/$defs/rule/properties/mode", options::MODE.names()),
            ("/$defs/rule/properties/if_missing", options::IF_MISSING.names()),
        ] {
            assert_eq!(part(path)["enum"], Value::from(names), "{path}");
        }
    }

    #[test]
    fn the_docs_have_exactly_the_fields_of_a_rule_and_their_choices() {
        let docs = include_str!("../../../../docs/rules.md");
        let (_, table) = docs.split_once("| field | meaning | default |\n").unwrap();
        let (table, _) = table.split_once("\n\n").unwrap();
        let row = |row: &'static str| row.strip_prefix("| `")?.split_once('`');
        let rows: BTreeMap<&str, &str> = table.lines().filter_map(row).collect();
        assert!(rows.keys().eq(RuleFields::KNOWN.iter().collect::<BTreeSet<_>>()), "{:?}", rows.keys());
        for (field, names) in [
            ("mode", options::MODE.names()),
            ("if_missing", options::IF_MISSING.names()),
            ("on_store_failure", options::ON_STORE_FAILURE.names()),
            ("on_store_late", options::ON_STORE_LATE.names()),
            ("durability", options::DURABILITY.names()),
        ] {
            for name in names {
                assert!(rows[field].contains(&format!("`{name}`")), "{field}: {name}");
            }
        }
    }
}
