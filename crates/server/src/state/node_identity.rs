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
    mut last_written: Option<MembershipList>,
    file: Arc<MembershipFile>,
) {
    let Some(shared) = limiter.store().shared() else {
        return;
    };
    let mut tick = tokio::time::interval(MEMBERSHIP_POLL_INTERVAL);
    loop {
        tick.tick().await;
        let nodes = shared.store.members();
        let now = MembershipList::new(id, &nodes);
        if nodes.is_empty() || last_written.as_ref() == Some(&now) {
            continue;
        }
        let (writing, membership) = (Arc::clone(&file), now.clone());
        let written = tokio::task::spawn_blocking(move || writing.write(&membership));
        if let Ok(Err(error)) = written.await {
            let path = file.path().display();
            warn!(%path, %error, "the list of nodes cannot be written");
        }
        // Also after a failure: the next attempt is at the next change, not twice a second.
        last_written = Some(now);
    }
}
