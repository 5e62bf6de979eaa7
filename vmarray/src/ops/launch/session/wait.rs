//! Asynchronous wait for the launches of a session.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::Progress;

use super::Session;
use crate::array::asynchronous::Asked;
use crate::base::error::Result;

/// The future of [`Session::wait_async`].
///
/// ```
/// fn may_move<F: Send>() {}
/// may_move::<vmarray::futures::SessionWait<'_, '_>>();
/// ```
#[must_use = "does nothing unless polled"]
#[derive(Debug)]
pub struct SessionWait<'s, 'a> {
    session: &'s mut Session<'a>,
    /// Registration for the wake-up.
    asked: Asked,
}

impl Session<'_> {
    /// Returns the outcome of all launches, if they are done; else registers the task.
    pub(super) fn poll(&mut self, asked: &mut Asked, context: &mut Context<'_>) -> Poll<Result<()>> {
        for lane in &self.lanes {
            let device = &**lane.queue.device();
            // The newest first, because earlier launches are usually done before it.
            for launched in lane.launched.iter().rev() {
                if matches!(device.poll(launched.ticket), Ok(Progress::Pending)) {
                    asked.wake(device, launched.ticket, context.waker());
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(self.wait())
    }
}

impl<'s, 'a> SessionWait<'s, 'a> {
    pub(super) fn new(session: &'s mut Session<'a>) -> Self {
        Self { session, asked: Asked::default() }
    }
}

impl Future for SessionWait<'_, '_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { session, asked } = &mut *self;
        session.poll(asked, context)
    }
}
