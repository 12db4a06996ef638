//! Whether the decision scripts can be loaded and decide correctly.

use std::error::Error;

use tidegate::stores::redis::{AdminConnection, RedisStoreError, RespValue};
use tidegate_core::store::StoreError;

use super::finding::DoctorFinding;
use super::probe::{ProbeResult, ServerInfo, SilentServer, unless_silent};

/// The result of the script checks.
#[derive(Debug)]
pub(super) struct ScriptCheck {
    total: usize,
    /// How many scripts the server had cached before, if it reports it.
    cached: ProbeResult<usize>,
    /// The first script that the server did not load.
    unloaded: Option<(&'static str, RedisStoreError)>,
    /// Whether two charges against a limit of one were decided correctly.
    self_test: Result<bool, StoreError>,
}

/// Loads the scripts, and decides with them on a record under `prefix`, which is removed.
pub(super) async fn self_test(connection: &AdminConnection, prefix: &str) -> Result<ScriptCheck, SilentServer> {
    let scripts = AdminConnection::scripts();
    let mut exist: Vec<&[u8]> = vec![b"SCRIPT", b"EXISTS"];
    exist.extend(scripts.iter().map(|script| script.hash.as_bytes()));
    let known = unless_silent(connection.query(&exist).await)?.map(|reply| match reply {
        RespValue::List(each) => each.iter().filter(|one| **one == RespValue::Number(1)).count(),
        _ => 0,
    });
    let mut unloaded = None;
    for script in &scripts {
        let load = [b"SCRIPT".as_slice(), b"LOAD", script.text.as_bytes()];
        if let Err(redis_error) = unless_silent(connection.query(&load).await)? {
            unloaded.get_or_insert((script.name, redis_error));
        }
    }
    let record = format!("{prefix}:record");
    let self_test = connection.self_test(record.as_bytes()).await;
    if let Some(redis_error) = self_test.as_ref().err().and_then(redis_error_of)
        && redis_error.is_silence()
    {
        return Err(SilentServer(redis_error.clone()));
    }
    let _removed_or_expires = unless_silent(connection.query(&[b"DEL", record.as_bytes()]).await)?;
    Ok(ScriptCheck { total: scripts.len(), cached: known, unloaded, self_test })
}

pub(super) fn scripts(check_result: &ScriptCheck, info: &ProbeResult<ServerInfo>) -> DoctorFinding {
    let check = "scripts";
    if let Some((name, redis_error)) = &check_result.unloaded {
        let found = format!("`{name}` cannot be loaded: {}", redis_error.problem());
        return DoctorFinding::fail(check, found, cure_of(redis_error));
    }
    match &check_result.self_test {
        Ok(true) => DoctorFinding::ok(check, describe_cache(check_result, info)),
        Ok(false) => {
            let found = "a limit of one did not allow one request and deny the next";
            DoctorFinding::fail(check, found, "please report this")
        }
        Err(error) if redis_error_of(error).is_some_and(|redis_error| redis_error.code() == "READONLY") => {
            let found = "cannot be tried on a replica";
            DoctorFinding::warn(check, found, "connect to the primary")
        }
        Err(error) => {
            let (reason, cure) = match redis_error_of(error) {
                Some(redis_error) => (redis_error.problem(), cure_of(redis_error)),
                None => (error.to_string(), "please report this"),
            };
            DoctorFinding::fail(check, format!("cannot be run: {reason}"), cure)
        }
    }
}

/// A missing permission is described by its own check.
fn cure_of(redis_error: &RedisStoreError) -> &'static str {
    match redis_error.missing_permission() {
        Some(_) => "see permissions",
        None => redis_error.cure(),
    }
}

/// How many of the scripts the server has cached.
fn describe_cache(check_result: &ScriptCheck, info: &ProbeResult<ServerInfo>) -> String {
    let had = match &check_result.cached {
        Ok(known) => format!("the server had {known} of {}", check_result.total),
        Err(_) => "which the server had is seen with +script|exists".to_owned(),
    };
    let cached = info.as_ref().ok().and_then(|info| info.number("number_of_cached_scripts"));
    let cached = cached.map_or_else(String::new, |n| format!(", {n} of all programs in its cache"));
    format!("all {} load, and decide as they should; {had}{cached}", check_result.total)
}

/// The Redis error behind a store error.
fn redis_error_of(error: &StoreError) -> Option<&RedisStoreError> {
    error.source()?.downcast_ref()
}
