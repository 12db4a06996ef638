//! `tidegate key`: makes lines for a keys file. The key itself is printed once and never stored.

use std::io::{Read, Write};

use tidegate::identity::keys::{RawApiKey, hash_line};

use super::{CommandResult, Exit, KeyCommand, fails, print_line};

/// Longer than any key. Input that is piped in by mistake is not read to its end.
const MAX_KEY_BYTES: u64 = 4096;

pub(super) fn run(command: KeyCommand) -> CommandResult {
    match command {
        KeyCommand::New(args) => {
            let key = RawApiKey::new().map_err(|error| (Exit::Failed, format!("no randomness: {error}")))?;
            // The line first: a key that is shown without one looks as if it were in use.
            print_line(hash_line(key.expose(), &args.tier, &args.name).map_err(fails(Exit::Usage))?);
            let _ = writeln!(std::io::stderr(), "{}", key.expose());
        }
        KeyCommand::Hash(args) => {
            let mut key = String::new();
            let read = std::io::stdin().take(MAX_KEY_BYTES).read_to_string(&mut key);
            read.map_err(|error| (Exit::Failed, format!("cannot read the key: {error}")))?;
            let key = key.trim_end_matches(['\r', '\n']);
            print_line(hash_line(key, &args.tier, &args.name).map_err(fails(Exit::Usage))?);
        }
    }
    Ok(Exit::Done)
}
