//! The limits of each listener as one table, which `docs/service.md` shows.
//!
//! `UPDATE=1 cargo test -p tidegate-server --bin tidegate caps` writes the page again.

use std::time::Duration;

use tidegate::resilience::ResilienceSettings;
use tidegate::stores::memory::MAX_RESERVED_CHARGES;
use tidegate::{MAX_ADAPTIVE_PERMITS, MAX_ADAPTIVE_SUBJECTS, MAX_COUNTED_TICKETS, PENDING_SETTLEMENTS_CAP_PART};
use tidegate_core::store::Reserve;

use crate::edges::{common, envoy, http, resp};
use crate::net::large_connections::{LargeConnections, LargeKind};
use crate::net::waiting_streams::{ConnectionStreams, WaitingStreams};
use crate::net::{body, connection, frame_scanner, lingering_close, listener, request_heads, tls, unread_responses};

const BEGIN: &str = "<!-- caps -->\n";
const END: &str = "<!-- end of caps -->\n";

/// Listener, bounded resource, bound, and what happens beyond it.
type CapRow = (&'static str, &'static str, String, &'static str);

fn format_bytes(bytes: usize) -> String {
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

fn format_count(number: usize) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups = groups.map(|group| String::from_utf8_lossy(group).into_owned());
    groups.collect::<Vec<_>>().join(",")
}

fn format_secs(time: Duration) -> String {
    format!("{} s", time.as_secs())
}

fn flag(name: &str) -> String {
    format!("`--{name}`")
}

fn common_caps() -> Vec<CapRow> {
    let all = "all";
    vec![
        (all, "connections", flag("max-connections"), "the next waits until one ends"),
        (all, "connections of peers that are not trusted", "seven eighths of that".to_owned(), "closed"),
        (all, "connections of one peer", flag("max-connections-per-peer"), "closed"),
        (all, "idle or trickling input, unread responses", flag("idle-timeout"), "closed"),
        (
            all,
            "unread responses of a listener",
            format_bytes(unread_responses::MAX_LISTENER_BYTES),
            "the connection that has read nothing for longest is closed",
        ),
    ]
}

fn small_listener_caps() -> Vec<CapRow> {
    let (edge, silent) = ("admin, metrics", "the connection that has been silent longest is closed");
    vec![
        (edge, "connections", format_count(listener::SMALL_CONNECTIONS), silent),
        (edge, "connections of one peer", format_count(listener::SMALL_CONNECTIONS_PER_PEER), silent),
        (edge, "time until the first request of a connection", format_secs(listener::SMALL_FIRST_REQUEST), "closed"),
    ]
}

fn http_caps() -> Vec<CapRow> {
    let (edge, bad) = ("HTTP", "400 that names the field");
    vec![
        (edge, "headers of a request", format_bytes(connection::MAX_HEAD_BYTES), "431"),
        (edge, "header fields", format_count(request_heads::MAX_FIELDS), "431"),
        (edge, "a body", format_bytes(body::MAX_SMALL_BODY), "413"),
        (edge, "a body with a list", format_bytes(http::serve::MAX_BODY_BYTES), "413"),
        (edge, "time for a body to arrive", format_secs(body::BODY_TIMEOUT), "408"),
        (edge, "bytes discarded after the last response", format_bytes(lingering_close::MAX_DISCARDED), "closed"),
        (
            edge,
            "time for the client to close after the last response",
            format_secs(lingering_close::MAX_LINGER),
            "closed",
        ),
        (edge, "bodies above 64 KiB at once", format_count(body::MAX_LARGE_BODIES), "a stalled one gets 408"),
        (edge, "incomplete bodies above 4 KiB", format_count(body::MAX_WAITING_BODIES), "a stalled one gets 408"),
        (edge, "lists and explanations decided at once", format_count(http::serve::MAX_LISTS), "the next waits"),
        (
            edge,
            "unread responses of a connection",
            format_bytes(unread_responses::MAX_CONNECTION_BYTES),
            "its lists wait",
        ),
        (edge, "requests in a list", format_count(common::check_body::MAX_ITEMS), bad),
        (edge, "requests times rules in an explanation", format_count(http::explain::MAX_VIEWS), bad),
        (edge, "attributes of a request", format_count(common::check_body::MAX_ATTRIBUTES), bad),
        (edge, "name of an attribute or unit", format_bytes(common::check_body::MAX_NAME_BYTES), bad),
        (edge, "value of an attribute", format_bytes(common::check_body::MAX_VALUE_BYTES), bad),
        (edge, "units with a cost", format_count(common::check_body::MAX_COSTS), bad),
        (edge, "TTL of a permit", format!("{} s", http::wire::TTL_RANGE_MS.end() / 1_000), bad),
        (edge, "TTL of a reservation", format_secs(Reserve::MAX_TTL.duration()), bad),
        (edge, "a body for `/json`", format_bytes(envoy::json::MAX_BODY_BYTES), "400"),
    ]
}

/// Bounds on the state that a node keeps for open permits, reservations and receipts.
fn open_state_caps() -> Vec<CapRow> {
    let edge = "HTTP";
    vec![
        (
            edge,
            "used receipts in the memory store, with counters and all other state",
            flag("memory-cap"),
            "a refund is `lapsed`",
        ),
        (edge, "charges of open reservations in the memory store", format_count(MAX_RESERVED_CHARGES), "503"),
        (edge, "charges of open reservations of one subject", format_count(MAX_RESERVED_CHARGES / 4), "503"),
        (
            edge,
            "open reservations whose expiry a node watches",
            format!("1/{PENDING_SETTLEMENTS_CAP_PART} of {}", flag("memory-cap")),
            "the estimate is refunded with the next reservation",
        ),
        (
            edge,
            "settlements pending for the store",
            format!("1/{PENDING_SETTLEMENTS_CAP_PART} of {}", flag("memory-cap")),
            "503",
        ),
        (
            edge,
            "counters of a shared store in a node's mirror",
            format_count(ResilienceSettings::default().max_mirrored),
            "those that matter least are forgotten, and cannot be restored after a loss",
        ),
        (
            edge,
            "counters by which a node decides without its shared store",
            flag("memory-cap"),
            "further subjects share counters",
        ),
        (
            edge,
            "open permits of a shared store in a node's mirror",
            format_count(ResilienceSettings::default().max_mirrored),
            "known only to the store, and no permit is granted without it",
        ),
        (edge, "open permits that a node counts in its metrics", format_count(MAX_COUNTED_TICKETS), "not counted"),
        (
            edge,
            "subjects with an adaptive limit of their own",
            format_count(MAX_ADAPTIVE_SUBJECTS),
            "further subjects share 256 limits of their rule",
        ),
        (
            edge,
            "permits of adaptive limits that are stored by holder",
            format_count(MAX_ADAPTIVE_PERMITS),
            "counted, and expire",
        ),
    ]
}

fn http2_caps() -> Vec<CapRow> {
    let edge = "HTTP/2, gRPC";
    vec![
        (edge, "streams of a connection", format_count(connection::MAX_STREAMS as usize), "refused"),
        (
            edge,
            "heads of a connection in memory",
            format_bytes(request_heads::MAX_CONNECTION_BYTES),
            "the stream is refused",
        ),
        (
            edge,
            "waiting streams of a listener, with their heads",
            format_bytes(WaitingStreams::MAX_BYTES),
            "the stream that has waited longest is reset",
        ),
        (
            edge,
            "streams of a connection reset for that reason",
            format_count(ConnectionStreams::MAX_EVICTED),
            "the connection ends",
        ),
        (
            edge,
            "connections of a listener that have had more than 32 streams at once",
            format_count(LargeKind::MAX_WITH_STREAMS),
            "the connection that has been silent longest gets `GOAWAY`",
        ),
        (
            edge,
            "connections of a listener with more than 4 indexed paths and hosts",
            format_count(LargeKind::MAX_WITH_BLOCKS),
            "the connection that has been silent longest gets `GOAWAY`",
        ),
        (
            edge,
            "such connections still open after `GOAWAY`",
            format_count(LargeConnections::MAX_LEAVING),
            "the connection that has been silent longest is closed",
        ),
        (
            edge,
            "connections of a listener that wait for the rest of a head",
            format_count(frame_scanner::MAX_UNFINISHED_HEADS),
            "the connection ends",
        ),
        (
            edge,
            "streams reset before they were served",
            format_count(connection::MAX_PENDING_RESETS),
            "the connection ends",
        ),
        (
            edge,
            "streams reset for an error of the client",
            format_count(connection::MAX_ERROR_RESETS),
            "the connection ends",
        ),
        (
            edge,
            "bytes of one connection in one turn",
            format_bytes(crate::net::budgeted_io::TURN_BYTES),
            "other connections are served first",
        ),
    ]
}

fn grpc_caps() -> Vec<CapRow> {
    let (edge, bad) = ("gRPC", "a gRPC error");
    vec![
        (edge, "a message", format_bytes(envoy::wire::MAX_MESSAGE_BYTES), bad),
        (edge, "time for a message to arrive", format_secs(body::BODY_TIMEOUT), bad),
        (edge, "descriptors of a request", flag("grpc-max-descriptors"), bad),
        (edge, "entries of a descriptor", format_count(envoy::wire::MAX_ENTRIES), bad),
        (edge, "a domain, the key of an entry", format_bytes(envoy::wire::MAX_KEY_BYTES), bad),
        (edge, "time for the TLS handshake", format_secs(tls::HANDSHAKE_TIMEOUT), "closed"),
        (edge, "age of a connection", flag("grpc-max-age"), "`GOAWAY`"),
    ]
}

fn resp_caps() -> Vec<CapRow> {
    let (edge, bad) = ("RESP", "an error, then closed");
    vec![
        (edge, "a command with all of its arguments", format_bytes(resp::wire::MAX_COMMAND_BYTES), bad),
        (edge, "arguments of a command", format_count(resp::wire::MAX_ARGUMENTS), bad),
        (
            edge,
            "commands between `MULTI` and `EXEC`",
            format_count(resp::transaction::MAX_COMMANDS),
            "an error, and `EXEC` runs none",
        ),
        (edge, "bytes of those commands", format_bytes(resp::transaction::MAX_BYTES), "an error, and `EXEC` runs none"),
        (
            edge,
            "unfinished commands, those between `MULTI` and `EXEC`, and unread responses of a listener",
            format_bytes(unread_responses::MAX_LISTENER_BYTES),
            "the connection that has read nothing for longest is closed",
        ),
        (
            edge,
            "bytes decided in one turn",
            format_bytes(resp::buffers::INPUT_BYTES),
            "other connections are served first",
        ),
        (edge, "replies waiting to be sent", format_bytes(resp::buffers::OUTPUT_BYTES), "nothing more is read"),
        (
            edge,
            "wrong passwords of a connection",
            format_count(resp::password_guesses::MAX_PER_CONNECTION as usize),
            bad,
        ),
    ]
}

fn render_table() -> String {
    let mut table = String::from("| listener | resource | maximum | beyond it |\n|---|---|---|---|\n");
    let protocols = [http2_caps(), grpc_caps(), resp_caps()];
    let all = [common_caps(), small_listener_caps(), http_caps(), open_state_caps()];
    for rows in all.into_iter().chain(protocols) {
        for (edge, what, max, beyond) in rows {
            table += &format!("| {edge} | {what} | {max} | {beyond} |\n");
        }
    }
    table
}

#[test]
fn the_page_lists_every_cap() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/service.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (documented, after) = rest.split_once(END).unwrap();
    if std::env::var_os("UPDATE").is_some() {
        let page = [before, BEGIN, &render_table(), END, after].concat();
        std::fs::write(path, page).unwrap();
    } else {
        assert_eq!(documented, render_table());
    }
}
