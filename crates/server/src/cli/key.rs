//! `tidegate key`: makes lines for a keys file. The key itself is printed once and never stored.

use std::io::Read;

use tidegate::identity::keys::{HashLineError, RawApiKey, hash_line};

use super::{Exit, KeyCommand, print_error, print_line};

/// Longer than any key. Input that is piped in by mistake is not read to its end.
const MAX_KEY_BYTES: u64 = 4096;

pub(super) fn run(command: KeyCommand) -> Exit {
    match command {
        KeyCommand::New(args) => match RawApiKey::new() {
            Ok(key) => {
                // A key that is printed without a line for it looks as if it were in use.
                let line = hash_line(key.expose(), &args.tier, &args.name);
                if line.is_ok() {
                    use std::io::Write;
                    let _ = writeln!(std::io::stderr(), "{}", key.expose());
                }
                print_key_line(line)
            }
            Err(error) => {
                print_error(format_args!("no randomness: {error}"));
                Exit::Failed
            }
        },
        KeyCommand::Hash(args) => {
            let mut key = String::new();
            if let Err(error) = std::io::stdin().take(MAX_KEY_BYTES).read_to_string(&mut key) {
                print_error(format_args!("cannot read the key: {error}"));
                return Exit::Failed;
            }
            let key = key.trim_end_matches(['\r', '\n']);
            print_key_line(hash_line(key, &args.tier, &args.name))
        }
    }
}

fn print_key_line(line: Result<String, HashLineError>) -> Exit {
    match line {
        Ok(line) => {
            print_line(line);
            Exit::Done
        }
        Err(error) => {
            print_error(error);
            Exit::Usage
        }
    }
}
