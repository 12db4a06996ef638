//! The scripts, assembled from their files.
//!
//! Each script begins with its contract. Code that several scripts share is in files of its own, which are
//! concatenated, so that the text sent is complete and nothing is generated.

use std::borrow::Cow;

/// A script of the store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Script {
    /// The name, for error messages.
    pub(super) name: &'static str,
    /// The text.
    pub(super) text: &'static str,
}

/// A script from its contract, the shared files, the files of only some scripts, and its own part.
macro_rules! script {
    ($name:literal) => {
        Script {
            name: $name,
            text: include_str!(concat!("scripts/", $name, ".lua")),
        }
    };
    ($name:literal + accounts $(+ $more:literal)*) => {
        Script {
            name: $name,
            text: concat!(
                include_str!(concat!("scripts/", $name, ".lua")),
                "\n",
                include_str!("scripts/record.lua"),
                "\n",
                include_str!("scripts/meters.lua"),
                "\n",
                include_str!("scripts/adopt.lua"),
                "\n",
                include_str!("scripts/accounts.lua"),
                $("\n", include_str!(concat!("scripts/", $more, ".lua")),)*
                include_str!(concat!("scripts/", $name, "_rest.lua")),
            ),
        }
    };
}

pub(super) const CHARGE: Script = script!("charge" + accounts + "judge");
pub(super) const READ: Script = script!("read");
pub(super) const DRAW: Script = script!("draw" + accounts);
pub(super) const REFUND: Script = script!("refund" + accounts + "refund_units");
pub(super) const RESERVE: Script = script!("reserve" + accounts + "judge" + "refund_units" + "ledger");
pub(super) const SETTLE: Script = script!("settle" + accounts + "refund_units" + "ledger");
pub(super) const RESTORE: Script = script!("restore" + accounts);
pub(super) const RESET: Script = script!("reset" + accounts);
pub(super) const PERMIT: Script = script!("permit");
pub(super) const HEARTBEAT: Script = script!("heartbeat");

/// All scripts.
pub(super) const ALL: [Script; 10] = [CHARGE, READ, DRAW, REFUND, RESERVE, SETTLE, RESTORE, RESET, PERMIT, HEARTBEAT];

/// A script as a server has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LoadedScript {
    /// The name.
    pub name: &'static str,
    /// The text that is loaded.
    pub text: Cow<'static, str>,
    /// The hash by which the server knows it.
    pub hash: String,
}

impl LoadedScript {
    pub(super) fn new(script: Script, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        LoadedScript { name: script.name, hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }

    /// The script as it is shipped.
    pub(super) fn shipped(script: Script) -> Self {
        LoadedScript::new(script, script.text)
    }
}
