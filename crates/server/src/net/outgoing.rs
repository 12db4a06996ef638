//! The body of an answer. A large one goes out in pieces, as fast as it is read. While it waits its memory is
//! counted, and one that is not read is evicted by newer ones.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Body, Frame, SizeHint};

use super::waiting_streams::{EvictedResponse, StreamMemory};

/// Answers up to this size are given to the connection whole. Together with the streams of a connection
/// that bounds what it holds uncounted.
pub(crate) const MAX_UNCOUNTED: usize = 4 << 10;

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
    /// The memory of the request has the bytes.
    Counted(Arc<StreamMemory>),
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

    /// Whether it is so large that it is sent in pieces and counted.
    pub(super) fn is_large(&self) -> bool {
        matches!(&self.rest, Rest::Whole(whole) if whole.len() > MAX_UNCOUNTED)
    }

    /// The same answer, counted in `memory`.
    pub(super) fn counted_in(self, memory: Arc<StreamMemory>) -> Self {
        match self.rest {
            Rest::Whole(whole) => {
                memory.send(whole);
                Outgoing {
                    rest: Rest::Counted(memory),
                }
            }
            rest => Outgoing { rest },
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = EvictedResponse;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, EvictedResponse>>> {
        if let Rest::Trailed { whole, trailer } = &mut self.rest
            && whole.is_empty()
        {
            let trailer = trailer.take().map(|line| HeaderMap::from_iter([line]));
            return Poll::Ready(trailer.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        match &mut self.rest {
            Rest::Whole(whole) if whole.is_empty() => Poll::Ready(None),
            Rest::Whole(whole) | Rest::Trailed { whole, .. } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(whole)))))
            }
            Rest::Counted(memory) => {
                let piece = memory.poll_piece(cx);
                piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Rest::Whole(whole) => whole.is_empty(),
            Rest::Trailed { trailer, .. } => trailer.is_none(),
            Rest::Counted(memory) => memory.is_sent(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match &self.rest {
            Rest::Whole(whole) => whole.len() as u64,
            // No length is told of a message that says its own.
            Rest::Trailed { .. } => return SizeHint::new(),
            Rest::Counted(memory) => memory.unsent_bytes() as u64,
        })
    }
}
