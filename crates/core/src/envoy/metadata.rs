//! What a descriptor's rule wants its caller to be told along: any YAML, kept as it is. Knows
//! nothing of where it is written or sent.

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Metadata {
    /// Nothing.
    Null,
    /// Yes or no.
    Bool(bool),
    /// A number, as protocols without integers have it.
    Number(f64),
    /// A text.
    Text(Box<str>),
    /// Several, in order.
    List(Vec<Metadata>),
    /// Several by name, in the order written.
    Map(Vec<(Box<str>, Metadata)>),
}
