//! Reads a request's body, up to a size and a time.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Incoming};
use tokio::sync::Semaphore;

/// How long a body may take to arrive: many round trips even on a bad line.
pub(crate) const DEADLINE: Duration = Duration::from_secs(10);

/// Bodies up to this size are taken as they come.
pub(crate) const SMALL: usize = 64 << 10;

/// Larger bodies held at the same time, so that they cannot fill the memory between them.
pub(crate) const LARGE_AT_ONCE: usize = 64;

static LARGE: Semaphore = Semaphore::const_new(LARGE_AT_ONCE);

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
    /// The connection broke, or the framing is wrong.
    #[error("the body ended early or is badly framed")]
    Broken,
}

/// The whole body. A body that has arrived with its head, the usual case, sets no timer.
pub(crate) async fn read(body: Incoming, most: usize) -> Result<Bytes, BodyError> {
    let mut collected = pin!(collect(body, most));
    match poll_once(collected.as_mut()).await {
        Some(done) => done,
        None => match tokio::time::timeout(DEADLINE, collected).await {
            Ok(done) => done,
            Err(_) => Err(BodyError::TooSlow),
        },
    }
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

async fn collect(mut body: Incoming, most: usize) -> Result<Bytes, BodyError> {
    let announced = body.size_hint().lower();
    if announced > most as u64 {
        return Err(BodyError::TooLarge { most });
    }
    let mut large = None;
    if announced > SMALL as u64 {
        large = LARGE.acquire().await.ok();
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| BodyError::Broken)?.into_data() else {
            continue;
        };
        let length = first.len() + all.len() + data.len();
        if length > most {
            return Err(BodyError::TooLarge { most });
        }
        if length > SMALL && large.is_none() {
            large = LARGE.acquire().await.ok();
        }
        // Most bodies are one piece, which then is not copied.
        if first.is_empty() && all.is_empty() {
            first = data;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&data);
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}
