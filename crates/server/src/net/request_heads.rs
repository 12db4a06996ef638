//! The heads of HTTP/2 requests, bounded by their memory.
//!
//! A field takes one byte on the wire if the client has sent it before, and a hundred in memory. So the fields of a
//! stream are counted, and the bytes of all heads of a connection. `waiting_streams` bounds the memory of all streams
//! of a listener. HTTP/1 has one head per connection, no larger than the bytes sent, and hyper bounds its fields.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use http::Request;

/// Maximum header fields of a request. For HTTP/1 that is hyper's own bound. To set it there, even to the same value,
/// would cost an allocation per request.
pub(crate) const MAX_FIELDS: usize = 100;

/// Maximum memory of the heads of one connection. A stream beyond it is reset with `REFUSED_STREAM`.
pub(crate) const MAX_CONNECTION_BYTES: usize = 1 << 20;

/// Memory of a field beside its name and value: an entry of `HeaderMap` and its place in the index.
const FIELD_OVERHEAD_BYTES: usize = 128;

/// Why a stream is rejected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeadError {
    /// The request has more than [`MAX_FIELDS`].
    TooManyFields,
    /// The heads of its connection take more than [`MAX_CONNECTION_BYTES`].
    TooManyBytes,
}

/// The memory of the heads of one connection.
#[derive(Default, Debug)]
pub(super) struct HeadMemory(AtomicUsize);

/// The head of one request, counted until this is dropped.
#[derive(Debug)]
pub(super) struct HeadReservation {
    heads: Arc<HeadMemory>,
    bytes: usize,
}

impl HeadMemory {
    pub(super) fn reserve<B>(this: &Arc<Self>, request: &Request<B>) -> Result<HeadReservation, HeadError> {
        let headers = request.headers();
        if headers.len() > MAX_FIELDS {
            return Err(HeadError::TooManyFields);
        }
        let fields = headers.iter().map(|(name, value)| {
            let text = name.as_str().len() + value.len();
            FIELD_OVERHEAD_BYTES + text
        });
        let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
        let host = request.uri().authority().map_or(0, |host| host.as_str().len());
        let bytes = target + host + fields.sum::<usize>();
        let reservation = HeadReservation { heads: Arc::clone(this), bytes };
        if this.0.fetch_add(bytes, Relaxed) + bytes > MAX_CONNECTION_BYTES {
            return Err(HeadError::TooManyBytes);
        }
        Ok(reservation)
    }
}

impl HeadReservation {
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HeadReservation {
    fn drop(&mut self) {
        self.heads.0.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(fields: usize, value: &str) -> Request<()> {
        let mut request = Request::builder().uri("/v1/check");
        for _ in 0..fields {
            request = request.header("a", value);
        }
        request.body(()).unwrap()
    }

    fn reserved_until_error(fields: usize, value: &str) -> (usize, HeadError) {
        let (heads, request) = (Arc::default(), request(fields, value));
        let mut reserved = Vec::new();
        loop {
            match HeadMemory::reserve(&heads, &request) {
                Ok(head) if reserved.len() < 1_000 => reserved.push(head),
                Ok(_) => panic!("a bound must apply"),
                Err(error) => return (reserved.len(), error),
            }
        }
    }

    #[test]
    fn fields_are_counted_each_even_if_they_share_a_name() {
        let heads = Arc::default();
        assert!(HeadMemory::reserve(&heads, &request(MAX_FIELDS, "")).is_ok());
        let more = HeadMemory::reserve(&heads, &request(MAX_FIELDS + 1, ""));
        assert_eq!(more.unwrap_err(), HeadError::TooManyFields);
    }

    #[test]
    fn a_connection_holds_all_usual_heads_and_only_some_large_ones() {
        let (usual, error) = reserved_until_error(40, &"x".repeat(30));
        assert!(usual >= 128, "{usual}");
        assert_eq!(error, HeadError::TooManyBytes);
        let (large, _) = reserved_until_error(30, &"x".repeat(1_000));
        assert!((20..40).contains(&large), "{large}");
    }

    #[test]
    fn the_host_of_a_target_is_counted() {
        let request = |host: &str| Request::builder().uri(format!("http://{host}/a?b")).body(()).unwrap();
        let reserved = |host: &str| HeadMemory::reserve(&Arc::default(), &request(host)).unwrap().bytes();
        assert_eq!(reserved(&"h".repeat(60_000)), reserved("h") + 59_999);
    }

    #[test]
    fn a_dropped_head_frees_its_memory() {
        let (heads, large) = (Arc::default(), request(100, &"x".repeat(300)));
        for _ in 0..1_000 {
            assert!(HeadMemory::reserve(&heads, &large).is_ok());
        }
        let many: Vec<_> = (0..1_000).map(|_| HeadMemory::reserve(&heads, &large)).collect();
        assert!(many.iter().any(Result::is_err));
        drop(many);
        assert_eq!(heads.0.load(Relaxed), 0);
    }
}
