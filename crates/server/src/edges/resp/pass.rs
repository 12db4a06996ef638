//! One pass over what has arrived: every whole command is decided and its answer written, in order.
//!
//! Commands of one kind that follow each other are decided together, so that a pipeline reads the clock
//! once and asks a shared store once. A pass ends early when its answers fill the backlog: whoever does
//! not read them is not decided for.

use std::borrow::Cow;
use std::time::Instant;

use smallvec::SmallVec;
use tidegate::{Act, Keyed, RefundError};
use tidegate_core::request::{Edge, Request};
use tidegate_core::rules::may_be_miscased;
use tidegate_core::store::{SINGLES, Singles, StoreError};

use super::ask;
use super::buffers::BACKLOG;
use super::greeting::wrong_number;
use super::reply::{self, echoed};
use super::serve::Resp;
use super::session::Session;
use super::throttle::{Asked, Dialect};
use super::transaction::{self, Queued, TransactionVerb};
use super::verb::{Known, Verb, unknown};
use super::wire::{self, Arguments, Front};
use crate::edges::http::wire::{Ask, PlainCost};
use crate::store_log::log_unanswered;

/// What is said to a client whose request no store has decided.
const NO_STORE: &str = "ERR the store gave no answer";
/// Requests by rules that are decided together.
const MOST_ASKS: usize = 64;

/// What to do after a command or a pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Then {
    /// Go on.
    GoOn,
    /// Wait for the rest of a command.
    Wait,
    /// Send what was answered and end.
    Close,
}

/// How far a pass came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Passed {
    /// Bytes that have been understood.
    pub(super) bytes: usize,
    pub(super) then: Then,
}

/// A throttle that waits to be decided with those after it.
struct Pending<'b> {
    dialect: Dialect,
    key: Cow<'b, [u8]>,
    tariff: usize,
    act: Act,
}

/// A pass under way.
struct Pass<'p, 'b> {
    resp: &'p Resp,
    session: &'p mut Session,
    output: &'p mut Vec<u8>,
    throttles: SmallVec<[Pending<'b>; SINGLES]>,
    asks: Vec<Ask<'b>>,
}

/// Decides and answers what is whole in `input`.
pub(super) async fn pass(
    resp: &Resp,
    session: &mut Session,
    input: &[u8],
    output: &mut Vec<u8>,
) -> Passed {
    let begun = Instant::now();
    let mut pass = Pass {
        resp,
        session,
        output,
        throttles: SmallVec::new(),
        asks: Vec::new(),
    };
    let passed = pass.run(input).await;
    resp.service().metrics.took(Edge::Resp, begun.elapsed());
    passed
}

impl<'b> Pass<'_, 'b> {
    async fn run(&mut self, input: &'b [u8]) -> Passed {
        let mut bytes = 0;
        let then = loop {
            if self.output.len() >= BACKLOG {
                break Then::GoOn;
            }
            let (rest, mut arguments) = (&input[bytes..], Arguments::new());
            match wire::front(rest, &mut arguments) {
                Ok(Front::Command(length)) => bytes += length,
                Ok(Front::Partial) if rest.len() < wire::LONGEST => break Then::Wait,
                Ok(Front::Partial) => break self.give_up(wire::Fault::LongCommand).await,
                Err(fault) => break self.give_up(fault).await,
            }
            if arguments.is_empty() {
                continue;
            }
            if self.command(arguments).await == Then::Close {
                break Then::Close;
            }
        };
        self.flush().await;
        Passed { bytes, then }
    }

    /// Decides the commands of a transaction, whose replies are sent as one.
    async fn run_all(&mut self, queued: &'b Queued) -> Then {
        let (mut rest, mut then) = (queued.commands.as_slice(), Then::GoOn);
        for _ in 0..queued.count {
            let mut arguments = Arguments::new();
            let Ok(Front::Command(length)) = wire::front(rest, &mut arguments) else {
                break; // nothing is kept but whole commands
            };
            rest = &rest[length..];
            if self.command(arguments).await == Then::Close {
                then = Then::Close;
            }
        }
        self.flush().await;
        then
    }

    async fn give_up(&mut self, fault: wire::Fault) -> Then {
        self.flush().await;
        reply::error(self.output, &format!("ERR {fault}"));
        Then::Close
    }

