//! What several edges share: attributes in normal form, JSON bodies, the error responses of HTTP, the page about readiness,
//! secrets of clients.

pub(crate) mod api_error;
mod attributes;
pub(crate) mod check_body;
pub(crate) mod json;
pub(crate) mod readiness_page;
pub(crate) mod secret_digest;

pub(crate) use attributes::{AttributeBuilder, check_name, digest_key};
