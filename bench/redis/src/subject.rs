//! The subjects, each on the same server in turn.

use std::net::SocketAddr;
use std::sync::Arc;

use bench_load::BenchError;
use bench_subjects::Allowance;

use crate::calls::RedisCalls;
use crate::client::RedisBenchClient;
use crate::command::RespCommand;
use crate::limitador::LimitadorRedis;
use crate::recorded::CommandMonitor;
use crate::tidegate::TidegateRedis;

pub(crate) const EVALSHA: &str = "our script, redis-benchmark";
pub(crate) const EVALSHA_RS: &str = "our script, redis-rs";
pub(crate) const BARE: &str = "tidegate: RedisStore";
pub(crate) const GUARDED: &str = "tidegate: resilient";
pub(crate) const CELL: &str = "redis-cell, redis-benchmark";
pub(crate) const CELL_RS: &str = "redis-cell, redis-rs";
pub(crate) const LIMITADOR: &str = "limitador";

/// The rows of every table, whether or not the subject was in the run.
pub(crate) const NAMES: [&str; 7] = [EVALSHA, EVALSHA_RS, BARE, GUARDED, CELL, CELL_RS, LIMITADOR];

/// A subject that makes decisions on the server.
pub(crate) struct RedisSubject {
    pub(crate) name: &'static str,
    pub(crate) driver: RedisDriver,
}

/// The driver of a subject.
pub(crate) enum RedisDriver {
    /// `redis-benchmark` with a command.
    Benchmark(RespCommand),
    /// Tasks in this process.
    Tasks(Arc<RedisBenchClient>),
}

/// Opens all subjects; redis-cell only where the server has loaded its module.
pub(crate) async fn all(server: SocketAddr, cell: bool) -> Result<Vec<RedisSubject>, BenchError> {
    let allowance = Allowance::ADMITS_ALL;
    let mut direct = redis::Client::open(format!("redis://{server}"))?.get_connection()?;

    let monitor = CommandMonitor::open(server)?;
    let bare = TidegateRedis::bare(server, allowance).await?;
    bare.decide(0).await?;
    let recorded = monitor.first_call(&mut direct)?;
    let true_call = RedisCalls::open(server, &recorded.call()?).await?;

    let mut subjects = vec![
        benchmark(EVALSHA, recorded.call_without_zeros(&mut direct)?),
        tasks(EVALSHA_RS, RedisBenchClient::Calls(true_call)),
        tasks(BARE, RedisBenchClient::Bare(bare)),
    ];
    let guarded = TidegateRedis::guarded(server, allowance).await?;
    subjects.push(tasks(GUARDED, RedisBenchClient::Guarded(Box::new(guarded))));
    if cell {
        let (burst, count) = (allowance.burst.get(), allowance.count.get());
        let throttle = RespCommand::throttle(burst, count, allowance.period_secs);
        let calls = RedisCalls::open(server, &throttle).await?;
        subjects.push(benchmark(CELL, throttle));
        subjects.push(tasks(CELL_RS, RedisBenchClient::Calls(calls)));
    }
    let limitador = LimitadorRedis::open(server, allowance).await?;
    subjects.push(tasks(LIMITADOR, RedisBenchClient::Limitador(limitador)));
    Ok(subjects)
}

fn benchmark(name: &'static str, command: RespCommand) -> RedisSubject {
    let driver = RedisDriver::Benchmark(command);
    RedisSubject { name, driver }
}

fn tasks(name: &'static str, client: RedisBenchClient) -> RedisSubject {
    let driver = RedisDriver::Tasks(Arc::new(client));
    RedisSubject { name, driver }
}
