//! Futures that wait until all kernel launches of a [`Session`] have ended.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::QueueProgress;

use super::Session;
use crate::array::asynchronous::Asked;
use crate::base::error::Result;

/// The future that [`Session::wait_async`] returns.
///
/// ```
/// fn may_move<F: Send>() {}
/// may_move::<vmarray::futures::SessionWait<'_, '_>>();
/// ```
#[must_use = "does nothing unless polled"]
#[derive(Debug)]
pub struct SessionWait<'s, 'a> {
    session: &'s mut Session<'a>,
    /// Registration of the task to be woken.
    asked: Asked,
}

impl<'a> Session<'a> {
    /// Returns a future that waits as [`wait`](Self::wait) does, for any async executor. The future can be
    /// dropped at any time: the launches continue, and a session that is dropped waits for them. The
    /// cancellation of a task that owns the session therefore blocks until every submitted launch has ended.
    ///
    /// Other calls may block, too: [`hold`](Self::hold), until dirty pages are written back (see
    /// [`flush_async`](crate::views::View::flush_async)); the first launch of a kernel, which is compiled
    /// then; and a launch while more than a thousand are running.
    ///
    /// ```
    /// use futures::executor::block_on;
    /// use vmarray::kernel::{Own, Session};
    /// use vmarray::prelude::*;
    ///
    /// #[vmarray::kernel]
    /// fn halve(x: &mut Own<f32>) {
    ///     x.set(x.get() / 2.0);
    /// }
    /// async fn quartered(array: &mut VirtualArray<f32>) -> vmarray::Result<()> {
    ///     let mut session = Session::new();
    ///     let x = session.hold(array)?;
    ///     halve::run_in(&mut session, (x,))?;
    ///     halve::run_in(&mut session, (x,))?;
    ///     session.wait_async().await
    /// }
    /// let [mut one, mut other] = [VirtualArray::<f32>::new(10)?, VirtualArray::<f32>::new(10)?];
    /// one.fill(.., 8.0)?;
    /// other.fill(.., 4.0)?;
    /// let (first, second) = block_on(async { futures::join!(quartered(&mut one), quartered(&mut other)) });
    /// first.and(second)?;
    /// assert_eq!((one.get(0)?, other.get(9)?), (2.0, 1.0));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    ///
    /// # Errors
    /// The future returns the errors of [`wait`](Self::wait).
    pub fn wait_async(&mut self) -> SessionWait<'_, 'a> {
        SessionWait { session: self, asked: Asked::default() }
    }

    /// Returns the outcome of all launches if they have ended. Otherwise registers the task to be woken.
    pub(super) fn poll(&mut self, asked: &mut Asked, context: &mut Context<'_>) -> Poll<Result<()>> {
        for lane in &self.lanes {
            let device = &**lane.queue.device();
            // Poll the newest launch first, because earlier launches are usually done when it is done.
            for launched in lane.launched.iter().rev() {
                if matches!(device.poll(launched.ticket), Ok(QueueProgress::Pending)) {
                    asked.wake(device, launched.ticket, context.waker());
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(self.wait())
    }
}

impl Future for SessionWait<'_, '_> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Self { session, asked } = &mut *self;
        session.poll(asked, context)
    }
}
