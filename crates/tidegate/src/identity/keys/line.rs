//! One line of a keys file: `sha256:HEX tier name`, parsed and written.

use std::collections::HashMap;

use super::digest::Digest;
use super::error::KeyLineErrorKind;
use super::key_text::{find_key, split_word};

/// Long enough for "who, where and since when"; short enough that a million names stay small.
pub(super) const MAX_NAME_BYTES: usize = 256;

const SCHEME: &[u8] = b"sha256:";

/// A parsed line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct KeyLine<'a> {
    pub(super) digest: Digest,
    pub(super) tier: u16,
    pub(super) name: &'a str,
}

/// The tiers of the rules, by name.
pub(super) struct Tiers<'a> {
    names: Vec<&'a str>,
    by_name: HashMap<&'a [u8], u16>,
}

impl<'a> Tiers<'a> {
    pub(super) fn of<S: AsRef<str>>(names: &'a [S]) -> Self {
        let names: Vec<_> = names.iter().map(AsRef::as_ref).collect();
        let by_name = (0u16..).zip(&names).map(|(at, name)| (name.as_bytes(), at)).collect();
        Tiers { names, by_name }
    }

    fn list(&self) -> String {
        self.names.join(", ")
    }

    fn find(&self, word: &[u8]) -> Result<u16, KeyLineErrorKind> {
        self.by_name.get(word).copied().ok_or_else(|| self.unknown(word))
    }

    /// The error for an unknown tier. Shows the word only if it is a misspelt tier; any other word might be a key.
    fn unknown(&self, word: &[u8]) -> KeyLineErrorKind {
        let found = String::from_utf8_lossy(word);
        match self.names.iter().find(|tier| resembles(&found, tier)) {
            Some(meant) => {
                KeyLineErrorKind::MisspeltTier { found: found.escape_default().to_string(), meant: (*meant).to_owned() }
            }
            None => KeyLineErrorKind::UnknownTier { found_len: found.chars().count(), tiers: self.list() },
        }
    }
}

/// Parses a line: `None` if it is blank or a comment.
pub(super) fn parse<'a>(line: &'a [u8], tiers: &Tiers<'_>) -> Result<Option<KeyLine<'a>>, KeyLineErrorKind> {
    let line = line.trim_ascii();
    if line.is_empty() || line.starts_with(b"#") {
        return Ok(None);
    }
    let hex_and_rest = line.strip_prefix(SCHEME).ok_or(KeyLineErrorKind::NotADigest)?;
    let (hex, rest) = split_word(hex_and_rest);
    let digest = digest(hex)?;
    if rest.is_empty() {
        return Err(KeyLineErrorKind::NoTier { tiers: tiers.list() });
    }
    let (word, rest) = split_word(rest);
    let tier = tiers.find(word)?;
    let name = name(rest)?;
    Ok(Some(KeyLine { digest, tier, name }))
}

/// The line for a key, as `tidegate key new` and `key hash` print it.
pub fn hash_line(key: &str, tier: &str, name: &str) -> Result<String, HashLineError> {
    let is_word = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    // In any other form no request could carry it.
    if find_key(key.as_bytes()) != Ok(Some(key)) {
        return Err(HashLineError::Key);
    }
    if !is_word(tier) {
        return Err(HashLineError::Tier);
    }
    let name = name.trim();
    self::name(name.as_bytes()).map_err(HashLineError::Name)?;
    let line = format!("sha256:{} {tier} {name}", Digest::of(key).to_hex());
    Ok(line.trim_end().to_owned())
}

/// Why no line can be written for a key.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HashLineError {
    /// A line end or blank included in the key would give the digest of another key.
    #[error("the key is not one word of printable ASCII without commas; give it without line end or quotes")]
    Key,
    /// A tier is one word.
    #[error("the tier is empty or has blanks; write one of the tiers of the rules")]
    Tier,
    /// The name could not be parsed again.
    #[error(transparent)]
    Name(KeyLineErrorKind),
}

fn digest(hex: &[u8]) -> Result<Digest, KeyLineErrorKind> {
    let digits: &[u8; 64] = hex.try_into().map_err(|_| KeyLineErrorKind::DigestLength { found: hex.len() })?;
    Digest::from_hex(digits).ok_or_else(|| KeyLineErrorKind::NotHex {
        column: 1 + digits.iter().take_while(|digit| digit.is_ascii_hexdigit()).count(),
    })
}

fn name(text: &[u8]) -> Result<&str, KeyLineErrorKind> {
    if text.len() > MAX_NAME_BYTES {
        return Err(KeyLineErrorKind::LongName { found: text.len(), max_bytes: MAX_NAME_BYTES });
    }
    let name = str::from_utf8(text).map_err(|_| KeyLineErrorKind::BadName)?;
    let after_blank = || name.split_whitespace().any(|word| word.starts_with('#'));
    if name.contains(char::is_control) {
        Err(KeyLineErrorKind::BadName)
    } else if name.contains('#') && after_blank() {
        Err(KeyLineErrorKind::Comment)
    } else {
        Ok(name)
    }
}

