//! The body of an answer. A large one goes out in pieces, so that it can be seen whether its peer reads. What
//! is counted is held by the connection until the last byte of it is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Body, Frame, SizeHint};

use super::unread::{ConnectionUnread, HeldBytes};

/// What is given to a connection at once.
const PIECE: usize = 16 << 10;

/// The body of an answer, as far as it was not sent yet.
pub(crate) struct Outgoing {
    rest: Rest,
}

enum Rest {
    Whole(Bytes),
    /// With a line after it.
    Trailed {
        whole: Bytes,
        trailer: Option<(HeaderName, HeaderValue)>,
    },
    /// In pieces. The whole stays in memory until the last of them is dropped.
    Pieces {
        rest: Bytes,
        held: Arc<HeldBytes>,
    },
}

/// A body that is counted until it is dropped.
struct CountedBody {
    bytes: Bytes,
    _held: HeldBytes,
}

/// A piece of a body. Whoever drops it has sent it, or gives it up.
struct CountedPiece {
    bytes: Bytes,
    held: Arc<HeldBytes>,
}

impl AsRef<[u8]> for CountedBody {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for CountedPiece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for CountedPiece {
    fn drop(&mut self) {
        self.held.record_sent(self.bytes.len());
    }
}

impl From<Bytes> for Outgoing {
    fn from(whole: Bytes) -> Self {
        Outgoing {
            rest: Rest::Whole(whole),
        }
    }
}

impl Outgoing {
    /// A body with a header that comes after it.
    pub(crate) fn trailed(whole: Bytes, name: HeaderName, value: HeaderValue) -> Self {
        Outgoing {
            rest: Rest::Trailed {
                whole,
                trailer: Some((name, value)),
            },
        }
    }

    /// Its bytes.
    pub(super) fn len(&self) -> usize {
        match &self.rest {
            Rest::Whole(whole) | Rest::Trailed { whole, .. } => whole.len(),
            Rest::Pieces { rest, .. } => rest.len(),
        }
    }

    /// Has its bytes counted in `unread` until they are sent.
    pub(super) fn count_in(&mut self, unread: &Arc<ConnectionUnread>) {
        match &mut self.rest {
            Rest::Whole(whole) if whole.len() > PIECE => {
                let held = Arc::new(unread.hold_response(whole.len()));
                let rest = std::mem::take(whole);
                self.rest = Rest::Pieces { rest, held };
            }
            Rest::Whole(whole) | Rest::Trailed { whole, .. } if !whole.is_empty() => {
                let held = unread.hold_response(whole.len());
                let bytes = std::mem::take(whole);
                *whole = Bytes::from_owner(CountedBody { bytes, _held: held });
            }
            _ => unread.count_bare(),
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Rest::Trailed { whole, trailer } = &mut self.rest
            && whole.is_empty()
        {
            let trailer = trailer.take().map(|line| HeaderMap::from_iter([line]));
            return Poll::Ready(trailer.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let next = match &mut self.rest {
            Rest::Whole(whole) | Rest::Trailed { whole, .. } => std::mem::take(whole),
            Rest::Pieces { rest, held } if !rest.is_empty() => {
                let bytes = rest.split_to(rest.len().min(PIECE));
                let held = Arc::clone(held);
                Bytes::from_owner(CountedPiece { bytes, held })
            }
            Rest::Pieces { .. } => Bytes::new(),
        };
        let is_end = next.is_empty();
        Poll::Ready((!is_end).then(|| Ok(Frame::data(next))))
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Rest::Trailed { trailer, .. } => trailer.is_none(),
            _ => self.len() == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.rest {
            // No length is told of a message that says its own.
            Rest::Trailed { .. } => SizeHint::new(),
            _ => SizeHint::with_exact(self.len() as u64),
        }
    }
}
