//! Which way a connection takes: to a place that never changes, or to the primary, wherever it is.

use std::future::pending;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::access::{Access, RedisAddress};
use super::error::RedisStoreError;
use super::sentinel::{Sentinels, watch_primary};

/// Where connections are made to.
#[derive(Clone)]
pub(super) enum ConnectTarget {
    /// One place.
    Fixed {
        address: RedisAddress,
        access: Access,
    },
    /// The primary that sentinels know of.
    Sentinel(Arc<Sentinels>),
}

impl ConnectTarget {
    /// Refuses what could never be connected to, such as a certificate that is no certificate.
    pub(super) fn check(&self) -> Result<(), RedisStoreError> {
        match self {
            ConnectTarget::Fixed { address, access } => access.client(address).map(drop),
            ConnectTarget::Sentinel(sentinels) => sentinels.check(),
        }
    }

    /// The place to connect to.
    pub(super) async fn find(&self) -> Result<RedisAddress, RedisStoreError> {
        match self {
            ConnectTarget::Fixed { address, .. } => Ok(address.clone()),
            ConnectTarget::Sentinel(sentinels) => sentinels.find().await,
        }
    }

    /// How the server there is entered.
    pub(super) fn access(&self) -> &Access {
        match self {
            ConnectTarget::Fixed { access, .. } => access,
            ConnectTarget::Sentinel(sentinels) => sentinels.servers(),
        }
    }

    /// Whether the server that was found at `address` will do. One that sentinels told of must call itself
    /// a primary, and they must not have found another in the meantime.
    pub(super) fn accepts(&self, address: &RedisAddress, is_primary: bool) -> bool {
        match self {
            ConnectTarget::Fixed { .. } => true,
            ConnectTarget::Sentinel(sentinels) => {
                is_primary && sentinels.last_known().as_ref() == Some(address)
            }
        }
    }

    /// The place that was found last.
    pub(super) fn last_known(&self) -> Option<RedisAddress> {
        match self {
            ConnectTarget::Fixed { address, .. } => Some(address.clone()),
            ConnectTarget::Sentinel(sentinels) => sentinels.last_known(),
        }
    }

    /// Done when another place is known than this one. Cancel-safe.
    pub(super) async fn changed_from(&self, address: Option<&RedisAddress>) {
        match self {
            ConnectTarget::Fixed { .. } => pending().await,
            ConnectTarget::Sentinel(sentinels) => sentinels.changed_from(address).await,
        }
    }

    /// The task that finds out about changes, if there can be any. Must be called within a tokio runtime.
    pub(super) fn spawn_watch(&self) -> Option<JoinHandle<()>> {
        match self {
            ConnectTarget::Fixed { .. } => None,
            ConnectTarget::Sentinel(sentinels) => {
                Some(tokio::spawn(watch_primary(Arc::clone(sentinels))))
            }
        }
    }
}
