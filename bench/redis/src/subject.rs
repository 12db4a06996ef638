//! Who takes part, each on the same server in turn.

use std::net::SocketAddr;
use std::sync::Arc;

use bench_load::BenchError;
use bench_subjects::Allowance;

use crate::calls::Calls;
use crate::client::Client;
use crate::command::Command;
use crate::limitador::Limitador;
use crate::recorded::Monitor;
use crate::tidegate::Tidegate;

pub(crate) const EVALSHA: &str = "our script, redis-benchmark";
pub(crate) const EVALSHA_RS: &str = "our script, redis-rs";
pub(crate) const BARE: &str = "tidegate: RedisStore";
pub(crate) const GUARDED: &str = "tidegate: resilient";
pub(crate) const CELL: &str = "redis-cell, redis-benchmark";
pub(crate) const CELL_RS: &str = "redis-cell, redis-rs";
pub(crate) const LIMITADOR: &str = "limitador";

/// The rows of every table, whether or not the subject was in the run.
pub(crate) const NAMES: [&str; 7] = [EVALSHA, EVALSHA_RS, BARE, GUARDED, CELL, CELL_RS, LIMITADOR];

/// Someone who makes decisions on the server.
pub(crate) struct Subject {
    pub(crate) name: &'static str,
    pub(crate) driver: Driver,
}

/// How it is made to.
pub(crate) enum Driver {
    /// By `redis-benchmark`, which is told a command.
    Benchmark(Command),
    /// By tasks in this process.
    Tasks(Arc<Client>),
}

/// Opens everyone; redis-cell only where the server has loaded its module.
pub(crate) async fn all(server: SocketAddr, cell: bool) -> Result<Vec<Subject>, BenchError> {
    let allowance = Allowance::ADMITS_ALL;
    let mut direct = redis::Client::open(format!("redis://{server}"))?.get_connection()?;

    let monitor = Monitor::open(server)?;
    let bare = Tidegate::bare(server, allowance).await?;
    bare.decide(0).await?;
    let recorded = monitor.first_call(&mut direct)?;
    let true_call = Calls::open(server, &recorded.call()?).await?;

    let mut subjects = vec![
        benchmark(EVALSHA, recorded.call_without_zeros(&mut direct)?),
        tasks(EVALSHA_RS, Client::Calls(true_call)),
        tasks(BARE, Client::Bare(bare)),
    ];
    let guarded = Tidegate::guarded(server, allowance).await?;
    subjects.push(tasks(GUARDED, Client::Guarded(Box::new(guarded))));
    if cell {
        let (burst, count) = (allowance.burst.get(), allowance.count.get());
        let throttle = Command::throttle(burst, count, allowance.period_secs);
        let calls = Calls::open(server, &throttle).await?;
        subjects.push(benchmark(CELL, throttle));
        subjects.push(tasks(CELL_RS, Client::Calls(calls)));
    }
    let limitador = Limitador::open(server, allowance).await?;
    subjects.push(tasks(LIMITADOR, Client::Limitador(limitador)));
    Ok(subjects)
}

fn benchmark(name: &'static str, command: Command) -> Subject {
    let driver = Driver::Benchmark(command);
    Subject { name, driver }
}

fn tasks(name: &'static str, client: Client) -> Subject {
    let driver = Driver::Tasks(Arc::new(client));
    Subject { name, driver }
}
