//! Reads a request's body, up to a size and a time.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::transfers::{Transfer, Transfers};

/// How long a body may take to arrive: many round trips even on a bad line.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Bodies up to this size are taken as they come.
pub(crate) const SMALL: usize = 64 << 10;

/// Larger bodies held at the same time.
pub(crate) const LARGE_AT_ONCE: usize = 64;

static LARGE: Transfers = Transfers::new(LARGE_AT_ONCE);

/// A body that waits for its rest holds so much without being counted.
const UNCOUNTED: usize = 4 << 10;

/// Bodies above that, up to [`SMALL`], that wait at the same time.
pub(crate) const WAITING_AT_ONCE: usize = 512;

static WAITING: Transfers = Transfers::new(WAITING_AT_ONCE);

/// A body that has arrived. One that had to wait keeps its room until this is dropped.
pub(crate) struct Received {
    bytes: Bytes,
    room: Option<Transfer>,
}

impl Deref for Received {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl Received {
    /// Waits for `other` with the body in memory. Meanwhile the body counts as one that stalls.
    pub(crate) async fn while_held<F: Future>(&mut self, other: F) -> Result<F::Output, BodyError> {
        let mut other = pin!(other);
        if let Some(output) = poll_once(other.as_mut()).await {
            return Ok(output);
        }
        if self.room.is_none() && self.bytes.len() > UNCOUNTED {
            let of_size = if self.bytes.len() > SMALL {
                &LARGE
            } else {
                &WAITING
            };
            self.room = of_size.begin_now();
        }
        let Some(room) = &self.room else {
            return Ok(other.await);
        };
        tokio::select! {
            biased;
            output = other => Ok(output),
            () = room.outpaced() => Err(BodyError::Outpaced),
        }
    }
}

/// Why there is no body.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// It has more bytes than it may.
    #[error("the body has more than {most} bytes")]
    TooLarge {
        /// The most it may have.
        most: usize,
    },
    /// It did not arrive in time.
    #[error("the body did not arrive within {}s", DEADLINE.as_secs())]
    TooSlow,
    /// Others wait, and it was the slowest.
    #[error("the body came too slowly while others waited; send it again")]
    Outpaced,
    /// The connection broke, or the framing is wrong.
    #[error("the body ended early or is badly framed")]
    Broken,
}

/// The whole body. A body that has arrived with its head, the usual case, sets no timer.
pub(crate) async fn read<B>(body: B, most: usize) -> Result<Received, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut collected = pin!(collect(body, most));
    match poll_once(collected.as_mut()).await {
        Some(done) => done,
        None => match tokio::time::timeout(DEADLINE, collected).await {
            Ok(done) => done,
            Err(_) => Err(BodyError::TooSlow),
        },
    }
}

/// What is left of a body whose content does not matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Discarded {
    /// Nothing: it had arrived whole.
    Whole,
    /// Something is still to come, or there is too much of it. An HTTP/1 connection cannot go on.
    Partly,
}

/// Discards what has arrived of a body, up to [`SMALL`].
pub(crate) async fn discard<B>(mut body: B) -> Discarded
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.is_end_stream() {
        return Discarded::Whole;
    }
    let to_the_end = pin!(async {
        let mut length = 0;
        while let Some(frame) = body.frame().await {
            let Ok(frame) = frame else {
                return Discarded::Partly;
            };
            length += frame.data_ref().map_or(0, Bytes::len);
            if length > SMALL {
                return Discarded::Partly;
            }
            if body.is_end_stream() {
                break;
            }
        }
        Discarded::Whole
    });
    poll_once(to_the_end).await.unwrap_or(Discarded::Partly)
}

async fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|cx| {
        Poll::Ready(match future.as_mut().poll(cx) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        })
    })
    .await
}

/// A body that says that it will be large waits for its room before more of it is read, and holds little meanwhile. One
/// that does not say so is large when it has become so.
async fn collect<B>(mut body: B, most: usize) -> Result<Received, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > most as u64 {
        return Err(BodyError::TooLarge { most });
    }
    let mut room: Option<Transfer> = None;
    let (will_be_large, mut is_large) = (body.size_hint().lower() > SMALL as u64, false);
    let mut all = BytesMut::new();
    while let Some(frame) = next(&mut body, room.as_ref()).await? {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        let length = all.len() + data.len();
        if length > most {
            return Err(BodyError::TooLarge { most });
        }
        if let Some(room) = &mut room {
            room.moved(data.len());
        }
        if (length > SMALL || will_be_large && length > UNCOUNTED) && !is_large {
            is_large = true;
            room = Some(large_room(room.take()).await?);
        } else if length > UNCOUNTED && room.is_none() && !body.is_end_stream() {
            room = Some(WAITING.begin().await);
        }
        let is_last = body.is_end_stream();
        // Most bodies are one piece, which then is not copied.
        if is_last && all.is_empty() {
            return Ok(Received { bytes: data, room });
        }
        // The rest may never come, and an HTTP/2 piece holds the whole block that it arrived in.
        all.extend_from_slice(&data);
        if is_last {
            break;
        }
    }
    let bytes = all.freeze();
    Ok(Received { bytes, room })
}

