//! `tidegate serve`: puts the parts together, runs them, and ends them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tidegate::clock::SystemClock;
use tidegate::http::ResetStyle;
use tidegate::observe::{Metrics, process};
use tidegate::{Limiter, Secret, resilience};
use tidegate_core::request::Edge;
use tokio::sync::oneshot;
use tokio::time::timeout;
use tracing::{error, info, warn};

use super::{Exit, ServeArgs, complain, warnings};
use crate::address::{Address, Place};
use crate::config::{BadConfig, Layer, Reset, Settings};
use crate::counters::{
    self, Counters, exact, give_back, join, keep_secret, log_not_joined, why_not_met,
};
use crate::data;
use crate::drain::{Drain, End, Signals, until_ended};
use crate::edges::admin::guard::Guard;
use crate::edges::admin::scraped::Scraped;
use crate::edges::admin::serve::Admin;
use crate::edges::envoy::Statistics;
use crate::edges::envoy::serve::Envoy;
use crate::edges::http::serve::Public;
use crate::edges::resp::serve::{Password, Resp};
use crate::envoy_compat::{AdminToken, Compat, Told};
use crate::first_config::FirstConfig;
use crate::ids::Ids;
use crate::kept::Kept;
use crate::live::{self, Live};
use crate::logs;
use crate::net::listener::{Bounds, Ending, Listener, SMALL_CONNECTIONS, WhenFull};
use crate::net::tls::Tls;
use crate::net::watch::Keeping;
use crate::secret_file;
use crate::service::Service;
use crate::sink;
use crate::store_choice::StoreChoice;

/// Descriptors kept for everything that is not a connection.
const SPARE_FILES: u64 = 64;
/// The store of ten million counters, some 4,000 tables, is swept in less than a minute, a few tables
/// at a time so that no decision waits.
const SWEEP_EVERY: Duration = Duration::from_millis(100);
/// In sweeps: rules that no request matches are looked for every five seconds.
const UNMATCHED_EVERY: u64 = 50;
const SWEEP_TABLES: usize = 8;
/// How often to look for reservations that nobody settled, and how long the store may take to hear of the
/// last settlements when the service ends.
const TEND_EVERY: Duration = Duration::from_millis(250);
const LAST_WORDS: Duration = Duration::from_millis(500);

/// How long the start waits for a shared store.
const JOIN_WITHIN: Duration = Duration::from_secs(2);
/// The same where there is no start without it: it may be starting too.
const REQUIRED_WITHIN: Duration = Duration::from_secs(5);

/// Why the service does not run.
pub(crate) enum Failure {
    /// It was told something it cannot do.
    Config(String),
    /// The system does not let it.
    System(String),
    /// It was told not to start without its store.
    NoStore(String),
}

pub(super) fn run(args: ServeArgs) -> Exit {
    let config = args.config.clone();
    let (settings, compat) = match settings(args) {
        Ok(told) => told,
        Err(error) => {
            complain(&error);
            return match error.is_of_a_file() {
                true => Exit::BadConfig,
                false => Exit::Usage,
            };
        }
    };
    logs::start(settings.log_level, settings.log_format);
    if let Some(compat) = compat {
        compat.tell();
    }
    let served = runtime()
        .map_err(|error| Failure::System(error.to_string()))
        .and_then(|runtime| runtime.block_on(serve(settings, config.as_deref())));
    let exit = match served {
        Ok(End::Clean) => Exit::Done,
        Ok(End::Cut | End::AtOnce) => Exit::Failed,
        Err(Failure::Config(reason)) => {
            error!("{reason}");
            Exit::BadConfig
        }
        Err(Failure::System(reason)) => {
            error!("{reason}");
            Exit::Failed
        }
        Err(Failure::NoStore(reason)) => {
            error!("the store cannot be met, and --require-store is set: {reason}");
            Exit::Unreachable
        }
    };
    sink::flush();
    exit
}

