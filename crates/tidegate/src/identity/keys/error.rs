//! What can be wrong with a keys file, told so that someone can mend it.
//!
//! No message repeats text of the file that might be a raw key pasted in the wrong place.

use std::fmt;
use std::io;

/// Listing more would bury the first, and a file of the wrong kind has a fault on every line.
const MAX_LISTED: usize = 20;

/// Why a keys file was not taken.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// Lines that are wrong.
    #[error(transparent)]
    Lines(#[from] KeyLineErrors),
    /// It could not be read to its end.
    #[error("{file}: cannot be read: {source}")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system said.
        source: io::Error,
    },
    /// Not a byte in it: a file caught while it was being rewritten, or the wrong file.
    #[error("{file}: is empty; if no keys are meant, write a line like `# no keys yet`")]
    Empty {
        /// The file.
        file: String,
    },
    /// Larger than a keys file may be.
    #[error("{file}: is larger than {limit_mib} MiB; split the keys between deployments")]
    TooLarge {
        /// The file.
        file: String,
        /// The most that is read.
        limit_mib: u64,
    },
}

/// All faults of one file: the first twenty by line, and how many there are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLineErrors {
    file: String,
    listed: Vec<KeyLineError>,
    total: usize,
}

impl KeyLineErrors {
    pub(super) fn of(file: &str) -> Self {
        KeyLineErrors {
            file: file.to_owned(),
            listed: Vec::new(),
            total: 0,
        }
    }

    /// Faults come in any order of lines; the earliest are kept.
    pub(super) fn add(&mut self, line: u32, kind: KeyLineErrorKind) {
        self.total += 1;
        let at = self.listed.partition_point(|fault| fault.line <= line);
        if at < MAX_LISTED {
            self.listed.insert(at, KeyLineError { line, kind });
            self.listed.truncate(MAX_LISTED);
        }
    }

    /// The first faults, at most twenty, by line.
    pub fn listed(&self) -> &[KeyLineError] {
        &self.listed
    }

    /// How many faults the file has.
    pub fn total(&self) -> usize {
        self.total
    }
}

impl std::error::Error for KeyLineErrors {}

impl fmt::Display for KeyLineErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, KeyLineError { line, kind: wrong }) in self.listed.iter().enumerate() {
            let newline = if n > 0 { "\n" } else { "" };
            write!(f, "{newline}{}:{line}: {wrong}", self.file)?;
        }
        match self.total - self.listed.len() {
            0 => Ok(()),
            more => write!(f, "\n{}: and {more} more", self.file),
        }
    }
}

/// One fault and its line, counted from 1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KeyLineError {
    /// The line.
    pub line: u32,
    /// What is wrong with it.
    pub kind: KeyLineErrorKind,
}

/// What is wrong with one line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KeyLineErrorKind {
    /// Something else where the digest should be, most likely the key itself.
    #[error(
        "does not begin with `sha256:`; if this is a key itself, remove it and write the line \
         that `tidegate key hash` prints (the text is not shown here)"
    )]
    NotADigest,
    /// Too few or too many digits.
    #[error(
        "the digest has {found} characters; a SHA-256 has 64 hex digits, as `tidegate key hash` prints them"
    )]
    DigestLength {
        /// How many characters follow `sha256:`.
        found: usize,
    },
    /// 64 characters, but not hex.
    #[error("character {column} of the digest is not a hex digit; write 0-9 and a-f only")]
    NotHex {
        /// Which character after `sha256:`, counted from 1.
        column: usize,
    },
    /// Nothing after the digest.
    #[error("no tier after the digest; {}", advice(tiers))]
    NoTier {
        /// The tiers there are.
        tiers: String,
    },
    /// A tier that the rules do not list, close enough to one that it can be no key.
    #[error("unknown tier `{found}`; did you mean `{meant}`?")]
    MisspeltTier {
        /// What was written.
        found: String,
        /// The tier it resembles.
        meant: String,
    },
    /// A tier that the rules do not list.
    #[error(
        "unknown tier of {found_len} characters (not shown, it might be a key); {}",
        advice(tiers)
    )]
    UnknownTier {
        /// How long it is.
        found_len: usize,
        /// The tiers there are.
        tiers: String,
    },
    /// A name that cannot be shown.
    #[error("the name is not UTF-8 or has control characters; write plain text")]
    BadName,
    /// A comment behind the name would become part of it, and rules that use the name would miss the key.
    #[error("has `#` behind the tier or name; write a comment on a line of its own")]
    Comment,
    /// A name too long to be one.
    #[error("the name has {found} bytes; write at most {most}")]
    LongName {
        /// How long it is.
        found: usize,
        /// The most it may be.
        most: usize,
    },
    /// A line too long to be one.
    #[error("is longer than {most} bytes; write one key per line as `sha256:HEX tier name`")]
    LongLine {
        /// The most a line may hold.
        most: usize,
    },
    /// The same key twice, maybe with two tiers.
    #[error("the same digest as line {first}; keep one of the two")]
    Duplicate {
        /// Where it stood first.
        first: u32,
    },
    /// The last line is wrong and has no line end: the file was cut off.
    #[error(
        "the file ends within this line ({wrong}); write it completely, best to a new file renamed over this one"
    )]
    CutOff {
        /// What is wrong with the line as it stands.
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
