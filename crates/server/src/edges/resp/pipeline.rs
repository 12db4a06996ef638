//! One pass over the input: every complete command is decided and its reply written, in order.
//!
//! Consecutive commands of one kind are decided together, so that a pipeline reads the clock once and calls a shared
//! store once. A pass ends early when its replies fill the output: commands of a client that does not read are not
//! decided.

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate::{KeyAction, KeyCharge};
use tidegate_rules::request::{Edge, Request};

use super::buffers::OUTPUT_BYTES;
use super::check;
use super::commands::{CommandSpec, RespCommand, reply_unknown_command};
use super::connection_commands::reply_wrong_arity;
use super::reply::{self, echo};
use super::serve::RespState;
use super::session::Session;
use super::throttle::{ThrottleDialect, ThrottleRequest};
use super::transaction::{self, Transaction, TransactionCommand};
use super::wire::{self, Arguments, ParsedCommand};
use crate::decider::{CheckOptions, CheckedItem, DecideError, InputError, KEY_BATCH, KeyOutcomes};

/// The reply to a charge that no store has decided.
const NO_STORE: &str = "ERR the store did not reply";
/// Requests by rules that are decided together: their replies fill the output.
const MAX_CHECK_BATCH: usize = 64;

/// The next step after a command or a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NextStep {
    /// Continue.
    Continue,
    /// Wait for the rest of a command.
    NeedMore,
    /// Send the replies and close.
    Close,
}

/// The progress of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct PipelineProgress {
    /// Bytes parsed.
    pub(super) bytes: usize,
    pub(super) next: NextStep,
}

/// A throttle that waits to be decided with the following ones.
struct PendingThrottle<'b> {
    dialect: ThrottleDialect,
    key: Cow<'b, [u8]>,
    limit_index: usize,
    act: KeyAction,
}

/// A pass in progress.
struct Pipeline<'p, 'b> {
    resp: &'p RespState,
    session: &'p mut Session,
    output: &'p mut Vec<u8>,
    throttles: SmallVec<[PendingThrottle<'b>; KEY_BATCH]>,
    checks: Checks<'b>,
}

/// Requests by rules that wait to be decided together.
#[derive(Default)]
struct Checks<'b> {
    requests: Vec<Request<'b>>,
    options: Vec<CheckOptions>,
}

/// Decides the complete commands in `input` and writes their replies.
pub(super) async fn run_pipeline(
    resp: &RespState,
    session: &mut Session,
    input: &[u8],
    output: &mut Vec<u8>,
) -> PipelineProgress {
    Pipeline::new(resp, session, output).run(input).await
}

impl<'p> Pipeline<'p, '_> {
    fn new(resp: &'p RespState, session: &'p mut Session, output: &'p mut Vec<u8>) -> Self {
        Pipeline { resp, session, output, throttles: SmallVec::new(), checks: Checks::default() }
    }
}

