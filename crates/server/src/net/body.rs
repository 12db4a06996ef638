//! Reads a request's body, up to a maximum size and a timeout.

use std::future::{Future, poll_fn};
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;

use super::body_pool::{BodyPermit, BodyPool};

/// How long a body may take to arrive: many round trips even on a bad line.
pub(crate) const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bodies up to this size are read as they arrive.
pub(crate) const MAX_SMALL_BODY: usize = 64 << 10;

/// Larger bodies in memory at the same time.
pub(crate) const MAX_LARGE_BODIES: usize = 64;

static LARGE_BODIES: BodyPool = BodyPool::new(MAX_LARGE_BODIES);

/// A body that waits for its rest may hold this much without a permit.
const MAX_UNCOUNTED_BODY: usize = 4 << 10;

/// Bodies above that, up to [`MAX_SMALL_BODY`], that wait at the same time.
pub(crate) const MAX_WAITING_BODIES: usize = 512;

static WAITING_BODIES: BodyPool = BodyPool::new(MAX_WAITING_BODIES);

/// A body that has arrived. A body that had to wait keeps its permit until this is dropped.
pub(crate) struct ReceivedBody {
    bytes: Bytes,
    permit: Option<BodyPermit>,
}

impl Deref for ReceivedBody {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

impl ReceivedBody {
    /// Waits for `other` with the body in memory. Meanwhile the body counts as stalled.
    pub(crate) async fn wait_with_body<F: Future>(&mut self, other: F) -> Result<F::Output, BodyError> {
        let mut other = pin!(other);
        if let Some(output) = poll_once(other.as_mut()).await {
            return Ok(output);
        }
        if self.permit.is_none() && self.bytes.len() > MAX_UNCOUNTED_BODY {
            let pool = if self.bytes.len() > MAX_SMALL_BODY { &LARGE_BODIES } else { &WAITING_BODIES };
            self.permit = pool.acquire_now();
        }
        let Some(permit) = &self.permit else {
            return Ok(other.await);
        };
        tokio::select! {
            biased;
            output = other => Ok(output),
            () = permit.evicted() => Err(BodyError::Evicted),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// It has more bytes than allowed.
    #[error("the body has more than {max_bytes} bytes")]
    TooLarge { max_bytes: usize },
    /// It did not arrive in time.
    #[error("the body did not arrive within {}s", BODY_TIMEOUT.as_secs())]
    TooSlow,
    /// Other bodies wait, and this one was the slowest.
    #[error("the body arrived too slowly while others waited; send it again")]
    Evicted,
    /// The connection broke, or the framing is wrong.
    #[error("the body ended early or is badly framed")]
    Broken,
}

/// Reads the whole body. A body that has arrived with its head, the usual case, sets no timer.
pub(crate) async fn read<B>(body: B, max_bytes: usize) -> Result<ReceivedBody, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut collected = pin!(collect(body, max_bytes));
    match poll_once(collected.as_mut()).await {
        Some(done) => done,
        None => match tokio::time::timeout(BODY_TIMEOUT, collected).await {
            Ok(done) => done,
            Err(_) => Err(BodyError::TooSlow),
        },
    }
}

/// The remainder of a discarded body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Discarded {
    /// Nothing: it had arrived whole.
    Whole,
    /// More is still to come, or there is too much of it. An HTTP/1 connection cannot continue.
    Partly,
}

/// Discards the part of a body that has arrived, up to [`MAX_SMALL_BODY`].
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
            if length > MAX_SMALL_BODY {
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

/// Reads a body. A body that announces a large size waits for its permit before more of it is read, and holds little
/// memory meanwhile. A body without a size counts as large once it has become large.
async fn collect<B>(mut body: B, max_bytes: usize) -> Result<ReceivedBody, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > max_bytes as u64 {
        return Err(BodyError::TooLarge { max_bytes });
    }
    let mut permit: Option<BodyPermit> = None;
    let (will_be_large, mut is_large) = (body.size_hint().lower() > MAX_SMALL_BODY as u64, false);
    let mut all = BytesMut::new();
    while let Some(frame) = next_frame(&mut body, permit.as_ref()).await? {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        let length = all.len() + data.len();
        if length > max_bytes {
            return Err(BodyError::TooLarge { max_bytes });
        }
        if let Some(permit) = &mut permit {
            permit.record_received(data.len());
        }
        if (length > MAX_SMALL_BODY || will_be_large && length > MAX_UNCOUNTED_BODY) && !is_large {
            is_large = true;
            permit = Some(upgrade_permit(permit.take()).await?);
        } else if length > MAX_UNCOUNTED_BODY && permit.is_none() && !body.is_end_stream() {
            permit = Some(WAITING_BODIES.acquire().await);
        }
        let is_last = body.is_end_stream();
        // Most bodies are one frame, which then is not copied.
        if is_last && all.is_empty() {
            return Ok(ReceivedBody { bytes: data, permit });
        }
        // The rest may never arrive, and an HTTP/2 frame holds the whole block that it arrived in.
        all.extend_from_slice(&data);
        if is_last {
            break;
        }
    }
    let bytes = all.freeze();
    Ok(ReceivedBody { bytes, permit })
}

/// Acquires the permit of a large body. A body with a small permit keeps it while it waits, and can lose it meanwhile.
async fn upgrade_permit(small_permit: Option<BodyPermit>) -> Result<BodyPermit, BodyError> {
    let Some(small) = small_permit else {
        return Ok(LARGE_BODIES.acquire().await);
    };
    tokio::select! {
        biased;
        large = LARGE_BODIES.acquire() => Ok(large),
        () = small.evicted() => Err(BodyError::Evicted),
    }
}

type FrameResult<B> = Result<hyper::body::Frame<Bytes>, <B as Body>::Error>;

/// The next frame, unless the body is evicted before it arrives.
async fn next_frame<B>(body: &mut B, permit: Option<&BodyPermit>) -> Result<Option<FrameResult<B>>, BodyError>
where
    B: Body<Data = Bytes> + Unpin,
{
    let Some(permit) = permit else {
        return Ok(body.frame().await);
    };
    tokio::select! {
        biased;
        frame = body.frame() => Ok(frame),
        () = permit.evicted() => Err(BodyError::Evicted),
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

    struct ChannelBody(mpsc::Receiver<Bytes>);

    impl Body for ChannelBody {
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

    /// A body that arrives in `pieces` of 80 KiB, one every `gap`.
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
        let received = read(ChannelBody(receiver), 1 << 20).await;
        received.map(|body| body.bytes)
    }

    /// 64 stalled uploads kept out all others until they timed out, and then came the next 64.
    #[tokio::test(start_paused = true)]
    async fn active_uploads_evict_stalled_ones_and_no_others() {
        let stalls = Duration::from_secs(6);
        let stalled: Vec<_> = (0..4 * MAX_LARGE_BODIES).map(|_| tokio::spawn(upload(3, stalls))).collect();
        sleep(stalls + Duration::from_millis(1)).await;
        let begun = Instant::now();
        let good: Vec<_> = (0..32).map(|_| tokio::spawn(upload(5, Duration::from_millis(20)))).collect();
        for upload in good {
            let length = upload.await.unwrap().map(|body| body.len());
            assert_eq!(length, Ok(400 << 10));
        }
        assert!(begun.elapsed() < BODY_TIMEOUT / 4, "{:?}", begun.elapsed());
        for upload in stalled {
            let cut = upload.await.unwrap();
            let slow = matches!(cut, Err(BodyError::Evicted | BodyError::TooSlow));
            assert!(slow, "{cut:?}");
        }
    }

    #[tokio::test]
    async fn the_arrived_part_of_a_body_is_discarded() {
        let pieces = |count: usize, size: usize| {
            let (sender, receiver) = mpsc::channel(8);
            for _ in 0..count {
                sender.try_send(Bytes::from(vec![b' '; size])).unwrap();
            }
            (sender, ChannelBody(receiver))
        };
        let (sender, whole) = pieces(3, 1 << 10);
        drop(sender);
        assert_eq!(discard(whole).await, Discarded::Whole);
        let (_sender, part) = pieces(3, 1 << 10);
        assert_eq!(discard(part).await, Discarded::Partly);
        let (sender, large) = pieces(3, MAX_SMALL_BODY);
        drop(sender);
        assert_eq!(discard(large).await, Discarded::Partly);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_upload_without_competition_has_the_whole_timeout() {
        assert!(upload(3, Duration::from_secs(3)).await.is_ok());
        let late = upload(3, Duration::from_secs(4)).await;
        assert_eq!(late, Err(BodyError::TooSlow));
    }
}
