//! JSON Schema of a rules file, for editors. It describes the shape of the language, not its meaning: only `parse`
//! decides whether rules are valid.

/// The schema (draft 2020-12) as JSON text.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use super::schema;
    use crate::language::fields::MappingFields;
    use crate::language::rule_reader::RuleFields;
    use crate::language::top_level::TopLevelFields;

    #[test]
    fn every_field_of_the_language_is_in_the_schema() {
        for field in TopLevelFields::KNOWN.iter().chain(RuleFields::KNOWN) {
            assert!(schema().contains(&format!("\"{field}\": {{")), "{field}");
        }
    }
}
