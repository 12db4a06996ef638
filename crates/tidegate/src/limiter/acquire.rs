//! Requests that are open for a while: a slot of every rule that limits how many are, and the charge
//! of every rate, together.
//!
//! Kept true: a request that is refused by any rule holds no slot, as far as the store can be told; one
//! that is full charges nothing. Slots end by themselves, so nothing is lost for longer than they last;
//! and those of a request that nobody waits for any more are freed at once, by whoever can (`taking`).

use std::borrow::Cow;

use smallvec::SmallVec;
use tidegate_core::algorithms::{Algorithm, Limit, Precision, Spec};
use tidegate_core::engine::{self, Decision, Opening, Spent};
use tidegate_core::event::Event;
use tidegate_core::request::{Edge, Request};
use tidegate_core::rules::{Concurrent, Purpose};
use tidegate_core::store::{
    Charge, Held, Hold, OnStoreFailure, Role, Source, Store, StoreError, Terms, WorkKind,
};
use tidegate_core::subject::RuleName;
use tidegate_core::units::{Cost, Nanos};

use super::taking::Taking;
use super::ticket::{Entry, Site, Ticket, TicketError};
use super::{Keys, Limiter, View};

/// How long a slot lasts where nobody says.
pub const USUAL_SLOT: Nanos = Nanos::from_secs(10);

/// By then a question that nobody waits for any more has reached its store, or never will.
pub const OVERTAKEN: Nanos = Nanos::from_secs(2);

/// What became of a request that wants to be open.
#[derive(Clone, Debug)]
pub enum Acquired<T = Ticket> {
    /// It is, and has been charged.
    Open {
        /// What keeps it so.
        slot: T,
        /// What was charged.
        decision: Decision,
        /// How each limit on what is open stands.
        opened: SmallVec<[Opened; 2]>,
    },
    /// A rate or a list refuses it. It is not open.
    Refused(Decision),
    /// Too many are open. It is not, and nothing was charged.
    Full(Full),
}

/// A limit on what is open, with this request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Opened {
    /// The rule.
    pub rule: RuleName,
    /// How many may be open.
    pub most: u32,
    /// How many are, this one included if it has a slot.
    pub open: u32,
    /// Whether the rule only watches.
    pub role: Role,
    /// Whether there was room.
    pub granted: bool,
}

/// Too many requests are open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Full {
    /// The rule that says so.
    pub rule: RuleName,
    /// How many may be open.
    pub most: u32,
    /// How many are, as far as whoever decided knows.
    pub open: u32,
    /// How it was decided.
    pub source: Source,
    /// Whether it is only that the store is out of reach, and the rule says to refuse meanwhile.
    pub unavailable: bool,
    /// A hash of who asked, to spread what many are told at once.
    pub client: u64,
}