impl<'b> Pipeline<'_, 'b> {
    async fn run(&mut self, input: &'b [u8]) -> PipelineProgress {
        let mut bytes = 0;
        let next = loop {
            if self.output.len() >= OUTPUT_BYTES {
                break NextStep::Continue;
            }
            let (rest, mut arguments) = (&input[bytes..], Arguments::new());
            match wire::parse_command(rest, &mut arguments) {
                Ok(ParsedCommand::Complete(length)) => bytes += length,
                Ok(ParsedCommand::Incomplete) if rest.len() < wire::MAX_COMMAND_BYTES => {
                    break NextStep::NeedMore;
                }
                Ok(ParsedCommand::Incomplete) => {
                    break self.fail(wire::RespError::LongCommand).await;
                }
                Err(error) => break self.fail(error).await,
            }
            if arguments.is_empty() {
                continue;
            }
            if self.run_command(arguments).await == NextStep::Close {
                break NextStep::Close;
            }
        };
        self.flush().await;
        PipelineProgress { bytes, next }
    }

    /// Runs the commands of a transaction. Their replies are sent as one.
    async fn run_transaction(&mut self, queued: &'b Transaction) -> NextStep {
        let (mut rest, mut next) = (queued.commands.as_slice(), NextStep::Continue);
        for _ in 0..queued.count {
            let mut arguments = Arguments::new();
            let Ok(ParsedCommand::Complete(length)) = wire::parse_command(rest, &mut arguments) else {
                break; // only complete commands are queued
            };
            rest = &rest[length..];
            if self.run_command(arguments).await == NextStep::Close {
                next = NextStep::Close;
            }
        }
        self.flush().await;
        next
    }

    async fn fail(&mut self, error: wire::RespError) -> NextStep {
        self.flush().await;
        reply::error(self.output, &format!("ERR {error}"));
        NextStep::Close
    }

    async fn run_command(&mut self, arguments: Arguments<'b>) -> NextStep {
        let spec = CommandSpec::of(&arguments[0]);
        let command = spec.map(|known| known.command);
        if !self.session.authenticated && !command.is_some_and(RespCommand::allowed_unauthenticated) {
            // Nothing is pending: no command of this client was decided.
            reply::error(self.output, "NOAUTH Authentication required.");
            return NextStep::Continue;
        }
        if self.session.transaction.is_some() && !command.is_some_and(RespCommand::runs_in_transaction) {
            return self.queue_command(spec, &arguments);
        }
        match command {
            // These have usage texts of their own.
            Some(RespCommand::Throttle(dialect)) => self.throttle(dialect, arguments).await,
            Some(RespCommand::Check) => self.check(arguments, |options| options).await,
            Some(RespCommand::Peek) => self.check(arguments, CheckOptions::peeking).await,
            Some(other) => {
                self.flush().await;
                if let Some(spec) = spec.filter(|spec| !spec.accepts_arity(arguments.len())) {
                    reply_wrong_arity(self.output, &spec.name.to_ascii_lowercase());
                    return NextStep::Continue;
                }
                return self.run_alone(other, arguments).await;
            }
            None => {
                self.flush().await;
                return reply_unknown_command(self.output, &arguments);
            }
        }
        NextStep::Continue
    }

    /// Runs a command that is decided on its own.
    async fn run_alone(&mut self, command: RespCommand, arguments: Arguments<'b>) -> NextStep {
        match command {
            RespCommand::Refund => self.refund(&arguments).await,
            RespCommand::Transaction(step) => {
                return self.run_transaction_command(step).await;
            }
            RespCommand::Connection(command) => {
                let password = self.resp.password.as_ref();
                return command.execute(&arguments, self.session, password, self.output);
            }
            RespCommand::Throttle(_) | RespCommand::Check | RespCommand::Peek => {
                unreachable!("these commands are batched")
            }
        }
        NextStep::Continue
    }

    /// Queues a command for `EXEC`, if it exists. Nothing is pending: `MULTI` has flushed the batch.
    fn queue_command(&mut self, spec: Option<&CommandSpec>, arguments: &Arguments<'_>) -> NextStep {
        let Some(transaction) = &mut self.session.transaction else {
            return NextStep::Continue;
        };
        let Some(spec) = spec else {
            transaction.abort();
            return reply_unknown_command(self.output, arguments);
        };
        if !spec.accepts_arity(arguments.len()) {
            transaction.abort();
            reply_wrong_arity(self.output, &spec.name.to_ascii_lowercase());
            return NextStep::Continue;
        }
        transaction.queue(arguments, self.output);
        NextStep::Continue
    }

    async fn run_transaction_command(&mut self, command: TransactionCommand) -> NextStep {
        let transaction = &mut self.session.transaction;
        let Some(queued) = transaction::execute(command, transaction, self.output) else {
            return NextStep::Continue;
        };
        let mut pipeline = Pipeline::new(self.resp, self.session, self.output);
        // Boxed: to the compiler one of them could be `EXEC` again.
        Box::pin(pipeline.run_transaction(&queued)).await
    }

    async fn throttle(&mut self, dialect: ThrottleDialect, mut arguments: Arguments<'b>) {
        if !self.checks.requests.is_empty() {
            self.flush().await;
        }
        let (rate, act) = match dialect.parse(&arguments) {
            Ok(ThrottleRequest::Decide(rate, act)) => (rate, act),
            Ok(ThrottleRequest::NeverFits { limit, denied }) => {
                self.flush().await;
                let limited = denied && self.resp.decider.deny_key(Edge::Resp, self.resp.family(dialect));
                return reply::five_integers(self.output, [i64::from(limited), limit, 0, -1, 0]);
            }
            Err(message) => {
                self.flush().await;
                return reply::error(self.output, &message);
            }
        };
        let limit_index = match self.session.limit_cache.find(rate) {
            Some(limit_index) => limit_index,
            None => {
                // A new limit may replace one that pending commands use.
                self.flush().await;
                match self.session.limit_cache.insert(rate, self.resp.precision) {
                    Ok(limit_index) => limit_index,
                    Err(rate_error) => {
                        return reply::error(self.output, &dialect.rate_error(rate_error));
                    }
                }
            }
        };
        self.throttles.push(PendingThrottle { dialect, key: std::mem::take(&mut arguments[1]), limit_index, act });
        if self.throttles.len() >= self.resp.decider.batch_size() {
            self.decide_throttles().await;
        }
    }

    async fn check(&mut self, arguments: Arguments<'b>, options: impl Fn(CheckOptions) -> CheckOptions) {
        if !self.throttles.is_empty() {
            self.flush().await;
        }
        let parsed = check::parse(arguments).and_then(|check_request| {
            let validated = self.resp.decider.validate(&check_request.request);
            validated.map_err(|error| error_text(&error)).map(|()| check_request)
        });
        match parsed {
            Ok(check_request) => {
                self.checks.requests.push(check_request.request);
                self.checks.options.push(options(check_request.options));
                if self.checks.requests.len() == MAX_CHECK_BATCH {
                    self.decide_checks().await;
                }
            }
            Err(message) => {
                self.flush().await;
                reply::error(self.output, &message);
            }
        }
    }

    /// Decides the pending batch. Only one kind of command is ever pending.
    async fn flush(&mut self) {
        if !self.throttles.is_empty() {
            self.decide_throttles().await;
        }
        if !self.checks.requests.is_empty() {
            self.decide_checks().await;
        }
    }

    async fn decide_throttles(&mut self) {
        let (resp, limit_cache) = (self.resp, &self.session.limit_cache);
        let keyed = self.throttles.iter().map(|pending| KeyCharge {
            family: resp.family(pending.dialect),
            key: &pending.key,
            limit: limit_cache.limit(pending.limit_index),
            action: pending.act,
        });
        let keyed: SmallVec<[KeyCharge<'_>; KEY_BATCH]> = keyed.collect();
        let mut results = KeyOutcomes::new();
        resp.decider.charge_keys(Edge::Resp, &keyed, &mut results).await;
        for ((pending, keyed), result) in self.throttles.iter().zip(&keyed).zip(&results) {
            match result {
                Ok(outcome) => {
                    let numbers = (pending.dialect).reply_numbers(keyed.limit.capacity(), pending.act, outcome);
                    reply::five_integers(self.output, numbers);
                }
                Err(_) => reply::error(self.output, NO_STORE),
            }
        }
        drop(keyed);
        self.throttles.clear();
    }

    async fn decide_checks(&mut self) {
        let Checks { requests, options } = std::mem::take(&mut self.checks);
        let (output, protocol) = (&mut *self.output, self.session.protocol);
        let write = |result: Result<CheckedItem<'_>, DecideError>| match result {
            Ok(CheckedItem { id, decision, receipt }) => {
                check::write_decision(output, protocol, decision, id.as_str(), receipt.as_deref());
            }
            Err(error) => reply::error(output, &error_text(&error)),
        };
        self.resp.decider.check_list(requests, &options, write).await;
    }

    async fn refund(&mut self, arguments: &Arguments<'_>) {
        let Ok(receipt) = std::str::from_utf8(&arguments[1]) else {
            return reply::error(self.output, "ERR receipt: is not UTF-8");
        };
        match self.resp.decider.refund(Edge::Resp, receipt).await {
            Ok(refunded) => reply::simple(self.output, refunded.name()),
            Err(error) => reply::error(self.output, &error_text(&error)),
        }
    }
}

fn error_text(error: &DecideError) -> String {
    match error {
        DecideError::Input(InputError { field, reason }) => match field.split_once('.') {
            Some(("attributes", name)) => format!("ERR attribute '{}': {reason}", echo(name.as_bytes())),
            Some(("costs", unit)) => format!("ERR COSTS '{}': {reason}", echo(unit.as_bytes())),
            _ => format!("ERR {field}: {reason}"),
        },
        other => format!("ERR {other}"),
    }
}
