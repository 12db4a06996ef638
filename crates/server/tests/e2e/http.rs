//! A blocking HTTP/1.1 client that can keep its connection, send malformed bytes and read slowly.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};

use serde_json::Value;

use crate::server::DEADLINE;

pub(crate) struct HttpClient {
    stream: BufReader<TcpStream>,
    host: String,
}

#[derive(Clone, Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl HttpClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        HttpClient::try_connect(address).unwrap()
    }

    pub(crate) fn try_connect(address: SocketAddr) -> std::io::Result<Self> {
        HttpClient::over(TcpStream::connect(address)?, address)
    }

    /// Connects from another address of this machine, such as 127.0.0.2.
    pub(crate) fn connect_from(source: IpAddr, address: SocketAddr) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let stream = runtime.block_on(async {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(SocketAddr::new(source, 0)).unwrap();
            socket.connect(address).await.unwrap().into_std().unwrap()
        });
        stream.set_nonblocking(false).unwrap();
        HttpClient::over(stream, address).unwrap()
    }

    fn over(stream: TcpStream, address: SocketAddr) -> std::io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        Ok(HttpClient { stream: BufReader::new(stream), host: address.to_string() })
    }

    pub(crate) fn post(&mut self, path: &str, body: &str) -> HttpReply {
        self.request("POST", path, &[], body)
    }

    pub(crate) fn request(&mut self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> HttpReply {
        self.send(method, path, headers, body).unwrap();
        self.receive().unwrap()
    }

    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> std::io::Result<()> {
        let mut text = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| *name == "host") {
            text += &format!("host: {}\r\n", self.host);
        }
        for (name, value) in headers {
            text += &format!("{name}: {value}\r\n");
        }
        if !body.is_empty() {
            text += &format!("content-length: {}\r\n", body.len());
        }
        self.send_raw((text + "\r\n" + body).as_bytes())
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Shuts down the sending side. The server may still respond.
    pub(crate) fn shut_down_sending(&mut self) -> std::io::Result<()> {
        self.stream.get_ref().shutdown(std::net::Shutdown::Write)
    }

    /// Reads one response; an error if the connection ends first.
    pub(crate) fn receive(&mut self) -> std::io::Result<HttpReply> {
        let ended = || std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(ended)?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            self.stream.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let mut reply = HttpReply { status, headers, body: String::new() };
        let length = reply.header("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        reply.body = String::from_utf8(body).unwrap();
        Ok(reply)
    }

    /// Keeps the connection until the server closes it, and reads nothing.
    pub(crate) fn wait_without_reading(&mut self) {
        // One more byte at intervals, until the write fails.
        while match self.send_raw(b" ") {
            Ok(()) => true,
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        } {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Waits for the server to close. Returns whether it did.
    pub(crate) fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

impl HttpReply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.body))
    }
}

/// A request body with an address and a path.
pub(crate) fn check_body(ip: &str, path: &str) -> String {
    format!(r#"{{"attributes": {{"ip": "{ip}", "path": "{path}"}}}}"#)
}
