//! The body of an answer. A large one goes out in pieces, as fast as it is read, and holds room as long
//! as that takes; one that nobody reads loses its room to others, and its memory at once.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use hyper::body::{Body, Frame, SizeHint};

use super::body::SMALL;
use super::transfers::{Outpaced, Transfer, Transfers};

/// Large answers at the same time.
pub(crate) const LARGE_AT_ONCE: usize = 64;

/// Those that there are.
pub(crate) static LARGE: Transfers = Transfers::new(LARGE_AT_ONCE);

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
    /// The transfer has the bytes; this is how many.
    Paced {
        transfer: Transfer,
        bytes: u64,
    },
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

    /// The same answer, holding the room it was made in if it has become large.
    pub(crate) fn within(self, mut transfer: Transfer) -> Self {
        match self.rest {
            Rest::Whole(whole) if whole.len() > SMALL => {
                let bytes = whole.len() as u64;
                transfer.send(whole);
                Outgoing {
                    rest: Rest::Paced { transfer, bytes },
                }
            }
            rest => Outgoing { rest },
        }
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = Outpaced;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Outpaced>>> {
        if let Rest::Trailed { whole, trailer } = &mut self.rest
            && whole.is_empty()
        {
            let trailer = trailer.take().map(|line| HeaderMap::from_iter([line]));
            return Poll::Ready(trailer.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let next = match &mut self.rest {
            Rest::Whole(whole) if whole.is_empty() => None,
            Rest::Whole(whole) | Rest::Trailed { whole, .. } => Some(Ok(std::mem::take(whole))),
            Rest::Paced { transfer, bytes } => {
                let piece = transfer.piece().transpose();
                if let Some(Ok(piece)) = &piece {
                    *bytes -= piece.len() as u64;
                }
                piece
            }
        };
        Poll::Ready(next.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        match &self.rest {
            Rest::Trailed { trailer, .. } => trailer.is_none(),
            _ => self.size_hint().exact() == Some(0),
        }
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(match &self.rest {
            Rest::Whole(whole) => whole.len() as u64,
            // No length is told of a message that says its own.
            Rest::Trailed { .. } => return SizeHint::new(),
            Rest::Paced { bytes, .. } => *bytes,
        })
    }
}
