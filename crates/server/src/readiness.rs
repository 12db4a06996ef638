//! Whether requests should be sent to this node, for both listeners that report it.

use http::StatusCode;
use serde_json::{Value, json};

use crate::drain::Phase;
use crate::first_config::MissingConfigError;

/// Whether requests should be sent here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Readiness {
    Ready,
    /// The process is about to end.
    Draining,
    /// There is nothing to decide by yet.
    NoConfiguration(MissingConfigError),
}

impl Readiness {
    /// Of a process in this phase.
    pub(crate) fn of(phase: Phase, configuration: Result<(), MissingConfigError>) -> Self {
        match (phase, configuration) {
            (Phase::Leaving | Phase::Closing, _) => Readiness::Draining,
            (Phase::Serving, Ok(())) => Readiness::Ready,
            (Phase::Serving, Err(missing)) => Readiness::NoConfiguration(missing),
        }
    }

    /// The status of the response.
    pub(crate) fn code(self) -> StatusCode {
        match self {
            Readiness::Ready => StatusCode::OK,
            Readiness::Draining | Readiness::NoConfiguration(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The body of the response.
    pub(crate) fn page(self) -> Value {
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
        let ready = Readiness::of(Phase::Serving, Ok(()));
        assert_eq!((ready, ready.code().as_u16()), (Readiness::Ready, 200));
        let waiting = Readiness::of(Phase::Serving, Err(missing));
        assert_eq!(waiting.code(), 503);
        assert_eq!(waiting.page()["reason"], missing.to_string());
        for phase in [Phase::Leaving, Phase::Closing] {
            for configuration in [Ok(()), Err(missing)] {
                let leaving = Readiness::of(phase, configuration);
                assert_eq!(
                    (leaving, leaving.code().as_u16()),
                    (Readiness::Draining, 503)
                );
            }
        }
    }
}
