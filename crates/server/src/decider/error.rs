//! Why a request gets no decision, for all edges.

use tidegate::{AcquireError, RefundError, SettleError, TicketError};
use tidegate_core::store::{FailureCause, StoreError};
use tracing::warn;

use super::first_config::MissingConfigError;
use crate::logging::RateLimitedLog;

/// The line about requests that get an error because the store did not reply. Any client can cause thousands of them
/// during an outage, so one line every 10 s counts them and names the last cause.
static UNANSWERED_LOG: RateLimitedLog = RateLimitedLog::new();

/// Why a request gets no decision.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DecideError {
    /// No configuration is loaded yet.
    #[error(transparent)]
    NoConfiguration(#[from] MissingConfigError),
    /// The request is invalid under the rules or for this deployment.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The store did not reply. The cause is in the log.
    #[error("the store did not reply")]
    Store(#[source] StoreError),
    /// An internal error. It is in the log.
    #[error("internal error; see the log")]
    Internal,
}

/// An invalid request.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct InputError {
    /// The position: `cost`, `attributes.ip`, `[3].costs.tokens`. Empty for the request as a whole.
    pub(crate) field: String,
    /// Why it is invalid.
    pub(crate) reason: String,
}

impl InputError {
    pub(crate) fn new(field: impl Into<String>, reason: impl Into<String>) -> Self {
        InputError { field: field.into(), reason: reason.into() }
    }

    /// The error with its field inside `outer`.
    pub(crate) fn inside(self, outer: &str) -> Self {
        InputError { field: format!("{outer}.{}", self.field), ..self }
    }
}

/// Logs that a request got an error, with its cause.
pub(super) fn log_store_error(error: &StoreError) {
    if let Some(times) = UNANSWERED_LOG.count() {
        let cause = FailureCause::of(error);
        warn!(times, %cause, "store gave no reply");
    }
}

impl From<StoreError> for DecideError {
    /// Logs the cause.
    fn from(error: StoreError) -> Self {
        log_store_error(&error);
        DecideError::Store(error)
    }
}

impl From<TicketError> for DecideError {
    fn from(error: TicketError) -> Self {
        InputError::new("permit", error.to_string()).into()
    }
}

impl From<AcquireError> for DecideError {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Ticket(error) => error.into(),
            AcquireError::Store(error) => error.into(),
            AcquireError::NoRandomness(error) => {
                tracing::error!(%error, "cannot create a permit without randomness");
                DecideError::Internal
            }
        }
    }
}

impl From<RefundError> for DecideError {
    fn from(error: RefundError) -> Self {
        match error {
            RefundError::Receipt(error) => InputError::new("receipt", error.to_string()).into(),
            RefundError::Store(error) => error.into(),
        }
    }
}

impl From<SettleError> for DecideError {
    fn from(error: SettleError) -> Self {
        let field = match &error {
            SettleError::NotReserved { unit } => format!("costs.{unit}"),
            _ => "reservation".to_owned(),
        };
        match error {
            SettleError::Store(error) => error.into(),
            invalid => InputError::new(field, invalid.to_string()).into(),
        }
    }
}
