//! The command line.
//!
//! Exit codes: 0 done, 1 failed, 2 wrong usage, 69 server or store unreachable, 75 denied, 78 bad rules or
//! configuration. Output for programs goes to standard output, everything else to standard error.

mod client;
mod doctor;
mod explain;
mod key;
mod lint;
mod serve;
mod try_peek;

use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use serde_json::Value;

use crate::config::{self, ConfigError, SettingsLayer, StoreUrl, UnknownVariableError, millis};

/// A distributed rate limiter.
#[derive(Parser, Debug)]
#[command(name = "tidegate", version, about, arg_required_else_help = true)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Run the service
    Serve(Box<ServeArgs>),
    /// Check rules files or folders: errors and warnings
    #[command(alias = "check")]
    Lint(LintArgs),
    /// Examine the store, and print its problems and their fixes
    Doctor(DoctorArgs),
    /// Show which rules apply to a request and why, without a server
    Explain(ExplainArgs),
    /// Check a request against a running server and charge it
    Try(CheckArgs),
    /// Show the remaining units for a request on a running server, without charging
    Peek(CheckArgs),
    /// Create lines for a keys file
    #[command(subcommand)]
    Key(KeyCommand),
    /// Print the JSON Schema of a rules file, for editors
    Schema,
}

#[derive(Args, Debug)]
struct ServeArgs {
    /// File with settings; flags and environment variables take precedence
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    #[command(flatten)]
    layer: SettingsLayer,
}

#[derive(Args, Debug)]
struct LintArgs {
    /// Rules files or folders; each is checked as one set of rules. - is standard input
    #[arg(required = true, value_name = "FILE")]
    paths: Vec<PathBuf>,

    /// Allow several files of the Envoy protocol to configure one domain, as `serve --merge-domains` does
    #[arg(long)]
    merge_domains: bool,
}

#[derive(Args, Debug)]
struct DoctorArgs {
    /// Settings file of the service, for the settings that are not given here
    #[arg(long, env = "TIDEGATE_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,

    /// The store to examine, in the format of `serve --store`
    #[arg(long, env = "TIDEGATE_STORE", value_name = "STORE", hide_env_values = true)]
    store: Option<StoreUrl>,

    /// Rules file or folder to check as well
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH")]
    rules: Option<PathBuf>,

    /// File with the secret that the nodes of this store should use
    #[arg(long, env = "TIDEGATE_SECRET_FILE", value_name = "FILE")]
    secret_file: Option<PathBuf>,

    /// How long a decision waits for the store; a plain number is milliseconds [default: 25ms]
    #[arg(long, env = "TIDEGATE_STORE_BUDGET", value_name = "DURATION", value_parser = millis)]
    store_budget: Option<Duration>,

    /// Difference between the clocks that is a warning; a plain number is milliseconds [default: 20ms]
    #[arg(long, env = "TIDEGATE_CLOCK_WARN", value_name = "DURATION", value_parser = millis)]
    clock_warn: Option<Duration>,

    /// Difference between the clocks that is a failure; a plain number is milliseconds [default: 50ms, or --clock-warn
    /// if that is more]
    #[arg(long, env = "TIDEGATE_CLOCK_ALARM", value_name = "DURATION", value_parser = millis)]
    clock_alarm: Option<Duration>,

    /// Print one JSON document instead of lines
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct ExplainArgs {
    /// Rules file or folder [default: the built-in rules]
    #[arg(long, env = "TIDEGATE_RULES", value_name = "PATH")]
    rules: Option<PathBuf>,

    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Args, Debug)]
struct CheckArgs {
    /// The server: http://host:port, host:port, a port on this machine, or unix:path
    #[arg(long, env = "TIDEGATE_URL", default_value = "http://127.0.0.1:8080", hide_env_values = true)]
    url: String,

    #[command(flatten)]
    request: RequestArgs,
}

#[derive(Args, Debug)]
struct RequestArgs {
    /// An attribute of the request, such as ip=203.0.113.9 or path=/login; repeatable
    #[arg(short, long = "attr", value_name = "NAME=VALUE", value_parser = pair)]
    attrs: Vec<(String, String)>,