    async fn command(&mut self, arguments: Arguments<'b>) -> Then {
        let known = Known::of(&arguments[0]);
        let verb = known.map(|known| known.verb);
        if !self.session.admitted && !verb.is_some_and(Verb::is_open) {
            // Nothing waits: nothing was decided for this client.
            reply::error(self.output, "NOAUTH Authentication required.");
            return Then::GoOn;
        }
        if self.session.transaction.is_some() && !verb.is_some_and(Verb::ends_or_runs) {
            return self.queue(known, &arguments);
        }
        match verb {
            Some(Verb::Throttle(dialect)) => self.throttle(dialect, arguments).await,
            Some(Verb::Check) => self.check(arguments).await,
            Some(other) => {
                self.flush().await;
                return self.alone(other, arguments).await;
            }
            None => {
                self.flush().await;
                return unknown(self.output, &arguments);
            }
        }
        Then::GoOn
    }

    /// What is decided on its own.
    async fn alone(&mut self, verb: Verb, arguments: Arguments<'b>) -> Then {
        match verb {
            Verb::Peek => self.peek(arguments).await,
            Verb::Refund => self.refund(&arguments).await,
            Verb::Transaction(step) => return self.transact(step, &arguments).await,
            Verb::Greet(greeting) => {
                let password = self.resp.password();
                return greeting.answer(&arguments, self.session, password, self.output);
            }
            Verb::Throttle(_) | Verb::Check => unreachable!("decided with others"),
        }
        Then::GoOn
    }

    /// Keeps a command for `EXEC`, if there is such a command. Nothing waits to be decided: `MULTI` has
    /// seen to that.
    fn queue(&mut self, known: Option<&Known>, arguments: &Arguments<'_>) -> Then {
        let Some(transaction) = &mut self.session.transaction else {
            return Then::GoOn;
        };
        let Some(known) = known else {
            transaction.abort();
            return unknown(self.output, arguments);
        };
        if !known.takes(arguments.len()) {
            transaction.abort();
            wrong_number(self.output, &known.name.to_ascii_lowercase());
            return Then::GoOn;
        }
        transaction.queue(arguments, self.output);
        Then::GoOn
    }

    async fn transact(&mut self, verb: TransactionVerb, arguments: &Arguments<'_>) -> Then {
        if arguments.len() > 1 {
            wrong_number(self.output, &echoed(&arguments[0]).to_ascii_lowercase());
            return Then::GoOn;
        }
        let open = &mut self.session.transaction;
        let Some(queued) = transaction::answer(verb, open, self.output) else {
            return Then::GoOn;
        };
        let mut pass = Pass {
            resp: self.resp,
            session: &mut *self.session,
            output: &mut *self.output,
            throttles: SmallVec::new(),
            asks: Vec::new(),
        };
        // Boxed: to the compiler one of them could be `EXEC` again.
        Box::pin(pass.run_all(&queued)).await
    }

    async fn throttle(&mut self, dialect: Dialect, mut arguments: Arguments<'b>) {
        if !self.asks.is_empty() {
            self.flush().await;
        }
        let (rate, act) = match dialect.read(&arguments) {
            Ok(Asked::Of(rate, act)) => (rate, act),
            Ok(Asked::Nothing { limit, refused }) => {
                self.flush().await;
                let limited = refused && !self.resp.service().limiter.only_watches();
                return reply::five(self.output, [i64::from(limited), limit, 0, -1, 0]);
            }
            Err(told) => {
                self.flush().await;
                return reply::error(self.output, &told);
            }
        };
        let tariff = match self.session.tariffs.find(rate) {
            Some(tariff) => tariff,
            None => {
                // A new one may take the place of one that others wait to be decided under.
                self.flush().await;
                match self.session.tariffs.learn(rate, self.resp.precision()) {
                    Ok(tariff) => tariff,
                    Err(unfit) => return reply::error(self.output, &dialect.unfit(unfit)),
                }
            }
        };
        self.throttles.push(Pending {
            dialect,
            key: std::mem::take(&mut arguments[1]),
            tariff,
            act,
        });
        if self.throttles.len() == SINGLES {
            self.decide_throttles().await;
        }
    }

    async fn check(&mut self, arguments: Arguments<'b>) {
        if !self.throttles.is_empty() {
            self.flush().await;
        }
        match self.read(arguments) {
            Ok(ask) if ask.wish.plain_cost == PlainCost::Zero => {
                self.flush().await;
                self.check_units(ask).await;
            }
            Ok(ask) => {
                self.asks.push(ask);
                if self.asks.len() == MOST_ASKS {
                    self.decide_asks().await;
                }
            }
            Err(told) => {
                self.flush().await;
                reply::error(self.output, &told);
            }
        }
    }