/// At most two letters apart, ignoring case, and most of the word the same.
fn resembles(found: &str, tier: &str) -> bool {
    let length = tier.chars().count();
    found.chars().count() <= length + 2 && distance(&found.to_lowercase(), &tier.to_lowercase()) <= length.min(4) / 2
}

/// Levenshtein distance: the number of letters to add, drop or change.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, to) in b.iter().enumerate() {
            let change = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIERS: [&str; 3] = ["free", "pro", "enterprise"];
    const HEX: &str = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";

    /// `HEX` in a line stands for the digest of `hello`.
    #[track_caller]
    fn check(line: &str, want: &str) {
        let line = line.replace("HEX", HEX);
        let got = match parse(line.as_bytes(), &Tiers::of(&TIERS)) {
            Ok(None) => "nothing".to_owned(),
            Ok(Some(KeyLine { digest, tier, name })) => {
                assert_eq!(digest, Digest::of("hello"));
                format!("{tier} `{name}`")
            }
            Err(error) => error.to_string(),
        };
        assert_eq!(got, want, "from {line:?}");
    }

    /// The name became `acme # first customer`, and a block of `key:acme` had no effect.
    #[test]
    fn a_comment_after_the_name_is_an_error() {
        let message = "has `#` after the tier or name; write a comment on a line of its own";
        check("sha256:HEX pro acme # first customer", message);
        check("sha256:HEX pro acme #1", message);
        check("sha256:HEX pro # acme", message);
        check("sha256:HEX pro acme#1", "1 `acme#1`");
    }

    #[test]
    fn a_line_names_a_digest_a_tier_and_maybe_an_owner() {
        check("sha256:HEX pro", "1 ``");
        check("sha256:HEX free Harbour Café, since 2024", "0 `Harbour Café, since 2024`");
        check("  sha256:HEX \t enterprise   x#y z  \r\n", "2 `x#y z`");
    }

    #[test]
    fn blank_lines_and_comments_have_no_meaning() {
        for line in ["", "  \t ", "\r", "# sha256:HEX pro", "   #"] {
            check(line, "nothing");
        }
    }

    #[test]
    fn a_raw_key_is_rejected_and_not_repeated() {
        let message = "does not begin with `sha256:`; if this is a key itself, remove it and write the line \
                    that `tidegate key hash` prints (the text is not shown here)";
        check("tg_mfrggzdfmztwq2lkmfrggzdfmztwq2lk pro", message);
        check("hunter2", message);
        check("HEX pro", message);
        check("SHA256:HEX pro", message);
    }

    #[test]
    fn a_digest_has_64_hex_digits() {
        let length = |n| {
            format!("the digest has {n} characters; a SHA-256 has 64 hex digits, as `tidegate key hash` prints them")
        };
        check("sha256:2cf24d pro", &length(6));
        check("sha256: HEX pro", &length(0));
        check("sha256:HEX0 pro", &length(65));
        let letter = HEX.replacen("ba5f", "bag5", 1);
        check(&format!("sha256:{letter} pro"), "character 9 of the digest is not a hex digit; write 0-9 and a-f only");
    }

    #[test]
    fn an_unknown_tier_is_shown_only_if_it_is_a_known_one_misspelt() {
        check("sha256:HEX", "no tier after the digest; write one of free, pro, enterprise");
        check("sha256:HEX enterprize", "unknown tier `enterprize`; did you mean `enterprise`?");
        check("sha256:HEX Pro x", "unknown tier `Pro`; did you mean `pro`?");
        let hidden = |n| {
            format!("unknown tier of {n} characters (not shown, it might be a key); write one of free, pro, enterprise")
        };
        check("sha256:HEX hunter2", &hidden(7));
        check("sha256:HEX k1", &hidden(2));
    }

    #[test]
    fn a_name_is_short_plain_text() {
        check("sha256:HEX pro a\u{1b}[2Jb", "the name is not UTF-8 or has control characters; write plain text");
        check(&format!("sha256:HEX pro {}", "x".repeat(257)), "the name has 257 bytes; write at most 256");
        let line = [b"sha256:", HEX.as_bytes(), b" pro \xff"].concat();
        assert_eq!(parse(&line, &Tiers::of(&TIERS)), Err(KeyLineErrorKind::BadName));
    }

    #[test]
    fn a_written_line_can_be_parsed() {
        assert_eq!(hash_line("hello", "pro", "").unwrap(), format!("sha256:{HEX} pro"));
        check(&hash_line("hello", "pro", " Harbour Café ").unwrap(), "1 `Harbour Café`");
        assert_eq!(hash_line("hello\n", "pro", ""), Err(HashLineError::Key));
        assert_eq!(hash_line("hello", "two words", ""), Err(HashLineError::Tier));
        assert_eq!(hash_line("hello", "pro", "a\nb"), Err(HashLineError::Name(KeyLineErrorKind::BadName)));
    }
}
