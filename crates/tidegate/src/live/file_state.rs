//! The state of a watched file or folder: in force, or why not.

use std::path::PathBuf;

/// Whether the contents on disk are in force.
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum FileState {
    /// The contents on disk are in force.
    Current,
    /// The contents on disk cannot be used; the last loaded contents, if any, stay in force.
    Stale(FileError),
}

/// Why the contents on disk cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum FileError {
    /// The path does not exist.
    #[error("{}: does not exist; check the path, or restore it", path.display())]
    NotFound {
        /// The missing path.
        path: PathBuf,
    },
    /// A folder without a file to read: more likely unmounted than intended.
    #[error("{}: contains no rules file; add one, such as limits.yaml", path.display())]
    EmptyFolder {
        /// The folder.
        path: PathBuf,
    },
    /// The operating system does not allow reading it.
    #[error("{}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system.
        reason: String,
    },
    /// A pipe, a device, or a folder where a file is needed.
    #[error("{}: is not a regular file; give the path of one", path.display())]
    NotAFile {
        /// The path found.
        path: PathBuf,
    },
    /// A folder too deep below the one that is read.
    #[error("{}: is too many levels below the folder that is read; move it up", path.display())]
    TooDeep {
        /// The folder.
        path: PathBuf,
    },
    /// Too large.
    #[error("{}: brings the size to {bytes} bytes, more than the maximum of {max_bytes}; make it smaller or split it", path.display())]
    TooLarge {
        /// The file that is too large, or that makes its folder too large.
        path: PathBuf,
        /// The size including this file.
        bytes: u64,
        /// The maximum size.
        max_bytes: u64,
    },
    /// The file changes during every read.
    #[error("{}: changes while it is read; write a new file and rename it over this one", path.display())]
    Changing {
        /// The watched path.
        path: PathBuf,
    },
    /// The contents are complete, but the loader rejected them.
    #[error("{reason}")]
    Rejected {
        /// The error of the loader.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both are also reported at the start, when there is no last good version that could stay in force.
    #[test]
    fn the_message_for_a_missing_path_promises_no_last_good_version() {
        let path = PathBuf::from("rules");
        for error in [FileError::NotFound { path: path.clone() }, FileError::EmptyFolder { path }] {
            let message = error.to_string();
            assert!(message.starts_with("rules: ") && message.contains("; "), "{message}");
            assert!(!message.contains("in force"), "{message}");
        }
    }
}
