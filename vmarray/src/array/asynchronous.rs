//! The array for tasks: futures that never block the thread that polls them.
//!
//! They need no particular executor: all they use is [`std::future`], and the wakers of devices. Each is a type of its
//! own and can be named.

mod acquire;
mod element;
mod gather;
mod guard;
mod range;

use std::ops::RangeBounds;
use std::task::Waker;

use backend_api::{Device, Ticket};

use crate::array::VirtualArray;
use crate::array::section::range_at;
use crate::base::element::Element;
use crate::base::error::{Result, index_outside};
use crate::engine::page::OutsideLocks;

/// What a future is to be woken for by a device, so that it does not ask for that again whenever it is polled in vain.
#[derive(Debug, Default)]
pub(crate) struct Asked(Option<(Ticket, Waker)>);

impl Asked {
    /// Has `waker` woken once a ticket is done, which is pending.
    pub(crate) fn wake<D: Device>(&mut self, device: &D, ticket: Ticket, waker: &Waker) {
        if !self.0.as_ref().is_some_and(|(known, by)| *known == ticket && by.will_wake(waker)) {
            self.0 = Some((ticket, waker.clone()));
            device.wake(ticket, OutsideLocks::waker(waker));
        }
    }
}

pub use element::{GetAsync, SetAsync};
pub use gather::GatherAsync;
pub use guard::{PageAsync, PageMutAsync};
pub use range::{FlushAsync, PrefetchAsync, ReadAsync};

/// # For tasks
///
/// Each of these returns a future that does what the operation without `_async` does, and leaves its thread to others
/// wherever that would block. Thousands can be under way from one thread: the loads of those that are polled one after
/// another are submitted to their device in one call.
///
/// A future does nothing until it is polled. It can be dropped at any time and leaves nothing behind: it holds neither
/// page nor frame while it waits, and loads that it began end up in the cache. One that is not polled any more keeps
/// nobody waiting; except that a page guard's counts as a guard from the moment that its page has come.
///
/// **Progress.** Each load that is begun for a task serves that task: what it asked for is copied out of the page, or
/// written to it, when the load ends, whether the task is polled then or not. So an element is loaded at most once for
/// each time that it is asked for (once more, by itself, if a submission of several pages fails), whatever the
/// number of
/// tasks, frames and executors. Tasks that find no frame get one in the order in which they asked; if there is none
/// because a page cannot be written back, the first of them gets that error. What was asked for while the device is
/// busy
/// is submitted by whoever is told of the end of earlier work, as a rule a thread of the device; no task need be polled
/// for that.
///
/// **Wakers** run in the thread that ends a load: one of the device, or one of the program in a blocking call, which
/// may have a page for itself then. A waker may poll futures of arrays on the spot, or drop arrays, but must not call
/// what blocks on them.
///
/// As a thread that holds guards waits for no page that others may need first (see [Locks](VirtualArray#locks)), so do
/// the tasks that run on it: guards count for their thread, whichever task holds them. A future that is polled by a
/// thread with guards ends with [`WouldDeadlock`](crate::ErrorKind::WouldDeadlock) or
/// [`TooManyGuards`](crate::ErrorKind::TooManyGuards) where the blocking form would. Also when the thread takes a guard
/// while the future waits.
impl<T: Element, D: Device> VirtualArray<T, D> {
    /// [`get`](Self::get) for tasks. A hit is there at the first poll, and allocates nothing.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// array.set(5, 55)?;
    /// assert_eq!(block_on(array.get_async(5))?, 55);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn get_async(&self, index: usize) -> GetAsync<'_, T, D> {
        GetAsync::new(self, self.checked_index(index))
    }

    /// [`set`](Self::set) for tasks.
    ///
    /// While readers follow one another without a gap it may wait for long: unlike a thread it does not have them queue
    /// up behind it, since it might not be polled any more. If the future is dropped before it is ready, the value is
    /// written whole or not at all: not if the future was never polled.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// block_on(array.set_async(5, 55))?;
    /// assert_eq!(array.get(5)?, 55);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set_async(&self, index: usize, value: T) -> SetAsync<'_, T, D> {
        SetAsync::new(self, self.checked_index(index), value)
    }

    /// [`read`](Self::read) for tasks. Atomic by page.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// array.write(10, &[1, 2, 3])?;
    /// let mut back = [0; 3];
    /// block_on(array.read_async(10, &mut back))?;
    /// assert_eq!(back, [1, 2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_async<'a>(&'a self, start: usize, into: &'a mut [T]) -> ReadAsync<'a, T, D> {
        ReadAsync::new(self, range_at(start, into.len(), self.len()), into)
    }

    /// [`gather`](Self::gather) for tasks, on the thread that polls. To drop it before it is ready blocks until the
    /// kernels that it started are done: fractions of a millisecond.
    ///
    /// # Errors
    /// As [`gather`](Self::gather).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(700, 7)?;
    /// assert_eq!(block_on(array.gather_async(&[3, 700]))?, [0, 7]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_async<'a>(&'a self, indices: &'a [usize]) -> GatherAsync<'a, T, D> {
        GatherAsync::new(self, 0..self.len(), indices)
    }

    /// [`page`](Self::page) for tasks. The guard stays with the thread that polled last.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// array.set(5, 55)?;
    /// assert_eq!(block_on(array.page_async(0))?[5], 55);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page_async(&self, page: usize) -> PageAsync<'_, T, D> {
        PageAsync::new(self, page)
    }

    /// [`page_mut`](Self::page_mut) for tasks. The guard stays with the thread that polled last. Readers in a row may
    /// keep it waiting, as for [`set_async`](Self::set_async).
    ///
    /// # Errors
    /// As [`page_mut`](Self::page_mut).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// block_on(array.page_mut_async(0))?.fill(3);
    /// assert_eq!(array.get(99)?, 3);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page_mut_async(&self, page: usize) -> PageMutAsync<'_, T, D> {
        PageMutAsync::new(self, page)
    }

    /// [`prefetch`](Self::prefetch) for tasks that want to know when it is done: ready when what was started, or was
    /// on its way already, is there.
    ///
    /// # Errors
    /// As [`prefetch`](Self::prefetch).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// array.fill(.., 1)?;
    /// block_on(array.prefetch_async(..))?;
    /// array.reset_stats();
    /// assert_eq!(array.get(5)?, 1);
    /// assert_eq!(array.stats().total().misses, 0);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn prefetch_async(&self, range: impl RangeBounds<usize>) -> PrefetchAsync<'_, T, D> {
        PrefetchAsync::new(self, self.checked_range(range))
    }

    /// [`flush`](Self::flush) for tasks.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    ///
    /// ```
    /// # fn block_on<F: Future>(future: F) -> F::Output {
    /// #     let mut future = std::pin::pin!(future);
    /// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// #     loop {
    /// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(&mut context) { return value; }
    /// #         std::thread::yield_now();
    /// #     }
    /// # }
    /// let array = vmarray::VirtualArray::<u32>::new(100)?;
    /// array.set(5, 55)?;
    /// block_on(array.flush_async(..))?;
    /// assert_eq!(array.stats().total().write_backs, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn flush_async(&self, range: impl RangeBounds<usize>) -> FlushAsync<'_, T, D> {
        FlushAsync::new(self, self.checked_range(range))
    }

    /// An index, for a future that tells of one outside when it is polled.
    fn checked_index(&self, index: usize) -> Result<usize> {
        if index < self.len() { Ok(index) } else { Err(index_outside(index, self.len())) }
    }
}
