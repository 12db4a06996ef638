//! Where a reference deployment listens. Unlike ours its doors are open to all by default; only the
//! admin port stays closed to others, because ours can do more than show.

use std::path::PathBuf;
use std::time::Duration;

use super::AdminToken;
use super::values::Values;
use crate::address::Address;

const PORT: &str = "write a port between 0 and 65535";
const EVERYWHERE: &str = "0.0.0.0";
const HERE: &str = "127.0.0.1";

/// Addresses, and what holds for the gRPC one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listeners {
    pub(crate) http: Address,
    pub(crate) admin: Address,
    pub(crate) grpc: Address,
    pub(crate) max_age: Option<Duration>,
    pub(crate) max_age_grace: Option<Duration>,
    pub(crate) tls: Option<Tls>,
    /// Where scrapers come, and for which page, if they do.
    pub(crate) metrics: Option<(Address, String)>,
}

/// How the gRPC port is encrypted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tls {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    /// The authorities that clients must have a certificate of.
    pub(crate) client_ca: Option<PathBuf>,
    /// The name it must bear.
    pub(crate) client_san: Option<String>,
}

pub(super) fn read(values: &mut Values<'_>, token: AdminToken) -> Listeners {
    let http = address(values, "HOST", EVERYWHERE, "PORT", 8080);
    let grpc = address(values, "GRPC_HOST", EVERYWHERE, "GRPC_PORT", 8081);
    let grpc = match values.text("GRPC_UDS") {
        Some(path) => Address::Unix(path.into()),
        None => grpc,
    };
    Listeners {
        http,
        grpc,
        admin: admin(values, token),
        max_age: values.span("GRPC_MAX_CONNECTION_AGE"),
        max_age_grace: values.span("GRPC_MAX_CONNECTION_AGE_GRACE"),
        tls: tls(values),
        metrics: metrics(values),
    }
}

fn metrics(values: &mut Values<'_>) -> Option<(Address, String)> {
    let on = values.flag("USE_PROMETHEUS");
    let read = |text: &str| match text.strip_prefix(':') {
        Some(port) => port.parse().ok().map(|port| join(EVERYWHERE, port)),
        // Ours may be a port alone, theirs is not.
        None => text.contains(':').then(|| text.parse().ok()).flatten(),
    };
    let address = values.read("PROMETHEUS_ADDR", "write [HOST]:PORT", read);
    let path = values.text("PROMETHEUS_PATH");
    on.then(|| {
        let address = address.unwrap_or_else(|| join(EVERYWHERE, 9090));
        (address, path.unwrap_or_else(|| "/metrics".to_owned()))
    })
}

/// The debug port. The reference opens it to all; with our admin pages that takes a token.
fn admin(values: &mut Values<'_>, token: AdminToken) -> Address {
    if token == AdminToken::Given {
        return address(values, "DEBUG_HOST", EVERYWHERE, "DEBUG_PORT", 6070);
    }
    let asked = address(values, "DEBUG_HOST", HERE, "DEBUG_PORT", 6070);
    if asked.is_local() {
        return asked;
    }
    values.warn(
        "DEBUG_HOST is beyond loopback, and there is no --admin-token-file: the admin port listens at 127.0.0.1 only",
    );
    let port = values.number("DEBUG_PORT", PORT).unwrap_or(6070);
    join(HERE, port)
}

fn address(
    values: &mut Values<'_>,
    host: &'static str,
    usual_host: &str,
    port: &'static str,
    usual_port: u16,
) -> Address {
    let host = values.text(host).unwrap_or_else(|| usual_host.to_owned());
    let port = values.number(port, PORT).unwrap_or(usual_port);
    join(&host, port)
}

fn join(host: &str, port: u16) -> Address {
    match host.contains(':') && !host.starts_with('[') {
        true => Address::Tcp(format!("[{host}]:{port}")),
        false => Address::Tcp(format!("{host}:{port}")),
    }
}

fn tls(values: &mut Values<'_>) -> Option<Tls> {
    let on = values.flag("GRPC_SERVER_USE_TLS");
    let certificate = values.text("GRPC_SERVER_TLS_CERT");
    let key = values.text("GRPC_SERVER_TLS_KEY");
    let client_ca = values.text("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from);
    let client_san = values.text("GRPC_CLIENT_TLS_SAN");
    if !on {
        return None;
    }
    let (Some(certificate), Some(key)) = (certificate, key) else {
        values.fault(
            "GRPC_SERVER_USE_TLS",
            "is set without a certificate; set GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY too",
        );
        return None;
    };
    Some(Tls {
        certificate: certificate.into(),
        key: key.into(),
        client_ca,
        client_san,
    })
}
