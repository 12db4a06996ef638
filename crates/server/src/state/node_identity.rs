//! The files in `--data-dir` that a node with a shared store needs after a restart, and when they are written: the list
//! of nodes, the secret of the store, and pending charges.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Secret;
use tidegate_core::store::NodeId;
use tracing::warn;

use crate::logging::RateLimitedLog;
use crate::state::local_admissions_file::LocalAdmissionsFile;
use crate::state::membership_file::{MembershipFile, MembershipFileError, MembershipList};
use crate::state::{ServerLimiter, data_dir};

/// How often to check whether the list of nodes has changed. It is needed only after the next start.
const MEMBERSHIP_POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum time after a failed write of the list of nodes until the next attempt.
const MAX_MEMBERSHIP_RETRY: Duration = Duration::from_secs(10);
/// Pause between two writes of pending charges: a node that is killed forgets what it admitted since the last one. A short
/// list takes far less time to write.
const PENDING_WRITE_INTERVAL: Duration = Duration::from_millis(10);
/// The same per line of a long list: ten times what a line takes to write. It is not measured at run time, because on a
/// busy machine or a slow disk a short list would then be written seldom.
const PENDING_WRITE_INTERVAL_PER_LINE: Duration = Duration::from_micros(5);

/// The identity of this node, and the nodes it knew before the restart.
pub(crate) struct NodeIdentity {
    /// The same as before the restart if it had one.
    pub(crate) id: NodeId,
    /// The list from before the restart. Without it the number of nodes is unknown.
    last_membership: Option<MembershipList>,
    membership_file: Option<MembershipFile>,
    pub(crate) local_admissions_file: Option<Arc<LocalAdmissionsFile>>,
    /// The secret of the store, if this node has joined it before.
    pub(crate) store_secret: Option<Secret>,
}

impl NodeIdentity {
    /// Opens the identity in `folder`, which exists, or a new one without a folder. A list that cannot be read
    /// counts as none.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self, MembershipFileError> {
        let membership_file = folder.map(lock_membership_file).transpose()?.flatten();
        let last_membership = membership_file.as_ref().and_then(|file| {
            file.read().unwrap_or_else(|error| {
                let path = file.path().display();
                warn!(%path, %error, "the list of nodes from before cannot be read");
                None
            })
        });
        let owned_folder = folder.filter(|_| membership_file.is_some());
        let secret = owned_folder.and_then(data_dir::load_store_secret);
        let id = match &last_membership {
            Some(known) => known.own_id,
            None => NodeId(getrandom::u64().map_err(MembershipFileError::NoRandomness)?),
        };
        Ok(NodeIdentity {
            id,
            last_membership,
            membership_file,
            local_admissions_file: owned_folder.map(|folder| Arc::new(LocalAdmissionsFile::new(folder))),
            store_secret: secret,
        })
    }

    /// Restores what this node had admitted without the store when it ended. A file that cannot be read is a warning
    /// and counts as none.
    pub(crate) fn restore_local_admissions(&self, limiter: &ServerLimiter) {
        let (Some(file), Some(shared)) = (&self.local_admissions_file, limiter.store().shared()) else {
            return;
        };
        match file.read() {
            Ok(admissions) => shared.restore_local_admissions(limiter, &admissions),
            Err(error) => {
                let path = file.path().display();
                warn!(%path, %error, "the pending charges from before cannot be read");
            }
        }
    }

    /// The last known nodes, or none if they are not known.
    pub(crate) fn last_nodes(&self) -> Vec<NodeId> {
        let known = self.last_membership.as_ref();
        known.map_or_else(Vec::new, |known| known.nodes.clone())
    }

    /// Starts the tasks that write the list of nodes and pending charges from now on.
    pub(crate) fn spawn_persistence(self, limiter: &Arc<ServerLimiter>) {
        if let (Some(file), Some(pending)) = (self.membership_file, self.local_admissions_file) {
            tokio::spawn(persist_pending(Arc::clone(limiter), pending));
            tokio::spawn(persist_membership(Arc::clone(limiter), self.id, self.last_membership, Arc::new(file)));
        }
    }
}

/// The membership file of a folder, unless another process has locked it.
fn lock_membership_file(folder: &Path) -> Result<Option<MembershipFile>, MembershipFileError> {
    match MembershipFile::lock(folder) {
        Err(taken @ MembershipFileError::Locked(_)) => {
            warn!("{taken}; this node saves nothing and counts as a new one");
            Ok(None)
        }
        locked => locked.map(Some),
    }
}

