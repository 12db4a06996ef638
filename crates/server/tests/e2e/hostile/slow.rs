//! Clients that send a byte now and then, or stop in the middle and stay.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::memory::most_held;
use crate::server::{DEADLINE, Server, wait_for};
use crate::witness::Witness;

const RULES: &str =
    "version: 1\nrules:\n  - { name: r, by: ip, rate: 100000000/hour, algorithm: fixed-window }\n";

const CLIENTS: usize = 200;
/// Between the bytes of one client: often enough that no watch for silence notices.
const TRICKLE: Duration = Duration::from_millis(20);

/// What a client says first, and then again and again.
struct Slow {
    what: &'static str,
    first: &'static [u8],
    then: &'static [u8],
}

const OVER_HTTP: [Slow; 4] = [
    Slow {
        what: "a header that trickles",
        first: b"POST /v1/check HTTP/1.1\r\nhost: x\r\nx: ",
        then: b"y",
    },
    Slow {
        what: "headers that trickle",
        first: b"GET /healthz HTTP/1.1\r\n",
        then: b"a: b\r\n",
    },
    Slow {
        what: "a body that trickles",
        first: b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-length: 60000\r\n\r\n",
        then: b" ",
    },
    Slow {
        what: "an HTTP/2 frame that trickles",
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x05\0\0\0\x01",
        then: b"\x88",
    },
];

const OVER_RESP: [Slow; 3] = [
    Slow {
        what: "a line that trickles",
        first: b"PIN",
        then: b"G",
    },
    Slow {
        what: "an argument that trickles",
        first: b"*2\r\n$4\r\nECHO\r\n$60000\r\n",
        then: b"x",
    },
    Slow {
        what: "nothing that trickles",
        first: b"*0\r\n",
        then: b"\r\n",
    },
];

const OVER_GRPC: [Slow; 2] = [
    Slow {
        what: "an opening that trickles",
        first: b"PRI * HTTP/2.0\r\n\r\n",
        then: b"S",
    },
    Slow {
        what: "a frame that trickles",
        first: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\x40\0\x01\x05\0\0\0\x01",
        then: b"\x88",
    },
];

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Every client trickles until the server has closed on all of them.
fn outlast(server: &Server, address: SocketAddr, witness: Witness, slow: &Slow) {
    let before = most_held(server);
    let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(address)).collect();
    for client in &mut clients {
        client.write_all(slow.first).unwrap();
    }
    wait_for(slow.what, || {
        std::thread::sleep(TRICKLE);
        // Who was closed on notices with a later byte.
        clients.retain_mut(|client| client.write_all(slow.then).is_ok());
        clients.is_empty().then_some(())
    });
    witness.end(slow.what);
    let held = most_held(server).saturating_sub(before);
    assert!(held <= 16 << 20, "{}: {held} bytes", slow.what);
}

#[test]
fn bytes_that_trickle_are_not_waited_for_over_http() {
    let server = Server::with(RULES, &["--idle", "2"]);
    for slow in &OVER_HTTP {
        outlast(&server, server.http, Witness::of_http(&server), slow);
    }
}

#[test]
fn bytes_that_trickle_are_not_waited_for_over_resp() {
    let server = Server::with_resp(RULES, &["--idle", "2"]);
    for slow in &OVER_RESP {
        outlast(&server, server.resp(), Witness::of_resp(&server), slow);
    }
}

#[test]
fn bytes_that_trickle_are_not_waited_for_over_grpc() {
    let server = Server::with(RULES, &["--idle", "2"]);
    let address = server.grpc.parse().unwrap();
    for slow in &OVER_GRPC {
        outlast(&server, address, Witness::of_grpc(&server), slow);
    }
}

/// They have said all they will say, and wait for an answer to half a request.
#[test]
fn half_a_request_and_the_end_of_it_is_closed() {
    let server = Server::with(RULES, &["--idle", "2"]);
    let witness = Witness::of_http(&server);
    for slow in &OVER_HTTP {
        let clients: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(server.http)).collect();
        for mut client in &clients {
            client.write_all(slow.first).unwrap();
            client.shutdown(Shutdown::Write).unwrap();
        }
        for mut client in &clients {
            let mut rest = Vec::new();
            let closed = match client.read_to_end(&mut rest) {
                Ok(_) => true,
                Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
            };
            assert!(closed, "{}", slow.what);
        }
    }
    witness.end("half requests");
}
