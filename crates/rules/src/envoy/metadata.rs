//! Metadata that a rule attaches to the status of a descriptor: any YAML, unchanged. Knows nothing of its source or
//! its encoding.

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