    /// Cost of the request
    #[arg(long, value_name = "N")]
    cost: Option<u64>,

    /// Cost in a unit that rules name, such as tokens=1500; repeatable, or several separated by commas
    #[arg(long, value_name = "UNIT=N", value_parser = unit_cost, value_delimiter = ',')]
    costs: Vec<(String, u64)>,

    /// Output format
    #[arg(long, value_enum, default_value = "text")]
    output: OutputFormat,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum OutputFormat {
    /// For people.
    Text,
    /// For programs.
    Json,
}

#[derive(Subcommand, Debug)]
enum KeyCommand {
    /// Create a random key: print the key to standard error and its line to standard output
    New(KeyArgs),
    /// Print the line for a key that is read from standard input
    Hash(KeyArgs),
}

#[derive(Args, Debug)]
struct KeyArgs {
    /// Tier of the key, as the rules name it
    #[arg(long, default_value = "free")]
    tier: String,

    /// Owner of the key
    #[arg(long, default_value = "")]
    name: String,
}

/// The exit code of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Exit {
    Done = 0,
    Failed = 1,
    Usage = 2,
    Unreachable = 69,
    Denied = 75,
    BadConfig = 78,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit as u8)
    }
}

/// The exit code of a command, or that of its failure and the text for standard error.
type CommandResult = Result<Exit, (Exit, String)>;

/// Makes an error of any kind the failure of a command.
fn fails<E: Display>(exit: Exit) -> impl FnOnce(E) -> (Exit, String) {
    move |error| (exit, error.to_string())
}

/// Makes an error of the settings the failure of a command.
fn bad_settings(error: ConfigError) -> (Exit, String) {
    (if error.is_file_error() { Exit::BadConfig } else { Exit::Usage }, error.to_string())
}

pub(crate) fn run(cli: Cli) -> Exit {
    let checked = check_environment().map_err(|error| bad_settings(error.into()));
    checked.and_then(|()| run_command(cli.command)).unwrap_or_else(|(exit, text)| {
        print_error(text);
        exit
    })
}

fn run_command(command: Command) -> CommandResult {
    match command {
        Command::Serve(args) => serve::run(*args),
        Command::Lint(args) => Ok(lint::run(&args)),
        Command::Doctor(args) => doctor::run(args),
        Command::Explain(args) => explain::run(&args),
        Command::Try(args) => try_peek::run(&args, "/v1/check"),
        Command::Peek(args) => try_peek::run(&args, "/v1/peek"),
        Command::Key(command) => key::run(command),
        Command::Schema => {
            print_line(tidegate_rules::schema());
            Ok(Exit::Done)
        }
    }
}

/// The settings in `layer`, and those of the file below it.
fn merged_settings(layer: SettingsLayer, file: Option<&Path>) -> Result<SettingsLayer, ConfigError> {
    let below = file.map(SettingsLayer::read).transpose()?.unwrap_or_default();
    Ok(layer.merged_over(below))
}

/// Rejects environment variables that look like settings but are not settings of any command.
fn check_environment() -> Result<(), UnknownVariableError> {
    let command = Cli::command();
    let arguments = command.get_subcommands().flat_map(|sub| sub.get_arguments());
    let settings: Vec<&str> = arguments.filter_map(|argument| argument.get_env()?.to_str()).collect();
    config::check_environment(&settings, std::env::vars_os())
}

