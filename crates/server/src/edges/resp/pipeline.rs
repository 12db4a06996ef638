//! One pass over the input: every complete command is decided and its reply written, in order.
//!
//! Consecutive commands of one kind are decided together, so that a pipeline reads the clock once and calls a shared
//! store once. A pass ends early when its replies fill the output: commands of a client that does not read are not
//! decided.

use std::borrow::Cow;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate::{KeyAction, KeyCharge, RefundError};
use tidegate_core::store::{SINGLE_BATCH, SingleOutcomes, StoreError};
use tidegate_rules::may_have_case_mismatch;
use tidegate_rules::request::{Edge, Request};

use super::buffers::OUTPUT_BYTES;
use super::check;
use super::commands::{CommandSpec, RespCommand, reply_unknown_command};
use super::connection_commands::reply_wrong_arity;
use super::reply::{self, echo};
use super::serve::RespListener;
use super::session::Session;
use super::throttle::{ThrottleDialect, ThrottleRequest};
use super::transaction::{self, QueuedCommands, TransactionCommand};
use super::wire::{self, Arguments, ParsedCommand};
use crate::edges::common::check_body::{CheckRequest, PlainCost};
use crate::state::store_error_log::log_store_error;

/// The reply to a request that no store has decided.
const NO_STORE: &str = "ERR the store did not reply";
/// Requests by rules that are decided together.
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
    resp: &'p RespListener,
    session: &'p mut Session,
    output: &'p mut Vec<u8>,
    throttles: SmallVec<[PendingThrottle<'b>; SINGLE_BATCH]>,
    checks: Vec<CheckRequest<'b>>,
}

