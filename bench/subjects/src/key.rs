//! The text that identifies a counter.

/// A key of 17 bytes, as long as a typical user id or address with a prefix.
///
/// It owns a `String`, because `governor` looks its keys up by reference to the owned type; the others take
/// [`Key::as_str`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key(String);

impl Key {
    /// The `number`th key: always the same text.
    #[must_use]
    pub fn number(number: usize) -> Self {
        Key(format!("user:{number:012}"))
    }

    /// The text.
    #[must_use]
    #[inline]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
