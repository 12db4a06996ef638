//! The listeners of the service, as a table. All are opened before the first one serves, so that a port in use is an
//! error of the start.

use std::fmt;
use std::io::Write;
use std::sync::Arc;

use tidegate::observe::{Metrics, process};
use tidegate_rules::request::Edge;
use tracing::info;

use super::public_listener::PublicListener;
use super::start::ServeError;
use crate::config::{EndpointAddress, ListenAddress, ServerSettings};
use crate::decider::Decider;
use crate::edges::admin::access::AdminAccess;
use crate::edges::admin::metrics_listener::MetricsListener;
use crate::edges::admin::serve::{AdminListener, RenderMetrics};
use crate::edges::envoy::serve::{EnvoyEdge, EnvoyListener};
use crate::edges::resp::serve::{RespListener, RespPassword};
use crate::net::listener::SMALL_CONNECTIONS;
use crate::net::{
    ConnectionHandler, ConnectionLimits, Listener, ListenerLimits, ListenerShutdown, ListenerTls, ShutdownHandle,
    WhenFull,
};
use crate::policy::watcher::{BUILT_IN_RULES, PolicyWatcher};

/// File descriptors reserved for everything that is not a connection.
const RESERVED_FDS: u64 = 64;

/// What the listeners need besides the settings. All of it has been checked.
pub(super) struct ListenerParts {
    pub(super) decider: Arc<Decider>,
    pub(super) metrics: Arc<Metrics>,
    pub(super) policy_watcher: Arc<PolicyWatcher>,
    pub(super) access: AdminAccess,
    pub(super) password: Option<RespPassword>,
    pub(super) tls: Option<Arc<ListenerTls>>,
}

/// Which listener it is. Its name is in the log and in error messages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListenerName {
    Http,
    Grpc,
    Resp,
    Admin,
    Metrics,
}

impl fmt::Display for ListenerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ListenerName::Http => "http",
            ListenerName::Grpc => "grpc",
            ListenerName::Resp => "resp",
            ListenerName::Admin => "admin",
            ListenerName::Metrics => "metrics",
        })
    }
}

/// A row of the table: a listener, and how it serves.
struct ListenerRow<'s> {
    name: ListenerName,
    address: &'s ListenAddress,
    serve: Box<dyn FnOnce(Listener) + Send + 's>,
}

/// Opens all listeners, and serves at them until the shutdown.
pub(super) async fn serve_all(
    settings: &ServerSettings,
    parts: ListenerParts,
    shutdown: &ShutdownHandle,
) -> Result<(), ServeError> {
    parts.tls.iter().for_each(ListenerTls::watch_files);
    let mut opened = Vec::new();
    for row in table(settings, parts, shutdown) {
        let listener = match row.name {
            ListenerName::Admin => Listener::open_private(row.address).await,
            ListenerName::Http | ListenerName::Grpc | ListenerName::Resp | ListenerName::Metrics => {
                Listener::open(row.address).await
            }
        };
        let listener = listener.map_err(|error| {
            ServeError::System(format!("cannot listen for {} at {}: {error}", row.name, row.address))
        })?;
        opened.extend(listener.map(|listener| (row, listener)));
    }
    for (row, listener) in opened {
        let address = listener.local_address();
        let tls = (row.name == ListenerName::Grpc).then_some(settings.grpc_tls.is_some());
        info!(edge = %row.name, %address, tls, "listening");
        if row.name == ListenerName::Http && settings.rules.path.is_none() && settings.rules.xds.is_none() {
            print_welcome(&address);
        }
        (row.serve)(listener);
    }
    Ok(())
}

