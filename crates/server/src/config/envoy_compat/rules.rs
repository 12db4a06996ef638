//! The rules of a reference deployment: a folder, or a control plane.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderName, HeaderValue};

use super::env_values::EnvValues;
use crate::config::control_plane::Backoff;
use crate::config::{ControlPlane, SettingsLayer, XdsNodeInfo, XdsTlsFiles};

/// The settings of the rules, and whether files whose names begin with a dot are read.
pub(super) fn read(values: &mut EnvValues<'_>, layer: &mut SettingsLayer) -> bool {
    let (folder, plane) = (folder(values), control_plane(values));
    match (values.text("CONFIG_TYPE").as_deref(), plane) {
        (Some("GRPC_XDS_SOTW"), Some(plane)) => layer.xds = Some(plane),
        (kind, _) => {
            layer.rules = Some(folder);
            if !matches!(kind, None | Some("FILE" | "GRPC_XDS_SOTW")) {
                values.reject("CONFIG_TYPE", "is unknown; write FILE or GRPC_XDS_SOTW");
            }
        }
    }
    layer.merge_domains = Some(values.flag("MERGE_DOMAIN_CONFIG"));
    !values.flag("RUNTIME_IGNOREDOTFILES")
}

fn folder(values: &mut EnvValues<'_>) -> PathBuf {
    let mut text = |name, usual: &str| values.text(name).unwrap_or_else(|| usual.to_owned());
    let root = text("RUNTIME_ROOT", "/srv/runtime_data/current");
    // Without a leading slash, so that the path stays inside the root.
    let within = |part: String| part.trim_start_matches('/').to_owned();
    PathBuf::from(root)
        .join(within(text("RUNTIME_SUBDIRECTORY", "")))
        .join(within(text("RUNTIME_APPDIRECTORY", "config")))
}

fn control_plane(values: &mut EnvValues<'_>) -> Option<ControlPlane> {
    let authority = values.text("CONFIG_GRPC_XDS_SERVER_URL");
    let plane = ControlPlane::at(authority.as_deref().unwrap_or("localhost:18000"));
    if plane.is_none() {
        values.reject("CONFIG_GRPC_XDS_SERVER_URL", "is not an address; write HOST:PORT");
    }
    let (node, headers, tls) = (node(values), headers(values), tls(values));
    let backoff = Backoff {
        first: values.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL").unwrap_or(Duration::from_secs(10)),
        max: values.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL").unwrap_or(Duration::from_secs(60)),
    };
    let bytes = values.number("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "write a number of bytes");
    let mut plane = ControlPlane { node, headers, tls, backoff, ..plane? };
    if let Some(bytes) = bytes.filter(|bytes| *bytes > 0) {
        plane.set_max_message_bytes(bytes);
    }
    Some(plane)
}

/// The node identity. Metadata is `NAME=VALUE,NAME=VALUE`. Invalid pairs are left out, as in the reference service.
fn node(values: &mut EnvValues<'_>) -> XdsNodeInfo {
    let id = values.text("CONFIG_GRPC_XDS_NODE_ID");
    let metadata = values.text("CONFIG_GRPC_XDS_NODE_METADATA").unwrap_or_default();
    let pairs = metadata.split(',').filter_map(|pair| pair.split_once('='));
    XdsNodeInfo {
        id: id.unwrap_or_else(|| "default".to_owned()),
        metadata: pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
    }
}

/// `NAME:VALUE,NAME:VALUE`. A value may be a token, so values are never repeated.
fn headers(values: &mut EnvValues<'_>) -> Vec<(HeaderName, HeaderValue)> {
    const NAME: &str = "CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS";
    let text = values.text(NAME).unwrap_or_default();
    let pairs = text.split(',').filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (name, value) = pair.split_once(':')?;
        let mut value = HeaderValue::from_str(value.trim()).ok()?;
        value.set_sensitive(true);
        Some((name.trim().parse().ok()?, value))
    };
    match pairs.map(read).collect() {
        Some(headers) => headers,
        None => {
            values.reject(NAME, "are not valid headers; write NAME:VALUE,NAME:VALUE");
            Vec::new()
        }
    }
}

fn tls(values: &mut EnvValues<'_>) -> Option<XdsTlsFiles> {
    let on = values.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS");
    let mut file = |name| values.text(name).map(PathBuf::from);
    let authorities = file("CONFIG_GRPC_XDS_SERVER_TLS_CACERT");
    let certificate = file("CONFIG_GRPC_XDS_CLIENT_TLS_CERT");
    let key = file("CONFIG_GRPC_XDS_CLIENT_TLS_KEY");
    let name = values.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN");
    if !on {
        return None;
    }
    let client_certificate = match (certificate, key) {
        (None, None) => None,
        (Some(certificate), Some(key)) => Some((certificate, key)),
        _ => {
            values.reject(
                "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
                "and CONFIG_GRPC_XDS_CLIENT_TLS_KEY belong together; set both, or neither",
            );
            None
        }
    };
    Some(XdsTlsFiles { authorities, client_certificate, name })
}
