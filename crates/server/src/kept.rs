//! What a node that shares its store keeps in `--data` over a restart, and when it is written: the list of
//! nodes, the secret of the store, and the charges that are pending.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate::{Limiter, Secret};
use tidegate_core::store::NodeId;
use tracing::warn;

use crate::counters::{self, Counters};
use crate::data;
use crate::net::occasional::OccasionalLine;
use crate::pending::PendingFile;
use crate::roster::{NotKept, Roster, RosterFile};
use crate::service::Service;

/// How often to look whether the list of nodes is another. It is needed after the next start only.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How often pending charges are written.
const PENDING_EVERY: Duration = Duration::from_millis(90);

/// Who this node is, and whom it knew before it was started.
pub(crate) struct Kept {
    me: NodeId,
    /// The list from before. Without one it is not known how many nodes there are.
    known: Option<Roster>,
    file: Option<RosterFile>,
    pending: Option<Arc<PendingFile>>,
    /// The secret of the store, as this node last knew it.
    secret: Option<Secret>,
}

impl Kept {
    /// Of `folder`, if there is one; it has been made. A list that cannot be read counts as none.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self, NotKept> {
        let file = folder.map(hold).transpose()?.flatten();
        let known = file.as_ref().and_then(|file| {
            file.read().unwrap_or_else(|error| {
                let path = file.path().display();
                warn!(%path, %error, "the list of nodes from before cannot be read");
                None
            })
        });
        let own = folder.filter(|_| file.is_some());
        let secret = own.and_then(data::store_secret);
        let me = match &known {
            Some(known) => known.me(),
            None => NodeId(getrandom::u64().map_err(NotKept::NoRandomness)?),
        };
        Ok(Kept {
            me,
            known,
            file,
            pending: own.map(|folder| Arc::new(PendingFile::new(folder))),
            secret,
        })
    }

    /// The id of this node, the same as before if there was one.
    pub(crate) fn me(&self) -> NodeId {
        self.me
    }

    /// The secret of the store, if this node has met it before.
    pub(crate) fn secret(&self) -> Option<&Secret> {
        self.secret.as_ref()
    }

    /// Where pending charges are kept, if they are.
    pub(crate) fn pending(&self) -> Option<Arc<PendingFile>> {
        self.pending.clone()
    }

    /// Goes on with the charges that were pending when this node ended. A file that cannot be read is a
    /// warning and counts as none.
    pub(crate) fn restore(&self, limiter: &Limiter<Counters>) {
        let Some(file) = &self.pending else { return };
        match file.read() {
            Ok(pending) => counters::restore_pending(limiter, &pending),
            Err(error) => {
                let path = file.path().display();
                warn!(%path, %error, "the pending charges from before cannot be read");
            }
        }
    }

    /// The nodes as last known; none if that is not known.
    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        let known = self.known.as_ref();
        known.map_or_else(Vec::new, |known| known.nodes().to_vec())
    }

    /// Keeps the list of nodes from now on, beside everything else.
    pub(crate) fn follow(self, service: &Arc<Service>) {
        let Some(file) = self.file else { return };
        if let Some(pending) = self.pending {
            tokio::spawn(follow_pending(Arc::clone(service), pending));
        }
        let service = Arc::clone(service);
        tokio::spawn(follow(service, self.me, self.known, Arc::new(file)));
    }
}

/// The roster of a folder, unless another process has it.
fn hold(folder: &Path) -> Result<Option<RosterFile>, NotKept> {
    match RosterFile::hold(folder) {
        Err(taken @ NotKept::Taken(_)) => {
            warn!("{taken}; this node keeps nothing and counts as a new one");
            Ok(None)
        }
        held => held.map(Some),
    }
}

/// Writes what is pending every 100 ms while there is anything, and once more when there is nothing left. A
/// long list is written less often: no more than a tenth of the time is spent on it.
async fn follow_pending(service: Arc<Service>, file: Arc<PendingFile>) {
    // The file may hold charges from before a restart that are in the store by now.
    let (mut written, failed) = (None, OccasionalLine::new());
    loop {
        let began = Instant::now();
        let pending = counters::pending(&service.limiter);
        if Some(&pending) != written.as_ref() {
            let (writing, next) = (Arc::clone(&file), pending.clone());
            let done = tokio::task::spawn_blocking(move || writing.write(&next));
            match done.await.map_err(io::Error::other).flatten() {
                Ok(()) => written = Some(pending),
                Err(error) => {
                    if let Some(attempts) = failed.count() {
                        let path = file.path().display();
                        warn!(%path, %error, attempts, "pending charges cannot be kept");
                    }
                }
            }
        }
        tokio::time::sleep(PENDING_EVERY.max(10 * began.elapsed())).await;
    }
}

async fn follow(
    service: Arc<Service>,
    me: NodeId,
    mut kept: Option<Roster>,
    file: Arc<RosterFile>,
) {
    let mut tick = tokio::time::interval(LOOK_EVERY);
    loop {
        tick.tick().await;
        let nodes = counters::roster(&service.limiter);
        let now = Roster::new(me, &nodes);
        if nodes.is_empty() || kept.as_ref() == Some(&now) {
            continue;
        }
        let (writing, roster) = (Arc::clone(&file), now.clone());
        let written = tokio::task::spawn_blocking(move || writing.write(&roster));
        if let Ok(Err(error)) = written.await {
            let path = file.path().display();
            warn!(%path, %error, "the list of nodes cannot be kept");
        }
        // Also if it failed: it is tried again when there is news, not twice a second.
        kept = Some(now);
    }
}
