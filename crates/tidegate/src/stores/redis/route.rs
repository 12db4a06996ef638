//! Which way a connection takes: to a place that never changes, or to the primary, wherever it is.

use std::future::pending;
use std::sync::Arc;

use tokio::task::JoinHandle;

use super::access::{Access, Place};
use super::fault::Fault;
use super::sentinel::{Sentinels, look_out};

/// Where connections are made to.
#[derive(Clone)]
pub(super) enum Route {
    /// One place.
    Fixed { at: Place, access: Access },
    /// The primary that sentinels know of.
    Led(Arc<Sentinels>),
}

impl Route {
    /// Refuses what could never be connected to, such as a certificate that is no certificate.
    pub(super) fn check(&self) -> Result<(), Fault> {
        match self {
            Route::Fixed { at, access } => access.client(at).map(drop),
            Route::Led(sentinels) => sentinels.check(),
        }
    }

    /// The place to connect to.
    pub(super) async fn find(&self) -> Result<Place, Fault> {
        match self {
            Route::Fixed { at, .. } => Ok(at.clone()),
            Route::Led(sentinels) => sentinels.find().await,
        }
    }

    /// How the server there is entered.
    pub(super) fn access(&self) -> &Access {
        match self {
            Route::Fixed { access, .. } => access,
            Route::Led(sentinels) => sentinels.servers(),
        }
    }

    /// Whether the server that was found at `place` will do. One that sentinels told of must call itself
    /// a primary, and they must not have found another in the meantime.
    pub(super) fn accepts(&self, place: &Place, is_primary: bool) -> bool {
        match self {
            Route::Fixed { .. } => true,
            Route::Led(sentinels) => is_primary && sentinels.known().as_ref() == Some(place),
        }
    }

    /// The place that was found last.
    pub(super) fn known(&self) -> Option<Place> {
        match self {
            Route::Fixed { at, .. } => Some(at.clone()),
            Route::Led(sentinels) => sentinels.known(),
        }
    }

    /// Done when another place is known than this one. Cancel-safe.
    pub(super) async fn left(&self, place: Option<&Place>) {
        match self {
            Route::Fixed { .. } => pending().await,
            Route::Led(sentinels) => sentinels.left(place).await,
        }
    }

    /// The task that finds out about changes, if there can be any. Must be called within a tokio runtime.
    pub(super) fn lookout(&self) -> Option<JoinHandle<()>> {
        match self {
            Route::Fixed { .. } => None,
            Route::Led(sentinels) => Some(tokio::spawn(look_out(Arc::clone(sentinels)))),
        }
    }
}
