//! [`GetAsync`] and [`SetAsync`]: futures that read or write one element.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use backend_api::Device;

use super::acquire::{Acquire, Got, Want};
use crate::array::VirtualArray;
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::channel::{Ask, Bytes};
use crate::engine::guards;
use crate::engine::page::state::RESIDENT;
use crate::engine::page::{Holder, count_hit};
use crate::setup::any::AnyDevice;

/// Elements up to this size are read like [`get`](VirtualArray::get); longer ones are copied once, from a
/// page that the task holds shared.
const SHORT_BYTES: usize = 256;

/// The future of [`PagedView::get_async`](crate::views::PagedView::get_async).
///
/// ```
/// use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.get_async(3));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct GetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    /// Page of the element and offset in the page, or the error.
    place: Result<(u64, usize)>,
    /// The acquisition of the page, if it was not available at once.
    acquire: Option<Acquire<'a>>,
}

/// The future of [`PagedViewMut::set_async`](crate::views::PagedViewMut::set_async).
///
/// ```
/// use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.set_async(3, 7));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct SetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    value: T,
    place: Result<(u64, usize)>,
    acquire: Option<Acquire<'a>>,
}

fn place_of<T: Element, D: Device>(array: &VirtualArray<T, D>, index: Result<usize>) -> Result<(u64, usize)> {
    let (page, at) = array.locate(index?);
    Ok((page as u64, at))
}

impl<'a, T: Element, D: Device> GetAsync<'a, T, D> {
    /// Returns the future for an element, or for the error of a wrong index.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, index: Result<usize>) -> Self {
        Self { array, place: place_of(array, index), acquire: None }
    }
}

impl<'a, T: Element, D: Device> SetAsync<'a, T, D> {
    /// Returns the future for an element, or for the error of a wrong index.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, index: Result<usize>, value: T) -> Self {
        Self { array, value, place: place_of(array, index), acquire: None }
    }
}

// The future has no self-references, so it may move after a poll.
impl<T: Element, D: Device> Unpin for SetAsync<'_, T, D> {}

impl<T: Element, D: Device> Future for GetAsync<'_, T, D> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = &mut *self;
        let (array, pager) = (this.array, this.array.pager());
        let (page, at) = this.place.clone()?;
        let entry = pager.entry(page);
        // Try to read a short element without holding its page. Copy a long element only once, below.
        let is_short = size_of::<T>() <= SHORT_BYTES;
        if this.acquire.is_none()
            && is_short
            && entry.state(Ordering::Relaxed).any(RESIDENT)
            && let Ok(value) = array.try_read(page, at)
        {
            return Poll::Ready(Ok(value));
        }
        let acquire = this.acquire.get_or_insert_with(|| Acquire::new(pager, page, Want::Share));
        let share = |_: &Acquire<'_>, _: &mut Context<'_>| Ok(entry.try_share(Holder::Pin, guards::held())?);
        let got = ready!(acquire.poll(context, share, || Some(read_of::<T>(at))))?;
        if !acquire.has_missed() {
            count_hit(pager.counter());
        }
        let before = match got {
            Got::Tried(before) => before,
            Got::Read(bytes) => return Poll::Ready(Ok(value_of(&bytes))),
            Got::Written => unreachable!("the request was a read"),
        };
        // The hold of the page ends after the value has been copied.
        Poll::Ready(Ok(array.read_in(&array.shared(page, before, is_short), at)))
    }
}

/// Returns the request that reads the element at an offset of its page.
pub(crate) fn read_of<T: Element>(at: usize) -> Ask {
    Ask::Read { offset: at * size_of::<T>(), len: size_of::<T>() }
}

/// Returns the element with these bytes.
pub(crate) fn value_of<T: Element>(bytes: &Bytes) -> T {
    bytemuck::pod_read_unaligned(bytes)
}

impl<T: Element, D: Device> Future for SetAsync<'_, T, D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let (array, value) = (this.array, &this.value);
        let (page, at) = this.place.clone()?;
        array.pager().expect_writable()?;
        if this.acquire.is_none() && array.try_write(page, at, value).is_ok() {
            return Poll::Ready(Ok(()));
        }
        let acquire = this.acquire.get_or_insert_with(|| Acquire::new(array.pager(), page, Want::Exclusive));
        let write = |_: &Acquire<'_>, _: &mut Context<'_>| Ok(array.try_write(page, at, value)?);
        let ask = || {
            let bytes = Bytes::from_slice(bytemuck::bytes_of(value));
            Some(Ask::Write { offset: at * size_of::<T>(), bytes })
        };
        let got = ready!(acquire.poll(context, write, ask))?;
        if matches!(got, Got::Written) && !acquire.has_missed() {
            count_hit(array.pager().counter());
        }
        Poll::Ready(Ok(()))
    }
}

debug!(GetAsync: place, SetAsync: place);
