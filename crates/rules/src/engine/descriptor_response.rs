//! The response to a described request: one decision, and a status for each of its descriptors.

use smallvec::SmallVec;

use super::Decision;
use crate::envoy::Status;

/// The response to a described request.
#[derive(Clone, Debug)]
pub struct DescriptorResponse<'r> {
    /// Whether the caller must deny it.
    pub over_limit: bool,
    /// The decision on the whole request, native rules included.
    pub decision: Decision,
    /// Whether its descriptors would have denied it without shadow mode for all.
    pub shadow_denied: bool,
    /// Whether any file names its domain.
    pub domain_known: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
}
