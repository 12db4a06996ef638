//! Whether this node is ready for requests, for both listeners that report it.

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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_ready_while_it_serves_and_has_a_configuration() {
        let missing = MissingConfigError::Files;
        assert_eq!(Readiness::of(ShutdownPhase::Serving, Ok(())), Readiness::Ready);
        let waiting = Readiness::of(ShutdownPhase::Serving, Err(missing));
        assert_eq!(waiting, Readiness::NoConfiguration(missing));
        for phase in [ShutdownPhase::Draining, ShutdownPhase::Closing] {
            for configuration in [Ok(()), Err(missing)] {
                assert_eq!(Readiness::of(phase, configuration), Readiness::Draining);
            }
        }
    }
}
