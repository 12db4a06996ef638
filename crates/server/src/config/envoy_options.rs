//! Options of the Envoy edge, which correspond to settings of the reference service.

use std::time::Duration;

use tidegate_rules::envoy::DescriptorOptions;

/// How long a call without a deadline waits for the store. Envoy gives up after 20 ms unless it is configured
/// otherwise.
pub(crate) const DEFAULT_WAIT: Duration = Duration::from_millis(15);

/// How many descriptors a request may have by default: more than any usual route describes.
const DEFAULT_MAX_DESCRIPTORS: usize = 16;
/// How many descriptors the settings can allow a request.
pub(super) const MAX_DESCRIPTORS: usize = 256;

/// The options. The defaults are Tidegate's own.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct EnvoyOptions {
    /// Maximum descriptors of a request.
    pub(crate) max_descriptors: usize,
    /// How descriptors are decided.
    pub(crate) descriptor_options: DescriptorOptions,
    /// The headers that Envoy adds to its response.
    pub(crate) headers: LimitHeaders,
    /// Whether the response carries the request, and the metadata of passed descriptors, as dynamic metadata.
    pub(crate) dynamic_metadata: bool,
    /// The fraction of a limit above which a hit counts as near it. Statistics under the names of the reference service
    /// exist only if this is set.
    pub(crate) near_ratio: Option<f64>,
    /// How long a call without a deadline of its own waits for the store. `None`: as long as on other edges.
    pub(crate) default_wait: Option<Duration>,
    /// Whether health requires a configuration with a domain.
    pub(crate) healthy_when_configured: bool,
}

impl Default for EnvoyOptions {
    fn default() -> Self {
        EnvoyOptions {
            max_descriptors: DEFAULT_MAX_DESCRIPTORS,
            descriptor_options: DescriptorOptions::default(),
            headers: LimitHeaders::default(),
            dynamic_metadata: false,
            near_ratio: None,
            default_wait: None,
            healthy_when_configured: false,
        }
    }
}

/// Headers for the client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum LimitHeaders {
    /// The headers of every other edge: the `RateLimit` family and `Retry-After`.
    #[default]
    Standard,
    /// None.
    Off,
    /// The three headers of the reference service.
    Reference(Box<ReferenceHeaderNames>),
}

/// The configured names of the three headers of the reference service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ReferenceHeaderNames {
    pub(crate) limit: String,
    pub(crate) remaining: String,
    /// Seconds to the end of the window.
    pub(crate) reset: String,
}

impl Default for ReferenceHeaderNames {
    fn default() -> Self {
        ReferenceHeaderNames {
            limit: "RateLimit-Limit".to_owned(),
            remaining: "RateLimit-Remaining".to_owned(),
            reset: "RateLimit-Reset".to_owned(),
        }
    }
}
