//! Sections for tasks.

use std::fmt;
use std::future::Future;
use std::ops::RangeBounds;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::Device;

use super::pages::Cut;
use super::{Section, SectionMut, SectionPage, SectionPageMut, range_at};
use crate::array::asynchronous::{
    FlushAsync, GatherAsync, GetAsync, PageAsync, PageMutAsync, PrefetchAsync, ReadAsync, SetAsync,
};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::setup::any::AnyDevice;

/// # For tasks
///
/// Futures as the [array's](crate::VirtualArray#for-tasks), with indices and errors that count from the section's
/// start. They borrow the array, not the section, which may go before them; tasks that outlive the scope of the array
/// take a [`SharedSection`](crate::SharedSection) with them.
impl<'a, T: Element, D: Device> Section<'a, T, D> {
    /// [`get`](Self::get) for tasks: [`VirtualArray::get_async`](crate::VirtualArray::get_async).
    ///
    /// # Errors
    /// As there.
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
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(103, 7)?;
    /// let section = array.section(100..200)?;
    /// assert_eq!(block_on(section.get_async(3))?, 7);
    /// let error = block_on(section.get_async(100)).unwrap_err();
    /// assert_eq!(error.to_string(), section.get(100).unwrap_err().to_string());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn get_async(&self, index: usize) -> GetAsync<'a, T, D> {
        GetAsync::new(self.array, self.outer(index))
    }

    /// [`read`](Self::read) for tasks: [`VirtualArray::read_async`](crate::VirtualArray::read_async).
    ///
    /// # Errors
    /// As there.
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
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.write(100, &[1, 2, 3])?;
    /// let mut two = [0; 2];
    /// block_on(array.section(100..)?.read_async(1, &mut two))?;
    /// assert_eq!(two, [2, 3]);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn read_async<'b>(&self, start: usize, into: &'b mut [T]) -> ReadAsync<'b, T, D>
    where
        'a: 'b,
    {
        let range = range_at(start, into.len(), self.len).and_then(|range| self.outer_range(range));
        ReadAsync::new(self.array, range, into)
    }

    /// [`gather`](Self::gather) for tasks: [`VirtualArray::gather_async`](crate::VirtualArray::gather_async). The list
    /// is not copied.
    ///
    /// # Errors
    /// As there; indices beyond the section are outside.
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
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// array.set(700, 7)?;
    /// let section = array.section(500..)?;
    /// assert_eq!(block_on(section.gather_async(&[3, 200]))?, [0, 7]);
    /// assert!(block_on(section.gather_async(&[500])).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn gather_async<'b>(&self, indices: &'b [usize]) -> GatherAsync<'b, T, D>
    where
        'a: 'b,
    {
        GatherAsync::new(self.array, self.range(), indices)
    }

    /// [`page`](Self::page) for tasks: [`VirtualArray::page_async`](crate::VirtualArray::page_async).
    ///
    /// # Errors
    /// As there.
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
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// let section = array.section(100..200)?;
    /// assert_eq!(block_on(section.page_async(1))?.range(), 28..92);
    /// assert!(block_on(section.page_async(3)).is_err());
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page_async(&self, page: usize) -> SectionPageAsync<'a, T, D> {
        let start = |cut: Cut| (PageAsync::new(self.array, cut.page), cut);
        SectionPageAsync { coming: self.cut(page).map(start) }
    }

    /// [`prefetch`](Self::prefetch) for tasks that want to know when it is done:
    /// [`VirtualArray::prefetch_async`](crate::VirtualArray::prefetch_async).
    ///
    /// # Errors
    /// As there.
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
    /// # let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(50).build()?;
    /// array.fill(.., 1)?;
    /// array.evict(..)?;
    /// array.reset_stats();
    /// block_on(array.section(100..200)?.prefetch_async(..))?;
    /// assert_eq!(array.stats().total().prefetches, 2);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn prefetch_async(&self, range: impl RangeBounds<usize>) -> PrefetchAsync<'a, T, D> {
        PrefetchAsync::new(self.array, self.outer_range(range))
    }

    /// [`flush`](Self::flush) for tasks: [`VirtualArray::flush_async`](crate::VirtualArray::flush_async).
    ///
    /// # Errors
    /// As there.
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
    /// # let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(100).build()?;
    /// array.fill(50..150, 1)?;
    /// block_on(array.section(100..200)?.flush_async(..))?;
    /// assert_eq!(array.stats().total().write_backs, 1);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn flush_async(&self, range: impl RangeBounds<usize>) -> FlushAsync<'a, T, D> {
        FlushAsync::new(self.array, self.outer_range(range))
    }
}

