//! `tidegate serve`: the settings of the service, and the exit code of its end.

use tracing::error;

use super::{CommandResult, Exit, ServeArgs, bad_settings, merged_settings};
use crate::app::shutdown::ShutdownOutcome;
use crate::app::start::{ServeError, serve};
use crate::config::{ConfigError, EnvoyCompat, ServerSettings};
use crate::logging::{init, writer};

pub(super) fn run(args: ServeArgs) -> CommandResult {
    let config = args.config.clone();
    let (settings, compat) = settings(args).map_err(bad_settings)?;
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
    Ok(exit)
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
    let layer = merged_settings(args.layer, args.config.as_deref())?;
    if !layer.envoy_compat.unwrap_or(false) {
        return Ok((layer.resolve()?, None));
    }
    let compat = EnvoyCompat::read(&|name| std::env::var(name).ok(), layer.admin_token_file.as_deref())?;
    let own_headers = layer.envoy_headers;
    let mut settings = layer.merged_over(compat.layer.clone()).resolve()?;
    compat.apply(own_headers, &mut settings);
    Ok((settings, Some(compat)))
}
