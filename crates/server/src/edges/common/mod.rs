//! What several edges share: attributes in normal form, JSON bodies, the error responses of HTTP, the page about
//! readiness, the line about rejected requests, secrets of clients.

pub(crate) mod api_error;
mod attributes;
pub(crate) mod check_body;
pub(crate) mod json;
pub(crate) mod readiness_page;
mod rejection_log;
pub(crate) mod secret_digest;

pub(crate) use attributes::{AttributeBuilder, check_name, digest_key};
pub(crate) use rejection_log::RejectionLog;
