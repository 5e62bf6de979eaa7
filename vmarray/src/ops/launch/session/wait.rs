//! Waiting for the launches of a session without blocking.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::Progress;

use super::Session;
use crate::array::asynchronous::Asked;
use crate::base::error::Result;

/// What [`Session::wait_async`] returns; see there.
///
/// ```
/// fn may_move<F: Send>() {}
/// may_move::<vmarray::futures::SessionWait<'_, '_>>();
/// ```
#[must_use = "does nothing unless polled"]
#[derive(Debug)]
pub struct SessionWait<'s, 'a> {
    session: &'s mut Session<'a>,
    /// Where it is to be woken.
    asked: Asked,
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
        for lane in &session.lanes {
            // Those before it are done when it is.
            let Some(last) = lane.launched.back() else { continue };
            let device = &**lane.queue.device();
            if matches!(device.poll(last.ticket), Ok(Progress::Pending)) {
                asked.wake(device, last.ticket, context.waker());
                return Poll::Pending;
            }
        }
        Poll::Ready(session.wait())
    }
}
