//! How a watched file or folder stands: in force, or why not.

use std::path::PathBuf;

/// Whether what is on disk is what is in force.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FileState {
    /// What is on disk was taken.
    Current,
    /// What is on disk cannot be used; what was taken last, if anything, stays in force.
    Stale(FileError),
}

/// Why what is on disk cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FileError {
    /// Not there.
    #[error("{}: is not there; check the path, or put it back", path.display())]
    NotFound {
        /// What is missing.
        path: PathBuf,
    },
    /// A folder without a file to read: more likely unmounted than meant.
    #[error("{}: holds no rules file; put one there, such as limits.yaml", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The system does not let us read it.
    #[error("{}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A pipe, a device, or a folder where a file is needed.
    #[error("{}: is not a regular file; give the path of one", path.display())]
    NotAFile {
        /// What was found there.
        path: PathBuf,
    },
    /// A folder far below the one that is read.
    #[error("{}: is too many folders below the one that is read; move it up", path.display())]
    TooDeep {
        /// The folder.
        path: PathBuf,
    },
    /// Larger than is read.
    #[error("{}: brings the size to {bytes} bytes, more than the {most} that are read; make it smaller or split it", path.display())]
    TooLarge {
        /// The file that is too large, or with which a folder becomes so.
        path: PathBuf,
        /// The size reached with it.
        bytes: u64,
        /// The most that is read.
        most: u64,
    },
    /// Written to whenever it is read.
    #[error("{}: changes while it is read; write a new file and rename it over this one", path.display())]
    Changing {
        /// The watched path.
        path: PathBuf,
    },
    /// Complete, but the loader did not take it.
    #[error("{reason}")]
    Rejected {
        /// What the loader said.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are also reported at the start, when there is no last good version that could stay in force.
    #[test]
    fn what_is_missing_promises_no_last_good_version() {
        let path = PathBuf::from("rules");
        for error in [
            FileError::NotFound { path: path.clone() },
            FileError::EmptyFolder { path },
        ] {
            let message = error.to_string();
            assert!(
                message.starts_with("rules: ") && message.contains("; "),
                "{message}"
            );
            assert!(!message.contains("in force"), "{message}");
        }
    }
}
