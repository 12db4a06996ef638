//! All keys of a file, found by digest in constant time.
//!
//! Built by streaming: no more than one line of the file is in memory, and 1,000,000 keys take about 49 bytes each
//! plus their names. Digests are in the order of the file; an open-addressed index of half-empty slots finds them.
//! The position of a digest in the index depends on a random secret of the table, so neither a crafted file nor the
//! time of a lookup reveals anything about other keys.

use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, Read};

use super::digest::Digest;
use super::error::{KeyFileError, KeyLineErrorKind, KeyLineErrors};
use super::line::{self, KeyLine, MAX_NAME_BYTES, Tiers};

/// Maximum size of a keys file: more than three million keys.
pub const MAX_FILE_BYTES: u64 = 256 << 20;

/// `sha256:`, 64 digits, a blank, a tier of one letter and a line end.
const MIN_LINE_BYTES: u64 = 7 + 64 + 1 + 1 + 1;

/// Maximum length of a line, with room for a long tier name and generous blanks.
const MAX_LINE_BYTES: usize = 1024;

/// The owner of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyOwner<'a> {
    /// The tier, as its position in the list the table was read with.
    pub tier: u16,
    /// The owner's name; empty if the file has none.
    pub name: &'a str,
}

/// The keys of one file. Always complete.
#[derive(Debug, Default)]
pub struct KeyTable {
    records: Vec<KeyRecord>,
    index: KeyIndex,
    names: String,
}

/// 40 bytes. The name is at `name_at` in the arena of names.
#[derive(Clone, Copy, Debug)]
struct KeyRecord {
    digest: Digest,
    name_at: u32,
    name_len: u16,
    tier: u16,
}

impl KeyTable {
    /// Reads a keys file to its end. `file` is its name for messages; `tiers` are those of the rules, in their
    /// order. Returns all errors of the file, the first twenty with their messages.
    pub fn read<S: AsRef<str>>(file: &str, reader: impl BufRead, tiers: &[S]) -> Result<Self, KeyFileError> {
        let tiers = Tiers::of(tiers);
        let mut builder = KeyTableBuilder::new(file, &tiers);
        builder.read_lines(reader)?;
        builder.finish()
    }

    /// The owner of the key with this digest. Compares whole digests in constant time.
    pub fn get(&self, digest: &Digest) -> Option<KeyOwner<'_>> {
        let at = self.index.find(digest, &self.records).ok()?;
        Some(self.owner(&self.records[at as usize]))
    }

    /// The name under which the key with the digest `sha256:HEX` is listed; empty for a key without one.
    pub fn name_of(&self, digest: &str) -> Option<&str> {
        let hex = digest.strip_prefix("sha256:")?.as_bytes();
        Some(self.get(&Digest::from_hex(hex.try_into().ok()?)?)?.name)
    }

    /// The names of all keys, in the order of the file; empty where the file has none.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.records.iter().map(|record| self.owner(record).name)
    }

    /// The digests of all keys and their owners, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (Digest, KeyOwner<'_>)> {
        self.records.iter().map(|record| (record.digest, self.owner(record)))
    }

    fn owner(&self, record: &KeyRecord) -> KeyOwner<'_> {
        let start = record.name_at as usize;
        KeyOwner { tier: record.tier, name: &self.names[start..start + usize::from(record.name_len)] }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Heap memory in bytes, including names.
    pub fn heap_bytes(&self) -> usize {
        self.records.capacity() * size_of::<KeyRecord>()
            + self.index.slots.capacity() * size_of::<u32>()
            + self.names.capacity()
    }
}

/// The positions of digests among the records. At most half of the slots are taken, so a search ends after two steps
/// on average.
///
/// A slot has 22 bits for the index of its record and 10 for a tag of the digest's keyed hash: a record is read, at the
/// price of a cache miss, only when it is almost certainly the right one.
#[derive(Debug, Default)]
struct KeyIndex {
    secret: RandomState,
    slots: Vec<u32>,
}

const RECORD_BITS: u32 = (1 << 22) - 1;

/// A slot without a record: the last number, which no file is large enough to reach.
const VACANT: u32 = u32::MAX;

const _: () = assert!(MAX_FILE_BYTES / MIN_LINE_BYTES < RECORD_BITS as u64);

impl KeyIndex {
    fn for_keys(count: usize) -> Self {
        let slots = vec![VACANT; (count * 2).next_power_of_two()];
        KeyIndex { secret: RandomState::new(), slots }
    }

