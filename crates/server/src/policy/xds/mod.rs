//! Limits from a control plane: the state-of-the-world variant of Envoy's aggregated discovery service.
//!
//! [`subscription`](mod@subscription) keeps one stream to the control plane open and applies the resources that it
//! sends, by the same checks and the same path as files: all or nothing, and the last good configuration stays active.
//! Applied resources are acknowledged, and rejected ones are reported with every error. `client` has the stream, `wire`
//! the messages. Does not know how a limit is found or counted.

mod client;
mod resource;
mod subscription;
#[cfg(test)]
mod tests {
    mod mutations;
}
mod tls;
mod wire;

pub(crate) use resource::decode_domains;
pub(crate) use subscription::{ApplyResources, XdsEvent, XdsSubscription};
