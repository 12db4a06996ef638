//! The number of calls to a server, by its own count.

use std::net::SocketAddr;

use bench_load::BenchError;
use redis::{Client, Connection, cmd};

/// A connection that reads how many scripts the server ran. Every verb of the store is one script, and so is
/// the heartbeat that each node sends five times per second.
pub(crate) struct StoreCallCounter(Connection);

impl StoreCallCounter {
    /// Connects.
    pub(crate) fn open(server: SocketAddr) -> Result<Self, BenchError> {
        let connection = Client::open(format!("redis://{server}"))?.get_connection()?;
        Ok(StoreCallCounter(connection))
    }

    /// Scripts run since the server started.
    pub(crate) fn so_far(&mut self) -> Result<u64, BenchError> {
        let info: String = cmd("INFO").arg("commandstats").query(&mut self.0)?;
        Ok(scripts(&info))
    }
}

fn scripts(info: &str) -> u64 {
    let of = |line: &str| {
        let (_, rest) = line.split_once("cmdstat_evalsha:calls=")?;
        rest.split(',').next()?.parse().ok()
    };
    info.lines().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_called_by_scripts_do_not_count() {
        let info = "# Commandstats\r\n\
            cmdstat_get:calls=90,usec=17,usec_per_call=8.50,rejected_calls=0,failed_calls=0\r\n\
            cmdstat_evalsha:calls=31,usec=17,usec_per_call=8.50,rejected_calls=0,failed_calls=0\r\n";
        assert_eq!(scripts(info), 31);
        assert_eq!(scripts("# Commandstats\r\n"), 0);
    }
}
