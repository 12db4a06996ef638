//! Whether this node is ready for requests, as the page that both listeners have.

use http::StatusCode;
use serde_json::{Value, json};

use crate::decider::readiness::Readiness;

/// The status and the JSON body of the page.
pub(crate) fn page(readiness: Readiness) -> (StatusCode, Value) {
    match readiness {
        Readiness::Ready => (StatusCode::OK, json!({"status": "ready"})),
        Readiness::Draining => (StatusCode::SERVICE_UNAVAILABLE, json!({"status": "draining"})),
        Readiness::NoConfiguration(missing) => {
            let body = json!({"status": "no_configuration", "reason": missing.to_string()});
            (StatusCode::SERVICE_UNAVAILABLE, body)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decider::MissingConfigError;

    #[test]
    fn only_a_ready_node_responds_with_200() {
        let missing = MissingConfigError::Files;
        let (status, body) = page(Readiness::NoConfiguration(missing));
        assert_eq!((status.as_u16(), &body["reason"]), (503, &missing.to_string().into()));
        assert_eq!(page(Readiness::Draining).0, 503);
        assert_eq!(page(Readiness::Ready).0, 200);
    }
}