/// On one core threads would only hand work to each other.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let alone = std::thread::available_parallelism().is_ok_and(|cores| cores.get() == 1);
    let mut builder = match alone {
        true => tokio::runtime::Builder::new_current_thread(),
        false => tokio::runtime::Builder::new_multi_thread(),
    };
    builder.enable_all().build()
}

/// What was told, and what the environment of the reference service added to it, if that is asked.
fn settings(args: ServeArgs) -> Result<(Settings, Option<Compat>), BadConfig> {
    super::check_environment()?;
    let below = match &args.config {
        Some(file) => Layer::read(file)?,
        None => Layer::default(),
    };
    let told = args.layer.over(below);
    if !told.envoy_compat.unwrap_or(false) {
        return Ok((told.settle()?, None));
    }
    let token = AdminToken::of(told.admin_token_file.as_deref());
    let compat = Compat::read(&|name| std::env::var(name).ok(), token)?;
    let headers = match told.envoy_headers {
        Some(_) => Told::Headers,
        None => Told::NoHeaders,
    };
    let mut settings = told.over(compat.layer()).settle()?;
    compat.apply(headers, &mut settings);
    Ok((settings, Some(compat)))
}

async fn serve(settings: Settings, config: Option<&Path>) -> Result<End, Failure> {
    let system = |error: std::io::Error| Failure::System(error.to_string());
    let mut signals = Signals::listen().map_err(system)?;
    let (drain, idle) = Drain::new();
    if let Some(folder) = &settings.data {
        data::prepare(folder).map_err(Failure::Config)?;
    }
    let own = own_secret(&settings)?;
    let kept = Kept::open(roster_folder(&settings));
    let kept = kept.map_err(|error| Failure::Config(format!("--data: {error}")))?;
    let service = Arc::new(service(&settings, own.as_ref(), &kept, &drain)?);
    kept.restore(&service.limiter);
    let pending = kept.pending();
    let secret_folder = roster_folder(&settings).filter(|_| pending.is_some());
    let known = kept.secret().cloned();
    join_soon(
        &service,
        (own, known),
        secret_folder,
        settings.require_store,
    )
    .await?;
    kept.follow(&service);
    let live = Live::start(&service, &settings.rules).map_err(system)?;
    let live = Arc::new(live);
    if !settings.rules.may_be_late {
        tokio::select! {
            () = live.answered() => {}
            () = signals.end() => return Ok(End::Clean),
        }
    }
    let token_file = settings.admin_token_file.as_deref();
    let guard = Guard::new(&settings.admin, token_file, &settings.admin_hosts);
    let guard = guard.map_err(|error| Failure::Config(error.to_string()))?;
    let tls = settings.grpc_tls.clone().map(Tls::open).transpose();
    let tls = tls.map_err(|error| Failure::Config(format!("--grpc-cert: {error}")))?;
    let password = resp_password(&settings)?;
    warnings::log(&settings, config, keys_file(&settings, &service).as_deref());
    service.metrics.serve_only(&edges(&settings));
    let http = open("http", &settings.http).await?;
    let grpc = open("grpc", &settings.grpc).await?;
    let resp = open("resp", &settings.resp).await?;
    let admin = Listener::open_private(&settings.admin).await;
    let admin = admin.map_err(|error| cannot_listen("admin", &settings.admin, &error))?;
    let scraped = open("metrics", &settings.metrics).await?;
    let ending = || Ending {
        phase: drain.watch(),
        busy: drain.busy(),
    };
    let metrics = || Arc::clone(&service.metrics);
    let bounds = Bounds {
        connections: connections(&settings),
        per_peer: settings.max_connections_per_peer,
        keeping: Keeping {
            idle: settings.idle,
            age: None,
            first_request: None,
        },
        when_full: WhenFull::RefuseNew,
    };
    let few = bounds.small();
    if let Some(listener) = admin {
        let admin = Admin {
            service: Arc::clone(&service),
            live: Arc::clone(&live),
            guard,
        };
        info!(edge = "admin", address = %listener.place(), "listening");
        tokio::spawn(listener.serve(admin, few, ending(), metrics(), None));
    }
    if let Some(listener) = scraped {
        let scraped = Scraped {
            service: Arc::clone(&service),
            path: settings.metrics_path.as_str().into(),
        };
        info!(edge = "metrics", address = %listener.place(), "listening");
        tokio::spawn(listener.serve(scraped, few, ending(), metrics(), None));
    }
    if let Some(listener) = grpc {
        let bounds = Bounds {
            keeping: Keeping {
                age: settings.grpc_age,
                ..bounds.keeping
            },
            ..bounds
        };
        let tls = tls.map(Arc::new);
        tls.iter().for_each(Tls::follow);
        info!(edge = "grpc", address = %listener.place(), tls = tls.is_some(), "listening");
        let envoy = Envoy(Arc::clone(&service));
        tokio::spawn(listener.serve(envoy, bounds, ending(), metrics(), tls));
    }
    if let Some(listener) = http {
        let place = listener.place();
        info!(edge = "http", address = %place, "listening");
        if settings.rules.path.is_none() && settings.rules.xds.is_none() {
            greet(&place);
        }
        let public = Public(Arc::clone(&service));
        tokio::spawn(listener.serve(public, bounds, ending(), metrics(), None));
    }
    if let Some(listener) = resp {
        info!(edge = "resp", address = %listener.place(), "listening");
        let precision = settings.abilities().precision;
        let door = Resp::new(Arc::clone(&service), password, precision);
        tokio::spawn(listener.serve(door, bounds, ending(), metrics(), None));
    }
    tokio::spawn(keep_house(Arc::clone(&service)));
    tokio::spawn(tend_reservations(Arc::clone(&service)));
    let reload = || {
        let (live, service) = (Arc::clone(&live), Arc::clone(&service));
        tokio::task::spawn_blocking(move || live.reload(&service));
    };
    let end = until_ended(
        signals,
        drain,
        idle,
        settings.drain_delay,
        settings.drain,
        reload,
    )
    .await;
    if end != End::AtOnce {
        give_back(&service.limiter).await;
    }
    if let Some(file) = pending
        && let Err(error) = file.write(&counters::pending(&service.limiter))
    {
        let path = file.path().display();
        warn!(%path, %error, "pending charges cannot be kept");
    }
    service.settle_lines();
    if end != End::AtOnce {
        // What the store was not told yet. More than a moment would keep the process from its end.
        let tended = service.limiter.tend_reservations();
        let _done_or_left = tokio::time::timeout(LAST_WORDS, tended).await;
    }
    match end {
        End::Clean => info!("everything finished"),
        End::Cut => warn!("the deadline came before everything was finished"),
        End::AtOnce => {}
    }
    Ok(end)
}

