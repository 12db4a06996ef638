//! `tidegate serve`: builds the service, runs it, and shuts it down.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tidegate::clock::SystemClock;
use tidegate::http::ResetStyle;
use tidegate::observe::{Metrics, process};
use tidegate::runtime::TokioRuntime;
use tidegate::{Limiter, Secret, resilience};
use tidegate_rules::request::Edge;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{Exit, ServeArgs, print_error, warnings};
use crate::app::shutdown::{ShutdownHandle, ShutdownOutcome, Signals, run_until_shutdown};
use crate::config::envoy_compat::{AdminToken, EnvoyCompat, HeaderOverride};
use crate::config::listen_address::{EndpointAddress, ListenAddress};
use crate::config::store_choice::StoreChoice;
use crate::config::{ConfigError, ResetFormat, ServerSettings, SettingsLayer};
use crate::edges::admin::access::AdminAccess;
use crate::edges::admin::metrics_listener::MetricsListener;
use crate::edges::admin::serve::AdminListener;
use crate::edges::envoy::EnvoyStatistics;
use crate::edges::envoy::serve::EnvoyListener;
use crate::edges::http::serve::PublicListener;
use crate::edges::resp::serve::{RespListener, RespPassword};
use crate::logging::decision_ids::DecisionIds;
use crate::logging::init;
use crate::logging::writer;
use crate::net::listener::{Listener, ListenerLimits, ListenerShutdown, SMALL_CONNECTIONS, WhenFull};
use crate::net::supervisor::ConnectionLimits;
use crate::net::tls::ListenerTls;
use crate::policy::first_config::FirstConfig;
use crate::policy::watcher::{self, PolicyWatcher};
use crate::service::Service;
use crate::state::any_store::{
    self, AnyStore, join, join_failure_reason, log_not_joined, maintain_secret, return_leases, wait_until_exact,
};
use crate::state::data_dir;
use crate::state::node_identity::NodeIdentity;
use crate::state::secret_file;

/// File descriptors reserved for everything that is not a connection.
const RESERVED_FDS: u64 = 64;
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
/// In maintenance ticks: rules that no request matches are looked for every five seconds.
const UNMATCHED_CHECK_TICKS: u64 = 50;
/// The time that the last settlements may take when the service ends.
const FINAL_SETTLEMENT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the start waits for a shared store.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The same with `--require-store`: the store may be starting too.
const REQUIRED_JOIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Why the service does not run.
pub(crate) enum ServeError {
    /// The settings cannot be used.
    Config(String),
    /// The operating system reports an error.
    System(String),
    /// `--require-store` is set, and the store cannot be reached.
    NoStore(String),
}

pub(super) fn run(args: ServeArgs) -> Exit {
    let config = args.config.clone();
    let (settings, compat) = match settings(args) {
        Ok(resolved) => resolved,
        Err(error) => {
            print_error(&error);
            return if error.is_file_error() { Exit::BadConfig } else { Exit::Usage };
        }
    };
    init::init(settings.log_level, settings.log_format);
    if let Some(compat) = compat {
        compat.log_warnings();
    }
    let served = runtime()
        .map_err(|error| ServeError::System(error.to_string()))
        .and_then(|runtime| runtime.block_on(serve(settings, config.as_deref())));
    let exit = match served {
        Ok(ShutdownOutcome::Clean) => Exit::Done,
        Ok(ShutdownOutcome::TimedOut | ShutdownOutcome::Forced) => Exit::Failed,
        Err(ServeError::Config(reason)) => {
            error!("{reason}");
            Exit::BadConfig
        }
        Err(ServeError::System(reason)) => {
            error!("{reason}");
            Exit::Failed
        }
        Err(ServeError::NoStore(reason)) => {
            error!("the store cannot be reached, and --require-store is set: {reason}");
            Exit::Unreachable
        }
    };
    writer::flush();
    exit
}

/// On one core, several threads would only hand work to each other.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let mut builder =
        if alone { tokio::runtime::Builder::new_current_thread() } else { tokio::runtime::Builder::new_multi_thread() };
    builder.enable_all().build()
}

/// The settings from flags, environment and file. With `--envoy-compat`, the environment of the Envoy reference
/// service is the layer below them.
fn settings(args: ServeArgs) -> Result<(ServerSettings, Option<EnvoyCompat>), ConfigError> {
    super::check_environment()?;
    let below = match &args.config {
        Some(file) => SettingsLayer::read(file)?,
        None => SettingsLayer::default(),
    };
    let layer = args.layer.merged_over(below);
    if !layer.envoy_compat.unwrap_or(false) {
        return Ok((layer.resolve()?, None));
    }
    let token = AdminToken::of(layer.admin_token_file.as_deref());
    let compat = EnvoyCompat::read(&|name| std::env::var(name).ok(), token)?;
    let headers = match layer.envoy_headers {
        Some(_) => HeaderOverride::Set,
        None => HeaderOverride::Unset,
    };
    let mut settings = layer.merged_over(compat.layer.clone()).resolve()?;
    compat.apply(headers, &mut settings);
    Ok((settings, Some(compat)))
}

