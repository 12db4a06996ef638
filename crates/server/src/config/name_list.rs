//! Lists of names in a settings file: a YAML list, or one text with commas as flags and the environment have it.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// The names of a setting, if it has any.
pub(super) fn file_names<'de, D: Deserializer<'de>>(file: D) -> Result<Option<Vec<String>>, D::Error> {
    Ok(Option::<NameList>::deserialize(file)?.map(|list| list.0))
}

struct NameList(Vec<String>);

impl<'de> Deserialize<'de> for NameList {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        file.deserialize_any(NameListVisitor)
    }
}

struct NameListVisitor;

impl<'de> Visitor<'de> for NameListVisitor {
    type Value = NameList;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("names with commas between them, or a list of names")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<NameList, E> {
        Ok(NameList(text.split(',').map(str::to_owned).collect()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<NameList, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = items.next_element()? {
            names.push(name);
        }
        Ok(NameList(names))
    }
}