/// The keys file that the rules at the start name: it is beside them.
fn keys_file(settings: &Settings, service: &Service) -> Option<PathBuf> {
    let path = settings.rules.path.as_deref()?;
    let folder = if path.is_dir() {
        Some(path)
    } else {
        path.parent()
    };
    let policy = service.limiter.policy().load();
    Some(folder?.join(policy.rules.keys_file()?))
}

/// The edges that can be reached.
fn edges(settings: &Settings) -> Vec<Edge> {
    let edges = [
        (Edge::Http, &settings.http),
        (Edge::Auth, &settings.http),
        (Edge::Envoy, &settings.grpc),
        (Edge::Resp, &settings.resp),
    ];
    let on = edges
        .into_iter()
        .filter(|(_, address)| **address != Address::Off);
    on.map(|(edge, _)| edge).collect()
}

/// What Redis clients must know, if anything. Whoever needs nothing can spend what others are allowed.
fn resp_password(settings: &Settings) -> Result<Option<Password>, Failure> {
    let file = settings.resp_password_file.as_deref();
    let password = file.map(Password::read).transpose();
    let password = password.map_err(Failure::Config)?;
    match &password {
        None if !settings.resp.is_local() => warn!(
            "--resp can be reached from other machines without a password; set --resp-password-file, or listen on loopback"
        ),
        Some(password) if password.is_short() => {
            warn!(
                "the password for --resp is short enough to be guessed; write 16 characters or more"
            );
        }
        _ => {}
    }
    Ok(password)
}