/// Writes what this node has admitted without the store, when it ends. Waits for the write of [`persist_pending`].
pub(crate) fn write_pending(limiter: &ServerLimiter, file: &LocalAdmissionsFile) {
    if let (_, Err(error)) = write_current(limiter, file) {
        let path = file.path().display();
        warn!(%path, %error, "pending charges cannot be written");
    }
}

/// Writes what this node has admitted without the store. Returns the number of lines, too.
fn write_current(limiter: &ServerLimiter, file: &LocalAdmissionsFile) -> (usize, io::Result<()>) {
    let Some(shared) = limiter.store().shared() else { return (0, Ok(())) };
    let mut lines = 0;
    let result = file.write(|| {
        let admissions = shared.store.local_admissions();
        lines = admissions.units.len() + admissions.permits.len();
        admissions
    });
    (lines, result)
}

/// Writes what this node admits without the store about every 10 ms while it changes. That it drains with time is no
/// change. A long list is written less often, so that writing takes about a tenth of the time.
async fn persist_pending(limiter: Arc<ServerLimiter>, file: Arc<LocalAdmissionsFile>) {
    let Some(shared) = limiter.store().shared() else {
        return;
    };
    // The file may hold charges from before a restart that are in the store by now.
    let (mut written, failed) = (None, RateLimitedLog::new());
    loop {
        let mut interval = PENDING_WRITE_INTERVAL;
        // Read before the list, so that a later change is written next time.
        let changes = shared.store.admission_changes();
        if written != Some(changes) {
            let (writing, writer) = (Arc::clone(&file), Arc::clone(&limiter));
            let write = tokio::task::spawn_blocking(move || write_current(&writer, &writing));
            let (lines, result) = write.await.unwrap_or_else(|error| (0, Err(io::Error::other(error))));
            let lines = u32::try_from(lines).unwrap_or(u32::MAX);
            interval = interval.max(PENDING_WRITE_INTERVAL_PER_LINE.saturating_mul(lines));
            match result {
                Ok(()) => written = Some(changes),
                Err(error) => {
                    if let Some(attempts) = failed.count() {
                        let path = file.path().display();
                        warn!(%path, %error, attempts, "pending charges cannot be written");
                    }
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

async fn persist_membership(
    limiter: Arc<ServerLimiter>,
    id: NodeId,
    last_written: Option<MembershipList>,
    file: Arc<MembershipFile>,
) {
    if let Some(shared) = limiter.store().shared() {
        write_changed_lists(id, last_written, file, || shared.store.members()).await;
    }
}

/// Writes the list of nodes whenever it has changed. After a failure it tries again, at first soon: a restart needs the
/// list that holds now.
async fn write_changed_lists(
    id: NodeId,
    mut last_written: Option<MembershipList>,
    file: Arc<MembershipFile>,
    members: impl Fn() -> Vec<NodeId>,
) {
    let mut interval = MEMBERSHIP_POLL_INTERVAL;
    loop {
        let nodes = members();
        let now = MembershipList::new(id, &nodes);
        if nodes.is_empty() || last_written.as_ref() == Some(&now) {
            interval = MEMBERSHIP_POLL_INTERVAL;
        } else {
            let (writing, membership) = (Arc::clone(&file), now.clone());
            let written = tokio::task::spawn_blocking(move || writing.write(&membership));
            match written.await.unwrap_or_else(|error| Err(io::Error::other(error))) {
                Ok(()) => {
                    last_written = Some(now);
                    interval = MEMBERSHIP_POLL_INTERVAL;
                }
                Err(error) => {
                    let path = file.path().display();
                    warn!(%path, %error, "the list of nodes cannot be written");
                    interval = (2 * interval).min(MAX_MEMBERSHIP_RETRY);
                }
            }
        }
        tokio::time::sleep(interval).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of before stayed until the next change, and a node that started in an outage took too large a share.
    #[tokio::test(start_paused = true)]
    async fn a_list_of_nodes_that_could_not_be_written_is_written_later() {
        let dir = tempfile::tempdir().unwrap();
        let file = Arc::new(MembershipFile::lock(dir.path()).unwrap());
        let in_the_way = dir.path().join("roster.next");
        std::fs::create_dir(&in_the_way).unwrap();
        let members = || vec![NodeId(2), NodeId(3)];
        let task = tokio::spawn(write_changed_lists(NodeId(1), None, Arc::clone(&file), members));
        tokio::time::sleep(2 * MAX_MEMBERSHIP_RETRY).await;
        assert_eq!(file.read().unwrap(), None);
        std::fs::remove_dir(&in_the_way).unwrap();
        tokio::time::sleep(2 * MAX_MEMBERSHIP_RETRY).await;
        assert_eq!(file.read().unwrap(), Some(MembershipList::new(NodeId(1), &members())));
        task.abort();
    }
}
