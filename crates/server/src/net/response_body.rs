//! Response bodies. A large body is sent in chunks, so that the supervisor can see whether the peer reads. A counted
//! body is held by the connection until its last byte is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Body, Frame, SizeHint};

use super::unread_responses::{ConnectionUnread, HeldBytes};

/// Maximum bytes given to a connection at once.
const CHUNK_BYTES: usize = 16 << 10;

/// The part of a response body that is not sent yet.
pub(crate) struct ResponseBody {
    rest: BodyRest,
}

enum BodyRest {
    Whole(Bytes),
    /// With a trailer after it.
    WithTrailer {
        whole: Bytes,
        trailer: Option<(HeaderName, HeaderValue)>,
    },
    /// In chunks. The whole body stays in memory until the last of them is dropped.
    Chunks {
        rest: Bytes,
        held: Arc<HeldBytes>,
    },
}

/// A body that is counted until it is dropped.
struct CountedBody {
    bytes: Bytes,
    _held: HeldBytes,
}

/// A chunk of a body. Dropping it means that it is sent or abandoned.
struct CountedChunk {
    bytes: Bytes,
    held: Arc<HeldBytes>,
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for CountedChunk {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedChunk {
    fn drop(&mut self) {
        self.held.record_sent(self.bytes.len());
    }
}

impl From<Bytes> for ResponseBody {
    fn from(whole: Bytes) -> Self {
        ResponseBody { rest: BodyRest::Whole(whole) }
    }
}

impl ResponseBody {
    /// A body with a trailer.
    pub(crate) fn with_trailer(whole: Bytes, name: HeaderName, value: HeaderValue) -> Self {
        ResponseBody { rest: BodyRest::WithTrailer { whole, trailer: Some((name, value)) } }
    }

    pub(super) fn len(&self) -> usize {
        match &self.rest {
            BodyRest::Whole(whole) | BodyRest::WithTrailer { whole, .. } => whole.len(),
            BodyRest::Chunks { rest, .. } => rest.len(),
        }
    }

    /// Counts its bytes in `unread` until they are sent.
    pub(super) fn count_unread(&mut self, unread: &Arc<ConnectionUnread>) {
        match &mut self.rest {
            BodyRest::Whole(whole) if whole.len() > CHUNK_BYTES => {
                let held = Arc::new(unread.hold_response(whole.len()));
                let rest = std::mem::take(whole);
                self.rest = BodyRest::Chunks { rest, held };
            }
            BodyRest::Whole(whole) | BodyRest::WithTrailer { whole, .. } if !whole.is_empty() => {
                let held = unread.hold_response(whole.len());
                let bytes = std::mem::take(whole);
                *whole = Bytes::from_owner(CountedBody { bytes, _held: held });
            }
            _ => unread.count_bodiless(),
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let BodyRest::WithTrailer { whole, trailer } = &mut self.rest
            && whole.is_empty()
        {
            let trailer = trailer.take().map(|line| HeaderMap::from_iter([line]));
            return Poll::Ready(trailer.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let next = match &mut self.rest {
            BodyRest::Whole(whole) | BodyRest::WithTrailer { whole, .. } => std::mem::take(whole),
            BodyRest::Chunks { rest, held } if !rest.is_empty() => {
                let bytes = rest.split_to(rest.len().min(CHUNK_BYTES));
                let held = Arc::clone(held);
                Bytes::from_owner(CountedChunk { bytes, held })
            }
            BodyRest::Chunks { .. } => Bytes::new(),
        };
        let is_end = next.is_empty();
        Poll::Ready((!is_end).then(|| Ok(Frame::data(next))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            BodyRest::WithTrailer { trailer, .. } => trailer.is_none(),
            _ => self.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            // No content length for a gRPC message: it carries its own.
            BodyRest::WithTrailer { .. } => SizeHint::new(),
            _ => SizeHint::with_exact(self.len() as u64),
        }
    }
}
