//! The list of nodes on disk, so that a node that starts while its store is away knows its share.
//!
//! The node's own id stands there too and is used again: with a new one it would count its former self
//! as another node. Two processes of one folder would be one node that has two shares, so a lock lets
//! only one of them have the file. Read once at the start and written beside the decisions.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate_core::store::NodeId;

/// The first line: what this is, and in which form.
const TITLE: &str = "tidegate roster 1";

/// Who shares the store, as one of them knew it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MembershipList {
    /// The node that knew it. It is on the list.
    own_id: NodeId,
    /// All of them, in order.
    nodes: Vec<NodeId>,
}

/// A roster's place on disk, which no other process has meanwhile.
#[derive(Debug)]
pub(crate) struct MembershipFile {
    path: PathBuf,
    _lock: File,
}

/// Why the list cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MembershipFileError {
    #[error("{}: {source}", path.display())]
    System { path: PathBuf, source: io::Error },
    #[error("{}: another process has it; give each node a --data of its own", .0.display())]
    Locked(PathBuf),
    #[error("no randomness for the id of this node: {0}")]
    NoRandomness(getrandom::Error),
}

/// Text that is no roster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of nodes; it is written anew")]
pub(crate) struct MembershipParseError;

impl MembershipList {
    /// The list of `nodes` as `own_id` knows it.
    pub(crate) fn new(own_id: NodeId, nodes: &[NodeId]) -> Self {
        let mut nodes: Vec<NodeId> = nodes.iter().copied().chain([own_id]).collect();
        nodes.sort_unstable_by_key(|node| node.0);
        nodes.dedup();
        MembershipList { own_id, nodes }
    }

    pub(crate) fn own_id(&self) -> NodeId {
        self.own_id
    }

    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The title, this node, how many there are, and each.
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
    /// The roster of a folder that is there.
    pub(crate) fn lock(folder: &Path) -> Result<Self, MembershipFileError> {
        let lock_path = folder.join("roster.lock");
        let system = |source| MembershipFileError::System {
            path: lock_path.clone(),
            source,
        };
        let lock_file = File::create(&lock_path).map_err(system)?;
        match lock_file.try_lock() {
            Ok(()) => Ok(MembershipFile {
                path: folder.join("roster"),
                _lock: lock_file,
            }),
            Err(TryLockError::WouldBlock) => Err(MembershipFileError::Locked(lock_path)),
            Err(TryLockError::Error(source)) => Err(system(source)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was kept, if anything was.
    pub(crate) fn read(&self) -> io::Result<Option<MembershipList>> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let text = str::from_utf8(&text).ok();
        let membership = text.and_then(MembershipList::parse);
        membership
            .map(Some)
            .ok_or_else(|| io::Error::other(MembershipParseError))
    }

    /// Keeps it instead of the one before. Whoever reads meanwhile finds one of the two, whole.
    pub(crate) fn write(&self, membership: &MembershipList) -> io::Result<()> {
        let next = self.path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(membership.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(next, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn membership() -> MembershipList {
        MembershipList::new(NodeId(2), &[NodeId(u64::MAX), NodeId(1)])
    }

    #[test]
    fn what_is_kept_is_read_again_and_one_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let file = MembershipFile::lock(folder).unwrap();
        assert_eq!(file.read().unwrap(), None);
        file.write(&membership()).unwrap();
        assert_eq!(file.read().unwrap(), Some(membership()));
        assert!(matches!(
            MembershipFile::lock(folder),
            Err(MembershipFileError::Locked(_))
        ));
        drop(file);
        let again = MembershipFile::lock(folder).unwrap();
        assert_eq!(again.read().unwrap().unwrap().own_id(), NodeId(2));
    }

    #[test]
    fn the_node_itself_is_on_the_list_once() {
        let own_id = NodeId(1);
        let alone = MembershipList::new(own_id, &[]);
        assert_eq!(alone.nodes(), [own_id]);
        assert_eq!(MembershipList::new(own_id, &[own_id, own_id]), alone);
    }

    #[test]
    fn half_of_a_roster_is_none() {
        let text = membership().to_text();
        assert_eq!(MembershipList::parse(&text), Some(membership()));
        for end in 0..text.len() {
            assert_eq!(MembershipList::parse(&text[..end]), None, "{end}");
        }
        let stranger = text.replacen("0000000000000002", "0000000000000007", 1);
        assert_eq!(
            MembershipList::parse(&stranger),
            None,
            "it must list itself"
        );
        assert_eq!(
            MembershipList::parse(&text.replace("roster 1", "roster 2")),
            None
        );
    }
}
