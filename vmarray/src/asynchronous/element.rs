//! Single elements for tasks.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::Device;

use super::approach::{Approach, Refused, Want};
use crate::any::AnyDevice;
use crate::array::VirtualArray;
use crate::element::Element;
use crate::error::{Error, Result};

/// What an element's future still has to do.
enum Step<'a, D: Device> {
    /// Nothing was tried.
    First {
        page: u64,
        at: usize,
    },
    /// The page was not to be had at once.
    Approach {
        approach: Approach<'a, D>,
        at: usize,
    },
    /// The index is outside.
    Failed(Error),
    Over,
}

/// The future of [`VirtualArray::get_async`].
///
/// ```
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.get_async(3));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct GetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    step: Step<'a, D>,
}

/// The future of [`VirtualArray::set_async`].
///
/// ```
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.set_async(3, 7));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct SetAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    value: T,
    step: Step<'a, D>,
}

impl<D: Device> Step<'_, D> {
    fn new<T: Element>(array: &VirtualArray<T, D>, index: usize) -> Self {
        match array.place_of(index) {
            Ok((page, at)) => Self::First { page, at },
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
    pub(super) fn new(array: &'a VirtualArray<T, D>, index: usize) -> Self {
        Self { array, step: Step::new(array, index) }
    }
}

impl<'a, T: Element, D: Device> SetAsync<'a, T, D> {
    pub(super) fn new(array: &'a VirtualArray<T, D>, index: usize, value: T) -> Self {
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
            if let Ok(value) = array.try_read(page, at) {
                this.step = Step::Over;
                return Poll::Ready(Ok(value));
            }
            let approach = Approach::new(array.pager(), page, Want::Share);
            this.step = Step::Approach { approach, at };
        }
        if let Some(error) = this.step.take_error() {
            return Poll::Ready(Err(error));
        }
        let Step::Approach { approach, at } = &mut this.step else { panic!("polled after it was ready") };
        let at = *at;
        let result = approach.poll(context, |approach, _| {
            // A page that is read once is not opened to lock-free reads, which cost a barrier to end.
            let found = if approach.has_missed() {
                array.try_read_shared(approach.page(), at, false)
            } else {
                array.try_read(approach.page(), at)
            };
            found.map_err(Refused::Page)
        });
        if result.is_ready() {
            this.step = Step::Over;
        }
        result
    }
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
            let approach = Approach::new(array.pager(), page, Want::Exclusive);
            this.step = Step::Approach { approach, at };
        }
        if let Some(error) = this.step.take_error() {
            return Poll::Ready(Err(error));
        }
        let Step::Approach { approach, at } = &mut this.step else { panic!("polled after it was ready") };
        let at = *at;
        let result = approach.poll(context, |approach, _| {
            array.try_write(approach.page(), at, value, !approach.has_missed()).map_err(Refused::Page)
        });
        if result.is_ready() {
            this.step = Step::Over;
        }
        result
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
