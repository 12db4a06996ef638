//! Metadata that a rule attaches to the status of a descriptor: any YAML, unchanged. Knows nothing of its source or
//! its encoding.

use std::hash::{Hash, Hasher};

/// A YAML value.
#[derive(Clone, PartialEq, Debug)]
pub enum Metadata {
    /// Nothing.
    Null,
    /// A boolean.
    Bool(bool),
    /// A number, as in protocols without integers.
    Number(f64),
    /// A text.
    Text(Box<str>),
    /// A sequence.
    List(Vec<Metadata>),
    /// A mapping, in the order written.
    Map(Vec<(Box<str>, Metadata)>),
}

/// Numbers are hashed by their bits.
impl Hash for Metadata {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        std::mem::discriminant(self).hash(hasher);
        match self {
            Metadata::Null => {}
            Metadata::Bool(value) => value.hash(hasher),
            Metadata::Number(number) => number.to_bits().hash(hasher),
            Metadata::Text(text) => text.hash(hasher),
            Metadata::List(values) => values.hash(hasher),
            Metadata::Map(values) => values.hash(hasher),
        }
    }
}
