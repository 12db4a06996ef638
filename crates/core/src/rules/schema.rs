//! The JSON Schema of a rules file, for editors. It knows the shape of the language, not its sense:
//! only `parse` says whether rules are sound.

/// The schema (draft 2020-12) as JSON text.
pub fn schema() -> &'static str {
    include_str!("schema.json")
}

#[cfg(test)]
mod tests {
    use super::schema;
    use crate::rules::head::TopSlots;
    use crate::rules::rule_reader::RuleSlots;
    use crate::rules::slots::Slots;

    #[test]
    fn every_field_of_the_language_is_in_the_schema() {
        for field in TopSlots::KNOWN.iter().chain(RuleSlots::KNOWN) {
            assert!(schema().contains(&format!("\"{field}\": {{")), "{field}");
        }
    }
}
