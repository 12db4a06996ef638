//! API keys, known only by their digests.
//!
//! A keys file lists each key by its SHA-256, with its tier and optionally the name of its owner:
//!
//! ```text
//! # sha256:HEX tier name
//! sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 pro Harbour Café
//! ```
//!
//! One fast hash is enough because keys are random: [`RawApiKey::new`] draws 160 bits. Invariant: a raw key is never
//! stored, printed or repeated in an error, and a table is either complete or rejected with all errors of its file.
//! Knows nothing of rules beyond the names of the tiers, and does not watch the file: see `live`.

mod digest;
mod error;
mod key_text;
mod line;
mod raw_key;
mod table;

pub use digest::Digest;
pub use error::{KeyFileError, KeyLineError, KeyLineErrorKind, KeyLineErrors};
pub use key_text::{KeyTextError, find_key};
pub use line::{HashLineError, hash_line};
pub use raw_key::RawApiKey;
pub use table::{KeyOwner, KeyTable, MAX_FILE_BYTES};