async fn serve(settings: ServerSettings, config: Option<&Path>) -> Result<ShutdownOutcome, ServeError> {
    let system = |error: std::io::Error| ServeError::System(error.to_string());
    let mut signals = Signals::listen().map_err(system)?;
    let (drain, idle) = ShutdownHandle::new();
    if let Some(folder) = &settings.data_dir {
        data_dir::create_dir(folder).map_err(ServeError::Config)?;
    }
    let own = own_secret(&settings)?;
    let identity = NodeIdentity::open(membership_folder(&settings));
    let identity = identity.map_err(|error| ServeError::Config(format!("--data-dir: {error}")))?;
    let service = Arc::new(build_service(&settings, own.as_ref(), &identity, &drain)?);
    identity.restore_local_admissions(&service.limiter);
    let pending = identity.pending_file();
    let secret_folder = membership_folder(&settings).filter(|_| pending.is_some());
    let known = identity.store_secret().cloned();
    join_store(&service, (own, known), secret_folder, settings.require_store).await?;
    identity.spawn_persistence(&service);
    let watcher = PolicyWatcher::start(&service, &settings.rules).map_err(system)?;
    let watcher = Arc::new(watcher);
    if !settings.rules.allow_late_control_plane {
        tokio::select! {
            () = watcher.wait_for_control_plane() => {}
            () = signals.wait_for_stop() => return Ok(ShutdownOutcome::Clean),
        }
    }
    let token_file = settings.admin_token_file.as_deref();
    let access = AdminAccess::new(&settings.admin, token_file, &settings.admin_hosts);
    let access = access.map_err(|error| ServeError::Config(error.to_string()))?;
    let tls = settings.grpc_tls.clone().map(ListenerTls::open).transpose();
    let tls = tls.map_err(|error| ServeError::Config(format!("--grpc-cert: {error}")))?;
    let password = resp_password(&settings)?;
    warnings::log(&settings, config, keys_file(&settings, &service).as_deref());
    service.metrics.serve_only(&enabled_edges(&settings));
    let http = open_listener("http", &settings.http).await?;
    let grpc = open_listener("grpc", &settings.grpc).await?;
    let resp = open_listener("resp", &settings.resp).await?;
    let admin = Listener::open_private(&settings.admin).await;
    let admin = admin.map_err(|error| listen_error("admin", &settings.admin, &error))?;
    let metrics_listener = open_listener("metrics", &settings.metrics).await?;
    let shutdown = || ListenerShutdown { phase: drain.subscribe(), in_flight: drain.in_flight_guard() };
    let metrics = || Arc::clone(&service.metrics);
    let bounds = ListenerLimits {
        connections: max_connections(&settings),
        per_peer: settings.max_connections_per_peer,
        connection_limits: ConnectionLimits { idle: settings.idle_timeout, age: None, first_request: None },
        when_full: WhenFull::RejectNew,
    };
    let small_bounds = bounds.for_small_listener();
    if let Some(listener) = admin {
        let admin = AdminListener { service: Arc::clone(&service), policy_watcher: Arc::clone(&watcher), access };
        info!(edge = "admin", address = %listener.local_address(), "listening");
        tokio::spawn(listener.serve(admin, small_bounds, shutdown(), metrics(), None));
    }
    if let Some(listener) = metrics_listener {
        let metrics_edge =
            MetricsListener { service: Arc::clone(&service), path: settings.metrics_path.as_str().into() };
        info!(edge = "metrics", address = %listener.local_address(), "listening");
        tokio::spawn(listener.serve(metrics_edge, small_bounds, shutdown(), metrics(), None));
    }
    if let Some(listener) = grpc {
        let bounds = ListenerLimits {
            connection_limits: ConnectionLimits { age: settings.grpc_age, ..bounds.connection_limits },
            ..bounds
        };
        let tls = tls.map(Arc::new);
        tls.iter().for_each(ListenerTls::watch_files);
        info!(edge = "grpc", address = %listener.local_address(), tls = tls.is_some(), "listening");
        let envoy = EnvoyListener(Arc::clone(&service));
        tokio::spawn(listener.serve(envoy, bounds, shutdown(), metrics(), tls));
    }
    if let Some(listener) = http {
        let address = listener.local_address();
        info!(edge = "http", address = %address, "listening");
        if settings.rules.path.is_none() && settings.rules.xds.is_none() {
            print_welcome(&address);
        }
        let public = PublicListener(Arc::clone(&service));
        tokio::spawn(listener.serve(public, bounds, shutdown(), metrics(), None));
    }
    if let Some(listener) = resp {
        info!(edge = "resp", address = %listener.local_address(), "listening");
        let precision = settings.capabilities().precision;
        let resp_edge = RespListener::new(Arc::clone(&service), password, precision);
        tokio::spawn(listener.serve(resp_edge, bounds, shutdown(), metrics(), None));
    }
    tokio::spawn(run_maintenance(Arc::clone(&service)));
    service.limiter.spawn_background(&TokioRuntime::new().map_err(no_randomness)?);
    let reload = || {
        let (watcher, service) = (Arc::clone(&watcher), Arc::clone(&service));
        tokio::task::spawn_blocking(move || watcher.reload(&service));
    };
    let outcome =
        run_until_shutdown(signals, drain, idle, settings.drain_delay, settings.shutdown_timeout, reload).await;
    if outcome != ShutdownOutcome::Forced {
        return_leases(&service.limiter).await;
    }
    if let Some(file) = pending
        && let Err(error) = file.write(&any_store::local_admissions(&service.limiter))
    {
        let path = file.path().display();
        warn!(%path, %error, "pending charges cannot be written");
    }
    service.log_missed_denials();
    if outcome != ShutdownOutcome::Forced {
        // Settlements that the store does not have yet. A longer wait would delay the end of the process.
        let retries = service.limiter.retry_settlements();
        let _done_or_left = tokio::time::timeout(FINAL_SETTLEMENT_TIMEOUT, retries).await;
    }
    match outcome {
        ShutdownOutcome::Clean => info!("everything finished"),
        ShutdownOutcome::TimedOut => warn!("the deadline came before everything was finished"),
        ShutdownOutcome::Forced => {}
    }
    Ok(outcome)
}

