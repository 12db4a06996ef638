//! The gRPC health check: whether clients should continue to send calls.
//!
//! The empty name is the process, which is healthy as long as it responds. `ratelimit` is the service, which is
//! unhealthy while the process shuts down or waits for its configuration.

use super::error::EnvoyError;
use crate::protobuf::{ProtobufFields, ProtobufWriter, for_each_field};

const SERVING: u64 = 1;
const NOT_SERVING: u64 = 2;

/// Handles a `HealthCheckRequest` and writes the response to `out`.
pub(super) fn check(message: &[u8], healthy: bool, out: &mut Vec<u8>) -> Result<(), EnvoyError> {
    let mut service = "";
    for_each_field!(ProtobufFields::of(message), field: { 1 => service = field.text()?, });
    let status = match (service, healthy) {
        ("", _) | ("ratelimit", true) => SERVING,
        ("ratelimit", false) => NOT_SERVING,
        _ => return Err(EnvoyError::UnknownService),
    };
    ProtobufWriter::to(out).uint(1, status);
    Ok(())
}
