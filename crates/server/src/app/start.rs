//! The start and the end of the service: builds it from its settings, joins the shared store, serves, and writes what has
//! to survive.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate::http::ResetStyle;
use tidegate::observe::{Counter, Metrics};
use tidegate::resilience::ResilienceSettings;
use tidegate::runtime::TokioRuntime;
use tidegate::{Limiter, Secret};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{info, warn};

use super::listeners::{self, ListenerParts, enabled_edges};
use super::shutdown::{ShutdownOutcome, Signals, run_until_shutdown};
use super::warnings;
use crate::config::{ResetFormat, ServerSettings, StoreChoice};
use crate::decider::{Decider, DeciderControl, FirstConfig};
use crate::edges::admin::access::AdminAccess;
use crate::edges::resp::serve::RespPassword;
use crate::logging::DecisionIds;
use crate::net::{ListenerTls, ShutdownHandle};
use crate::policy::watcher::{self, PolicyWatcher};
use crate::state::late_replies::LateReplies;
use crate::state::node_identity::write_pending;
use crate::state::{AnyStore, NodeIdentity, ServerLimiter, data_dir};

/// The time that the last settlements may take when the service ends.
const FINAL_SETTLEMENT_TIMEOUT: Duration = Duration::from_millis(500);

/// How long the start waits for a shared store.
const JOIN_TIMEOUT: Duration = Duration::from_secs(2);
/// The same with `--require-store`: the store may be starting too.
const REQUIRED_JOIN_TIMEOUT: Duration = Duration::from_secs(5);

const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
/// In maintenance ticks: rules that no request matches and late replies are looked for every five seconds.
const SLOW_CHECK_TICKS: u64 = 50;

/// Why the service does not run.
pub(crate) enum ServeError {
    /// The settings cannot be used.
    Config(String),
    /// The operating system reports an error.
    System(String),
    /// `--require-store` is set, and the store cannot be reached.
    NoStore(String),
}

/// Runs the service until it is shut down.
pub(crate) async fn serve(settings: ServerSettings, config: Option<&Path>) -> Result<ShutdownOutcome, ServeError> {
    let mut signals = Signals::listen().map_err(system)?;
    let (drain, idle) = ShutdownHandle::new();
    if let Some(folder) = &settings.data_dir {
        data_dir::create_dir(folder).map_err(ServeError::Config)?;
    }
    let own = own_secret(&settings)?;
    let identity = NodeIdentity::open(membership_folder(&settings))
        .map_err(|error| ServeError::Config(format!("--data-dir: {error}")))?;
    let (decider, control) = build_decider(&settings, own.as_ref(), &identity, &drain)?;
    let (decider, control) = (Arc::new(decider), Arc::new(control));
    let limiter = &control.limiter;
    identity.restore_local_admissions(limiter);
    let pending = identity.local_admissions_file.clone();
    let secret_folder = membership_folder(&settings).filter(|_| pending.is_some());
    let known = identity.store_secret.clone();
    join_store(limiter, (own, known), secret_folder, settings.require_store).await?;
    identity.spawn_persistence(limiter);
    let watcher = Arc::new(PolicyWatcher::start(&control, &settings.rules).map_err(system)?);
    if !settings.rules.allow_late_control_plane {
        tokio::select! {
            () = watcher.wait_for_control_plane() => {}
            () = signals.wait_for_stop() => return Ok(ShutdownOutcome::Clean),
        }
    }
    let token_file = settings.admin_token_file.as_deref();
    let access = AdminAccess::new(&settings.admin, token_file, &settings.admin_hosts).map_err(ServeError::Config)?;
    let tls = settings.grpc_tls.clone().map(ListenerTls::open).transpose();
    let tls = tls.map_err(|error| ServeError::Config(format!("--grpc-cert: {error}")))?;
    let password = resp_password(&settings)?;
    warnings::log(&settings, config, keys_file(&settings, limiter).as_deref());
    control.metrics.serve_only(&enabled_edges(&settings));
    let parts = ListenerParts {
        decider: Arc::clone(&decider),
        metrics: Arc::clone(&control.metrics),
        policy_watcher: Arc::clone(&watcher),
        access,
        password,
        tls: tls.map(Arc::new),
    };
    listeners::serve_all(&settings, parts, &drain).await?;
    tokio::spawn(run_maintenance(Arc::clone(&decider), Arc::clone(limiter)));
    limiter.spawn_background(&TokioRuntime::new().map_err(no_randomness)?);
    let reload = || {
        let watcher = Arc::clone(&watcher);
        tokio::task::spawn_blocking(move || watcher.reload());
    };
    let outcome =
        run_until_shutdown(signals, drain, idle, settings.drain_delay, settings.shutdown_timeout, reload).await;
    if let Some(shared) = limiter.store().shared()
        && outcome != ShutdownOutcome::Forced
    {
        shared.return_leases().await;
    }
    decider.log_missed_denials();
    if outcome != ShutdownOutcome::Forced {
        // Settlements that the store does not have yet. A longer wait would delay the end of the process.
        let retries = limiter.retry_settlements();
        let _done_or_left = tokio::time::timeout(FINAL_SETTLEMENT_TIMEOUT, retries).await;
    }
    // Last, because settlements without a reply become pending charges.
    if let Some(file) = pending {
        write_pending(limiter, &file);
    }
    match outcome {
        ShutdownOutcome::Clean => info!("everything finished"),
        ShutdownOutcome::TimedOut => warn!("the deadline came before everything was finished"),
        ShutdownOutcome::Forced => {}
    }
    Ok(outcome)
}