/// The secret this node was given, or has in its folder, if any.
fn own_secret(settings: &Settings) -> Result<Option<Secret>, Failure> {
    let read = match (&settings.secret_file, &settings.data, &settings.store) {
        (Some(file), ..) => secret_file::read(file).map(Some),
        (None, Some(folder), StoreChoice::Memory) => data::secret(folder).map(Some),
        _ => Ok(None),
    };
    read.map_err(Failure::Config)
}

/// Where the list of nodes is kept: counters in memory have one node only.
fn roster_folder(settings: &Settings) -> Option<&Path> {
    match settings.store {
        StoreChoice::Memory => None,
        StoreChoice::Redis(_) => settings.data.as_deref(),
    }
}

/// Meets the other nodes at the store they share. The service starts without it if it must and may.
async fn join_soon(
    service: &Arc<Service>,
    (own, known): (Option<Secret>, Option<Secret>),
    folder: Option<&Path>,
    required: bool,
) -> Result<(), Failure> {
    let (joining, folder) = (Arc::clone(service), folder.map(Path::to_owned));
    let (done, joined) = oneshot::channel();
    tokio::spawn(async move {
        let secret = join(&joining.limiter, own.as_ref(), known.as_ref()).await;
        let _nobody_waits_any_more = done.send(());
        if let Some(secret) = secret {
            if let (None, Some(folder)) = (&own, folder)
                && let Err(error) = data::keep_store_secret(&folder, &secret)
            {
                warn!("{error}");
            }
            keep_secret(&joining.limiter, secret, own.is_some()).await;
        }
    });
    let joined = async {
        let _joined_or_refused = joined.await;
    };
    let exact = exact(&service.limiter);
    let met = match required {
        false => {
            let both = async { (joined.await, exact.await) };
            timeout(JOIN_WITHIN, both).await.is_ok()
        }
        true => {
            let joined = timeout(REQUIRED_WITHIN, joined).await;
            joined.map_err(|_| Failure::NoStore(why_not_met(&service.limiter)))?;
            timeout(JOIN_WITHIN, exact).await.is_ok()
        }
    };
    if !met {
        log_not_joined(&service.limiter);
    }
    Ok(())
}

/// What edges share, as `settings` want it.
pub(crate) fn service(
    settings: &Settings,
    own: Option<&Secret>,
    kept: &Kept,
    drain: &Drain,
) -> Result<Service, Failure> {
    let no_randomness =
        |error: getrandom::Error| Failure::System(format!("no randomness: {error}"));
    let secret = match own {
        // Until the store is met, as it was named there before.
        None => match kept.secret() {
            Some(known) => known.clone(),
            None => Secret::random().map_err(no_randomness)?,
        },
        Some(own) => own.clone(),
    };
    let policy = live::first(&settings.rules, settings.reading()).map_err(Failure::Config)?;
    let first_config = FirstConfig::new(&settings.rules, policy.is_given());
    let clock = SystemClock::new();
    let metrics = Arc::new(Metrics::default());
    let store = match &settings.store {
        StoreChoice::Memory => match &settings.data {
            None => Counters::in_memory(clock, settings.memory_cap.0),
            Some(folder) => {
                let cap = settings.memory_cap.0;
                let opened = Counters::on_disk(clock, cap, folder, &secret, &policy.rules);
                opened.map_err(|error| Failure::Config(error.to_string()))?
            }
        },
        StoreChoice::Redis(url) => {
            let own = resilience::Settings {
                nodes: settings.nodes,
                budget: settings.store_budget.into(),
                clock: settings.clock,
                me: Some(kept.me()),
                roster: kept.nodes(),
                ..resilience::Settings::default()
            };
            let shared = Counters::shared(url.expose(), own);
            shared.map_err(|error| Failure::Config(error.to_string()))?
        }
    };
    let mut limiter = Limiter::new(store, policy, secret, Arc::new(clock))
        .within(settings.memory_cap.0)
        .observed_by(Arc::clone(&metrics) as _);
    if settings.shadow {
        warn!("every rule only watches, because --shadow is on: nothing is denied");
        limiter = limiter.in_shadow();
    }
    if settings.envoy.manner.all_shadow {
        warn!("every limit only watches, because SHADOW_MODE is set: nothing is denied");
    }
    let reset = match settings.reset {
        Reset::Epoch => ResetStyle::Epoch,
        Reset::Delta => ResetStyle::Delta,
    };
    let ids = Ids::random().map_err(no_randomness)?;
    Ok(Service {
        limiter,
        clock,
        metrics,
        ids,
        reset,
        log_subjects: settings.log_subjects,
        phase: drain.watch(),
        reading: ArcSwapOption::empty(),
        envoy: settings.envoy.clone(),
        envoy_statistics: settings.envoy.near_ratio.map(Statistics::new),
        first_config,
    })
}

