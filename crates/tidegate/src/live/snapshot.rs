//! The complete contents of what was surveyed, by digest; read again when asked for.
//!
//! A snapshot holds digests, not bytes: a keys file of 256 MiB is streamed to its loader and never
//! in memory as a whole. A reader hashes as it goes and fails at the end if what it gave was not
//! what the snapshot says, so a loader that reads to the end and minds errors cannot take a file
//! that changed under its hands.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest as _, Sha256};

use super::state::Why;
use super::survey::{Found, Survey, because};

const BUFFER_BYTES: usize = 64 << 10;

/// Files and what they hold. Equal snapshots have equal paths and contents.
#[derive(PartialEq, Eq, Debug)]
pub struct Snapshot {
    parts: Vec<Part>,
}

/// One file of a snapshot.
#[derive(Debug)]
pub struct Part {
    path: PathBuf,
    len: u64,
    sha256: [u8; 32],
    torn: AtomicBool,
}

impl Snapshot {
    /// Reads every file once. A file that grew is not read beyond the size it was surveyed with.
    pub(super) fn take(survey: &Survey) -> Result<Self, Why> {
        let parts = survey
            .files
            .iter()
            .map(|file| Part::take(file).map_err(|error| because(&file.path, &error)));
        Ok(Snapshot {
            parts: parts.collect::<Result<_, _>>()?,
        })
    }

    /// The files, in the order of their names. One, unless a folder is watched.
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Whether a file was no longer what it had been when the loader read it.
    pub(super) fn is_torn(&self) -> bool {
        self.parts
            .iter()
            .any(|part| part.torn.load(Ordering::Relaxed))
    }
}

impl Part {
    fn take(found: &Found) -> io::Result<Self> {
        let mut reader = File::open(&found.path)?.take(found.len);
        let mut hasher = Sha256::new();
        let len = io::copy(
            &mut BufReader::with_capacity(BUFFER_BYTES, &mut reader),
            &mut Hashing(&mut hasher),
        )?;
        let (path, sha256, torn) = (
            found.path.clone(),
            hasher.finalize().into(),
            AtomicBool::new(false),
        );
        Ok(Part {
            path,
            len,
            sha256,
            torn,
        })
    }

    /// The file, as its user named it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What it holds, to tell one version from another across nodes.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// Reads it from the start. The loader must read to the end and refuse on any error.
    pub fn open(&self) -> io::Result<PartReader<'_>> {
        let file =
            File::open(&self.path).inspect_err(|_| self.torn.store(true, Ordering::Relaxed))?;
        let inner = BufReader::with_capacity(BUFFER_BYTES, file);
        Ok(PartReader {
            part: self,
            inner,
            hasher: Sha256::new(),
            len: 0,
        })
    }

    /// All of it, as text. An error names the file.
    pub fn text(&self) -> io::Result<String> {
        let mut text = String::with_capacity(usize::try_from(self.len).unwrap_or(0));
        match self
            .open()
            .and_then(|mut reader| reader.read_to_string(&mut text))
        {
            Ok(_) => Ok(text),
            Err(error) => {
                let said = format!("{}: {error}", self.path.display());
                Err(io::Error::new(error.kind(), said))
            }
        }
    }
}

impl Eq for Part {}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.sha256 == other.sha256
    }
}

/// Streams one file and proves at its end that it was the one in the snapshot.
#[derive(Debug)]
pub struct PartReader<'a> {
    part: &'a Part,
    inner: BufReader<File>,
    hasher: Sha256,
    len: u64,
}

impl PartReader<'_> {
    fn torn(&self) -> io::Error {
        self.part.torn.store(true, Ordering::Relaxed);
        io::Error::other("the file changed while it was read")
    }

    fn is_whole(&self) -> bool {
        self.len == self.part.len && self.hasher.clone().finalize()[..] == self.part.sha256
    }
}

impl BufRead for PartReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.inner.buffer().is_empty() {
            let fresh = self.inner.fill_buf()?;
            let (at_end, len) = (fresh.is_empty(), fresh.len() as u64);
            self.hasher.update(fresh);
            self.len += len;
            if self.len > self.part.len || (at_end && !self.is_whole()) {
                return Err(self.torn());
            }
        }
        Ok(self.inner.buffer())
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(into)?;
        self.consume(amount);
        Ok(amount)
    }
}

/// Lets `io::copy` feed a hash.
struct Hashing<'a>(&'a mut Sha256);

impl io::Write for Hashing<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::survey::{Limits, Pick, Shape};
    use std::fs;

    fn snapshot(path: &Path) -> Snapshot {
        let shape = Shape::FileOrFolder(Pick::Rules);
        Snapshot::take(&Survey::of(path, shape, Limits::RULES).unwrap()).unwrap()
    }

    #[test]
    fn it_gives_what_the_file_holds() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        for text in [String::new(), "short".to_owned(), "long ".repeat(100_000)] {
            fs::write(&path, &text).unwrap();
            let snapshot = snapshot(&path);
            assert_eq!(snapshot.parts()[0].text().unwrap(), text);
            assert!(!snapshot.is_torn());
        }
    }

    #[test]
    fn equal_contents_are_equal_however_they_came() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        fs::write(&path, "same").unwrap();
        let first = snapshot(&path);
        fs::remove_file(&path).unwrap();
        fs::write(&path, "same").unwrap();
        assert_eq!(first, snapshot(&path));
        fs::write(&path, "Same").unwrap();
        assert_ne!(first, snapshot(&path));
    }

    #[test]
    fn a_file_that_changed_since_cannot_be_read_to_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        for (before, after) in [
            ("abcd", "abXd"),
            ("abcd", "abc"),
            ("abcd", "abcde"),
            ("", "a"),
            ("a", ""),
        ] {
            fs::write(&path, before).unwrap();
            let snapshot = snapshot(&path);
            fs::write(&path, after).unwrap();
            let error = snapshot.parts()[0].text().unwrap_err();
            assert!(
                error.to_string().ends_with("changed while it was read"),
                "{before} to {after}"
            );
            assert!(snapshot.is_torn());
        }
        fs::write(&path, "gone").unwrap();
        let snapshot = snapshot(&path);
        fs::remove_file(&path).unwrap();
        assert!(snapshot.parts()[0].text().is_err());
        assert!(snapshot.is_torn());
    }
}
