//! The file of a journal: a redb database with one record per counter, and one per refund that was made.
//!
//! Invariant: a completed [`JournalFile::write`] is on the disk as a whole. A file that is torn, damaged or not a
//! journal is rejected with its name and what to do, and never emptied. Knows bytes, not counters.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::backends::FileBackend;
use redb::{
    Builder, Database, DatabaseError, ReadableDatabase, ReadableTable, StorageBackend, Table, TableDefinition,
    TableError,
};
use tidegate_core::store::RunId;

/// Records by the name of their counter.
const COUNTS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tidegate counts");
/// The expiry of refunds, by their id.
const REFUNDS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("tidegate refunds");
/// Metadata of the file: its format under an empty name, [`RUN`] and [`SECRET`].
const ABOUT: TableDefinition<'_, &str, u64> = TableDefinition::new("tidegate journal");
/// Identifies the secret that names the counts.
const SECRET: &str = "secret";
/// Identifies the journal, drawn at its creation: receipts of its counts contain it.
const RUN: &str = "run";
/// The format of names and records.
const FORMAT: u64 = 1;
/// Cache of file pages. It is small because every counter is in memory already.
const CACHE_BYTES: usize = 16 << 20;

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalOpenError {
    /// Two processes would overwrite each other's counts.
    #[error("{}: another process has this journal open; give each process a folder of its own", .0.display())]
    InUse(PathBuf),
    /// The file is not a journal, or not intact.
    #[error(
        "{}: is damaged or no journal of counts ({why}); restore a good copy, or move it \
         away to begin with no counts", file.display()
    )]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The damage found.
        why: String,
    },
    /// The file was written by a later version.
    #[error(
        "{}: has format {found}, which this version cannot read; start the version that wrote it, or \
         move it away to begin with no counts", file.display()
    )]
    Format {
        /// The file.
        file: PathBuf,
        /// Its format.
        found: u64,
    },
    /// Another secret names the counts: none of them would be found.
    #[error(
        "{}: its counts are named by another secret than this node has; start with the secret they were \
         made with, or move the file away to begin with no counts", .0.display()
    )]
    OtherSecret(PathBuf),
    /// The operating system reported an error.
    #[error("{}: {source}; check that the folder can be written and has room", file.display())]
    System {
        /// The file.
        file: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// Opens the storage of a file: tests insert a full disk.
pub(super) trait StorageFactory: Send + 'static {
    type Backend: StorageBackend;

    fn open_backend(&self, file: File) -> Result<Self::Backend, DatabaseError>;
}

/// Plain file storage.
pub(super) struct FileStorage;

impl StorageFactory for FileStorage {
    type Backend = FileBackend;

    fn open_backend(&self, file: File) -> Result<FileBackend, DatabaseError> {
        FileBackend::new(file)
    }
}

/// One change: a name, and its new record or `None` to remove it.
pub(super) type JournalChange = (Vec<u8>, Option<Vec<u8>>);

/// An open journal.
pub(super) struct JournalFile {
    database: Database,
    run: RunId,
    /// Where the next expiry checks of counts and refunds begin.
    scan_positions: [Vec<u8>; 2],
}

/// Changes that are written in one step.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) counts: Vec<JournalChange>,
    pub(super) refunds: Vec<JournalChange>,
}

impl JournalFile {
    /// Opens the journal at `path`, or creates an empty one if there is no file.
    pub(super) fn open(path: &Path, medium: &impl StorageFactory) -> Result<Self, JournalOpenError> {
        match fs::metadata(path) {
            Ok(found) if found.len() == 0 => Err(damaged(path, "it is empty")),
            Ok(_) => Self::read(path, medium),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(path, medium),
            Err(source) => Err(system(path, source)),
        }
    }