/// # For tasks
///
/// As for [`Section`](Section#for-tasks).
impl<'a, T: Element, D: Device> SectionMut<'a, T, D> {
    /// [`set`](Self::set) for tasks: [`VirtualArray::set_async`](crate::VirtualArray::set_async).
    ///
    /// # Errors
    /// As there.
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
    /// # let array = vmarray::VirtualArray::<u32>::new(1000)?;
    /// block_on(array.section_mut(100..)?.set_async(3, 7))?;
    /// assert_eq!(array.get(103)?, 7);
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn set_async(&self, index: usize, value: T) -> SetAsync<'a, T, D> {
        SetAsync::new(self.section.array, self.outer(index), value)
    }

    /// [`page_mut`](Self::page_mut) for tasks: [`VirtualArray::page_mut_async`](crate::VirtualArray::page_mut_async).
    ///
    /// # Errors
    /// As there.
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
    /// let array = vmarray::VirtualArray::<u32>::builder(1000).page_len(64).build()?;
    /// block_on(array.section_mut(100..200)?.page_mut_async(1))?.fill(3);
    /// assert_eq!((array.get(127)?, array.get(128)?), (0, 3));
    /// # Ok::<(), vmarray::Error>(())
    /// ```
    pub fn page_mut_async(&self, page: usize) -> SectionPageMutAsync<'a, T, D> {
        let start = |cut: Cut| (PageMutAsync::new(self.section.array, cut.page), cut);
        SectionPageMutAsync { coming: self.cut(page).map(start) }
    }
}

/// The future of [`Section::page_async`].
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
/// use vmarray::{SectionPageAsync, VirtualArray};
/// let array = VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// array.set(100, 5)?;
/// let coming: SectionPageAsync<'_, u32> = array.section(100..200)?.page_async(0);
/// assert_eq!(block_on(coming)?[..2], [5, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct SectionPageAsync<'a, T: Element, D: Device = AnyDevice> {
    coming: Result<(PageAsync<'a, T, D>, Cut), Error>,
}

/// The future of [`SectionMut::page_mut_async`].
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
/// use vmarray::{SectionPageMutAsync, VirtualArray};
/// let array = VirtualArray::<u32>::builder(1000).page_len(64).build()?;
/// let coming: SectionPageMutAsync<'_, u32> = array.section_mut(100..200)?.page_mut_async(0);
/// block_on(coming)?[0] = 5;
/// assert_eq!(array.get(100)?, 5);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct SectionPageMutAsync<'a, T: Element, D: Device = AnyDevice> {
    coming: Result<(PageMutAsync<'a, T, D>, Cut), Error>,
}

macro_rules! futures {
    ($($Future:ident gives $Guard:ident),*) => { $(
        impl<'a, T: Element, D: Device> Future for $Future<'a, T, D> {
            type Output = Result<$Guard<'a, T, D>>;

            fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
                match &mut self.coming {
                    Ok((page, cut)) => {
                        Pin::new(page).poll(context).map_ok(|page| $Guard { page, cut: cut.clone() })
                    }
                    Err(error) => Poll::Ready(Err(error.clone())),
                }
            }
        }

        impl<T: Element, D: Device> fmt::Debug for $Future<'_, T, D> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let page = self.coming.as_ref().map(|(_, cut)| cut.page);
                f.debug_struct(stringify!($Future)).field("page", &page).finish_non_exhaustive()
            }
        }
    )* };
}

futures!(SectionPageAsync gives SectionPage, SectionPageMutAsync gives SectionPageMut);
