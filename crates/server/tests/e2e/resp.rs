//! A Redis client at the level of bytes: it sends exactly the given bytes, and keeps replies as they come.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::server::{DEADLINE, TestServer};

/// A reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RespReply {
    Simple(String),
    Error(String),
    Integer(i64),
    Bulk(String),
    Null,
    Array(Vec<RespReply>),
    Map(Vec<(RespReply, RespReply)>),
}

impl RespReply {
    /// The numbers of an array of numbers.
    #[track_caller]
    pub(crate) fn integers(&self) -> Vec<i64> {
        let RespReply::Array(values) = self else { panic!("no array: {self:?}") };
        let number = |value: &RespReply| match value {
            RespReply::Integer(number) => *number,
            other => panic!("no number: {other:?}"),
        };
        values.iter().map(number).collect()
    }

    /// The value of a name in a map, or in an array of pairs.
    #[track_caller]
    pub(crate) fn field(&self, name: &str) -> &RespReply {
        let wanted = RespReply::Bulk(name.to_owned());
        let found = match self {
            RespReply::Map(pairs) => pairs.iter().find(|(key, _)| *key == wanted).map(|p| &p.1),
            RespReply::Array(values) => {
                let mut pairs = values.chunks(2).filter(|pair| pair[0] == wanted);
                pairs.next().map(|pair| &pair[1])
            }
            other => panic!("no map: {other:?}"),
        };
        found.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

pub(crate) struct RespClient {
    stream: BufReader<TcpStream>,
}

impl TestServer {
    /// With these rules, a listener for Redis clients, and further flags.
    pub(crate) fn with_resp(rules: &str, flags: &[&str]) -> Self {
        let flags = [&["--resp", "127.0.0.1:0"], flags].concat();
        TestServer::with(rules, &flags)
    }

    /// The address of the listener for Redis clients.
    pub(crate) fn resp(&self) -> SocketAddr {
        let line = self.wait_log(|line| line["message"] == "listening" && line["edge"] == "resp");
        line["address"].as_str().unwrap().parse().unwrap()
    }

    pub(crate) fn redis(&self) -> RespClient {
        RespClient::connect(self.resp())
    }
}

/// A command as clients send it.
pub(crate) fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}

impl RespClient {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let stream = BufReader::new(stream);
        RespClient { stream }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.stream.get_ref()
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).unwrap();
    }

    /// Sends the words of a line as a command, and returns the reply.
    #[track_caller]
    pub(crate) fn send_line(&mut self, line: &str) -> RespReply {
        self.send_words(&line.split(' ').collect::<Vec<_>>())
    }

    #[track_caller]
    pub(crate) fn send_words(&mut self, words: &[&str]) -> RespReply {
        self.send(&command(words));
        self.receive().unwrap()
    }

    /// The error that a command must return.
    #[track_caller]
    pub(crate) fn error(&mut self, line: &str) -> String {
        match self.send_line(line) {
            RespReply::Error(text) => text,
            other => panic!("{line} gives {other:?}"),
        }
    }

    /// The next reply.
    pub(crate) fn receive(&mut self) -> io::Result<RespReply> {
        let line = self.line()?;
        let (mark, rest) = line.split_at(1);
        let count = || rest.parse::<i64>().expect("a number");
        Ok(match mark {
            "+" => RespReply::Simple(rest.to_owned()),
            "-" => RespReply::Error(rest.to_owned()),
            ":" => RespReply::Integer(count()),
            "_" => RespReply::Null,
            "$" | "*" if count() < 0 => RespReply::Null,
            "$" => {
                let mut bytes = vec![0; usize::try_from(count()).unwrap() + 2];
                self.stream.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                RespReply::Bulk(String::from_utf8_lossy(&bytes).into_owned())
            }
            "*" => RespReply::Array((0..count()).map(|_| self.receive()).collect::<Result<_, _>>()?),
            "%" => {
                let pair = |_| Ok((self.receive()?, self.receive()?));
                RespReply::Map((0..count()).map(pair).collect::<io::Result<_>>()?)
            }
            other => panic!("{other}{rest}"),
        })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    /// Waits for the server to close. Returns the bytes before that.
    pub(crate) fn until_closed(mut self) -> String {
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}
