//! The listeners of a reference deployment. Unlike ours they are open to all by default. Only the admin port stays on
//! loopback, because our admin listener can change things.

use std::path::Path;

use super::env_values::EnvValues;
use crate::config::{ListenAddress, SettingsLayer};

const PORT_HINT: &str = "write a port between 0 and 65535";
const ANY_HOST: &str = "0.0.0.0";
const LOOPBACK_HOST: &str = "127.0.0.1";

/// The settings of the listeners.
pub(super) fn read(values: &mut EnvValues<'_>, admin_token_file: Option<&Path>) -> SettingsLayer {
    let grpc = address(values, "GRPC_HOST", ANY_HOST, "GRPC_PORT", 8081);
    let mut layer = SettingsLayer {
        http: Some(address(values, "HOST", ANY_HOST, "PORT", 8080)),
        grpc: Some(values.text("GRPC_UDS").map_or(grpc, |path| ListenAddress::Unix(path.into()))),
        admin: Some(admin(values, admin_token_file)),
        grpc_max_age: values.duration("GRPC_MAX_CONNECTION_AGE"),
        grpc_max_age_grace: values.duration("GRPC_MAX_CONNECTION_AGE_GRACE"),
        ..SettingsLayer::default()
    };
    read_metrics(values, &mut layer);
    read_tls(values, &mut layer);
    layer
}

fn read_metrics(values: &mut EnvValues<'_>, layer: &mut SettingsLayer) {
    let on = values.flag("USE_PROMETHEUS");
    let read = |text: &str| match text.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port| join(ANY_HOST, port)),
        // `--metrics` may be a port alone, `PROMETHEUS_ADDR` may not.
        None => text.contains(':').then(|| text.parse().ok()).flatten(),
    };
    let address = values.read("PROMETHEUS_ADDR", "write [HOST]:PORT", read);
    let path = values.text("PROMETHEUS_PATH");
    if on {
        layer.metrics = Some(address.unwrap_or_else(|| join(ANY_HOST, 9090)));
        layer.metrics_path = Some(path.unwrap_or_else(|| "/metrics".to_owned()));
    }
}

/// The debug port. The reference service opens it to all. Our admin pages need a token for that.
fn admin(values: &mut EnvValues<'_>, token_file: Option<&Path>) -> ListenAddress {
    if token_file.is_some() {
        return address(values, "DEBUG_HOST", ANY_HOST, "DEBUG_PORT", 6070);
    }
    let requested = address(values, "DEBUG_HOST", LOOPBACK_HOST, "DEBUG_PORT", 6070);
    if requested.is_local() {
        return requested;
    }
    values.warn(
        "DEBUG_HOST is not loopback, and --admin-token-file is not set: the admin port listens on 127.0.0.1 only",
    );
    let port = values.number("DEBUG_PORT", PORT_HINT).unwrap_or(6070);
    join(LOOPBACK_HOST, port)
}

fn address(
    values: &mut EnvValues<'_>,
    host: &'static str,
    usual_host: &str,
    port: &'static str,
    usual_port: u16,
) -> ListenAddress {
    let host = values.text(host).unwrap_or_else(|| usual_host.to_owned());
    let port = values.number(port, PORT_HINT).unwrap_or(usual_port);
    join(&host, port)
}

fn join(host: &str, port: u16) -> ListenAddress {
    if host.contains(':') && !host.starts_with('[') {
        ListenAddress::Tcp(format!("[{host}]:{port}"))
    } else {
        ListenAddress::Tcp(format!("{host}:{port}"))
    }
}

fn read_tls(values: &mut EnvValues<'_>, layer: &mut SettingsLayer) {
    let on = values.flag("GRPC_SERVER_USE_TLS");
    let mut text = |name| values.text(name).filter(|_| on);
    layer.grpc_cert = text("GRPC_SERVER_TLS_CERT").map(Into::into);
    layer.grpc_key = text("GRPC_SERVER_TLS_KEY").map(Into::into);
    layer.grpc_client_ca = text("GRPC_CLIENT_TLS_CACERT").map(Into::into);
    layer.grpc_client_san = text("GRPC_CLIENT_TLS_SAN").map(|name| vec![name]);
    if on && (layer.grpc_cert.is_none() || layer.grpc_key.is_none()) {
        values.reject(
            "GRPC_SERVER_USE_TLS",
            "is set without a certificate; set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY too",
        );
    }
}
