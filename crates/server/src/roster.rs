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
pub(crate) struct Roster {
    /// The node that knew it. It is on the list.
    me: NodeId,
    /// All of them, in order.
    nodes: Vec<NodeId>,
}

/// A roster's place on disk, which no other process has meanwhile.
#[derive(Debug)]
pub(crate) struct RosterFile {
    path: PathBuf,
    _held: File,
}

/// Why the list cannot be kept.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotKept {
    #[error("{}: {source}", path.display())]
    System { path: PathBuf, source: io::Error },
    #[error("{}: another process has it; give each node a --data of its own", .0.display())]
    Taken(PathBuf),
    #[error("no randomness for the id of this node: {0}")]
    NoRandomness(getrandom::Error),
}

/// Text that is no roster.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a list of nodes; it is written anew")]
pub(crate) struct Garbled;

impl Roster {
    /// The list of `nodes` as `me` knows it.
    pub(crate) fn new(me: NodeId, nodes: &[NodeId]) -> Self {
        let mut nodes: Vec<NodeId> = nodes.iter().copied().chain([me]).collect();
        nodes.sort_unstable_by_key(|node| node.0);
        nodes.dedup();
        Roster { me, nodes }
    }

    pub(crate) fn me(&self) -> NodeId {
        self.me
    }

    pub(crate) fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// The title, this node, how many there are, and each.
    fn text(&self) -> String {
        let head = format!("{TITLE}\n{:016x}\n{}\n", self.me.0, self.nodes.len());
        let nodes = self.nodes.iter().map(|node| format!("{:016x}\n", node.0));
        head + &nodes.collect::<String>()
    }

    fn read(text: &str) -> Option<Roster> {
        let id = |line: &str| match line.len() {
            16 => u64::from_str_radix(line, 16).ok().map(NodeId),
            _ => None,
        };
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let titled = lines.next()? == TITLE;
        let me = id(lines.next()?)?;
        let count: usize = lines.next()?.parse().ok()?;
        let nodes: Vec<NodeId> = lines.map(id).collect::<Option<_>>()?;
        let whole = titled && nodes.len() == count && nodes.contains(&me);
        whole.then(|| Roster::new(me, &nodes))
    }
}

impl RosterFile {
    /// The roster of a folder that is there.
    pub(crate) fn hold(folder: &Path) -> Result<Self, NotKept> {
        let lock = folder.join("roster.lock");
        let system = |source| NotKept::System {
            path: lock.clone(),
            source,
        };
        let held = File::create(&lock).map_err(system)?;
        match held.try_lock() {
            Ok(()) => Ok(RosterFile {
                path: folder.join("roster"),
                _held: held,
            }),
            Err(TryLockError::WouldBlock) => Err(NotKept::Taken(lock)),
            Err(TryLockError::Error(source)) => Err(system(source)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What was kept, if anything was.
    pub(crate) fn read(&self) -> io::Result<Option<Roster>> {
        let text = match fs::read(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read?,
        };
        let text = str::from_utf8(&text).ok();
        let roster = text.and_then(Roster::read);
        roster.map(Some).ok_or_else(|| io::Error::other(Garbled))
    }

    /// Keeps it instead of the one before. Whoever reads meanwhile finds one of the two, whole.
    pub(crate) fn write(&self, roster: &Roster) -> io::Result<()> {
        let next = self.path.with_extension("next");
        let mut file = File::create(&next)?;
        file.write_all(roster.text().as_bytes())?;
        file.sync_all()?;
        fs::rename(next, &self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roster() -> Roster {
        Roster::new(NodeId(2), &[NodeId(u64::MAX), NodeId(1)])
    }

    #[test]
    fn what_is_kept_is_read_again_and_one_process_has_it() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path();
        let file = RosterFile::hold(folder).unwrap();
        assert_eq!(file.read().unwrap(), None);
        file.write(&roster()).unwrap();
        assert_eq!(file.read().unwrap(), Some(roster()));
        assert!(matches!(RosterFile::hold(folder), Err(NotKept::Taken(_))));
        drop(file);
        let again = RosterFile::hold(folder).unwrap();
        assert_eq!(again.read().unwrap().unwrap().me(), NodeId(2));
    }

    #[test]
    fn the_node_itself_is_on_the_list_once() {
        let me = NodeId(1);
        let alone = Roster::new(me, &[]);
        assert_eq!(alone.nodes(), [me]);
        assert_eq!(Roster::new(me, &[me, me]), alone);
    }

    #[test]
    fn half_of_a_roster_is_none() {
        let text = roster().text();
        assert_eq!(Roster::read(&text), Some(roster()));
        for end in 0..text.len() {
            assert_eq!(Roster::read(&text[..end]), None, "{end}");
        }
        let stranger = text.replacen("0000000000000002", "0000000000000007", 1);
        assert_eq!(Roster::read(&stranger), None, "it must list itself");
        assert_eq!(Roster::read(&text.replace("roster 1", "roster 2")), None);
    }
}
