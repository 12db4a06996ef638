//! Whether the scripts that decide can be loaded and do what they should.

use std::error::Error;

use tidegate::stores::redis::{Console, Fault, Said};
use tidegate_core::store::StoreError;

use super::finding::Finding;
use super::seen::{Info, Seen, Silent, seen};

/// What was seen of the scripts.
#[derive(Debug)]
pub(super) struct Scripts {
    all: usize,
    /// How many the server had before we came, if it says.
    known: Seen<usize>,
    /// The first that it did not take.
    unloaded: Option<(&'static str, Fault)>,
    /// Whether two charges of one were decided as they should be.
    rehearsal: Result<bool, StoreError>,
}

/// Loads them, and decides by them in a record under `prefix` that is removed.
pub(super) async fn rehearse(console: &Console, prefix: &str) -> Result<Scripts, Silent> {
    let scripts = Console::scripts();
    let mut exist: Vec<&[u8]> = vec![b"SCRIPT", b"EXISTS"];
    exist.extend(scripts.iter().map(|script| script.hash.as_bytes()));
    let known = seen(console.ask(&exist).await)?.map(|said| match said {
        Said::List(each) => each.iter().filter(|one| **one == Said::Number(1)).count(),
        _ => 0,
    });
    let mut unloaded = None;
    for script in &scripts {
        let load = [b"SCRIPT".as_slice(), b"LOAD", script.text.as_bytes()];
        if let Err(fault) = seen(console.ask(&load).await)? {
            unloaded.get_or_insert((script.name, fault));
        }
    }
    let record = format!("{prefix}:record");
    let rehearsal = console.rehearse(record.as_bytes()).await;
    if let Some(fault) = rehearsal.as_ref().err().and_then(fault_of)
        && fault.is_silence()
    {
        return Err(Silent(fault.clone()));
    }
    let _removed_or_expires = seen(console.ask(&[b"DEL", record.as_bytes()]).await)?;
    Ok(Scripts {
        all: scripts.len(),
        known,
        unloaded,
        rehearsal,
    })
}

pub(super) fn scripts(seen: &Scripts, info: &Seen<Info>) -> Finding {
    let check = "scripts";
    if let Some((name, fault)) = &seen.unloaded {
        let found = format!("`{name}` cannot be loaded: {}", fault.problem());
        return Finding::fail(check, found, cure_of(fault));
    }
    match &seen.rehearsal {
        Ok(true) => Finding::ok(check, cache(seen, info)),
        Ok(false) => {
            let found = "a limit of one did not pass one request and refuse the next";
            Finding::fail(check, found, "please report this")
        }
        Err(error) if fault_of(error).is_some_and(|fault| fault.code() == "READONLY") => {
            let found = "cannot be tried on a replica";
            Finding::warn(check, found, "ask the primary")
        }
        Err(error) => {
            let (why, cure) = match fault_of(error) {
                Some(fault) => (fault.problem(), cure_of(fault)),
                None => (error.to_string(), "please report this"),
            };
            Finding::fail(check, format!("cannot be run: {why}"), cure)
        }
    }
}

/// A missing permission is described by its own check.
fn cure_of(fault: &Fault) -> &'static str {
    match fault.denied() {
        Some(_) => "see permissions",
        None => fault.cure(),
    }
}

/// What the server keeps of them.
fn cache(seen: &Scripts, info: &Seen<Info>) -> String {
    let had = match &seen.known {
        Ok(known) => format!("the server had {known} of {}", seen.all),
        Err(_) => "which the server had is seen with +script|exists".to_owned(),
    };
    let cached = info
        .as_ref()
        .ok()
        .and_then(|info| info.number("number_of_cached_scripts"));
    let cached = cached.map_or_else(String::new, |n| {
        format!(", {n} of all programs in its cache")
    });
    format!(
        "all {} load, and decide as they should; {had}{cached}",
        seen.all
    )
}

/// The error of the server behind one of the store.
fn fault_of(error: &StoreError) -> Option<&Fault> {
    error.source()?.downcast_ref()
}
