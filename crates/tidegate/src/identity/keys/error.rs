//! Errors of a keys file, with what to write instead.
//!
//! No message repeats text of the file that might be a raw key pasted in the wrong place.

use std::fmt;
use std::io;

/// A longer list would bury the first errors, and a file of the wrong kind has an error on every line.
const MAX_LISTED: usize = 20;

/// Why a keys file was rejected.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Invalid lines.
    #[error(transparent)]
    Lines(#[from] KeyLineErrors),
    /// The file could not be read to its end.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is empty or has blank lines only: it is being rewritten, or it is the wrong file.
    #[error("{file}: is empty; if no keys are meant, write a line like `# no keys yet`")]
    Empty {
        /// The file.
        file: String,
    },
    /// The file is too large.
    #[error("{file}: is larger than {limit_mib} MiB; split the keys between deployments")]
    TooLarge {
        /// The file.
        file: String,
        /// The maximum size.
        limit_mib: u64,
    },
}

/// All errors of one file: the first twenty by line, and the total.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLineErrors {
    file: String,
    listed: Vec<KeyLineError>,
    total: usize,
}

impl KeyLineErrors {
    pub(super) fn of(file: &str) -> Self {
        KeyLineErrors { file: file.to_owned(), listed: Vec::new(), total: 0 }
    }

    /// Errors come in any order of lines; the earliest are listed.
    pub(super) fn add(&mut self, line: u32, kind: KeyLineErrorKind) {
        self.total += 1;
        let at = self.listed.partition_point(|error| error.line <= line);
        if at < MAX_LISTED {
            self.listed.insert(at, KeyLineError { line, kind });
            self.listed.truncate(MAX_LISTED);
        }
    }

    /// The first errors, at most twenty, by line.
    pub fn listed(&self) -> &[KeyLineError] {
        &self.listed
    }

    /// The number of errors.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl std::error::Error for KeyLineErrors {}

impl fmt::Display for KeyLineErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, KeyLineError { line, kind }) in self.listed.iter().enumerate() {
            let newline = if n > 0 { "\n" } else { "" };
            write!(f, "{newline}{}:{line}: {kind}", self.file)?;
        }
        match self.total - self.listed.len() {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.file),
        }
    }
}

/// One error and its line, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLineError {
    /// The line.
    pub line: u32,
    /// The error.
    pub kind: KeyLineErrorKind,
}

/// The error of one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyLineErrorKind {
    /// The line does not begin with a digest; most likely it is the key itself.
    #[error(
        "does not begin with `sha256:`; if this is a key itself, remove it and write the line \
         that `tidegate key hash` prints (the text is not shown here)"
    )]
    NotADigest,
    /// The digest has too few or too many digits.
    #[error("the digest has {found} characters; a SHA-256 has 64 hex digits, as `tidegate key hash` prints them")]
    DigestLength {
        /// The number of characters after `sha256:`.
        found: usize,
    },
    /// The digest has 64 characters, but not all are hex digits.
    #[error("character {column} of the digest is not a hex digit; write 0-9 and a-f only")]
    NotHex {
        /// The position of the character after `sha256:`, counted from 1.
        column: usize,
    },
    /// The tier is missing.
    #[error("no tier after the digest; {}", advice(tiers))]
    NoTier {
        /// The tiers of the rules.
        tiers: String,
    },
    /// A tier that the rules do not define, so close to one of them that it cannot be a key.
    #[error("unknown tier `{found}`; did you mean `{meant}`?")]
    MisspeltTier {
        /// The text found.
        found: String,
        /// The tier it resembles.
        meant: String,
    },
    /// A tier that the rules do not define.
    #[error("unknown tier of {found_len} characters (not shown, it might be a key); {}", advice(tiers))]
    UnknownTier {
        /// Its length.
        found_len: usize,
        /// The tiers of the rules.
        tiers: String,
    },
    /// A name that cannot be printed.
    #[error("the name is not UTF-8 or has control characters; write plain text")]
    BadName,
    /// A comment after the name would become part of it, and rules that use the name would miss the key.
    #[error("has `#` after the tier or name; write a comment on a line of its own")]
    Comment,
    /// The name is too long.
    #[error("the name has {found} bytes; write at most {max_bytes}")]
    LongName {
        /// Its length.
        found: usize,
        /// The maximum length.
        max_bytes: usize,
    },
    /// The line is too long.
    #[error("is longer than {max_bytes} bytes; write one key per line as `sha256:HEX tier name`")]
    LongLine {
        /// The maximum length.
        max_bytes: usize,
    },
    /// The same key twice, possibly with two tiers.
    #[error("the same digest as line {first}; keep one of the two")]
    Duplicate {
        /// The line of the first occurrence.
        first: u32,
    },
    /// The last line is invalid and has no line end: the file was cut off.
    #[error("the file ends within this line ({wrong}); write it completely, best to a new file renamed over this one")]
    CutOff {
        /// The error of the line so far.
        wrong: Box<KeyLineErrorKind>,
    },
}

/// What to write where a tier is missing or unknown. `tiers` are those of the rules, with commas.
fn advice(tiers: &str) -> String {
    match tiers {
        "" => "the rules list no tiers: add them there, such as `tiers: [free, pro]`".to_owned(),
        tiers => format!("write one of {tiers}"),
    }
}