/// Room for a large body. One that had room as a small one waits there, and can lose it meanwhile.
async fn large_room(small: Option<Transfer>) -> Result<Transfer, BodyError> {
    let Some(small) = small else {
        return Ok(LARGE.begin().await);
    };
    tokio::select! {
        biased;
        large = LARGE.begin() => Ok(large),
        () = small.outpaced() => Err(BodyError::Outpaced),
    }
}

type Frame<B> = Result<hyper::body::Frame<Bytes>, <B as Body>::Error>;

/// The next piece, unless another gets its room before it comes.
async fn next<B>(body: &mut B, room: Option<&Transfer>) -> Result<Option<Frame<B>>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(room) = room else {
        return Ok(body.frame().await);
    };
    tokio::select! {
        biased;
        frame = body.frame() => Ok(frame),
        () = room.outpaced() => Err(BodyError::Outpaced),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::body::Frame;
    use std::convert::Infallible;
    use std::task::Context;
    use tokio::sync::mpsc;
    use tokio::time::{Instant, sleep};

    struct Pieces(mpsc::Receiver<Bytes>);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            cx: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let piece = self.0.poll_recv(cx);
            piece.map(|piece| piece.map(|bytes| Ok(Frame::data(bytes))))
        }
    }

    /// A body that comes in `pieces` of 80 KiB, one every `gap`.
    async fn upload(pieces: usize, gap: Duration) -> Result<Bytes, BodyError> {
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            for _ in 0..pieces {
                sleep(gap).await;
                let piece = Bytes::from_static(&[b' '; 80 << 10]);
                if sender.send(piece).await.is_err() {
                    break;
                }
            }
        });
        let received = read(Pieces(receiver), 1 << 20).await;
        received.map(|body| body.bytes)
    }

    /// 64 uploads that stalled kept out all others until they were cut off, and then it was the turn
    /// of the next 64.
    #[tokio::test(start_paused = true)]
    async fn who_sends_passes_those_who_stall_and_only_they_are_cut() {
        let stalls = Duration::from_secs(6);
        let stalled: Vec<_> = (0..4 * LARGE_AT_ONCE)
            .map(|_| tokio::spawn(upload(3, stalls)))
            .collect();
        sleep(stalls + Duration::from_millis(1)).await;
        let begun = Instant::now();
        let good: Vec<_> = (0..32)
            .map(|_| tokio::spawn(upload(5, Duration::from_millis(20))))
            .collect();
        for upload in good {
            let length = upload.await.unwrap().map(|body| body.len());
            assert_eq!(length, Ok(400 << 10));
        }
        assert!(begun.elapsed() < DEADLINE / 4, "{:?}", begun.elapsed());
        for upload in stalled {
            let cut = upload.await.unwrap();
            let slow = matches!(cut, Err(BodyError::Outpaced | BodyError::TooSlow));
            assert!(slow, "{cut:?}");
        }
    }

    #[tokio::test]
    async fn a_body_is_discarded_as_far_as_it_has_arrived() {
        let pieces = |count: usize, size: usize| {
            let (sender, receiver) = mpsc::channel(8);
            for _ in 0..count {
                sender.try_send(Bytes::from(vec![b' '; size])).unwrap();
            }
            (sender, Pieces(receiver))
        };
        let (sender, whole) = pieces(3, 1 << 10);
        drop(sender);
        assert_eq!(discard(whole).await, Discarded::Whole);
        let (_sender, part) = pieces(3, 1 << 10);
        assert_eq!(discard(part).await, Discarded::Partly);
        let (sender, large) = pieces(3, SMALL);
        drop(sender);
        assert_eq!(discard(large).await, Discarded::Partly);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upload_that_is_in_nobodys_way_has_the_whole_deadline() {
        assert!(upload(3, Duration::from_secs(3)).await.is_ok());
        let late = upload(3, Duration::from_secs(4)).await;
        assert_eq!(late, Err(BodyError::TooSlow));
    }
}