/// The keys file that the rules at the start name. It is beside the rules.
fn keys_file(settings: &ServerSettings, service: &Service) -> Option<PathBuf> {
    let path = settings.rules.path.as_deref()?;
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let policy = service.limiter.policy().load();
    Some(folder?.join(policy.rules.keys_file()?))
}

/// The edges whose listeners are enabled.
fn enabled_edges(settings: &ServerSettings) -> Vec<Edge> {
    let edges = [
        (Edge::Http, &settings.http),
        (Edge::Auth, &settings.http),
        (Edge::Envoy, &settings.grpc),
        (Edge::Resp, &settings.resp),
    ];
    let on = edges.into_iter().filter(|(_, address)| **address != ListenAddress::Off);
    on.map(|(edge, _)| edge).collect()
}

/// The password that Redis clients must send, if one is set. Without a password any client can spend the limits of
/// others.
fn resp_password(settings: &ServerSettings) -> Result<Option<RespPassword>, ServeError> {
    let file = settings.resp_password_file.as_deref();
    let password = file.map(RespPassword::read).transpose();
    let password = password.map_err(ServeError::Config)?;
    match &password {
        None if !settings.resp.is_local() => warn!(
            "--resp can be reached from other machines without a password; set --resp-password-file, or listen on loopback"
        ),
        Some(password) if password.is_short() => {
            warn!("the password for --resp is short enough to be guessed; write 16 characters or more");
        }
        _ => {}
    }
    Ok(password)
}

/// The secret from `--secret-file`, or from the data directory, if there is one.
fn own_secret(settings: &ServerSettings) -> Result<Option<Secret>, ServeError> {
    let read = match (&settings.secret_file, &settings.data_dir, &settings.store) {
        (Some(file), ..) => secret_file::read(file).map(Some),
        (None, Some(folder), StoreChoice::Memory) => data_dir::load_or_create_secret(folder).map(Some),
        _ => Ok(None),
    };
    read.map_err(ServeError::Config)
}

/// The directory of the list of nodes. None with counters in memory, where there is only one node.
fn membership_folder(settings: &ServerSettings) -> Option<&Path> {
    match settings.store {
        StoreChoice::Memory => None,
        StoreChoice::Redis(_) => settings.data_dir.as_deref(),
    }
}

/// Joins the other nodes at the store they share. If the store cannot be reached, the service starts without it,
/// unless `required`.
async fn join_store(
    service: &Arc<Service>,
    (own, known): (Option<Secret>, Option<Secret>),
    folder: Option<&Path>,
    required: bool,
) -> Result<(), ServeError> {
    let (joining, folder) = (Arc::clone(service), folder.map(Path::to_owned));
    let (done, joined) = oneshot::channel();
    tokio::spawn(async move {
        let secret = join(&joining.limiter, own.as_ref(), known.as_ref()).await;
        let _receiver_may_be_gone = done.send(());
        if let Some(secret) = secret {
            if let (None, Some(folder)) = (&own, folder)
                && let Err(error) = data_dir::save_store_secret(&folder, &secret)
            {
                warn!("{error}");
            }
            maintain_secret(&joining.limiter, secret, own.is_some()).await;
        }
    });
    let joined = async {
        let _joined_or_failed = joined.await;
    };
    let exact = wait_until_exact(&service.limiter);
    let is_exact = if required {
        let joined = timeout(REQUIRED_JOIN_TIMEOUT, joined).await;
        joined.map_err(|_| ServeError::NoStore(join_failure_reason(&service.limiter)))?;
        timeout(JOIN_TIMEOUT, exact).await.is_ok()
    } else {
        let both = async { (joined.await, exact.await) };
        timeout(JOIN_TIMEOUT, both).await.is_ok()
    };
    if !is_exact {
        log_not_joined(&service.limiter);
    }
    Ok(())
}

