//! redis-rs by itself, as our store uses it: a few connections that all tasks share.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bench_load::BenchError;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo as _, Value};

use crate::client::{CONNECTIONS, KEYS};
use crate::command::RespCommand;

/// One command for each key, ready to be sent.
pub(crate) struct RedisCalls {
    commands: Vec<Cmd>,
    connections: Vec<MultiplexedConnection>,
    next: AtomicUsize,
}

impl RedisCalls {
    /// Connects as our store does: without delay, with a timeout on each reply.
    pub(crate) async fn open(server: SocketAddr, command: &RespCommand) -> Result<Self, BenchError> {
        let info = format!("redis://{server}").into_connection_info()?;
        let settings = info.tcp_settings().clone().set_nodelay(true);
        let client = Client::open(info.set_tcp_settings(settings))?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(Duration::from_millis(500)))
            .set_pipeline_buffer_size(1_024);
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let connection = client.get_multiplexed_async_connection_with_config(&config);
            connections.push(connection.await?);
        }
        Ok(RedisCalls {
            commands: (0..KEYS).map(|key| command.numbered(key)).collect(),
            connections,
            next: AtomicUsize::new(0),
        })
    }

    /// Sends the command of this key.
    pub(crate) async fn decide(&self, key: usize) -> Result<(), BenchError> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let mut connection = self.connections[index % self.connections.len()].clone();
        let reply: Value = self.commands[key].query_async(&mut connection).await?;
        if admitted(&reply) { Ok(()) } else { Err(format!("unexpected reply {reply:?}").into()) }
    }
}

/// Whether a limiter admitted the call: redis-cell replies with 0 first; our script with the time in 7 bytes,
/// then 1 as a double.
pub(crate) fn admitted(reply: &Value) -> bool {
    match reply {
        Value::Array(parts) => parts.first() == Some(&Value::Int(0)),
        Value::BulkString(bytes) => bytes.get(7..15) == Some(&1_f64.to_le_bytes()[..]),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_admission_counts() {
        assert!(admitted(&Value::Array(vec![Value::Int(0), Value::Int(9)])));
        assert!(!admitted(&Value::Array(vec![Value::Int(1), Value::Int(9)])));
        let reply = |admitted: f64| Value::BulkString([&[9; 7][..], &admitted.to_le_bytes(), &[0; 4]].concat());
        assert!(admitted(&reply(1.0)));
        assert!(!admitted(&reply(0.0)));
        assert!(!admitted(&Value::Okay));
    }
}
