//! The service behind a proxy. It responds to every request and records it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;

/// A request as it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReceivedRequest {
    /// Method and target, as in `GET /a?b`.
    pub request_line: String,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, by its content length or from its chunks.
    pub body: String,
}

/// A server that responds with `backend`, and with `x-tokens: N` if the request has `x-spend: N`.
pub struct Upstream {
    address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    stopped: Arc<AtomicBool>,
}

impl Upstream {
    /// Listens on a free port of loopback.
    pub fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let upstream = Upstream {
            address: listener.local_addr().expect("an address"),
            received: Arc::default(),
            stopped: Arc::default(),
        };
        let (received, stopped) = (Arc::clone(&upstream.received), Arc::clone(&upstream.stopped));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let received = Arc::clone(&received);
                thread::spawn(move || serve(&stream, &received));
            }
        });
        upstream
    }

    /// Its address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Takes the recorded requests, without `GET /ready`, which checks whether a proxy is up.
    pub fn take(&self) -> Vec<ReceivedRequest> {
        std::mem::take(&mut *self.received.lock())
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // Wakes the accept loop, which then sees the end.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(stream: &TcpStream, received: &Mutex<Vec<ReceivedRequest>>) {
    let mut reader = BufReader::new(stream);
    while let Some(request) = read(&mut reader) {
        let tokens = header(&request, "x-spend").map(|tokens| format!("x-tokens: {tokens}\r\n"));
        let response = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: 7\r\n{}\r\n{}",
            tokens.unwrap_or_default(),
            if request.request_line.starts_with("HEAD ") { "" } else { "backend" }
        );
        if request.request_line != "GET /ready" {
            received.lock().push(request);
        }
        if (&*stream).write_all(response.as_bytes()).is_err() {
            return;
        }
    }
}

fn header<'a>(request: &'a ReceivedRequest, name: &str) -> Option<&'a str> {
    let found = request.headers.iter().find(|(known, _)| known == name);
    found.map(|(_, value)| &**value)
}

fn read(reader: &mut BufReader<&TcpStream>) -> Option<ReceivedRequest> {
    let mut lines = reader.by_ref().lines().map_while(Result::ok);
    let first = lines.next()?;
    let request_line = first.rsplit_once(' ')?.0.to_owned();
    let headers = lines.take_while(|line| !line.is_empty());
    let headers = headers
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let mut request = ReceivedRequest { request_line, headers, body: String::new() };
    let body = if header(&request, "transfer-encoding") == Some("chunked") {
        read_chunks(reader)?
    } else {
        let length = header(&request, "content-length");
        read_bytes(reader, length.map_or(Some(0), |length| length.parse().ok())?)?
    };
    request.body = String::from_utf8(body).ok()?;
    Some(request)
}

fn read_bytes(reader: &mut BufReader<&TcpStream>, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    reader.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

/// The chunks without their sizes; `None` if they are malformed or end early.
fn read_chunks(reader: &mut BufReader<&TcpStream>) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        if size == 0 {
            break;
        }
        body.extend(read_bytes(reader, size)?);
        read_bytes(reader, 2)?;
    }
    let mut trailers = reader.by_ref().lines();
    while !trailers.next()?.ok()?.is_empty() {}
    Some(body)
}
