//! The fields of a mapping as a struct of optional nodes, and fields whose value is one of a few words or a duration.
//! An unknown or repeated field is an error.

use super::diagnostics::{RuleError, RuleErrors, SourceLocation, Warning, quoted};
use super::yaml::{YamlNode, YamlValue};
use std::sync::Arc;
use tidegate_core::rate::parse_positive_duration;
use tidegate_core::units::Nanos;

/// Collects errors and warnings about one file, and about one rule within it.
pub(crate) struct Reporter<'r> {
    pub(crate) file: Arc<str>,
    pub(crate) rule: Option<&'r str>,
    pub(crate) errors: &'r mut RuleErrors,
}

impl Reporter<'_> {
    pub(crate) fn location(&self, line: u32) -> SourceLocation {
        SourceLocation { file: Arc::clone(&self.file), line }
    }

    /// Reports an error on `line`. Within a rule, the message follows its name.
    pub(crate) fn error(&mut self, line: u32, message: impl Into<String>) {
        let error =
            RuleError { location: self.location(line), rule: self.rule.map(Into::into), message: message.into() };
        self.errors.push(error);
    }

    /// Records a lint warning about `line`. Within a rule, the message follows its name.
    pub(crate) fn warn(&mut self, line: u32, message: impl Into<String>) {
        let warning =
            Warning { location: self.location(line), rule: self.rule.map(Into::into), message: message.into() };
        self.errors.push_warning(warning);
    }

    /// The text of a field, or an error that says what is `expected`.
    pub(crate) fn text<'d>(&mut self, field: &str, node: YamlNode<'d>, expected: &str) -> Option<&'d str> {
        let text = node.text();
        if text.is_none() {
            self.error(node.line(), format!("has {} for `{field}`; write {expected}", node.describe()));
        }
        text
    }

    /// The value that `parse` makes of the text of a field; its error is reported.
    pub(crate) fn parse<'d, T>(
        &mut self,
        field: &str,
        node: YamlNode<'d>,
        expected: &str,
        parse: impl FnOnce(&'d str) -> Result<T, String>,
    ) -> Option<T> {
        let text = self.text(field, node, expected)?;
        self.check(node.line(), parse(text))
    }

    /// A checked value; its error is reported on `line`.
    pub(crate) fn check<T>(&mut self, line: u32, value: Result<T, impl Into<String>>) -> Option<T> {
        value.map_err(|message| self.error(line, message)).ok()
    }

    /// A text, or a list of texts, each with its line. Anything else is an error.
    pub(crate) fn texts<'d>(&mut self, field: &str, node: YamlNode<'d>, expected: &str) -> Vec<(&'d str, u32)> {
        match node.kind() {
            YamlValue::List(items) => {
                let is_empty = items.clone().next().is_none();
                let texts = items.filter_map(|item| Some((self.text(field, item, expected)?, item.line()))).collect();
                if is_empty {
                    self.error(node.line(), format!("has an empty list for `{field}`; write {expected}"));
                }
                texts
            }
            _ => {
                let text = self.text(field, node, expected);
                text.map(|text| (text, node.line())).into_iter().collect()
            }
        }
    }
}

/// A mapping whose fields are known.
pub(crate) trait MappingFields<'d>: Default {
    const KNOWN: &'static [&'static str];

    fn field(&mut self, key: &str) -> Option<&mut Option<YamlNode<'d>>>;

    /// Reads the fields of `node`; `None` if it is not a mapping. Errors call the mapping `what`, which is empty
    /// where the name of a rule precedes the message.
    fn read(node: YamlNode<'d>, what: &str, report: &mut Reporter<'_>) -> Option<Self> {
        let YamlValue::Map(pairs) = node.kind() else {
            let example = Self::KNOWN.first().unwrap_or(&"name");
            let message = format!("{what} is {}; write fields such as `{example}: ...`", node.describe());
            report.error(node.line(), message);
            return None;
        };
        let what = if what.is_empty() { String::new() } else { format!("{what} ") };
        let mut fields = Self::default();
        for (key, value) in pairs {
            let Some(name) = key.text() else {
                report.error(key.line(), format!("{what}has a field whose name is not a text; write a name"));
                continue;
            };
            match fields.field(name) {
                None => report.error(key.line(), unknown_field(&what, name, Self::KNOWN)),
                Some(Some(first)) => {
                    let message = format!("{what}has `{name}` twice, the first on line {}; keep one", first.line());
                    report.error(key.line(), message);
                }
                Some(field) => *field = Some(value),
            }
        }
        Some(fields)
    }
}

