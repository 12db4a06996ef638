//! What a client may take at each door, as one table: `docs/service.md` shows what stands here.
//!
//! `UPDATE=1 cargo test -p tidegate-server --bin tidegate caps` writes the page anew.

use std::time::Duration;

use tidegate::resilience::Settings;
use tidegate::stores::memory::MOST_RESERVED;
use tidegate::{MAX_ADAPTIVE_PERMITS, MOST_ADAPTIVE, MOST_COUNTED, MOST_TENDED};
use tidegate_core::store::Reserve;

use crate::edges::{envoy, http, resp};
use crate::net::large_connections::{LargeConnections, LargeKind};
use crate::net::waiting_streams::{ConnectionStreams, WaitingStreams};
use crate::net::{body, connection, frame_scanner, heads, linger, listener, tls, unread};

const BEGIN: &str = "<!-- caps -->\n";
const END: &str = "<!-- end of caps -->\n";

/// A door, what is bounded there, the bound, and what happens beyond it.
type Row = (&'static str, &'static str, String, &'static str);

fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => {
            format!("{} MiB", bytes >> 20)
        }
        bytes if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => {
            format!("{} KiB", bytes >> 10)
        }
        bytes => format!("{bytes} bytes"),
    }
}

fn number(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups = groups.map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

fn secs(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

fn flag(name: &str) -> String {
    format!("`--{name}`")
}

fn of_every_door() -> Vec<Row> {
    let all = "all";
    vec![
        (
            all,
            "connections",
            flag("max-connections"),
            "the next waits until one ends",
        ),
        (
            all,
            "connections of peers that are not trusted",
            "seven eighths of that".to_owned(),
            "closed",
        ),
        (
            all,
            "connections of one peer",
            flag("max-connections-per-peer"),
            "closed",
        ),
        (
            all,
            "silence, a trickle, answers that are not read",
            flag("idle"),
            "closed",
        ),
        (
            all,
            "unread responses of a listener",
            size(unread::MAX_LISTENER_BYTES),
            "the connection that has read nothing for longest is closed",
        ),
    ]
}

fn of_small_listeners() -> Vec<Row> {
    let (door, silent) = (
        "admin, metrics",
        "the connection that has been silent longest is closed",
    );
    vec![
        (
            door,
            "connections",
            number(listener::SMALL_CONNECTIONS),
            silent,
        ),
        (
            door,
            "connections of one peer",
            number(listener::SMALL_CONNECTIONS_PER_PEER),
            silent,
        ),
        (
            door,
            "time until the first request of a connection",
            secs(listener::SMALL_FIRST_REQUEST),
            "closed",
        ),
    ]
}

fn of_http() -> Vec<Row> {
    let (door, bad) = ("HTTP", "400 that names the field");
    vec![
        (
            door,
            "headers of a request",
            size(connection::LONGEST_HEAD),
            "431",
        ),
        (door, "header fields", number(heads::MAX_FIELDS), "431"),
        (door, "a body", size(body::SMALL), "413"),
        (
            door,
            "a body that is a list",
            size(http::serve::LARGEST),
            "413",
        ),
        (
            door,
            "time for a body to arrive",
            secs(body::DEADLINE),
            "408",
        ),
        (
            door,
            "bytes discarded after the last response",
            size(linger::MAX_DISCARDED),
            "closed",
        ),
        (
            door,
            "time for a client to close after it",
            secs(linger::MAX_LINGER),
            "closed",
        ),
        (
            door,
            "bodies above 64 KiB at once",
            number(body::LARGE_AT_ONCE),
            "one that stalls gets 408",
        ),
        (
            door,
            "bodies above 4 KiB that wait for their rest",
            number(body::WAITING_AT_ONCE),
            "one that stalls gets 408",
        ),
        (
            door,
            "lists and explanations decided at once",
            number(http::serve::MAX_LISTS),
            "the next waits",
        ),
        (
            door,
            "unread responses of a connection",
            size(unread::MAX_CONNECTION_BYTES),
            "its lists wait",
        ),
        (
            door,
            "requests in a list",
            number(http::wire::MOST_ITEMS),
            bad,
        ),
        (
            door,
            "requests times rules to be explained",
            number(http::explain::MOST_VIEWS),
            bad,
        ),
        (
            door,
            "attributes of a request",
            number(http::wire::MOST_ATTRIBUTES),
            bad,
        ),
        (
            door,
            "name of an attribute or unit",
            size(http::wire::LONGEST_NAME),
            bad,
        ),
        (
            door,
            "value of an attribute",
            size(http::wire::LONGEST_VALUE),
            bad,
        ),
        (
            door,
            "units with a cost",
            number(http::wire::MOST_COSTS),
            bad,
        ),
        (
            door,
            "life of a slot",
            format!("{} s", http::wire::LIVES_MS.end() / 1_000),
            bad,
        ),
        (
            door,
            "life of a reservation",
            secs(Reserve::LONGEST.duration()),
            bad,
        ),
        (
            door,
            "a body for `/json`",
            size(envoy::json::LARGEST),
            "400",
        ),
    ]
}

/// What a node keeps of what clients have open.
fn of_what_is_open() -> Vec<Row> {
    let door = "HTTP";
    vec![
        (
            door,
            "used receipts that memory remembers, with counters and all else",
            flag("memory-cap"),
            "a refund is `lapsed`",
        ),
        (
            door,
            "charges of open reservations that memory remembers",
            number(MOST_RESERVED),
            "503",
        ),
        (
            door,
            "those of one subject",
            number(MOST_RESERVED / 4),
            "503",
        ),
        (
            door,
            "open reservations whose end a node looks after",
            number(MOST_TENDED),
            "the estimate comes back with the next reservation",
        ),
        (
            door,
            "settlements that wait for the store",
            number(MOST_TENDED),
            "503",
        ),
        (
            door,
            "open slots that a node remembers of a shared store",
            number(Settings::default().remembered),
            "known to the store alone, and none are given without it",
        ),
        (
            door,
            "open slots that a node counts in its metrics",
            number(MOST_COUNTED),
            "not counted",
        ),
        (
            door,
            "subjects with an adaptive limit of their own",
            number(MOST_ADAPTIVE),
            "those beyond share 256 limits of their rule",
        ),
        (
            door,
            "permits of adaptive limits that are remembered by holder",
            number(MAX_ADAPTIVE_PERMITS),
            "counted, and end by themselves",
        ),
    ]
}

fn of_http2() -> Vec<Row> {
    let door = "HTTP/2, gRPC";
    vec![
        (
            door,
            "streams of a connection",
            number(connection::MOST_STREAMS as usize),
            "refused",
        ),
        (
            door,
            "heads of a connection in memory",
            size(heads::MAX_CONNECTION_BYTES),
            "the stream is refused",
        ),
        (
            door,
            "streams of a listener that wait, with their heads",
            size(WaitingStreams::MAX_BYTES),
            "the one that has waited longest is reset",
        ),
        (
            door,
            "streams of a connection reset for that",
            number(ConnectionStreams::MAX_EVICTED),
            "the connection ends",
        ),
        (
            door,
            "connections of a listener that have had more than 32 streams at once",
            number(LargeKind::MAX_WITH_STREAMS),
            "the one that has been silent longest is asked to close",
        ),
        (
            door,
            "connections of a listener with more than 4 indexed paths and hosts",
            number(LargeKind::MAX_WITH_BLOCKS),
            "the one that has been silent longest is asked to close",
        ),
        (
            door,
            "such connections that have been asked and are still open",
            number(LargeConnections::MAX_LEAVING),
            "the one that has been silent longest is closed",
        ),
        (
            door,
            "connections of a listener that wait for the rest of a head",
            number(frame_scanner::MAX_UNFINISHED),
            "the connection ends",
        ),
        (
            door,
            "streams reset before they were taken up",
            number(connection::MOST_RESET),
            "the connection ends",
        ),
        (
            door,
            "streams reset for an error of the client",
            number(connection::MOST_WRONG),
            "the connection ends",
        ),
        (
            door,
            "bytes of one connection in one turn",
            size(crate::net::fair::TURN),
            "others have theirs first",
        ),
    ]
}

fn of_grpc() -> Vec<Row> {
    let (door, bad) = ("gRPC", "an error of the call");
    vec![
        (door, "a message", size(envoy::wire::LARGEST), bad),
        (
            door,
            "time for a message to arrive",
            secs(body::DEADLINE),
            bad,
        ),
        (
            door,
            "descriptors of a request",
            number(envoy::wire::MOST_DESCRIPTORS),
            bad,
        ),
        (
            door,
            "entries of a descriptor",
            number(envoy::wire::MOST_ENTRIES),
            bad,
        ),
        (
            door,
            "a domain, the key of an entry",
            size(envoy::wire::LONGEST_KEY),
            bad,
        ),
        (door, "time to agree on TLS", secs(tls::DEADLINE), "closed"),
        (
            door,
            "age of a connection",
            flag("grpc-max-age"),
            "asked to close",
        ),
    ]
}

fn of_resp() -> Vec<Row> {
    let (door, bad) = ("RESP", "an error, and closed");
    vec![
        (
            door,
            "a command with all of its arguments",
            size(resp::wire::LONGEST),
            bad,
        ),
        (
            door,
            "arguments of a command",
            number(resp::wire::MOST_ARGUMENTS),
            bad,
        ),
        (
            door,
            "commands between `MULTI` and `EXEC`",
            number(resp::transaction::MAX_COMMANDS),
            "an error, and `EXEC` runs none",
        ),
        (
            door,
            "their bytes",
            size(resp::transaction::MAX_BYTES),
            "an error, and `EXEC` runs none",
        ),
        (
            door,
            "unfinished commands, those between `MULTI` and `EXEC`, and unread responses of a listener",
            size(unread::MAX_LISTENER_BYTES),
            "the connection that has read nothing for longest is closed",
        ),
        (
            door,
            "bytes decided in one turn",
            size(resp::buffers::ROOM),
            "others have theirs first",
        ),
        (
            door,
            "answers that wait to be sent",
            size(resp::buffers::BACKLOG),
            "nothing more is read",
        ),
        (
            door,
            "wrong passwords of a connection",
            number(resp::guesses::MAX_PER_CONNECTION as usize),
            bad,
        ),
    ]
}

fn table() -> String {
    let mut table = String::from("| door | what | at most | beyond it |\n|---|---|---|---|\n");
    let doors = [of_http2(), of_grpc(), of_resp()];
    let all = [
        of_every_door(),
        of_small_listeners(),
        of_http(),
        of_what_is_open(),
    ];
    for rows in all.into_iter().chain(doors) {
        for (door, what, most, then) in rows {
            table += &format!("| {door} | {what} | {most} | {then} |\n");
        }
    }
    table
}

#[test]
fn the_page_tells_every_cap_as_it_is() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/service.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (told, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        let page = [before, BEGIN, &table(), END, after].concat();
        std::fs::write(path, page).unwrap();
    } else {
        assert_eq!(told, table());
    }
}