/// The keys file that the rules at the start name. It is beside the rules.
fn keys_file(settings: &ServerSettings, limiter: &ServerLimiter) -> Option<PathBuf> {
    let path = settings.rules.path.as_deref()?;
    let folder = if path.is_dir() { Some(path) } else { path.parent() };
    let policy = limiter.policy().load();
    Some(folder?.join(policy.rules.keys_file()?))
}

/// The password that Redis clients must send, if one is set. Without a password any client can spend the limits of
/// others.
fn resp_password(settings: &ServerSettings) -> Result<Option<RespPassword>, ServeError> {
    let file = settings.resp_password_file.as_deref();
    let password = file.map(RespPassword::read).transpose().map_err(ServeError::Config)?;
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
        (Some(file), ..) => data_dir::read_secret_file(file).map(Some),
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
    limiter: &Arc<ServerLimiter>,
    (own, known): (Option<Secret>, Option<Secret>),
    folder: Option<&Path>,
    required: bool,
) -> Result<(), ServeError> {
    let Some(shared) = limiter.store().shared() else {
        return Ok(());
    };
    let (joining, folder) = (Arc::clone(limiter), folder.map(Path::to_owned));
    let (done, joined) = oneshot::channel();
    tokio::spawn(async move {
        let limiter = &joining;
        let Some(shared) = limiter.store().shared() else { return };
        let secret = shared.join(limiter, own.as_ref(), known.as_ref()).await;
        let _receiver_may_be_gone = done.send(());
        if let (None, Some(folder)) = (&own, folder)
            && let Err(error) = data_dir::save_store_secret(&folder, &secret)
        {
            warn!("{error}");
        }
        shared.maintain_secret(limiter, secret, own.is_some()).await;
    });
    let exact = shared.wait_until_exact();
    let is_exact = if required {
        let joined = timeout(REQUIRED_JOIN_TIMEOUT, joined).await;
        let _joined_or_failed = joined.map_err(|_| ServeError::NoStore(shared.join_failure_reason()))?;
        timeout(JOIN_TIMEOUT, exact).await.is_ok()
    } else {
        timeout(JOIN_TIMEOUT, async { (joined.await, exact.await) }).await.is_ok()
    };
    if !is_exact {
        shared.log_not_joined();
    }
    Ok(())
}

/// Builds the state that all edges share from `settings`.
pub(crate) fn build_decider(
    settings: &ServerSettings,
    own: Option<&Secret>,
    identity: &NodeIdentity,
    drain: &ShutdownHandle,
) -> Result<(Decider, DeciderControl), ServeError> {
    // Until the store is joined, use the secret that it had last.
    let secret = match own.or(identity.store_secret.as_ref()) {
        Some(known) => known.clone(),
        None => Secret::random().map_err(no_randomness)?,
    };
    let policy = watcher::initial_policy(&settings.rules, settings.parse_options()).map_err(ServeError::Config)?;
    let first_config = FirstConfig::new(&settings.rules, policy.is_configured());
    let clock = SystemClock::new();
    let metrics = Arc::new(Metrics::default());
    let store = match &settings.store {
        StoreChoice::Memory => match &settings.data_dir {
            None => AnyStore::in_memory(clock, settings.memory_cap.0),
            Some(folder) => AnyStore::on_disk(clock, settings.memory_cap.0, folder, &secret, &policy.rules)
                .map_err(|error| ServeError::Config(error.to_string()))?,
        },
        StoreChoice::Redis(url) => {
            let own = ResilienceSettings {
                nodes: settings.nodes,
                budget: settings.store_budget.into(),
                clock_tolerance: settings.clock,
                memory_cap: settings.memory_cap.0,
                me: Some(identity.id),
                members: identity.last_nodes(),
                ..ResilienceSettings::default()
            };
            AnyStore::shared_at(url.expose(), own).map_err(ServeError::Config)?
        }
    };
    let mut builder = Limiter::builder().policy(policy).secret(secret).clock(clock);
    builder = builder.memory_cap(settings.memory_cap.0).observer(Arc::clone(&metrics) as _);
    if settings.shadow {
        warn!("every rule is in shadow mode, because --shadow is on: nothing is denied");
        builder = builder.shadow();
    }
    let limiter = builder.build_on(store).map_err(system)?;
    if settings.envoy.descriptor_options.all_shadow {
        warn!("every limit is in shadow mode, because SHADOW_MODE is set: nothing is denied");
    }
    let reset = match settings.reset_format {
        ResetFormat::Epoch => ResetStyle::Epoch,
        ResetFormat::Delta => ResetStyle::Delta,
    };
    let ids = DecisionIds::random().map_err(no_randomness)?;
    let control = DeciderControl {
        limiter: Arc::new(limiter),
        clock,
        metrics,
        log_subjects: settings.log_subjects,
        first_config: Arc::new(first_config),
        rule_loads: Arc::new(Counter::default()),
    };
    Ok((Decider::new(&control, ids, reset, drain.subscribe()), control))
}

fn system(error: impl std::fmt::Display) -> ServeError {
    ServeError::System(error.to_string())
}

fn no_randomness(error: getrandom::Error) -> ServeError {
    ServeError::System(format!("no randomness: {error}"))
}

/// The work that no request causes: logs counts, rules that no request matches, and the condition of the store.
async fn run_maintenance(decider: Arc<Decider>, limiter: Arc<ServerLimiter>) {
    let mut tick = tokio::time::interval(MAINTENANCE_INTERVAL);
    let (mut unacknowledged, mut overflowed, mut late_replies) = (None, 0, LateReplies::default());
    for ticks in 0_u64.. {
        tick.tick().await;
        decider.log_missed_denials();
        if ticks % SLOW_CHECK_TICKS == 0 {
            decider.report_unmatched();
            decider.report_lateness(&mut late_replies);
        }
        let store = limiter.store();
        store.report_health(&mut unacknowledged);
        store.report_overflow(&mut overflowed);
    }
}
