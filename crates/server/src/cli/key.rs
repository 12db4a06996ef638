//! `tidegate key`: lines for a keys file. The key itself is shown once, and never kept.

use std::io::Read;

use tidegate::identity::keys::{ApiKey, BadLine, hash_line};

use super::{Exit, KeyCommand, complain, say};

/// Longer than any key; what is piped in by mistake is not read to its end.
const LONGEST: u64 = 4096;

pub(super) fn run(command: KeyCommand) -> Exit {
    match command {
        KeyCommand::New(args) => match ApiKey::new() {
            Ok(key) => {
                // A key that is shown without a line for it looks as if it were in use.
                let line = hash_line(key.expose(), &args.tier, &args.name);
                if line.is_ok() {
                    use std::io::Write;
                    let _ = writeln!(std::io::stderr(), "{}", key.expose());
                }
                print(line)
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
            let key = key.trim_end_matches(['\r', '\n']);
            print(hash_line(key, &args.tier, &args.name))
        }
    }
}

fn print(line: Result<String, BadLine>) -> Exit {
    match line {
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