/// Declares a struct of optional nodes, one per field of a mapping. A field whose name is a word of Rust has a key beside
/// it.
macro_rules! mapping_fields {
    ($(#[$doc:meta])* $name:ident { $($field:ident $(: $key:literal)?),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(crate) struct $name<'d> { $(pub(crate) $field: Option<$crate::language::yaml::YamlNode<'d>>,)* }

        impl<'d> $crate::language::fields::MappingFields<'d> for $name<'d> {
            const KNOWN: &'static [&'static str] = &[$(mapping_fields!(@key $field $($key)?)),*];

            fn field(&mut self, key: &str) -> Option<&mut Option<$crate::language::yaml::YamlNode<'d>>> {
                $(if key == mapping_fields!(@key $field $($key)?) { return Some(&mut self.$field); })*
                None
            }
        }
    };
    (@key $field:ident) => { stringify!($field) };
    (@key $field:ident $key:literal) => { $key };
}
pub(crate) use mapping_fields;

/// A field whose value is one of a few words.
pub(crate) struct Choices<T: 'static> {
    pub(crate) field: &'static str,
    pub(crate) values: &'static [T],
    pub(crate) name: fn(T) -> &'static str,
}

impl<T: Copy> Choices<T> {
    pub(crate) fn names(&self) -> Vec<&'static str> {
        self.values.iter().map(|value| (self.name)(*value)).collect()
    }

    /// The value of the field. `None` if it is absent or unknown.
    pub(crate) fn read(&self, node: Option<YamlNode<'_>>, report: &mut Reporter<'_>) -> Option<T> {
        let (node, names) = (node?, self.names());
        report.parse(self.field, node, &names.join(" or "), |text| {
            let known = self.values.iter().find(|value| (self.name)(**value) == text);
            known.copied().ok_or_else(|| unknown_value(self.field, text, &names))
        })
    }
}

pub(crate) fn unknown_value(field: &str, text: &str, known: &[&str]) -> String {
    format!("has {field} {}, which is unknown; {}", quoted(text), what_to_write(closest_name(text, known), known))
}

/// The advice for an unknown name: the known one that is probably meant, or all of them.
pub(crate) fn what_to_write(near: Option<&str>, known: &[&str]) -> String {
    match near {
        Some(near) => format!("write `{near}`?"),
        None => format!("write one of {}", known.join(", ")),
    }
}

pub(crate) fn read_duration(node: Option<YamlNode<'_>>, field: &str, report: &mut Reporter<'_>) -> Option<Nanos> {
    report.parse(field, node?, "a duration such as 250ms", |text| {
        let quoted = quoted(text);
        let message =
            || format!("has {field} {quoted}, which is no duration above 0; write 250ms, 5s or 2m, for example");
        parse_positive_duration(text).map_err(|_| message())
    })
}

fn unknown_field(what: &str, name: &str, known: &[&str]) -> String {
    let found = format!("{what}has the unknown field {}", quoted(name));
    match name {
        "burst" => format!("{found}; write it behind the rate: `100/minute burst 20`"),
        "<<" => format!("{found}; fields cannot be merged in, write them out"),
        _ => format!("{found}; {}", what_to_write(closest_name(name, known), known)),
    }
}

/// The known name that `name` was probably meant to be.
pub(crate) fn closest_name<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.len() > 40 {
        return None;
    }
    let max_distance = (name.len() / 3).clamp(1, 3);
    let length = name.chars().count();
    // Names of other lengths are farther away than that, and computing the distance takes long.
    let alike = known.iter().filter(|known| known.chars().count().abs_diff(length) <= max_distance);
    let ranked = alike.map(|known| (edit_distance(name, known), *known));
    let (distance, near) = ranked.min_by_key(|(distance, _)| *distance)?;
    (distance <= max_distance).then_some(near)
}

/// Edit distance: the letters to insert, drop or change to turn `a` into `b`.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, letter) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in b.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_recognised() {
        let known = ["rate", "replaces", "on_store_failure", "mode"];
        assert_eq!(closest_name("rates", &known), Some("rate"));
        assert_eq!(closest_name("on-store-failure", &known), Some("on_store_failure"));
        assert_eq!(closest_name("replace", &known), Some("replaces"));
        assert_eq!(closest_name("colour", &known), None);
    }
}
