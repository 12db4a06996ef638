//! The load: fifty connections of one thread, either as fast as answers come or at a steady pace.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use crate::connection::{Answer, Connection};

/// Connections open at once.
pub(crate) const CONNECTIONS: usize = 50;

/// Waits beyond a minute count as a minute.
const LONGEST_NANOS: u64 = 60_000_000_000;

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Pace {
    /// The next one of a connection as soon as it has its answer.
    AsFastAsAnswered,
    /// So many in a second, whether or not earlier ones are answered. The wait is counted from the
    /// moment a request was due: one that stood behind a slow answer is slow too.
    PerSecond(f64),
}

/// What a run of the load saw.
pub(crate) struct Seen {
    /// How long it took.
    pub(crate) elapsed: Duration,
    /// Requests answered.
    pub(crate) answers: u64,
    /// Of these, refused.
    pub(crate) refusals: u64,
    waits_nanos: Histogram<u64>,
}

impl Seen {
    /// The wait that this share of the requests did not exceed, in milliseconds.
    pub(crate) fn wait_ms(&self, share: f64) -> f64 {
        self.waits_nanos.value_at_quantile(share) as f64 / 1e6
    }

    /// Requests answered in a second.
    pub(crate) fn per_second(&self) -> f64 {
        self.answers as f64 / self.elapsed.as_secs_f64()
    }
}

/// Open connections and the requests they send in turn.
pub(crate) struct Load {
    poll: Poll,
    connections: Vec<Connection>,
    idle: Vec<usize>,
    requests: Vec<Vec<u8>>,
    next_request: usize,
}

impl Load {
    /// Opens the connections to a server.
    pub(crate) fn open(address: SocketAddr, requests: Vec<Vec<u8>>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for number in 0..CONNECTIONS {
            let mut connection = Connection::open(address)?;
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut connection.stream, Token(number), both)?;
            connections.push(connection);
        }
        let idle = (0..CONNECTIONS).collect();
        Ok(Load {
            poll,
            connections,
            idle,
            requests,
            next_request: 0,
        })
    }

    /// Keeps the load up for `length`. Requests still under way at the end are not counted.
    pub(crate) fn run(&mut self, pace: Pace, length: Duration) -> io::Result<Seen> {
        let mut events = Events::with_capacity(CONNECTIONS);
        let mut waits_nanos =
            Histogram::new_with_max(LONGEST_NANOS, 3).expect("three digits are within range");
        let (mut answers, mut refusals) = (0, 0);
        let begun = Instant::now();
        let mut schedule = Schedule::new(pace, begun);
        while begun.elapsed() < length {
            self.send_due(&mut schedule)?;
            self.poll.poll(&mut events, Some(schedule.patience()))?;
            for event in &events {
                let number = event.token().0;
                let connection = &mut self.connections[number];
                let Some(answer) = connection.progress()? else {
                    continue;
                };
                waits_nanos.saturating_record(connection.due.elapsed().as_nanos() as u64);
                answers += 1;
                refusals += u64::from(answer == Answer::Refused);
                self.idle.push(number);
            }
        }
        Ok(Seen {
            elapsed: begun.elapsed(),
            answers,
            refusals,
            waits_nanos,
        })
    }

    fn send_due(&mut self, schedule: &mut Schedule) -> io::Result<()> {
        schedule.advance(Instant::now());
        while let Some(number) = self.idle.pop() {
            let Some(due) = schedule.take() else {
                self.idle.push(number);
                break;
            };
            let request = &self.requests[self.next_request];
            self.connections[number].send(request, due)?;
            self.next_request = (self.next_request + 1) % self.requests.len();
        }
        Ok(())
    }
}

/// Which requests are due.
enum Schedule {
    Always,
    Steady {
        interval: Duration,
        next: Instant,
        due: VecDeque<Instant>,
    },
}

impl Schedule {
    fn new(pace: Pace, begun: Instant) -> Self {
        match pace {
            Pace::AsFastAsAnswered => Schedule::Always,
            Pace::PerSecond(rate) => {
                let interval = Duration::from_secs_f64(1.0 / rate);
                Schedule::Steady {
                    interval,
                    next: begun,
                    due: VecDeque::new(),
                }
            }
        }
    }

    fn advance(&mut self, now: Instant) {
        if let Schedule::Steady {
            interval,
            next,
            due,
        } = self
        {
            while *next <= now {
                due.push_back(*next);
                *next += *interval;
            }
        }
    }

    /// The moment from which the next request is counted; `None` when none is due.
    fn take(&mut self) -> Option<Instant> {
        match self {
            Schedule::Always => Some(Instant::now()),
            Schedule::Steady { due, .. } => due.pop_front(),
        }
    }

    /// How long to wait for answers. A steady pace spins on its own core: a sleep is later than due.
    fn patience(&self) -> Duration {
        match self {
            Schedule::Always => Duration::from_millis(50),
            Schedule::Steady { .. } => Duration::ZERO,
        }
    }
}
