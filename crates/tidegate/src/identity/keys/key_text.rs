//! The normal form of an API key: one word of printable ASCII without commas.
//!
//! A key arrives as an attribute or as the value of a header, with a scheme, white space or a line end around it. All
//! edges reduce it to the same word. Otherwise `Bearer K` would be an unknown key where `K` is blocked.

const BEARER: &[u8] = b"bearer";

/// Why a text is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyTextError {
    /// It may be several keys, of which the service behind may read any. A proxy joins lines of the same name by commas
    /// (RFC 9110, section 5.2).
    #[error("not one key; a key is printable ASCII without white space and commas")]
    NotOneKey,
    /// The credentials of another scheme than `Bearer`.
    #[error("not one key; a key is one word, or `Bearer` and one word")]
    OtherScheme,
}

/// The key in `text`: `K`, `Bearer K` or `bearer  K`, with white space around it. `None` if there is only white space,
/// or a scheme without a key: templates without a value yield such texts.
pub fn find_key(text: &[u8]) -> Result<Option<&str>, KeyTextError> {
    let text = text.trim_ascii();
    let (word, rest) = split_word(text);
    let key = if word.eq_ignore_ascii_case(BEARER) {
        rest
    } else if rest.is_empty() {
        word
    } else if is_list(rest) {
        return Err(KeyTextError::NotOneKey);
    } else {
        return Err(KeyTextError::OtherScheme);
    };
    if key.is_empty() {
        return Ok(None);
    }
    let is_one = key.iter().all(|byte| byte.is_ascii_graphic() && *byte != b',');
    let key = str::from_utf8(key).ok().filter(|_| is_one);
    key.map(Some).ok_or(KeyTextError::NotOneKey)
}

/// Whether the text behind the first word holds a bearer token: then it is the end of several joined lines. Other
/// credentials have commas too: `Digest username="ada", realm="shop"`.
fn is_list(rest: &[u8]) -> bool {
    let mut elements = rest.split(|byte| *byte == b',').skip(1);
    elements.any(|element| {
        let (scheme, token) = split_word(element.trim_ascii_start());
        scheme.eq_ignore_ascii_case(BEARER) && !token.is_empty()
    })
}

/// The word before the first white space, and the text after the white space.
pub(super) fn split_word(text: &[u8]) -> (&[u8], &[u8]) {
    let end = text.iter().position(u8::is_ascii_whitespace);
    let (word, rest) = text.split_at(end.unwrap_or(text.len()));
    (word, rest.trim_ascii_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_one_form_whatever_surrounds_it() {
        for text in ["K", " K", "K\n", "K\r\n", "\tK ", "Bearer K", "bearer K", "BEARER \t K\n", " Bearer\tK"] {
            assert_eq!(find_key(text.as_bytes()), Ok(Some("K")), "{text:?}");
        }
        assert_eq!(find_key(b"bearer-of-news"), Ok(Some("bearer-of-news")));
        for text in ["", " ", "\n", "Bearer", "bearer ", " Bearer\t"] {
            assert_eq!(find_key(text.as_bytes()), Ok(None), "{text:?}");
        }
    }

    #[test]
    fn several_keys_and_other_credentials_are_no_key() {
        let several: [&[u8]; 9] = [
            b"junk,K",
            b",K",
            b"K,",
            b"Bearer junk,K",
            b"Bearer junk K",
            b"Bearer junk, Bearer K",
            b"Basic YTpi, Bearer K",
            b"K\0",
            b"caf\xc3\xa9",
        ];
        for text in several {
            assert_eq!(find_key(text), Err(KeyTextError::NotOneKey), "{text:?}");
        }
        let other: [&[u8]; 4] =
            [b"Basic YTpi", b"junk K", b"Token \xff", b"Digest username=\"bearer\", realm=\"a, bearerx\", nc=1"];
        for text in other {
            assert_eq!(find_key(text), Err(KeyTextError::OtherScheme), "{text:?}");
        }
    }
}