    /// The record of a digest. If there is none: the slot where it would go, and the tag to store there.
    fn find(&self, digest: &Digest, records: &[KeyRecord]) -> Result<u32, (usize, u32)> {
        let hash = self.secret.hash_one(digest.as_bytes());
        let tag = (hash >> 32) as u32 & !RECORD_BITS;
        let Some(last) = self.slots.len().checked_sub(1) else {
            return Err((0, tag));
        };
        let mut slot = hash as usize & last;
        loop {
            let found = self.slots[slot];
            let record = found & RECORD_BITS;
            if found == VACANT {
                return Err((slot, tag));
            }
            if found & !RECORD_BITS == tag && records[record as usize].digest == *digest {
                return Ok(record);
            }
            slot = (slot + 1) & last;
        }
    }
}

/// A table being built: the records so far, their lines, and the errors.
struct KeyTableBuilder<'a> {
    file: &'a str,
    tiers: &'a Tiers<'a>,
    records: Vec<KeyRecord>,
    names: String,
    lines: Vec<u32>,
    errors: KeyLineErrors,
}

impl<'a> KeyTableBuilder<'a> {
    fn new(file: &'a str, tiers: &'a Tiers<'a>) -> Self {
        let (records, names, lines) = (Vec::new(), String::new(), Vec::new());
        KeyTableBuilder { file, tiers, records, names, lines, errors: KeyLineErrors::of(file) }
    }

    fn read_lines(&mut self, mut reader: impl BufRead) -> Result<(), KeyFileError> {
        let unreadable = |source| KeyFileError::Unreadable { file: self.file.to_owned(), source };
        let mut line = Vec::with_capacity(MAX_LINE_BYTES + 1);
        let (mut total, mut is_blank) = (0u64, true);
        for number in 1u32.. {
            line.clear();
            let read = reader.by_ref().take(MAX_LINE_BYTES as u64 + 1).read_until(b'\n', &mut line);
            let mut length = read.map_err(unreadable)?;
            if length == 0 {
                break;
            }
            if length > MAX_LINE_BYTES {
                self.errors.add(number, KeyLineErrorKind::LongLine { max_bytes: MAX_LINE_BYTES });
                if line.last() != Some(&b'\n') {
                    length += reader.skip_until(b'\n').map_err(unreadable)?;
                }
            } else {
                self.add_line(number, &line);
            }
            total += length as u64;
            is_blank &= line.trim_ascii().is_empty();
            if total > MAX_FILE_BYTES {
                let (file, limit_mib) = (self.file.to_owned(), MAX_FILE_BYTES >> 20);
                return Err(KeyFileError::TooLarge { file, limit_mib });
            }
        }
        if is_blank { Err(KeyFileError::Empty { file: self.file.to_owned() }) } else { Ok(()) }
    }