    /// Creates a journal, which appears as a whole or not at all: an empty file is always a torn one.
    fn create(path: &Path, medium: &impl StorageFactory) -> Result<Self, JournalOpenError> {
        let unfinished = path.with_extension("new");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&unfinished)
            .map_err(|source| system(&unfinished, source))?;
        let begun = || -> Result<Self, redb::Error> {
            let database = builder().create_with_backend(medium.open_backend(file)?)?;
            let change = database.begin_write()?;
            change.open_table(ABOUT)?.insert("", FORMAT)?;
            change.open_table(COUNTS)?;
            change.commit()?;
            Self::from_database(database)
        };
        let journal = begun().map_err(|error| open_error(path, error))?;
        fs::rename(&unfinished, path).map_err(|source| system(path, source))?;
        let folder = path.parent().unwrap_or(Path::new("."));
        let synced = File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| system(path, source))?;
        Ok(journal)
    }

    fn read(path: &Path, medium: &impl StorageFactory) -> Result<Self, JournalOpenError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(|source| system(path, source))?;
        // redb may panic on a file with inconsistent metadata.
        let opened = catch_unwind(AssertUnwindSafe(|| {
            let mut database = builder().create_with_backend(medium.open_backend(file)?)?;
            database.check_integrity()?;
            Ok(database)
        }));
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(error)) => return Err(open_error(path, error)),
            Err(_) => return Err(damaged(path, "its metadata is inconsistent")),
        };
        match format_of(&database) {
            Ok(Some(FORMAT)) => Self::from_database(database).map_err(|error| open_error(path, error)),
            Ok(Some(found)) => Err(JournalOpenError::Format { file: path.to_owned(), found }),
            Ok(None) => Err(damaged(path, "another program wrote it")),
            Err(error) => Err(open_error(path, error)),
        }
    }

    /// A journal from its database. A database from before refunds were recorded has no run yet, and gets one.
    fn from_database(database: Database) -> Result<Self, redb::Error> {
        let change = database.begin_write()?;
        change.open_table(REFUNDS)?;
        let known = change.open_table(ABOUT)?.get(RUN)?.and_then(|bits| RunId::new(bits.value()));
        let run = match known {
            Some(run) => {
                change.abort()?;
                run
            }
            None => {
                let drawn = getrandom::u64().map_err(io::Error::other)? | 1;
                change.open_table(ABOUT)?.insert(RUN, drawn)?;
                change.commit()?;
                RunId::new(drawn).expect("an odd number is not zero")
            }
        };
        Ok(JournalFile { database, run, scan_positions: Default::default() })
    }

    /// The mark of the secret that names the counts; `None` in a file of an older version.
    pub(super) fn secret_mark(&self) -> Result<Option<u64>, redb::Error> {
        let reading = self.database.begin_read()?;
        let about = reading.open_table(ABOUT)?;
        Ok(about.get(SECRET)?.map(|mark| mark.value()))
    }

    pub(super) fn set_secret_mark(&mut self, mark: u64) -> Result<(), redb::Error> {
        let change = self.database.begin_write()?;
        change.open_table(ABOUT)?.insert(SECRET, mark)?;
        change.commit()?;
        Ok(())
    }

    /// The run of the journal, the same each time it is opened.
    pub(super) fn run(&self) -> RunId {
        self.run
    }

    /// Calls `found` with the name and record of every counter.
    pub(super) fn each(&self, found: impl FnMut(&[u8], &[u8])) -> Result<(), redb::Error> {
        self.each_of(COUNTS, found)
    }

    /// Calls `found` with the name and record of every refund.
    pub(super) fn each_refund(&self, found: impl FnMut(&[u8], &[u8])) -> Result<(), redb::Error> {
        self.each_of(REFUNDS, found)
    }

    fn each_of(
        &self,
        table: TableDefinition<'_, &[u8], &[u8]>,
        mut found: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), redb::Error> {
        let reading = self.database.begin_read()?;
        for entry in reading.open_table(table)?.iter()? {
            let (name, record) = entry?;
            found(name.value(), record.value());
        }
        Ok(())
    }

    /// Writes all changes in one step. Also checks up to `max_checks` other records of each table and drops those for
    /// which `is_expired` holds: the file stays small without ever being rewritten.
    pub(super) fn write(
        &mut self,
        batch: &Batch,
        max_checks: usize,
        is_expired: impl Fn(&[u8]) -> bool,
    ) -> Result<(), redb::Error> {
        let change = self.database.begin_write()?;
        let [counts, refunds] = &self.scan_positions;
        let positions = [
            apply(&mut change.open_table(COUNTS)?, &batch.counts, max_checks, counts, &is_expired)?,
            apply(&mut change.open_table(REFUNDS)?, &batch.refunds, max_checks, refunds, &is_expired)?,
        ];
        change.commit()?;
        self.scan_positions = positions;
        Ok(())
    }

    /// Frees the disk space of dropped records. Takes long; no request may wait for it.
    pub(super) fn compact(&mut self) -> Result<(), redb::Error> {
        self.database.compact()?;
        Ok(())
    }
}

fn format_of(database: &Database) -> Result<Option<u64>, redb::Error> {
    let reading = database.begin_read()?;
    match reading.open_table(ABOUT) {
        Ok(about) => Ok(about.get("")?.map(|format| format.value())),
        Err(TableError::TableDoesNotExist(_) | TableError::TableTypeMismatch { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Applies the changes, and checks up to `max_checks` records from `start` on. Returns where to continue the next time.
fn apply(
    table: &mut Table<'_, &'static [u8], &'static [u8]>,
    changes: &[JournalChange],
    max_checks: usize,
    start: &[u8],
    is_expired: impl Fn(&[u8]) -> bool,
) -> Result<Vec<u8>, redb::Error> {
    for (name, record) in changes {
        match record {
            Some(record) => table.insert(name.as_slice(), record.as_slice())?,
            None => table.remove(name.as_slice())?,
        };
    }
    let (mut dropped, mut last) = (Vec::new(), Vec::new());
    for entry in table.range(start..)?.take(max_checks) {
        let (name, record) = entry?;
        last = name.value().to_vec();
        if is_expired(record.value()) {
            dropped.push(last.clone());
        }
    }
    for name in dropped {
        table.remove(name.as_slice())?;
    }
    // The next name; after the last one, from the beginning.
    if !last.is_empty() {
        last.push(0);
    }
    Ok(last)
}

fn builder() -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn damaged(path: &Path, why: &str) -> JournalOpenError {
    JournalOpenError::Damaged { file: path.to_owned(), why: why.to_owned() }
}

fn system(path: &Path, source: io::Error) -> JournalOpenError {
    JournalOpenError::System { file: path.to_owned(), source }
}

/// Maps an error of redb to an error that names what to do.
fn open_error(path: &Path, error: redb::Error) -> JournalOpenError {
    match error {
        redb::Error::DatabaseAlreadyOpen => JournalOpenError::InUse(path.to_owned()),
        redb::Error::Io(source) => match source.kind() {
            io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidData => damaged(path, &source.to_string()),
            _ => system(path, source),
        },
        other => damaged(path, &other.to_string()),
    }
}
