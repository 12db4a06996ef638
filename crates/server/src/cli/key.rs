//! `tidegate key`: lines for a keys file. The key itself is shown once, and never kept.

use std::io::Read;

use tidegate::identity::keys::{ApiKey, hash_line};

use super::{Exit, KeyArgs, KeyCommand, complain, say};

/// Longer than any key; what is piped in by mistake is not read to its end.
const LONGEST: u64 = 4096;

pub(super) fn run(command: KeyCommand) -> Exit {
    match command {
        KeyCommand::New(args) => match ApiKey::new() {
            Ok(key) => {
                use std::io::Write;
                let _ = writeln!(std::io::stderr(), "{}", key.expose());
                line(key.expose(), &args)
            }
            Err(error) => {
                complain(format_args!("no randomness: {error}"));
                Exit::Failed
            }
        },
        KeyCommand::Hash(args) => {
            let mut key = String::new();
            if let Err(error) = std::io::stdin().take(LONGEST).read_to_string(&mut key) {
                complain(format_args!("cannot read the key: {error}"));
                return Exit::Failed;
            }
            line(key.trim_end_matches(['\r', '\n']), &args)
        }
    }
}

fn line(key: &str, args: &KeyArgs) -> Exit {
    match hash_line(key, &args.tier, &args.name) {
        Ok(line) => {
            say(line);
            Exit::Done
        }
        Err(error) => {
            complain(error);
            Exit::Usage
        }
    }
}
