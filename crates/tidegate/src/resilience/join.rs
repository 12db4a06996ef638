//! Waiting for several answers at once.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

/// The answers of all `calls`, in order. They are under way at the same time.
pub(crate) async fn join_all<F: Future>(calls: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut calls: Vec<Pin<Box<F>>> = calls.into_iter().map(Box::pin).collect();
    let mut answers: Vec<Option<F::Output>> = calls.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut waiting = false;
        for (call, answer) in calls.iter_mut().zip(&mut answers) {
            if answer.is_some() {
                continue;
            }
            match call.as_mut().poll(context) {
                Poll::Ready(done) => *answer = Some(done),
                Poll::Pending => waiting = true,
            }
        }
        match waiting {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    })
    .await;
    answers.into_iter().flatten().collect()
}