    /// Reads a request whose names the rules know.
    fn read(&self, arguments: Arguments<'b>) -> Result<Ask<'b>, String> {
        let loaded = self.resp.service().require_config(Edge::Resp);
        loaded.map_err(|missing| format!("ERR {missing}"))?;
        let ask = ask::read(arguments)?;
        if ask.request.costs.is_empty() && !may_be_miscased(&ask.request) {
            return Ok(ask);
        }
        let policy = self.resp.service().limiter.policy().load();
        let unknown = ask::unknown_name(&policy.rules, &ask.request);
        unknown.map_or(Ok(ask), Err)
    }

    /// Decides what waits. At most one kind does.
    async fn flush(&mut self) {
        if !self.throttles.is_empty() {
            self.decide_throttles().await;
        }
        if !self.asks.is_empty() {
            self.decide_asks().await;
        }
    }

    async fn decide_throttles(&mut self) {
        let (resp, tariffs) = (self.resp, &self.session.tariffs);
        let keyed = self.throttles.iter().map(|pending| Keyed {
            family: resp.family(pending.dialect),
            key: &pending.key,
            limit: tariffs.limit(pending.tariff),
            act: pending.act,
        });
        let keyed: SmallVec<[Keyed<'_>; SINGLES]> = keyed.collect();
        let mut answers = Singles::new();
        let limiter = &resp.service().limiter;
        limiter.charge_keys(Edge::Resp, &keyed, &mut answers).await;
        for ((pending, keyed), answer) in self.throttles.iter().zip(&keyed).zip(&answers) {
            match answer {
                Ok(answer) => {
                    let told = (pending.dialect).told(keyed.limit.capacity(), pending.act, answer);
                    reply::five(self.output, told);
                    if !answer.admitted && pending.act != Act::Peek {
                        resp.service()
                            .log_refusal(Edge::Resp, keyed.family.name(), answer);
                    }
                }
                Err(error) => no_store(self.output, error),
            }
        }
        drop(keyed);
        self.throttles.clear();
    }

    async fn decide_asks(&mut self) {
        let service = self.resp.service();
        let view = service.limiter.view();
        let asks = std::mem::take(&mut self.asks);
        let (mut requests, mut wishes) = (Vec::new(), Vec::new());
        for Ask { request, wish } in asks {
            requests.push(request);
            wishes.push(wish);
        }
        let decisions = view.check_each(&mut requests).await;
        for ((request, wish), decision) in requests.iter().zip(wishes).zip(&decisions) {
            let decision = match decision {
                Ok(decision) => decision,
                Err(error) => {
                    no_store(self.output, error);
                    continue;
                }
            };
            let id = service.ids.next();
            service.log_denial(&id, Edge::Resp, decision, || Some(request.clone()));
            let receipt = service.receipt(wish.receipt, decision);
            let protocol = self.session.protocol;
            ask::answer(
                self.output,
                protocol,
                decision,
                id.as_str(),
                receipt.as_deref(),
            );
        }
    }

    async fn peek(&mut self, arguments: Arguments<'b>) {
        match self.read(arguments) {
            Ok(ask) => self.look(ask.request).await,
            Err(told) => reply::error(self.output, &told),
        }
    }

    /// Decides a request whose plain cost is 0.
    async fn check_units(&mut self, ask: Ask<'_>) {
        let service = self.resp.service();
        let request = ask.request.clone();
        match service.limiter.check_units(ask.request).await {
            Ok(decision) => {
                let id = service.ids.next();
                service.log_denial(&id, Edge::Resp, &decision, || Some(request));
                let receipt = service.receipt(ask.wish.receipt, &decision);
                let (protocol, receipt) = (self.session.protocol, receipt.as_deref());
                ask::answer(self.output, protocol, &decision, id.as_str(), receipt);
            }
            Err(error) => no_store(self.output, &error),
        }
    }

    async fn look(&mut self, request: Request<'_>) {
        let service = self.resp.service();
        match service.limiter.peek(request).await {
            Ok(decision) => {
                let id = service.ids.next();
                let protocol = self.session.protocol;
                ask::answer(self.output, protocol, &decision, id.as_str(), None);
            }
            Err(error) => no_store(self.output, &error),
        }
    }

    async fn refund(&mut self, arguments: &Arguments<'_>) {
        let [_, receipt] = arguments.as_slice() else {
            return wrong_number(self.output, "tg.refund");
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
            Err(RefundError::Store(error)) => no_store(self.output, &error),
        }
    }
}

fn no_store(out: &mut Vec<u8>, error: &StoreError) {
    log_unanswered(error);
    reply::error(out, NO_STORE);
}
