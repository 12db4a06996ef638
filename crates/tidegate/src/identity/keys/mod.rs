//! API keys, known only by their digests.
//!
//! A keys file names each key by its SHA-256, the tier it buys and, if wanted, whose it is:
//!
//! ```text
//! # sha256:HEX tier name
//! sha256:2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824 pro Harbour Café
//! ```
//!
//! One fast hash is enough because keys are random: [`RawApiKey::new`] draws 160 bits. Kept true: a
//! raw key is never stored, printed or echoed in an error, and a table is either whole or refused
//! with every fault of its file. Knows nothing of rules beyond the names of the tiers, and does
//! not watch the file: see `live`.

mod digest;
mod error;
mod line;
mod raw_key;
mod table;

pub use digest::Digest;
pub use error::{KeyFileError, KeyLineError, KeyLineErrorKind, KeyLineErrors};
pub use line::{HashLineError, hash_line};
pub use raw_key::RawApiKey;
pub use table::{KeyOwner, KeyTable, MAX_FILE_BYTES};
