//! The load: fifty connections of one thread, in a closed loop or at a steady pace.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::{Events, Interest, Poll, Token};

use crate::connection::{HttpDecision, LoadConnection};

/// Connections open at once.
pub(crate) const CONNECTIONS: usize = 50;

/// Waits beyond a minute count as a minute.
const MAX_WAIT_NANOS: u64 = 60_000_000_000;

/// When requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RequestPace {
    /// A connection sends the next request as soon as it has its response.
    ClosedLoop,
    /// This many per second, whether or not earlier responses have arrived. The wait is counted from the
    /// instant a request was due, so a request that waited behind a slow response is slow, too.
    PerSecond(f64),
}

/// The result of a run of the load.
pub(crate) struct LoadResult {
    /// The duration.
    pub(crate) elapsed: Duration,
    /// Responses received.
    pub(crate) responses: u64,
    /// Denials among them.
    pub(crate) denials: u64,
    waits_nanos: Histogram<u64>,
}

impl LoadResult {
    /// The wait that this share of the requests did not exceed, in milliseconds.
    pub(crate) fn wait_ms(&self, share: f64) -> f64 {
        self.waits_nanos.value_at_quantile(share) as f64 / 1e6
    }

    /// Responses per second.
    pub(crate) fn per_second(&self) -> f64 {
        self.responses as f64 / self.elapsed.as_secs_f64()
    }
}

/// Open connections and the requests they send in turn.
pub(crate) struct HttpLoad {
    poll: Poll,
    connections: Vec<LoadConnection>,
    idle: Vec<usize>,
    requests: Vec<Vec<u8>>,
    next_request: usize,
}

impl HttpLoad {
    /// Opens the connections to a server.
    pub(crate) fn open(address: SocketAddr, requests: Vec<Vec<u8>>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut connections = Vec::with_capacity(CONNECTIONS);
        for number in 0..CONNECTIONS {
            let mut connection = LoadConnection::open(address)?;
            let both = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut connection.stream, Token(number), both)?;
            connections.push(connection);
        }
        let idle = (0..CONNECTIONS).collect();
        Ok(HttpLoad { poll, connections, idle, requests, next_request: 0 })
    }

    /// Keeps up the load for `length`. Requests in flight at the end are not counted.
    pub(crate) fn run(&mut self, pace: RequestPace, length: Duration) -> io::Result<LoadResult> {
        let mut events = Events::with_capacity(CONNECTIONS);
        let mut waits_nanos = Histogram::new_with_max(MAX_WAIT_NANOS, 3).expect("three digits are within range");
        let (mut responses, mut denials) = (0, 0);
        let begun = Instant::now();
        let mut schedule = RequestSchedule::new(pace, begun);
        while begun.elapsed() < length {
            self.send_due(&mut schedule)?;
            self.poll.poll(&mut events, Some(schedule.poll_timeout()))?;
            for event in &events {
                let number = event.token().0;
                let connection = &mut self.connections[number];
                let Some(response) = connection.progress()? else {
                    continue;
                };
                waits_nanos.saturating_record(connection.due.elapsed().as_nanos() as u64);
                responses += 1;
                denials += u64::from(response == HttpDecision::Denied);
                self.idle.push(number);
            }
        }
        Ok(LoadResult { elapsed: begun.elapsed(), responses, denials, waits_nanos })
    }

    fn send_due(&mut self, schedule: &mut RequestSchedule) -> io::Result<()> {
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
enum RequestSchedule {
    Always,
    Steady { interval: Duration, next: Instant, due: VecDeque<Instant> },
}

impl RequestSchedule {
    fn new(pace: RequestPace, begun: Instant) -> Self {
        match pace {
            RequestPace::ClosedLoop => RequestSchedule::Always,
            RequestPace::PerSecond(rate) => {
                let interval = Duration::from_secs_f64(1.0 / rate);
                RequestSchedule::Steady { interval, next: begun, due: VecDeque::new() }
            }
        }
    }

    fn advance(&mut self, now: Instant) {
        if let RequestSchedule::Steady { interval, next, due } = self {
            while *next <= now {
                due.push_back(*next);
                *next += *interval;
            }
        }
    }

    /// The instant from which the next request is counted; `None` when none is due.
    fn take(&mut self) -> Option<Instant> {
        match self {
            RequestSchedule::Always => Some(Instant::now()),
            RequestSchedule::Steady { due, .. } => due.pop_front(),
        }
    }

    /// How long to wait for responses. A steady pace spins on its own core: a sleep would end too late.
    fn poll_timeout(&self) -> Duration {
        match self {
            RequestSchedule::Always => Duration::from_millis(50),
            RequestSchedule::Steady { .. } => Duration::ZERO,
        }
    }
}
