//! The target of a connection: a fixed address, or the primary that sentinels know.

use std::future::pending;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::access::{Access, RedisAddress};
use super::error::RedisStoreError;
use super::sentinel::{Sentinels, watch_primary};

/// The target of a connection.
#[derive(Clone)]
pub(super) enum ConnectTarget {
    /// One address.
    Fixed { address: RedisAddress, access: Access },
    /// The primary that sentinels know of.
    Sentinel(Arc<Sentinels>),
}

impl ConnectTarget {
    /// Rejects a configuration that could never connect, such as an invalid certificate.
    pub(super) fn check(&self) -> Result<(), RedisStoreError> {
        match self {
            ConnectTarget::Fixed { address, access } => access.client(address).map(drop),
            ConnectTarget::Sentinel(sentinels) => sentinels.check(),
        }
    }

    /// Resolves the address to connect to.
    pub(super) async fn find(&self) -> Result<RedisAddress, RedisStoreError> {
        match self {
            ConnectTarget::Fixed { address, .. } => Ok(address.clone()),
            ConnectTarget::Sentinel(sentinels) => sentinels.find().await,
        }
    }

    /// The credentials of the server.
    pub(super) fn access(&self) -> &Access {
        match self {
            ConnectTarget::Fixed { access, .. } => access,
            ConnectTarget::Sentinel(sentinels) => sentinels.servers(),
        }
    }

    /// Whether to use the server found at `address`. A server named by sentinels must report itself as a primary,
    /// and they must not have found another one in the meantime.
    pub(super) fn accepts(&self, address: &RedisAddress, is_primary: bool) -> bool {
        match self {
            ConnectTarget::Fixed { .. } => true,
            ConnectTarget::Sentinel(sentinels) => is_primary && sentinels.last_known().as_ref() == Some(address),
        }
    }

    /// The address that was resolved last.
    pub(super) fn last_known(&self) -> Option<RedisAddress> {
        match self {
            ConnectTarget::Fixed { address, .. } => Some(address.clone()),
            ConnectTarget::Sentinel(sentinels) => sentinels.last_known(),
        }
    }

    /// Completes when the address differs from this one. Cancel-safe.
    pub(super) async fn changed_from(&self, address: Option<&RedisAddress>) {
        match self {
            ConnectTarget::Fixed { .. } => pending().await,
            ConnectTarget::Sentinel(sentinels) => sentinels.changed_from(address).await,
        }
    }

    /// Spawns the task that watches for changes, if there can be any. Must be called within a tokio runtime.
    pub(super) fn spawn_watch(&self) -> Option<JoinHandle<()>> {
        match self {
            ConnectTarget::Fixed { .. } => None,
            ConnectTarget::Sentinel(sentinels) => Some(tokio::spawn(watch_primary(Arc::clone(sentinels)))),
        }
    }
}
