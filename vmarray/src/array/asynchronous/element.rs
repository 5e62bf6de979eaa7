//! Single elements for tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use backend_api::Device;

use super::acquire::{Acquire, Got, Refused, Want};
use crate::array::VirtualArray;
use crate::array::resident::Then;
use crate::base::element::{self, Element};
use crate::base::error::{Error, Result};
use crate::engine::channel::{Ask, Bytes};
use crate::engine::guards;
use crate::engine::page::state::RESIDENT;
use crate::engine::page::{Holder, count_hit};
use crate::setup::any::AnyDevice;

/// Longer elements are copied once, out of pages that are shared for it; shorter ones read as
/// [`get`](VirtualArray::get) does.
const SHORT_BYTES: usize = 256;

/// What an element's future still has to do.
enum Step<'a> {
    /// Nothing was tried.
    First {
        page: u64,
        at: usize,
    },
    /// The page was not to be had at once.
    Acquire {
        acquire: Acquire<'a>,
        at: usize,
    },
    /// The index is outside.
    Failed(Error),
    Over,
}

/// The future of [`PagedView::get_async`](crate::PagedView::get_async).
///
/// ```
/// # use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.get_async(3));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct GetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    step: Step<'a>,
}

/// The future of [`PagedViewMut::set_async`](crate::PagedViewMut::set_async).
///
/// ```
/// # use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.set_async(3, 7));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct SetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    value: T,
    step: Step<'a>,
}

impl Step<'_> {
    fn new<T: Element, D: Device>(array: &VirtualArray<T, D>, index: Result<usize>) -> Self {
        match index.map(|index| array.locate(index)) {
            Ok((page, at)) => Self::First { page: page as u64, at },
            Err(error) => Self::Failed(error),
        }
    }

    fn take_error(&mut self) -> Option<Error> {
        match std::mem::replace(self, Self::Over) {
            Self::Failed(error) => Some(error),
            step => {
                *self = step;
                None
            }
        }
    }
}

impl<'a, T: Element, D: Device> GetAsync<'a, T, D> {
    /// Of an element of the array, or of none.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, index: Result<usize>) -> Self {
        Self { array, step: Step::new(array, index) }
    }
}

impl<'a, T: Element, D: Device> SetAsync<'a, T, D> {
    /// Of an element of the array, or of none.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, index: Result<usize>, value: T) -> Self {
        Self { array, value, step: Step::new(array, index) }
    }
}

// No future points into itself.
impl<T: Element, D: Device> Unpin for SetAsync<'_, T, D> {}

impl<T: Element, D: Device> Future for GetAsync<'_, T, D> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let this = &mut *self;
        let array = this.array;
        if let Step::First { page, at } = this.step {
            let pager = array.pager();
            // What is long is copied but once, which takes a share; what is absent needs no closer look.
            let is_short = size_of::<T>() <= SHORT_BYTES;
            let is_there = || pager.entry(page).state(Ordering::Relaxed).any(RESIDENT);
            if is_short
                && is_there()
                && let Ok(value) = array.try_read(page, at)
            {
                this.step = Step::Over;
                return Poll::Ready(Ok(value));
            }
            this.step = Step::Acquire { acquire: Acquire::new(pager, page, Want::Share), at };
        }
        if let Some(error) = this.step.take_error() {
            return Poll::Ready(Err(error));
        }
        let Step::Acquire { acquire, at } = &mut this.step else { panic!("polled after it was ready") };
        let (page, at) = (acquire.page(), *at);
        let entry = array.pager().entry(page);
        let share = |_: &Acquire<'_>, _: &mut Context<'_>| Ok(entry.try_share(Holder::Pin, guards::held())?);
        let got = match acquire.poll(context, share, || Some(read_of::<T>(at))) {
            Poll::Ready(Ok(got)) => got,
            Poll::Ready(Err(error)) => {
                this.step = Step::Over;
                return Poll::Ready(Err(error));
            }
            Poll::Pending => return Poll::Pending,
        };
        let has_missed = acquire.has_missed();
        this.step = Step::Over;
        if !has_missed {
            count_hit(array.pager().counter());
        }
        let before = match got {
            Got::Tried(before) => before,
            Got::Read(bytes) => return Poll::Ready(Ok(value_of(&bytes))),
            Got::Written => unreachable!("it was asked to be read"),
        };
        let then = if size_of::<T>() <= SHORT_BYTES { Then::Open } else { Then::Nothing };
        let share = array.shared(page, before, then);
        // The share ends when the value is where it is wanted. SAFETY: the page is shared, so it stays
        // resident and is written to by atomic stores of single words alone.
        Poll::Ready(Ok(unsafe { element::read_shared(share.address().cast::<T>().add(at)) }))
    }
}

/// What is asked for an element at this place of its page.
pub(crate) fn read_of<T: Element>(at: usize) -> Ask {
    Ask::Read { offset: at * size_of::<T>(), len: size_of::<T>() }
}

/// The element of these bytes.
pub(crate) fn value_of<T: Element>(bytes: &Bytes) -> T {
    bytemuck::pod_read_unaligned(bytes)
}

impl<T: Element, D: Device> Future for SetAsync<'_, T, D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let (array, value) = (this.array, &this.value);
        if let Step::First { page, at } = this.step {
            if array.try_write(page, at, value, true).is_ok() {
                this.step = Step::Over;
                return Poll::Ready(Ok(()));
            }
            this.step = Step::Acquire { acquire: Acquire::new(array.pager(), page, Want::Exclusive), at };
        }
        if let Some(error) = this.step.take_error() {
            return Poll::Ready(Err(error));
        }
        let Step::Acquire { acquire, at } = &mut this.step else { panic!("polled after it was ready") };
        let at = *at;
        let write = |acquire: &Acquire<'_>, _: &mut Context<'_>| {
            array.try_write(acquire.page(), at, value, true).map_err(Refused::Page)
        };
        let ask = || {
            let bytes = Bytes::from_slice(bytemuck::bytes_of(value));
            Some(Ask::Write { offset: at * size_of::<T>(), bytes })
        };
        let got = match acquire.poll(context, write, ask) {
            Poll::Ready(got) => got,
            Poll::Pending => return Poll::Pending,
        };
        if matches!(got, Ok(Got::Written)) && !acquire.has_missed() {
            count_hit(array.pager().counter());
        }
        this.step = Step::Over;
        Poll::Ready(got.map(drop))
    }
}

impl<T: Element, D: Device> fmt::Debug for GetAsync<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetAsync").finish_non_exhaustive()
    }
}

impl<T: Element, D: Device> fmt::Debug for SetAsync<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetAsync").finish_non_exhaustive()
    }
}