    fn add_line(&mut self, number: u32, line: &[u8]) {
        let text = if number == 1 { line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line) } else { line };
        match line::parse(text, self.tiers) {
            Ok(None) => {}
            Ok(Some(entry)) => self.add_entry(number, entry),
            Err(wrong) if line.ends_with(b"\n") => self.errors.add(number, wrong),
            Err(wrong) => self.errors.add(number, KeyLineErrorKind::CutOff { wrong: Box::new(wrong) }),
        }
    }

    fn add_entry(&mut self, number: u32, KeyLine { digest, tier, name }: KeyLine<'_>) {
        const { assert!(MAX_FILE_BYTES <= u32::MAX as u64 && MAX_NAME_BYTES <= u16::MAX as usize) };
        let name_at = self.names.len() as u32;
        self.names.push_str(name);
        self.records.push(KeyRecord { digest, name_at, name_len: name.len() as u16, tier });
        self.lines.push(number);
    }

    fn finish(mut self) -> Result<KeyTable, KeyFileError> {
        let mut index = KeyIndex::for_keys(self.records.len());
        for (at, record) in (0u32..).zip(&self.records) {
            match index.find(&record.digest, &self.records) {
                Err((slot, tag)) => index.slots[slot] = tag | at,
                Ok(first) => {
                    let first = self.lines[first as usize];
                    self.errors.add(self.lines[at as usize], KeyLineErrorKind::Duplicate { first });
                }
            }
        }
        if self.errors.total() > 0 {
            return Err(self.errors.into());
        }
        self.records.shrink_to_fit();
        self.names.shrink_to_fit();
        Ok(KeyTable { records: self.records, index, names: self.names })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::keys::hash_line;

    const TIERS: [&str; 3] = ["free", "pro", "enterprise"];

    fn line(key: &str, tier: &str) -> String {
        hash_line(key, tier, &format!("owner of {key}")).unwrap()
    }

    fn read(text: &str) -> Result<KeyTable, KeyFileError> {
        KeyTable::read("keys.txt", text.as_bytes(), &TIERS)
    }

    #[track_caller]
    fn check_rejected(text: &str, want: &[&str]) {
        let error = read(text).unwrap_err().to_string();
        let messages: Vec<_> = error.lines().collect();
        assert_eq!(messages, want);
    }

    #[test]
    fn every_key_of_the_file_is_found_and_no_other() {
        let keys: Vec<String> = (0..1000).map(|n| format!("key-{n}")).collect();
        let text: String = keys.iter().zip(TIERS.iter().cycle()).map(|(k, t)| line(k, t) + "\n").collect();
        let table = read(&text).unwrap();
        assert_eq!(table.len(), 1000);
        for (n, key) in keys.iter().enumerate() {
            let name = format!("owner of {key}");
            let owner = KeyOwner { tier: (n % 3) as u16, name: &name };
            assert_eq!(table.get(&Digest::of(key)), Some(owner));
            assert_eq!(table.get(&Digest::of(format!("other-{n}"))), None);
        }
    }

    #[test]
    fn a_table_without_keys_finds_nothing() {
        assert_eq!(KeyTable::default().get(&Digest::of("x")), None);
        let table = read("# no keys yet\n").unwrap();
        assert!(table.is_empty());
        assert_eq!(table.get(&Digest::of("x")), None);
    }

    #[test]
    fn a_byte_order_mark_and_a_missing_last_line_end_are_fine() {
        let table = read(&format!("\u{feff}{}\r\n{}", line("a", "pro"), line("b", "free"))).unwrap();
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn all_errors_are_reported_at_once_with_their_lines() {
        let [a, b] = [line("a", "pro"), line("b", "gold")];
        let text = format!("{a}\n# fine\nsecret-key\n\n{b}\n{a}\nsha256:12 pro");
        check_rejected(
            &text,
            &[
                "keys.txt:3: does not begin with `sha256:`; if this is a key itself, remove it and write the line \
                 that `tidegate key hash` prints (the text is not shown here)",
                "keys.txt:5: unknown tier of 4 characters (not shown, it might be a key); write one of free, pro, enterprise",
                "keys.txt:6: the same digest as line 1; keep one of the two",
                "keys.txt:7: the file ends within this line (the digest has 2 characters; a SHA-256 has 64 hex digits, \
                 as `tidegate key hash` prints them); write it completely, best to a new file renamed over this one",
            ],
        );
    }

    #[test]
    fn twenty_errors_are_listed_and_the_rest_counted() {
        let twice = line("a", "pro");
        let text = format!("{twice}\n{twice}\n{}", "raw\n".repeat(50));
        let error = read(&text).unwrap_err().to_string();
        assert_eq!(error.lines().count(), 21);
        assert!(error.starts_with("keys.txt:2: the same digest as line 1"));
        assert!(error.ends_with("\nkeys.txt: and 31 more"));
    }

    #[test]
    fn an_empty_file_is_rejected_as_one_being_written() {
        for blank in ["", "\n", " \r\n\t\n", "\n\n"] {
            check_rejected(blank, &["keys.txt: is empty; if no keys are meant, write a line like `# no keys yet`"]);
        }
    }

    #[test]
    fn a_file_cut_off_at_any_byte_never_yields_a_key_that_was_not_there() {
        let whole = format!("{}\n{}\n", line("a", "enterprise"), line("b", "pro"));
        for end in 0..whole.len() {
            let Ok(table) = read(&whole[..end]) else {
                continue;
            };
            let cut = ["a", "b"].iter().filter(|key| table.get(&Digest::of(key)).is_some()).count();
            assert_eq!(cut, table.len(), "cut off at {end}");
        }
    }

    #[test]
    fn an_endless_line_is_rejected_without_buffering_it() {
        let text = "x".repeat(100_000) + "\n" + &line("a", "pro");
        let message = "keys.txt:1: is longer than 1024 bytes; write one key per line as `sha256:HEX tier name`";
        check_rejected(&text, &[message]);
    }

    #[test]
    fn a_file_over_the_size_limit_is_rejected() {
        let endless = std::io::BufReader::new(std::io::repeat(b'#').take(MAX_FILE_BYTES + 1));
        let error = KeyTable::read("keys.txt", endless, &TIERS).unwrap_err();
        assert_eq!(error.to_string(), "keys.txt: is larger than 256 MiB; split the keys between deployments");
    }

    #[test]
    fn a_record_is_forty_bytes() {
        assert_eq!(size_of::<KeyRecord>(), 40);
    }
}