impl RequestArgs {
    /// The request as a JSON body of the HTTP API.
    fn body(&self) -> String {
        let texts = self.attrs.iter();
        let texts = texts.map(|(name, value)| (name, Value::from(value.as_str())));
        let mut body = format!(r#"{{"attributes":{}"#, object(texts));
        if let Some(cost) = self.cost {
            body += &format!(r#","cost":{cost}"#);
        }
        if !self.costs.is_empty() {
            let costs = self.costs.iter();
            let costs = costs.map(|(unit, cost)| (unit, Value::from(*cost)));
            body += &format!(r#","costs":{}"#, object(costs));
        }
        body + "}"
    }
}

/// A JSON object with every field given, so that the service rejects a field that is given twice. A map would drop
/// all but the last one.
fn object<'f>(fields: impl Iterator<Item = (&'f String, Value)>) -> String {
    let fields = fields.map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
    format!("{{{}}}", fields.collect::<Vec<_>>().join(","))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

fn unit_cost(text: &str) -> Result<(String, u64), String> {
    let wrong = "write UNIT=N, such as tokens=1500";
    let (unit, cost) = text.split_once('=').ok_or(wrong)?;
    if unit.is_empty() {
        return Err(wrong.to_owned());
    }
    let cost = cost.parse().map_err(|_| wrong)?;
    Ok((unit.to_owned(), cost))
}

/// Prints a line to standard output, or ends the process: a key whose line is lost is not made. A closed pipe is not an
/// error.
fn print_line(text: impl Display) {
    if let Err(error) = writeln!(std::io::stdout(), "{text}")
        && error.kind() != ErrorKind::BrokenPipe
    {
        print_error(format_args!("the output cannot be written: {error}"));
        std::process::exit(Exit::Failed as i32);
    }
}

fn print_error(text: impl Display) {
    let _ = writeln!(std::io::stderr(), "tidegate: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_switch_takes_an_optional_value() {
        for (arg, want) in [("--shadow", true), ("--shadow=false", false)] {
            let cli = Cli::try_parse_from(["tidegate", "serve", arg]).unwrap();
            let Command::Serve(args) = cli.command else { panic!() };
            assert_eq!(args.layer.shadow, Some(want));
        }
    }

    #[test]
    fn the_old_names_of_flags_work_and_are_not_shown() {
        let words = "tidegate serve --drain 5s --idle 7s --reset delta --data here";
        let Command::Serve(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else { panic!() };
        assert_eq!(args.layer.shutdown_timeout, Some(Duration::from_secs(5)));
        assert_eq!(args.layer.idle_timeout, Some(Duration::from_secs(7)));
        assert!(args.layer.reset_format.is_some() && args.layer.data_dir.is_some());
        let mut cli = Cli::command();
        let serve = cli.find_subcommand_mut("serve").unwrap();
        let help = serve.render_long_help().to_string();
        for old in ["--drain ", "--idle ", "--reset ", "--data "] {
            assert!(!help.contains(old), "{old}");
        }
    }

    #[test]
    fn costs_of_units_reach_the_request() {
        let body_of = |args: &[&str]| {
            let words = ["tidegate", "try"].iter().chain(args);
            let Command::Try(args) = Cli::try_parse_from(words).map_err(|e| e.to_string())?.command else { panic!() };
            Ok::<_, String>(args.request.body())
        };
        let want = r#"{"attributes":{"user":"a"},"cost":2,"costs":{"images":1,"tokens":1500}}"#;
        for costs in [&["--costs", "images=1,tokens=1500"][..], &["--costs", "images=1", "--costs", "tokens=1500"]] {
            let args = [&["-a", "user=a", "--cost", "2"][..], costs].concat();
            assert_eq!(body_of(&args).unwrap(), want);
        }
        let twice = body_of(&["-a", "user=a", "-a", "user=b"]).unwrap();
        assert_eq!(twice, r#"{"attributes":{"user":"a","user":"b"}}"#);
        for wrong in ["tokens", "=5", "tokens=", "tokens=-1"] {
            let error = body_of(&["--costs", wrong]).unwrap_err();
            assert!(error.contains("write UNIT=N"), "{error}");
        }
    }

    /// Flags and the environment accept the same values as the file.
    #[test]
    fn settings_accept_durations_sizes_and_addresses_with_units() {
        let words =
            "tidegate serve --shutdown-timeout 5s --idle-timeout 90 --store-budget 40ms --memory-cap 10G --http :8080";
        let Command::Serve(args) = Cli::try_parse_from(words.split(' ')).unwrap().command else { panic!() };
        let settings = args.layer.resolve().unwrap();
        assert_eq!(settings.shutdown_timeout, Duration::from_secs(5));
        assert_eq!(settings.idle_timeout, Duration::from_secs(90));
        assert_eq!(settings.store_budget, Duration::from_millis(40));
        assert_eq!(settings.memory_cap.0, 10 << 30);
        assert_eq!(settings.http.to_string(), "0.0.0.0:8080");
    }
}