fn table<'s>(settings: &'s ServerSettings, parts: ListenerParts, shutdown: &'s ShutdownHandle) -> Vec<ListenerRow<'s>> {
    let ListenerParts { decider, metrics, policy_watcher, access, password, tls } = parts;
    let limits = ListenerLimits {
        connections: max_connections(settings),
        per_peer: settings.max_connections_per_peer,
        connection_limits: ConnectionLimits { idle: settings.idle_timeout, age: None, first_request: None },
        when_full: WhenFull::RejectNew,
    };
    let aged = ListenerLimits {
        connection_limits: ConnectionLimits { age: settings.grpc_age, ..limits.connection_limits },
        ..limits
    };
    let small = limits.for_small_listener();
    let envoy = Arc::new(EnvoyEdge::new(Arc::clone(&decider), settings.envoy.clone()));
    let render: RenderMetrics = Arc::new({
        let (decider, envoy) = (Arc::clone(&decider), Arc::clone(&envoy));
        move || decider.expose_metrics() + &envoy.expose_statistics()
    });
    let path = settings.metrics_path.as_str().into();
    let scraped = MetricsListener { decider: Arc::clone(&decider), metrics: Arc::clone(&render), path };
    let admin = AdminListener { decider: Arc::clone(&decider), metrics: render, policy_watcher, access };
    let public = PublicListener::new(&decider, &envoy);
    let resp = RespListener::new(Arc::clone(&decider), password, settings.capabilities().precision);
    let shared = (&metrics, shutdown);
    vec![
        row(shared, ListenerName::Http, &settings.http, public, limits, None),
        row(shared, ListenerName::Grpc, &settings.grpc, EnvoyListener(envoy), aged, tls),
        row(shared, ListenerName::Resp, &settings.resp, resp, limits, None),
        row(shared, ListenerName::Admin, &settings.admin, admin, small, None),
        row(shared, ListenerName::Metrics, &settings.metrics, scraped, small, None),
    ]
}

/// A row. All rows share the metrics and the shutdown.
fn row<'s>(
    (metrics, shutdown): (&Arc<Metrics>, &'s ShutdownHandle),
    name: ListenerName,
    address: &'s ListenAddress,
    handler: impl ConnectionHandler,
    limits: ListenerLimits,
    tls: Option<Arc<ListenerTls>>,
) -> ListenerRow<'s> {
    let metrics = Arc::clone(metrics);
    let serve = move |listener: Listener| {
        let shutdown = ListenerShutdown { phase: shutdown.subscribe(), in_flight: shutdown.in_flight_guard() };
        tokio::spawn(listener.serve(handler, limits, shutdown, metrics, tls));
    };
    ListenerRow { name, address, serve: Box::new(serve) }
}

/// The edges whose listeners are enabled.
pub(super) fn enabled_edges(settings: &ServerSettings) -> Vec<Edge> {
    let edges = [
        (Edge::Http, &settings.http),
        (Edge::Auth, &settings.http),
        (Edge::Envoy, &settings.grpc),
        (Edge::Resp, &settings.resp),
    ];
    let on = edges.into_iter().filter(|(_, address)| **address != ListenAddress::Off);
    on.map(|(edge, _)| edge).collect()
}

/// The configured maximum for each listener, but never so many that the last file descriptor is a connection.
fn max_connections(settings: &ServerSettings) -> usize {
    let on = |addresses: &[&ListenAddress]| {
        let on = addresses.iter().filter(|address| ***address != ListenAddress::Off);
        on.count() as u64
    };
    let listeners = on(&[&settings.http, &settings.grpc, &settings.resp]);
    let reserved_connections = on(&[&settings.admin, &settings.metrics]) * SMALL_CONNECTIONS as u64;
    let max = process::max_fds().map_or(u64::MAX, |files| files - (RESERVED_FDS + reserved_connections).min(files / 2));
    let max = (max / listeners.max(1)).max(1);
    settings.max_connections.min(usize::try_from(max).unwrap_or(usize::MAX))
}

/// Help for a first start without any settings.
fn print_welcome(listener_address: &EndpointAddress) {
    let EndpointAddress::Tcp(address) = listener_address else {
        return;
    };
    let mut out = std::io::stdout();
    let _ = write!(
        out,
        "\nNo --rules given, so these run:\n\n{}\nSend this six times and read the response:\n\n  \
         curl -i http://{address}/v1/check -d '{{\"attributes\": {{\"ip\": \"203.0.113.9\", \"path\": \"/login\"}}}}'\n\n\
         and see what is left, without spending it:\n\n  \
         curl -s http://{address}/v1/peek -d '{{\"attributes\": {{\"ip\": \"203.0.113.9\", \"path\": \"/login\"}}}}'\n\n",
        BUILT_IN_RULES
    );
}
