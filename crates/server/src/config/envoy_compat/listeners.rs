//! The listeners of a reference deployment. Unlike ours they are open to all by default. Only the admin port stays on
//! loopback, because our admin listener can change things.

use std::path::PathBuf;
use std::time::Duration;

use super::AdminToken;
use super::env_values::EnvValues;
use crate::config::listen_address::ListenAddress;

const PORT_HINT: &str = "write a port between 0 and 65535";
const ANY_HOST: &str = "0.0.0.0";
const LOOPBACK_HOST: &str = "127.0.0.1";

/// Addresses, and the TLS settings of the gRPC listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct CompatListeners {
    pub(crate) http: ListenAddress,
    pub(crate) admin: ListenAddress,
    pub(crate) grpc: ListenAddress,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_age_grace: Option<Duration>,
    pub(crate) tls: Option<GrpcTls>,
    /// The address and path of the metrics page, if it is enabled.
    pub(crate) metrics: Option<(ListenAddress, String)>,
}

/// TLS of the gRPC port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct GrpcTls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The authorities of client certificates.
    pub(crate) client_ca: Option<PathBuf>,
    /// The name that a client certificate must have.
    pub(crate) client_san: Option<String>,
}

pub(super) fn read(values: &mut EnvValues<'_>, token: AdminToken) -> CompatListeners {
    let http = address(values, "HOST", ANY_HOST, "PORT", 8080);
    let grpc = address(values, "GRPC_HOST", ANY_HOST, "GRPC_PORT", 8081);
    let grpc = match values.text("GRPC_UDS") {
        Some(path) => ListenAddress::Unix(path.into()),
        None => grpc,
    };
    CompatListeners {
        http,
        grpc,
        admin: admin(values, token),
        max_age: values.duration("GRPC_MAX_CONNECTION_AGE"),
        max_age_grace: values.duration("GRPC_MAX_CONNECTION_AGE_GRACE"),
        tls: tls(values),
        metrics: metrics(values),
    }
}

fn metrics(values: &mut EnvValues<'_>) -> Option<(ListenAddress, String)> {
    let on = values.flag("USE_PROMETHEUS");
    let read = |text: &str| match text.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port| join(ANY_HOST, port)),
        // `--metrics` may be a port alone, `PROMETHEUS_ADDR` may not.
        None => text.contains(':').then(|| text.parse().ok()).flatten(),
    };
    let address = values.read("PROMETHEUS_ADDR", "write [HOST]:PORT", read);
    let path = values.text("PROMETHEUS_PATH");
    on.then(|| {
        let address = address.unwrap_or_else(|| join(ANY_HOST, 9090));
        (address, path.unwrap_or_else(|| "/metrics".to_owned()))
    })
}

/// The debug port. The reference service opens it to all. Our admin pages need a token for that.
fn admin(values: &mut EnvValues<'_>, token: AdminToken) -> ListenAddress {
    if token == AdminToken::Given {
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

fn tls(values: &mut EnvValues<'_>) -> Option<GrpcTls> {
    let on = values.flag("GRPC_SERVER_USE_TLS");
    let certificate = values.text("GRPC_SERVER_TLS_CERT");
    let key = values.text("GRPC_SERVER_TLS_KEY");
    let client_ca = values.text("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from);
    let client_san = values.text("GRPC_CLIENT_TLS_SAN");
    if !on {
        return None;
    }
    let (Some(certificate), Some(key)) = (certificate, key) else {
        values.reject(
            "GRPC_SERVER_USE_TLS",
            "is set without a certificate; set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY too",
        );
        return None;
    };
    Some(GrpcTls { certificate: certificate.into(), key: key.into(), client_ca, client_san })
}