/// Builds the state that all edges share from `settings`.
pub(crate) fn build_service(
    settings: &ServerSettings,
    own: Option<&Secret>,
    identity: &NodeIdentity,
    drain: &ShutdownHandle,
) -> Result<Service, ServeError> {
    let secret = match own {
        // Until the store is joined, use the secret that it had last.
        None => match identity.store_secret() {
            Some(known) => known.clone(),
            None => Secret::random().map_err(no_randomness)?,
        },
        Some(own) => own.clone(),
    };
    let policy = watcher::initial_policy(&settings.rules, settings.parse_options()).map_err(ServeError::Config)?;
    let first_config = FirstConfig::new(&settings.rules, policy.is_configured());
    let clock = SystemClock::new();
    let metrics = Arc::new(Metrics::default());
    let store = match &settings.store {
        StoreChoice::Memory => match &settings.data_dir {
            None => AnyStore::in_memory(clock, settings.memory_cap.0),
            Some(folder) => {
                let cap = settings.memory_cap.0;
                let opened = AnyStore::on_disk(clock, cap, folder, &secret, &policy.rules);
                opened.map_err(|error| ServeError::Config(error.to_string()))?
            }
        },
        StoreChoice::Redis(url) => {
            let own = resilience::ResilienceSettings {
                nodes: settings.nodes,
                budget: settings.store_budget.into(),
                clock_tolerance: settings.clock,
                me: Some(identity.id()),
                members: identity.last_nodes(),
                ..resilience::ResilienceSettings::default()
            };
            let shared = AnyStore::shared(url.expose(), own);
            shared.map_err(|error| ServeError::Config(error.to_string()))?
        }
    };
    let mut builder = Limiter::builder().policy(policy).secret(secret).clock(clock);
    builder = builder.memory_cap(settings.memory_cap.0).observer(Arc::clone(&metrics) as _);
    if settings.shadow {
        warn!("every rule is in shadow mode, because --shadow is on: nothing is denied");
        builder = builder.shadow();
    }
    let limiter = builder.build_on(store).map_err(|error| ServeError::System(error.to_string()))?;
    if settings.envoy.descriptor_options.all_shadow {
        warn!("every limit is in shadow mode, because SHADOW_MODE is set: nothing is denied");
    }
    let reset = match settings.reset_format {
        ResetFormat::Epoch => ResetStyle::Epoch,
        ResetFormat::Delta => ResetStyle::Delta,
    };
    let ids = DecisionIds::random().map_err(no_randomness)?;
    Ok(Service {
        limiter: Arc::new(limiter),
        clock,
        metrics,
        ids,
        reset,
        log_subjects: settings.log_subjects,
        phase: drain.subscribe(),
        proxy_header_policy: ArcSwapOption::empty(),
        envoy: settings.envoy.clone(),
        envoy_statistics: settings.envoy.near_ratio.map(EnvoyStatistics::new),
        first_config,
    })
}

fn no_randomness(error: getrandom::Error) -> ServeError {
    ServeError::System(format!("no randomness: {error}"))
}

async fn open_listener(edge: &str, address: &ListenAddress) -> Result<Option<Listener>, ServeError> {
    let opened = Listener::open(address).await;
    opened.map_err(|error| listen_error(edge, address, &error))
}

fn listen_error(edge: &str, address: &ListenAddress, error: &std::io::Error) -> ServeError {
    ServeError::System(format!("cannot listen for {edge} at {address}: {error}"))
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

/// Logs counts, rules that no request matches and whether durable charges are safe.
async fn run_maintenance(service: Arc<Service>) {
    let mut tick = tokio::time::interval(MAINTENANCE_INTERVAL);
    let (mut unacknowledged, mut overflowed) = (None, 0);
    for ticks in 0_u64.. {
        tick.tick().await;
        service.log_missed_denials();
        if ticks % UNMATCHED_CHECK_TICKS == 0 {
            service.report_unmatched();
        }
        let store = service.limiter.store();
        store.log_durability(&mut unacknowledged);
        store.report_health();
        store.report_overflow(&mut overflowed);
    }
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
        watcher::BUILT_IN_RULES
    );
}
