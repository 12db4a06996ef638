//! Text that only this deployment can have written: bytes and their seal, as hex digits.
//!
//! A caller stores the text and presents it later, to any node. It cannot be forged or altered, and works as long as
//! the secret does. The first byte says the kind of the text, so that none is accepted as one of another kind.

use crate::hex;
use crate::secret::{SEAL_LEN, Secret};

/// More than any text of this deployment has.
const MAX_BYTES: usize = 64 * 1024;

/// The bytes as sealed text.
pub(crate) fn seal(mut bytes: Vec<u8>, secret: &Secret) -> String {
    let seal = secret.seal(&bytes);
    bytes.extend(seal);
    hex::encode(&bytes)
}

/// The bytes of sealed text.
pub(crate) fn open(text: &str, secret: &Secret) -> Option<Vec<u8>> {
    let length = (text.len() / 2).checked_sub(SEAL_LEN).filter(|length| *length <= MAX_BYTES)?;
    let mut bytes = vec![0; length + SEAL_LEN];
    hex::decode_into(text.as_bytes(), &mut bytes)?;
    let (payload, seal) = bytes.split_at(length);
    if !secret.verifies_seal(payload, seal) {
        return None;
    }
    bytes.truncate(length);
    Some(bytes)
}

/// Takes values from the front of bytes.
pub(crate) struct ByteReader<'a>(pub(crate) &'a [u8]);

impl ByteReader<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    pub(crate) fn take_name(&mut self) -> Option<String> {
        let length = usize::from(u16::from_be_bytes(self.take()?));
        let (name, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        String::from_utf8(name.to_vec()).ok()
    }
}

/// Writes a name as [`ByteReader::take_name`] reads it.
pub(crate) fn put_name(bytes: &mut Vec<u8>, name: &str) {
    let length = u16::try_from(name.len()).expect("names of rules and units are short");
    bytes.extend(length.to_be_bytes());
    bytes.extend(name.as_bytes());
}
