//! The list of nodes on disk. With it a node that starts during an outage of its store knows its share.
//!
//! The file also contains the node's own id, which is used again: with a new id the node would count its former
//! self as another node. A lock allows only one process per folder, because two processes would be one node with
//! two shares. The file is read once at the start and written outside of decisions.

use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use tidegate_core::store::NodeId;

use crate::state::data_dir::{self, FileSync};

/// The first line: file type and format version.
const TITLE: &str = "tidegate roster 1";

/// The nodes that share the store, as one of them knew it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MembershipList {
    /// The node that wrote the list. It is on the list.
    pub(super) own_id: NodeId,
    /// All nodes, sorted.
    pub(super) nodes: Vec<NodeId>,
}

/// The file with the list of nodes, locked by this process.
#[derive(Debug)]
pub(crate) struct MembershipFile {
    path: PathBuf,
    _lock: File,
}

/// Why the list cannot be stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembershipFileError {
    #[error("{}: {source}", path.display())]
    System { path: PathBuf, source: io::Error },
    #[error("{}: another process has it; give each node a --data-dir of its own", .0.display())]
    Locked(PathBuf),
    #[error("no randomness for the id of this node: {0}")]
    NoRandomness(getrandom::Error),
}

impl MembershipList {
    /// The list of `nodes` as `own_id` knows it.
    pub(crate) fn new(own_id: NodeId, nodes: &[NodeId]) -> Self {
        let mut nodes: Vec<NodeId> = nodes.iter().copied().chain([own_id]).collect();
        nodes.sort_unstable_by_key(|node| node.0);
        nodes.dedup();
        MembershipList { own_id, nodes }
    }

    /// The title, the own id, the number of nodes, and one line for each.
    fn to_text(&self) -> String {
        let head = format!("{TITLE}\n{:016x}\n{}\n", self.own_id.0, self.nodes.len());
        let nodes = self.nodes.iter().map(|node| format!("{:016x}\n", node.0));
        head + &nodes.collect::<String>()
    }

    fn parse(text: &str) -> Option<MembershipList> {
        let id = |line: &str| match line.len() {
            16 => u64::from_str_radix(line, 16).ok().map(NodeId),
            _ => None,
        };
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let has_title = lines.next()? == TITLE;
        let own_id = id(lines.next()?)?;
        let count: usize = lines.next()?.parse().ok()?;
        let nodes: Vec<NodeId> = lines.map(id).collect::<Option<_>>()?;
        let is_whole = has_title && nodes.len() == count && nodes.contains(&own_id);
        is_whole.then(|| MembershipList::new(own_id, &nodes))
    }
}

impl MembershipFile {
    /// Locks the file in `folder`, which exists.
    pub(crate) fn lock(folder: &Path) -> Result<Self, MembershipFileError> {
        let lock_path = folder.join("roster.lock");
        let system = |source| MembershipFileError::System { path: lock_path.clone(), source };
        let lock_file = File::create(&lock_path).map_err(system)?;
        match lock_file.try_lock() {
            Ok(()) => Ok(MembershipFile { path: folder.join("roster"), _lock: lock_file }),
            Err(TryLockError::WouldBlock) => Err(MembershipFileError::Locked(lock_path)),
            Err(TryLockError::Error(source)) => Err(system(source)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The stored list, if there is one.
    pub(crate) fn read(&self) -> io::Result<Option<MembershipList>> {
        data_dir::read_parsed(&self.path, MembershipList::parse, "not a list of nodes; it is written anew")
    }

    pub(crate) fn write(&self, membership: &MembershipList) -> io::Result<()> {
        data_dir::replace(&self.path, &membership.to_text(), FileSync::Full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> MembershipList {
        MembershipList::new(NodeId(2), &[NodeId(u64::MAX), NodeId(1)])
    }

    #[test]
    fn the_list_survives_a_round_trip_and_only_one_process_has_the_lock() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let file = MembershipFile::lock(folder).unwrap();
        assert_eq!(file.read().unwrap(), None);
        file.write(&membership()).unwrap();
        assert_eq!(file.read().unwrap(), Some(membership()));
        assert!(matches!(MembershipFile::lock(folder), Err(MembershipFileError::Locked(_))));
        drop(file);
        let again = MembershipFile::lock(folder).unwrap();
        assert_eq!(again.read().unwrap().unwrap().own_id, NodeId(2));
    }

    #[test]
    fn the_node_itself_is_on_the_list_once() {
        let own_id = NodeId(1);
        let alone = MembershipList::new(own_id, &[]);
        assert_eq!(alone.nodes, [own_id]);
        assert_eq!(MembershipList::new(own_id, &[own_id, own_id]), alone);
    }

    #[test]
    fn a_truncated_list_is_rejected() {
        let text = membership().to_text();
        assert_eq!(MembershipList::parse(&text), Some(membership()));
        for end in 0..text.len() {
            assert_eq!(MembershipList::parse(&text[..end]), None, "{end}");
        }
        let stranger = text.replacen("0000000000000002", "0000000000000007", 1);
        assert_eq!(MembershipList::parse(&stranger), None, "it must list itself");
        assert_eq!(MembershipList::parse(&text.replace("roster 1", "roster 2")), None);
    }
}
