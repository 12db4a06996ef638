//! `tidegate key`: makes lines for a keys file. The key itself is printed once and never stored.

use std::io::{Read, Write};

use tidegate::identity::keys::{RawApiKey, hash_line};

use super::{CommandResult, Exit, KeyCommand, fails, print_line};

/// Maximum length of a key: that of every value of a request. Longer input, piped in by mistake, is not read to its end.
const MAX_KEY_BYTES: usize = 4096;
/// The bytes of a line end, which is not part of the key.
const LINE_END_BYTES: usize = 2;

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
            let longest = (MAX_KEY_BYTES + LINE_END_BYTES + 1) as u64;
            let read = std::io::stdin().take(longest).read_to_string(&mut key);
            read.map_err(|error| (Exit::Failed, format!("cannot read the key: {error}")))?;
            let key = key.trim_end_matches(['\r', '\n']);
            if key.len() > MAX_KEY_BYTES {
                return Err((Exit::Usage, format!("a key has at most {MAX_KEY_BYTES} bytes")));
            }
            print_line(hash_line(key, &args.tier, &args.name).map_err(fails(Exit::Usage))?);
        }
    }
    Ok(Exit::Done)
}
