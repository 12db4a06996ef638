//! The complete contents of scanned files, by digest; the bytes are read again on demand.
//!
//! A snapshot holds digests, not bytes: a keys file of 256 MiB is streamed to its loader and never in memory as a
//! whole. A reader hashes as it goes and fails at the end if its bytes were not those of the snapshot. So a loader
//! that reads to the end and handles errors cannot accept a file that changed while it was read.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use sha2::{Digest as _, Sha256};

use super::file_state::FileError;
use super::scan::{FileScan, ScannedFile, file_error};

const BUFFER_BYTES: usize = 64 << 10;

/// Files and their digests. Equal snapshots have equal paths and contents.
#[derive(PartialEq, Eq, Debug)]
pub struct FileSnapshot {
    files: Vec<SnapshotFile>,
}

/// One file of a snapshot.
#[derive(Debug)]
pub struct SnapshotFile {
    path: PathBuf,
    len: u64,
    sha256: [u8; 32],
    torn: AtomicBool,
}

impl FileSnapshot {
    /// Reads every file once. A file that grew is not read beyond its scanned size.
    pub(super) fn read(scan: &FileScan) -> Result<Self, FileError> {
        let files =
            scan.files.iter().map(|file| SnapshotFile::read(file).map_err(|error| file_error(&file.path, &error)));
        Ok(FileSnapshot { files: files.collect::<Result<_, _>>()? })
    }

    /// The files, in the order of their names. One, unless a folder is watched.
    pub fn files(&self) -> &[SnapshotFile] {
        &self.files
    }

    /// Whether a file had changed when the loader read it.
    pub(super) fn is_torn(&self) -> bool {
        self.files.iter().any(|file| file.torn.load(Ordering::Relaxed))
    }
}

impl SnapshotFile {
    fn read(scanned: &ScannedFile) -> io::Result<Self> {
        let mut reader = File::open(&scanned.path)?.take(scanned.len);
        let mut hasher = Sha256::new();
        let len = io::copy(&mut BufReader::with_capacity(BUFFER_BYTES, &mut reader), &mut HashWriter(&mut hasher))?;
        let (path, sha256, torn) = (scanned.path.clone(), hasher.finalize().into(), AtomicBool::new(false));
        Ok(SnapshotFile { path, len, sha256, torn })
    }

    /// The path of the file, as the user wrote it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The digest of the contents, to compare versions across nodes.
    pub fn sha256(&self) -> &[u8; 32] {
        &self.sha256
    }

    /// Reads the file from the start. The loader must read to the end and fail on any error.
    pub fn open(&self) -> io::Result<SnapshotReader<'_>> {
        let file = File::open(&self.path).inspect_err(|_| self.torn.store(true, Ordering::Relaxed))?;
        let inner = BufReader::with_capacity(BUFFER_BYTES, file);
        Ok(SnapshotReader { file: self, inner, hasher: Sha256::new(), len: 0 })
    }

    /// The whole file as text. An error names the file.
    pub fn text(&self) -> io::Result<String> {
        let mut text = String::with_capacity(usize::try_from(self.len).unwrap_or(0));
        match self.open().and_then(|mut reader| reader.read_to_string(&mut text)) {
            Ok(_) => Ok(text),
            Err(error) => {
                let message = format!("{}: {error}", self.path.display());
                Err(io::Error::new(error.kind(), message))
            }
        }
    }
}

impl Eq for SnapshotFile {}

impl PartialEq for SnapshotFile {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.sha256 == other.sha256
    }
}

/// Streams one file, and verifies at its end that it was the one in the snapshot.
#[derive(Debug)]
pub struct SnapshotReader<'a> {
    file: &'a SnapshotFile,
    inner: BufReader<File>,
    hasher: Sha256,
    len: u64,
}

impl SnapshotReader<'_> {
    fn torn(&self) -> io::Error {
        self.file.torn.store(true, Ordering::Relaxed);
        io::Error::other("the file changed while it was read")
    }

    fn is_whole(&self) -> bool {
        self.len == self.file.len && self.hasher.clone().finalize()[..] == self.file.sha256
    }
}

impl BufRead for SnapshotReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.inner.buffer().is_empty() {
            let fresh = self.inner.fill_buf()?;
            let (at_end, len) = (fresh.is_empty(), fresh.len() as u64);
            self.hasher.update(fresh);
            self.len += len;
            if self.len > self.file.len || (at_end && !self.is_whole()) {
                return Err(self.torn());
            }
        }
        Ok(self.inner.buffer())
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
    }
}

impl Read for SnapshotReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let amount = self.fill_buf()?.read(into)?;
        self.consume(amount);
        Ok(amount)
    }
}

/// An adapter by which `io::copy` feeds a hash.
struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
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
    use crate::live::scan::{FileFilter, PathKind, SizeLimits};
    use std::fs;

    fn snapshot(path: &Path) -> FileSnapshot {
        let kind = PathKind::FileOrFolder(FileFilter::Rules);
        FileSnapshot::read(&FileScan::of(path, kind, SizeLimits::RULES).unwrap()).unwrap()
    }

    #[test]
    fn a_snapshot_returns_the_contents_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.yaml");
        for text in [String::new(), "short".to_owned(), "long ".repeat(100_000)] {
            fs::write(&path, &text).unwrap();
            let snapshot = snapshot(&path);
            assert_eq!(snapshot.files()[0].text().unwrap(), text);
            assert!(!snapshot.is_torn());
        }
    }

    #[test]
    fn equal_contents_are_equal_however_they_were_written() {
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
        for (before, after) in [("abcd", "abXd"), ("abcd", "abc"), ("abcd", "abcde"), ("", "a"), ("a", "")] {
            fs::write(&path, before).unwrap();
            let snapshot = snapshot(&path);
            fs::write(&path, after).unwrap();
            let error = snapshot.files()[0].text().unwrap_err();
            assert!(error.to_string().ends_with("changed while it was read"), "{before} to {after}");
            assert!(snapshot.is_torn());
        }
        fs::write(&path, "gone").unwrap();
        let snapshot = snapshot(&path);
        fs::remove_file(&path).unwrap();
        assert!(snapshot.files()[0].text().is_err());
        assert!(snapshot.is_torn());
    }
}
