//! How the Envoy protocol is answered, where the reference service can be told to answer otherwise.

use std::time::Duration;

use tidegate_core::envoy::DescriptorOptions;

/// The choices there are. The default is ours.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct EnvoyOptions {
    /// In what manner descriptors are decided.
    pub(crate) descriptor_options: DescriptorOptions,
    /// Which headers Envoy is asked to put on its answer.
    pub(crate) headers: LimitHeaders,
    /// Whether what was asked, and the metadata of what passed, is told as dynamic metadata.
    pub(crate) dynamic_metadata: bool,
    /// Above which part of a limit a hit counts as near it; statistics under the names of the
    /// reference are kept only if this is given.
    pub(crate) near_ratio: Option<f64>,
    /// How long a call without a deadline of its own waits for the store; as long as others if nothing.
    pub(crate) default_wait: Option<Duration>,
    /// Whether health waits for a configuration that names a domain.
    pub(crate) healthy_when_configured: bool,
}

/// Headers for the client.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum LimitHeaders {
    /// Those of every other edge: the `RateLimit` family and `Retry-After`.
    #[default]
    Standard,
    /// None.
    Off,
    /// The three of the reference.
    Reference(Box<ReferenceHeaderNames>),
}

/// The names of the reference's three headers, as they are to be written.
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
