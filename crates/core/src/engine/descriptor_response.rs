//! What a described request is told: one decision, and a word about each of its descriptors.

use smallvec::SmallVec;

use super::Decision;
use crate::envoy::Status;

/// The answer to a described request.
#[derive(Clone, Debug)]
pub struct DescriptorResponse<'r> {
    /// Whether it is to be refused: what the caller acts on.
    pub over_limit: bool,
    /// What became of the request as a whole, native rules included.
    pub decision: Decision,
    /// Whether it would have been denied by its descriptors, if not all of them only watched.
    pub shadow_denied: bool,
    /// Whether any file names its domain.
    pub domain_known: bool,
    /// One for each descriptor, in order.
    pub statuses: SmallVec<[Status<'r>; 4]>,
}