/// Decides the complete commands in `input` and writes their replies.
pub(super) async fn run_pipeline(
    resp: &RespListener,
    session: &mut Session,
    input: &[u8],
    output: &mut Vec<u8>,
) -> PipelineProgress {
    let started = Instant::now();
    let mut pipeline = Pipeline { resp, session, output, throttles: SmallVec::new(), checks: Vec::new() };
    let progress = pipeline.run(input).await;
    resp.service().metrics.record_duration(Edge::Resp, started.elapsed());
    progress
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
    async fn run_transaction(&mut self, queued: &'b QueuedCommands) -> NextStep {
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
            Some(RespCommand::Throttle(dialect)) => self.throttle(dialect, arguments).await,
            Some(RespCommand::Check) => self.check(arguments).await,
            Some(other) => {
                self.flush().await;
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
            RespCommand::Peek => self.peek(arguments).await,
            RespCommand::Refund => self.refund(&arguments).await,
            RespCommand::Transaction(step) => {
                return self.run_transaction_command(step, &arguments).await;
            }
            RespCommand::Connection(command) => {
                let password = self.resp.password();
                return command.execute(&arguments, self.session, password, self.output);
            }
            RespCommand::Throttle(_) | RespCommand::Check => {
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

    async fn run_transaction_command(&mut self, command: TransactionCommand, arguments: &Arguments<'_>) -> NextStep {
        if arguments.len() > 1 {
            reply_wrong_arity(self.output, &echo(&arguments[0]).to_ascii_lowercase());
            return NextStep::Continue;
        }
        let transaction = &mut self.session.transaction;
        let Some(queued) = transaction::execute(command, transaction, self.output) else {
            return NextStep::Continue;
        };
        let mut pipeline = Pipeline {
            resp: self.resp,
            session: &mut *self.session,
            output: &mut *self.output,
            throttles: SmallVec::new(),
            checks: Vec::new(),
        };
        // Boxed: to the compiler one of them could be `EXEC` again.
        Box::pin(pipeline.run_transaction(&queued)).await
    }

    async fn throttle(&mut self, dialect: ThrottleDialect, mut arguments: Arguments<'b>) {
        if !self.checks.is_empty() {
            self.flush().await;
        }
        let (rate, act) = match dialect.parse(&arguments) {
            Ok(ThrottleRequest::Decide(rate, act)) => (rate, act),
            Ok(ThrottleRequest::NeverFits { limit, denied }) => {
                self.flush().await;
                let limited = denied && !self.resp.service().limiter.is_shadow_only();
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
                match self.session.limit_cache.insert(rate, self.resp.precision()) {
                    Ok(limit_index) => limit_index,
                    Err(rate_error) => {
                        return reply::error(self.output, &dialect.rate_error(rate_error));
                    }
                }
            }
        };
        self.throttles.push(PendingThrottle { dialect, key: std::mem::take(&mut arguments[1]), limit_index, act });
        if self.throttles.len() == SINGLE_BATCH {
            self.decide_throttles().await;
        }
    }

    async fn check(&mut self, arguments: Arguments<'b>) {
        if !self.throttles.is_empty() {
            self.flush().await;
        }
        match self.parse_check(arguments) {
            Ok(check_request) if check_request.options.plain_cost == PlainCost::Zero => {
                self.flush().await;
                self.check_units(check_request).await;
            }
            Ok(check_request) => {
                self.checks.push(check_request);
                if self.checks.len() == MAX_CHECK_BATCH {
                    self.decide_checks().await;
                }
            }
            Err(message) => {
                self.flush().await;
                reply::error(self.output, &message);
            }
        }
    }

    /// Parses a request and checks its names against the rules.
    fn parse_check(&self, arguments: Arguments<'b>) -> Result<CheckRequest<'b>, String> {
        let loaded = self.resp.service().require_config(Edge::Resp);
        loaded.map_err(|missing| format!("ERR {missing}"))?;
        let check_request = check::parse(arguments)?;
        if check_request.request.costs.is_empty() && !may_have_case_mismatch(&check_request.request) {
            return Ok(check_request);
        }
        let policy = self.resp.service().limiter.policy().load();
        let name_error = check::unknown_name_error(&policy.rules, &check_request.request);
        name_error.map_or(Ok(check_request), Err)
    }

    /// Decides the pending batch. Only one kind of command is ever pending.
    async fn flush(&mut self) {
        if !self.throttles.is_empty() {
            self.decide_throttles().await;
        }
        if !self.checks.is_empty() {
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
        let keyed: SmallVec<[KeyCharge<'_>; SINGLE_BATCH]> = keyed.collect();
        let mut results = SingleOutcomes::new();
        let limiter = &resp.service().limiter;
        limiter.charge_keys(Edge::Resp, &keyed, &mut results).await;
        for ((pending, keyed), result) in self.throttles.iter().zip(&keyed).zip(&results) {
            match result {
                Ok(outcome) => {
                    let numbers = (pending.dialect).reply_numbers(keyed.limit.capacity(), pending.act, outcome);
                    reply::five_integers(self.output, numbers);
                    if !outcome.admitted && pending.act != KeyAction::Peek {
                        resp.service().log_keyed_denial(Edge::Resp, keyed.family.name(), outcome);
                    }
                }
                Err(error) => reply_store_unavailable(self.output, error),
            }
        }
        drop(keyed);
        self.throttles.clear();
    }

    async fn decide_checks(&mut self) {
        let service = self.resp.service();
        let view = service.limiter.view();
        let checks = std::mem::take(&mut self.checks);
        let (mut requests, mut all_options) = (Vec::new(), Vec::new());
        for CheckRequest { request, options } in checks {
            requests.push(request);
            all_options.push(options);
        }
        let decisions = view.check_each(&mut requests).await;
        for ((request, options), decision) in requests.iter().zip(all_options).zip(&decisions) {
            let decision = match decision {
                Ok(decision) => decision,
                Err(error) => {
                    reply_store_unavailable(self.output, error);
                    continue;
                }
            };
            let id = service.ids.next();
            service.log_denial(&id, Edge::Resp, decision, || Some(request.clone()));
            let receipt = service.receipt(options.receipt, decision);
            let protocol = self.session.protocol;
            check::write_decision(self.output, protocol, decision, id.as_str(), receipt.as_deref());
        }
    }

    async fn peek(&mut self, arguments: Arguments<'b>) {
        match self.parse_check(arguments) {
            Ok(check_request) => self.peek_request(check_request.request).await,
            Err(message) => reply::error(self.output, &message),
        }
    }

    /// Decides a request whose plain cost is 0.
    async fn check_units(&mut self, check_request: CheckRequest<'_>) {
        let service = self.resp.service();
        let request = check_request.request.clone();
        match service.limiter.check_units(check_request.request).await {
            Ok(decision) => {
                let id = service.ids.next();
                service.log_denial(&id, Edge::Resp, &decision, || Some(request));
                let receipt = service.receipt(check_request.options.receipt, &decision);
                let (protocol, receipt) = (self.session.protocol, receipt.as_deref());
                check::write_decision(self.output, protocol, &decision, id.as_str(), receipt);
            }
            Err(error) => reply_store_unavailable(self.output, &error),
        }
    }

    async fn peek_request(&mut self, request: Request<'_>) {
        let service = self.resp.service();
        match service.limiter.peek(request).await {
            Ok(decision) => {
                let id = service.ids.next();
                let protocol = self.session.protocol;
                check::write_decision(self.output, protocol, &decision, id.as_str(), None);
            }
            Err(error) => reply_store_unavailable(self.output, &error),
        }
    }

    async fn refund(&mut self, arguments: &Arguments<'_>) {
        let [_, receipt] = arguments.as_slice() else {
            return reply_wrong_arity(self.output, "tg.refund");
        };
        let Ok(receipt) = std::str::from_utf8(receipt) else {
            return reply::error(self.output, "ERR receipt: is not UTF-8");
        };
        let service = self.resp.service();
        if let Err(missing) = service.require_config(Edge::Resp) {
            return reply::error(self.output, &format!("ERR {missing}"));
        }
        match service.limiter.refund(receipt).await {
            Ok(refunded) => reply::simple(self.output, refunded.name()),
            Err(RefundError::Receipt(error)) => {
                reply::error(self.output, &format!("ERR receipt: {error}"));
            }
            Err(RefundError::Store(error)) => reply_store_unavailable(self.output, &error),
        }
    }
}

fn reply_store_unavailable(out: &mut Vec<u8>, error: &StoreError) {
    log_store_error(error);
    reply::error(out, NO_STORE);
}
