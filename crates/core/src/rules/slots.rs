//! The fields of a mapping, each in its slot; what is unknown or said twice is a fault.

use super::fault::{Fault, Faults, Place, Warning, shown};
use super::yaml::{Kind, Node};
use std::sync::Arc;

/// Where faults go: the file being read, and the rule within it.
pub(crate) struct Report<'r> {
    pub(crate) file: Arc<str>,
    pub(crate) rule: Option<&'r str>,
    pub(crate) faults: &'r mut Faults,
}

impl Report<'_> {
    pub(crate) fn place(&self, line: u32) -> Place {
        Place {
            file: Arc::clone(&self.file),
            line,
        }
    }

    /// Reports what stands on `line`. Within a rule, the message follows its name.
    pub(crate) fn fault(&mut self, line: u32, message: impl Into<String>) {
        let fault = Fault {
            place: self.place(line),
            rule: self.rule.map(Into::into),
            message: message.into(),
        };
        self.faults.push(fault);
    }

    /// Keeps a warning about what stands on `line` for lint. Within a rule, the message follows its name.
    pub(crate) fn doubt(&mut self, line: u32, message: impl Into<String>) {
        let warning = Warning {
            place: self.place(line),
            rule: self.rule.map(Into::into),
            message: message.into(),
        };
        self.faults.doubt(warning);
    }

    /// The text of a field, or a fault that says what it `wants`.
    pub(crate) fn text<'d>(&mut self, field: &str, node: Node<'d>, wants: &str) -> Option<&'d str> {
        let found = match node.kind() {
            Kind::Text(text) => return Some(text),
            Kind::Nothing => "nothing",
            Kind::List(_) => "a list",
            Kind::Map(_) => "a mapping",
        };
        self.fault(
            node.line(),
            format!("has {found} for `{field}`; write {wants}"),
        );
        None
    }

    /// A text, or a list of them, each with its line. Faults otherwise.
    pub(crate) fn texts<'d>(
        &mut self,
        field: &str,
        node: Node<'d>,
        wants: &str,
    ) -> Vec<(&'d str, u32)> {
        match node.kind() {
            Kind::List(items) => {
                let texts: Vec<_> = items
                    .filter_map(|item| Some((self.text(field, item, wants)?, item.line())))
                    .collect();
                if texts.is_empty() {
                    self.text_of_empty(field, node, wants);
                }
                texts
            }
            _ => {
                let text = self.text(field, node, wants);
                text.map(|text| (text, node.line())).into_iter().collect()
            }
        }
    }

    fn text_of_empty(&mut self, field: &str, node: Node<'_>, wants: &str) {
        if let Kind::List(mut items) = node.kind()
            && items.next().is_none()
        {
            let message = format!("has an empty list for `{field}`; write {wants}");
            self.fault(node.line(), message);
        }
    }
}

/// A mapping whose fields are known.
pub(crate) trait Slots<'d>: Default {
    const KNOWN: &'static [&'static str];

    fn slot(&mut self, key: &str) -> Option<&mut Option<Node<'d>>>;

    /// Reads the fields of `node`: nothing if it is no mapping. Faults call it `what`, which is empty
    /// where the name of a rule says it already.
    fn read(node: Node<'d>, what: &str, report: &mut Report<'_>) -> Option<Self> {
        let Kind::Map(pairs) = node.kind() else {
            let found = match node.kind() {
                Kind::Text(text) => shown(text),
                Kind::List(_) => "a list".to_owned(),
                _ => "nothing".to_owned(),
            };
            let example = Self::KNOWN.first().unwrap_or(&"name");
            let message = format!("{what} is {found}; write fields such as `{example}: ...`");
            report.fault(node.line(), message);
            return None;
        };
        let what = if what.is_empty() {
            String::new()
        } else {
            format!("{what} ")
        };
        let mut slots = Self::default();
        for (key, value) in pairs {
            let Some(name) = key.text() else {
                report.fault(
                    key.line(),
                    format!("{what}has a field whose name is no text"),
                );
                continue;
            };
            match slots.slot(name) {
                None => report.fault(key.line(), unknown_field(&what, name, Self::KNOWN)),
                Some(Some(first)) => {
                    let message = format!(
                        "{what}has `{name}` twice, the first on line {}; keep one",
                        first.line()
                    );
                    report.fault(key.line(), message);
                }
                Some(slot) => *slot = Some(value),
            }
        }
        Some(slots)
    }
}

/// Declares a struct of optional nodes, one per field of a mapping.
macro_rules! slots {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $key:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(crate) struct $name<'d> { $(pub(crate) $field: Option<$crate::rules::yaml::Node<'d>>,)* }

        impl<'d> $crate::rules::slots::Slots<'d> for $name<'d> {
            const KNOWN: &'static [&'static str] = &[$($key),*];

            fn slot(&mut self, key: &str) -> Option<&mut Option<$crate::rules::yaml::Node<'d>>> {
                match key { $($key => Some(&mut self.$field),)* _ => None }
            }
        }
    };
}
pub(crate) use slots;

fn unknown_field(what: &str, name: &str, known: &[&str]) -> String {
    let found = format!("{what}has the unknown field {}", shown(name));
    match name {
        "burst" => return format!("{found}; write it behind the rate: `100/minute burst 20`"),
        "<<" => return format!("{found}; fields cannot be merged in, write them out"),
        _ => {}
    }
    match nearest(name, known) {
        Some(near) => format!("{found}; write `{near}`?"),
        None => format!("{found}; write one of {}", known.join(", ")),
    }
}

/// The known name that `name` was probably meant to be.
pub(crate) fn nearest<'k>(name: &str, known: &[&'k str]) -> Option<&'k str> {
    if name.len() > 40 {
        return None;
    }
    let most = (name.len() / 3).clamp(1, 3);
    let length = name.chars().count();
    // Names of other lengths are farther away than that, and to find out how far takes long.
    let alike = known
        .iter()
        .filter(|known| known.chars().count().abs_diff(length) <= most);
    let ranked = alike.map(|known| (distance(name, known), *known));
    let (distance, near) = ranked.min_by_key(|(distance, _)| *distance)?;
    (distance <= most).then_some(near)
}

/// Letters to insert, drop or change to turn `a` into `b`.
fn distance(a: &str, b: &str) -> usize {
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
        assert_eq!(nearest("rates", &known), Some("rate"));
        assert_eq!(
            nearest("on-store-failure", &known),
            Some("on_store_failure")
        );
        assert_eq!(nearest("replace", &known), Some("replaces"));
        assert_eq!(nearest("colour", &known), None);
    }
}
