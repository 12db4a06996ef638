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
    ($name:literal + books $(+ $more:literal)*) => {
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
                include_str!("scripts/books.lua"),
                $("\n", include_str!(concat!("scripts/", $more, ".lua")),)*
                include_str!(concat!("scripts/", $name, "_rest.lua")),
            ),
        }
    };
}

pub(super) const CHARGE: Script = script!("charge" + books + "judge");
pub(super) const READ: Script = script!("read");
pub(super) const DRAW: Script = script!("grant" + books);
pub(super) const REFUND: Script = script!("refund" + books + "give_back");
pub(super) const RESERVE: Script = script!("reserve" + books + "judge" + "give_back" + "ledger");
pub(super) const SETTLE: Script = script!("settle" + books + "give_back" + "ledger");
pub(super) const RESTORE: Script = script!("seed" + books);
pub(super) const RESET: Script = script!("reset" + books);
pub(super) const PERMIT: Script = script!("hold");
pub(super) const HEARTBEAT: Script = script!("beat");

/// All scripts.
pub(super) const ALL: [Script; 10] = [CHARGE, READ, DRAW, REFUND, RESERVE, SETTLE, RESTORE, RESET, PERMIT, HEARTBEAT];

/// A script and its hash.
pub(super) struct LoadedScript {
    pub(super) script: Script,
    pub(super) text: Cow<'static, str>,
    pub(super) hash: String,
}

impl LoadedScript {
    pub(super) fn new(script: Script, text: impl Into<Cow<'static, str>>) -> Self {
        let text = text.into();
        LoadedScript { script, hash: redis::Script::new(&text).get_hash().to_owned(), text }
    }
}