/// Why a slot was neither given nor refused.
#[derive(Debug, thiserror::Error)]
pub enum SlotError {
    /// The text is no slot of ours.
    #[error(transparent)]
    Ticket(#[from] TicketError),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is nothing to name a holder by.
    #[error("the operating system has no randomness: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

impl<S: Store> Limiter<S> {
    /// Opens a request for as long as `lasts`, unless it is renewed: takes a slot of every rule that
    /// limits how many are open, and charges the rates as `check` does.
    ///
    /// Not cancel-safe: dropped before it has answered, it may leave slots that nobody knows of until
    /// they end. A [`Keeper`](super::Keeper) is, and so is [`Limiter::acquire_or`].
    ///
    /// # Errors
    /// When the store gave no answer; memory always does.
    pub async fn acquire(&self, request: Request<'_>, lasts: Nanos) -> Result<Acquired, SlotError> {
        self.acquire_or(request, lasts, |_| {}).await
    }

    /// The same for callers that may stop waiting: dropped before it has answered, it hands what may
    /// have been taken to `left`, for a task that calls [`Limiter::forgo`] with it. Rates that were
    /// charged by then stay charged.
    ///
    /// # Errors
    /// When the store gave no answer; memory always does.
    pub async fn acquire_or(
        &self,
        request: Request<'_>,
        lasts: Nanos,
        left: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, SlotError> {
        self.view().acquire_or(request, lasts, left).await
    }

    /// Frees the slots of a request that never began. What the store does not hear ends by itself. To be done
    /// again after [`OVERTAKEN`]: the question for a slot may still be under way, on another connection.
    pub async fn forgo(&self, ticket: &Ticket) {
        for entry in &ticket.entries {
            let freed = self.release_one(ticket, entry, Ended::Unbegun);
            let _ends_by_itself_else = freed.await;
        }
    }

    /// Lets the slots of a request last on; whether it has all of them still. None is taken again.
    ///
    /// # Errors
    /// When the store gave no answer, so that nobody knows.
    pub async fn renew(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let mut held = true;
        for entry in &ticket.entries {
            held &= self.renew_one(ticket, entry).await?;
        }
        match held {
            true => self.note_open(ticket),
            false => self.register.closed(ticket),
        }
        Ok(held)
    }

    /// Takes slots again that were lost, where there is room; whether the request has all of them.
    pub(super) async fn take_again(&self, ticket: &Ticket) -> Result<bool, StoreError> {
        let mut held = true;
        for entry in &ticket.entries {
            held &= match entry.site {
                Site::Store => {
                    let (most, terms) = self.asked(entry);
                    let again = hold(ticket, entry, most, &terms);
                    self.store.hold(&again).await?.granted
                }
                Site::Node => {
                    let (rule, subject, now) = (&entry.rule, entry.subject, self.clock.now());
                    let until = now.plus(ticket.lasts);
                    let adaptive = &self.adaptive;
                    adaptive.renew(rule, subject, ticket.holder, now, until)
                        || adaptive
                            .take(rule, subject, ticket.holder, now, until)
                            .granted
                }
            };
        }
        if held {
            self.note_open(ticket);
        }
        Ok(held)
    }

    /// Ends a request: its slots are free. To end it twice does nothing.
    ///
    /// # Errors
    /// When the store gave no answer. The slots end by themselves then.
    pub async fn release(&self, ticket: &Ticket) -> Result<(), StoreError> {
        self.register.closed(ticket);
        let mut released = Ok(());
        for entry in &ticket.entries {
            let one = self.release_one(ticket, entry, Ended::Over).await;
            released = released.and(one);
        }
        released
    }

    /// A ticket as text that works on every node of the deployment.
    pub fn seal(&self, ticket: &Ticket) -> String {
        ticket.seal(&self.keys.load().secret)
    }

    /// The ticket that `seal` made a text of.
    ///
    /// # Errors
    /// When it is not one of this deployment.
    pub fn unseal(&self, text: &str) -> Result<Ticket, TicketError> {
        Ticket::open(text, &self.keys.load().secret)
    }

    fn note_open(&self, ticket: &Ticket) {
        let now = self.clock.now();
        self.register.opened(ticket, now, now.plus(ticket.lasts));
    }

    async fn renew_one(&self, ticket: &Ticket, entry: &Entry) -> Result<bool, StoreError> {
        if entry.site == Site::Node {
            let now = self.clock.now();
            let (rule, until) = (&entry.rule, now.plus(ticket.lasts));
            let own = self
                .adaptive
                .renew(rule, entry.subject, ticket.holder, now, until);
            return Ok(own);
        }
        let (most, terms) = self.asked(entry);
        let own = hold(ticket, entry, most, &terms);
        Ok(self.store.renew(&own).await?.granted)
    }

    async fn release_one(
        &self,
        ticket: &Ticket,
        entry: &Entry,
        ended: Ended,
    ) -> Result<(), StoreError> {
        let (rule, subject, holder) = (&entry.rule, entry.subject, ticket.holder);
        match (entry.site, ended) {
            (Site::Store, _) => {
                let (most, terms) = self.asked(entry);
                self.store.release(&hold(ticket, entry, most, &terms)).await
            }
            (Site::Node, Ended::Over) => {
                self.adaptive
                    .release(rule, subject, holder, self.clock.now());
                Ok(())
            }
            (Site::Node, Ended::Unbegun) => {
                self.adaptive.forget(rule, subject, holder);
                Ok(())
            }
        }
    }

    /// How many may be open under a rule of this name, and what it asks of the store.
    fn asked(&self, entry: &Entry) -> (u32, Terms) {
        let policy = self.policy.get();
        let rule = policy.rules.rule(entry.rule.as_str());
        let most = match rule.and_then(|rule| rule.concurrent()) {
            Some(Concurrent::Most(most)) => most,
            // The rule is gone: who is open under it stays so.
            Some(Concurrent::Adaptive) | None => u32::MAX,
        };
        (most, rule.map_or(Terms::USUAL, |rule| *rule.terms()))
    }
}

/// A slot of the store.
fn hold<'a>(ticket: &Ticket, entry: &'a Entry, most: u32, terms: &'a Terms) -> Hold<'a> {
    Hold {
        subject: entry.subject,
        rule: &entry.rule,
        holder: ticket.holder,
        most,
        lasts: ticket.lasts,
        terms,
    }
}

/// How the use of a slot ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ended {
    /// The request is over.
    Over,
    /// It was refused elsewhere, and never began.
    Unbegun,
}

impl<S: Store> View<'_, S> {
    /// Opens a request; see [`Limiter::acquire_or`].
    ///
    /// # Errors
    /// When the store gave no answer.
    pub async fn acquire_or(
        &self,
        request: Request<'_>,
        lasts: Nanos,
        left: impl FnOnce(Ticket) + Send,
    ) -> Result<Acquired, SlotError> {
        let mut request = request;
        self.identify(&mut request);
        // Charges and permits under one secret, even if it is replaced in between.
        let keys = self.limiter.keys.load_full();
        let mut plan = self.plan_under(&keys, &request, Purpose::Acquire);
        // The rates wait for the store as long as the permits do: they admit the same work.
        plan.set.work = WorkKind::LongWork;
        let ticket = Ticket {
            holder: (self.limiter.draw_id)()?,
            lasts,
            entries: SmallVec::new(),
        };
        let mut taking = Taking::new(ticket, left);
        if let Some(listed) = plan.listed {
            let decision = self.settled_by_list(listed, plan.client);
            self.tell(&request, &decision);
            return Ok(taking.ended(decision));
        }
        for opening in self.openings(&keys, &request) {
            taking.asks(entry_of(&opening));
            let (most, held) = match self.take(&opening, taking.ticket()).await {
                Ok(taken) => taken,
                Err(error) => {
                    self.give_up(taking).await;
                    return Err(error.into());
                }
            };
            taking.answered(Opened {
                rule: opening.rule.name().clone(),
                most,
                open: held.open,
                role: opening.role,
                granted: held.granted,
            });
            if let Some(full) = self.judge(&opening, most, held, request.edge, plan.client) {
                self.give_up(taking).await;
                return Ok(Acquired::Full(full));
            }
        }
        let outcome = match self.limiter.store.charge(&plan.set).await {
            Ok(outcome) => outcome,
            Err(error) => {
                self.give_up(taking).await;
                return Err(error.into());
            }
        };
        let decision = self.settled(&plan, &outcome, Spent::IfAdmitted);
        self.tell(&request, &decision);
        if !decision.allowed() {
            self.give_up(taking).await;
            return Ok(Acquired::Refused(decision));
        }
        self.limiter.note_open(taking.ticket());
        Ok(taking.ended(decision))
    }

    /// Frees the slots that this node has of a rule and subject; how many it had by itself.
    pub(super) fn free_here(&self, opening: &Opening<'_>) -> u64 {
        let (limiter, rule, subject) = (self.limiter, opening.rule.name(), opening.subject);
        limiter.register.forget(rule, subject);
        limiter.adaptive.vacate(rule, subject, limiter.clock.now())
    }

    pub(super) fn openings(
        &self,
        keys: &Keys,
        request: &Request<'_>,
    ) -> SmallVec<[Opening<'_>; 2]> {
        let (rules, limiter) = (&self.policy.rules, self.limiter);
        engine::openings(rules, limiter.stance, &keys.fingerprint, request)
    }

    /// Takes the slot of one rule; how many may be open, and what was said.
    async fn take(
        &self,
        opening: &Opening<'_>,
        ticket: &Ticket,
    ) -> Result<(u32, Held), StoreError> {
        let (limiter, rule) = (self.limiter, opening.rule);
        let most = match opening.most {
            Concurrent::Most(most) => most,
            Concurrent::Adaptive => {
                let now = limiter.clock.now();
                let (holder, until) = (ticket.holder, now.plus(ticket.lasts));
                let adaptive = &limiter.adaptive;
                let taken = adaptive.take(rule.name(), opening.subject, holder, now, until);
                let held = Held {
                    granted: taken.granted,
                    open: taken.open,
                    source: Source::Exact,
                };
                return Ok((taken.limit, held));
            }
        };
        let hold = Hold {
            subject: opening.subject,
            rule: rule.name(),
            holder: ticket.holder,
            most,
            lasts: ticket.lasts,
            terms: rule.terms(),
        };
        Ok((most, limiter.store.hold(&hold).await?))
    }

    /// Why the request is refused by what the limit of one rule said, if it is.
    fn judge(
        &self,
        opening: &Opening<'_>,
        most: u32,
        held: Held,
        edge: Edge,
        client: u64,
    ) -> Option<Full> {
        if held.granted {
            return None;
        }
        self.limiter.notice(&Event::Full {
            edge,
            opening,
            source: held.source,
        });
        (opening.role != Role::Shadow).then(|| Full {
            rule: opening.rule.name().clone(),
            most,
            open: held.open,
            source: held.source,
            unavailable: held.source == Source::Fallback
                && opening.rule.terms().on_failure == OnStoreFailure::Deny,
            client,
        })
    }

    /// Frees the slots of a request that is refused.
    async fn give_up<F: FnOnce(Ticket) + Send>(&self, taking: Taking<F>) {
        self.limiter.forgo(taking.ticket()).await;
        taking.given_up();
    }
}

/// What names the slots of a rule that may have no rate. The limit is any.
pub(super) fn in_name_only<'a>(opening: &Opening<'a>) -> Charge<'a> {
    let spec = Spec::new(Algorithm::FixedWindow, 1, Nanos::from_secs(1));
    let any = Limit::compile(&spec, Precision::Script).expect("one a second fits every store");
    Charge {
        subject: opening.subject,
        rule: opening.rule.name(),
        rate: 0,
        limit: Cow::Owned(any),
        cost: Cost::ONE,
        role: opening.role,
        terms: opening.rule.terms(),
    }
}

/// The slot of one rule.
fn entry_of(opening: &Opening<'_>) -> Entry {
    Entry {
        rule: opening.rule.name().clone(),
        subject: opening.subject,
        site: match opening.most {
            Concurrent::Most(_) => Site::Store,
            Concurrent::Adaptive => Site::Node,
        },
    }
}