async fn open(edge: &str, address: &Address) -> Result<Option<Listener>, Failure> {
    let opened = Listener::open(address).await;
    opened.map_err(|error| cannot_listen(edge, address, &error))
}

fn cannot_listen(edge: &str, address: &Address, error: &std::io::Error) -> Failure {
    Failure::System(format!("cannot listen for {edge} at {address}: {error}"))
}

/// As many as configured for each listener, but never so many that the last descriptor is a connection.
fn connections(settings: &Settings) -> usize {
    let on = |addresses: &[&Address]| {
        let on = addresses
            .iter()
            .filter(|address| ***address != Address::Off);
        on.count() as u64
    };
    let listeners = on(&[&settings.http, &settings.grpc, &settings.resp]);
    let few = on(&[&settings.admin, &settings.metrics]) * SMALL_CONNECTIONS as u64;
    let max =
        process::max_fds().map_or(u64::MAX, |files| files - (SPARE_FILES + few).min(files / 2));
    let max = (max / listeners.max(1)).max(1);
    settings
        .max_connections
        .min(usize::try_from(max).unwrap_or(usize::MAX))
}

/// Logs counts, rules that no request matches and whether durable charges are safe, and frees counters
/// that have nothing left to tell.
async fn keep_house(service: Arc<Service>) {
    let mut tick = tokio::time::interval(SWEEP_EVERY);
    let (mut unacknowledged, mut overflowed) = (None, 0);
    for ticks in 0_u64.. {
        tick.tick().await;
        service.settle_lines();
        if ticks % UNMATCHED_EVERY == 0 {
            service.report_unmatched();
        }
        let store = service.limiter.store();
        store.sweep(SWEEP_TABLES);
        store.tell_safety(&mut unacknowledged);
        store.report_health();
        store.report_overflow(&mut overflowed);
    }
}

/// A task of its own, because it waits for the store.
async fn tend_reservations(service: Arc<Service>) {
    let mut tick = tokio::time::interval(TEND_EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        service.limiter.tend_reservations().await;
    }
}

/// For someone who has just started it with nothing.
fn greet(place: &Place) {
    let Place::Tcp(address) = place else { return };
    let mut out = std::io::stdout();
    let _ = write!(
        out,
        "\nNo --rules given, so these run:\n\n{}\nTry, six times, and read the answer:\n\n  \
         curl -i http://{address}/v1/check -d '{{\"attributes\": {{\"ip\": \"203.0.113.9\", \"path\": \"/login\"}}}}'\n\n\
         and ask what is left, without spending it:\n\n  \
         curl -s http://{address}/v1/peek -d '{{\"attributes\": {{\"ip\": \"203.0.113.9\", \"path\": \"/login\"}}}}'\n\n",
        live::BUILT_IN
    );
}
