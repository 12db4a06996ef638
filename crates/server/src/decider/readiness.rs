//! Whether this node is ready for requests, for both listeners that report it.

use http::StatusCode;
use serde_json::{Value, json};

use crate::decider::MissingConfigError;
use crate::net::ShutdownPhase;

/// Whether this node is ready for requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    Ready,
    /// The process is shutting down.
    Draining,
    /// No configuration is loaded yet.
    NoConfiguration(MissingConfigError),
}

impl Readiness {
    /// The readiness in this phase.
    pub(crate) fn of(phase: ShutdownPhase, configuration: Result<(), MissingConfigError>) -> Self {
        match (phase, configuration) {
            (ShutdownPhase::Draining | ShutdownPhase::Closing, _) => Readiness::Draining,
            (ShutdownPhase::Serving, Ok(())) => Readiness::Ready,
            (ShutdownPhase::Serving, Err(missing)) => Readiness::NoConfiguration(missing),
        }
    }

    pub(crate) fn status_code(self) -> StatusCode {
        match self {
            Readiness::Ready => StatusCode::OK,
            Readiness::Draining | Readiness::NoConfiguration(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn body(self) -> Value {
        match self {
            Readiness::Ready => json!({"status": "ready"}),
            Readiness::Draining => json!({"status": "draining"}),
            Readiness::NoConfiguration(missing) => {
                json!({"status": "no_configuration", "reason": missing.to_string()})
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_while_it_serves_and_has_a_configuration() {
        let missing = MissingConfigError::Files;
        let ready = Readiness::of(ShutdownPhase::Serving, Ok(()));
        assert_eq!((ready, ready.status_code().as_u16()), (Readiness::Ready, 200));
        let waiting = Readiness::of(ShutdownPhase::Serving, Err(missing));
        assert_eq!(waiting.status_code(), 503);
        assert_eq!(waiting.body()["reason"], missing.to_string());
        for phase in [ShutdownPhase::Draining, ShutdownPhase::Closing] {
            for configuration in [Ok(()), Err(missing)] {
                let leaving = Readiness::of(phase, configuration);
                assert_eq!((leaving, leaving.status_code().as_u16()), (Readiness::Draining, 503));
            }
        }
    }
}
