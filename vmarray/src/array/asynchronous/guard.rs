//! [`PageAsync`] and [`PageMutAsync`]: futures that return a page guard, which borrows a page in the cache.

use std::cell::Cell;
use std::future::Future;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};

use backend_api::Device;

use super::acquire::{Acquire, AcquireRefusal, Got, Want};
use crate::array::VirtualArray;
use crate::array::page_guard::{Cut, HeldPart, PageMut, PageRef};
use crate::base::element::Element;
use crate::base::error::Result;
use crate::engine::channel::Ask;
use crate::engine::page::state::{AHEAD, IN_FLIGHT, RESIDENT, WAITED};
use crate::engine::page::{HazardAccess, Holder, Refusal, count_hit, unpark};
use crate::engine::pager::try_share;
use crate::setup::any::AnyDevice;

/// The acquisition of a guard by a task. It stays on its thread, like a guard.
struct ComingGuard<'a, T: Element, D: Device> {
    array: &'a VirtualArray<T, D>,
    acquire: Acquire<'a>,
    cut: Result<Cut>,
    /// True if the future counts as a guard already.
    is_counted: Cell<bool>,
    exclusive: bool,
    not_send: PhantomData<*mut T>,
}

/// The future of [`PagedView::page_async`](crate::views::PagedView::page_async).
///
/// ```
/// use vmarray::prelude::*;
/// use futures::executor::block_on;
/// use vmarray::{futures::PageAsync, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// array.set(5, 55)?;
/// let coming: PageAsync<'_, u32> = array.page_async(0);
/// let page = block_on(coming)?;
/// assert_eq!(page[4..7], [0, 55, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// The future is not `Send`, because the guard belongs to its thread:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100).unwrap();
/// is_send(&array.page_async(0));
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct PageAsync<'a, T: Element, D: Device = AnyDevice> {
    hold: ComingGuard<'a, T, D>,
}

/// The future of [`PagedViewMut::page_mut_async`](crate::views::PagedViewMut::page_mut_async).
///
/// ```
/// use vmarray::prelude::*;
/// use futures::executor::block_on;
/// use vmarray::{futures::PageMutAsync, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// let coming: PageMutAsync<'_, u32> = array.page_mut_async(0);
/// block_on(coming)?[5] = 55;
/// assert_eq!(array.get(5)?, 55);
/// # Ok::<(), vmarray::Error>(())
/// ```
///
/// The future is not `Send`, because the guard belongs to its thread:
///
/// ```compile_fail
/// use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100).unwrap();
/// is_send(&array.page_mut_async(0));
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct PageMutAsync<'a, T: Element, D: Device = AnyDevice> {
    hold: ComingGuard<'a, T, D>,
}

impl<'a, T: Element, D: Device> ComingGuard<'a, T, D> {
    fn new(array: &'a VirtualArray<T, D>, cut: Result<Cut>, want: Want) -> Self {
        let exclusive = want == Want::Exclusive;
        let page = cut.as_ref().map_or(0, |cut| cut.array_page as u64);
        let acquire = Acquire::new(array.pager(), page, want);
        Self { array, acquire, cut, is_counted: Cell::new(false), exclusive, not_send: PhantomData }
    }

    /// Returns the part of the page in the guard's range, when the task holds the page as a guard.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<HeldPart<'a, T, D>>> {
        let (array, exclusive) = (self.array, self.exclusive);
        let cut = self.cut.clone()?;
        let page = self.acquire.page();
        let pager = array.pager();
        if exclusive {
            pager.expect_writable()?;
        }
        let (entry, channel) = (pager.entry(page), pager.channel(page));
        let is_counted = &self.is_counted;
        let hold = |acquire: &Acquire<'_>, context: &mut Context<'_>| {
            if !is_counted.get() {
                match channel.poll_guard(context.waker()) {
                    Ok(None) => {
                        is_counted.set(true);
                        pager.identity().expect();
                    }
                    Ok(Some(wait)) => return Err(AcquireRefusal::Wait(wait)),
                    Err(error) => return Err(AcquireRefusal::Error(error)),
                }
            }
            let held =
                if exclusive { entry.try_exclusive(Holder::Guard) } else { try_share(entry, Holder::Guard) };
            let before = match held {
                Ok(before) => before,
                // Stop counting the task towards the limit of guards while it waits for holders, as it could
                // block them. A task whose page is loading counts, because the page keeps its frame for it.
                Err(Refusal::Busy(state))
                    if (state.any(RESIDENT) || !state.any(IN_FLIGHT)) && !acquire.has_reserved() =>
                {
                    is_counted.set(false);
                    pager.identity().expect_no_more();
                    channel.dismiss_guard();
                    return Err(Refusal::Busy(state).into());
                }
                Err(refusal) => return Err(refusal.into()),
            };
            // From here on the new guard counts for the limit of guards, so the future no longer counts.
            is_counted.set(false);
            pager.identity().expect_no_more();
            if before.any(WAITED) {
                unpark(entry);
            }
            if !acquire.has_missed() {
                count_hit(pager.counter());
            }
            if !channel.recency() {
                channel.touched(page);
            }
            channel.quiesce(entry, before, if exclusive { HazardAccess::All } else { HazardAccess::Writes });
            if before.any(AHEAD) {
                pager.advance(page);
            }
            Ok::<_, AcquireRefusal>(())
        };
        // Reserve a frame only for a task that counts towards the limit of guards: so reservations never take
        // all frames.
        let reserve = || is_counted.get().then(|| Ask::Reserve);
        let polled = self.acquire.poll(context, hold, reserve);
        if polled.is_ready() {
            self.stop_counting();
        }
        polled.map_ok(|got| match got {
            Got::Tried(()) => HeldPart::of_held(array, cut, exclusive),
            Got::Read(_) | Got::Written => unreachable!("the request was for a frame"),
        })
    }

    fn stop_counting(&mut self) {
        if self.is_counted.take() {
            self.array.pager().identity().expect_no_more();
            self.array.pager().channel(self.acquire.page()).dismiss_guard();
        }
    }
}

impl<T: Element, D: Device> Drop for ComingGuard<'_, T, D> {
    fn drop(&mut self) {
        // Release the frame first, because a thread that waits for a guard needs a frame when it wakes.
        self.acquire.stop();
        self.stop_counting();
    }
}

impl<'a, T: Element, D: Device> PageAsync<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, cut: Result<Cut>) -> Self {
        Self { hold: ComingGuard::new(array, cut, Want::Share) }
    }
}

impl<'a, T: Element, D: Device> PageMutAsync<'a, T, D> {
    pub(crate) fn new(array: &'a VirtualArray<T, D>, cut: Result<Cut>) -> Self {
        Self { hold: ComingGuard::new(array, cut, Want::Exclusive) }
    }
}

impl<'a, T: Element, D: Device> Future for PageAsync<'a, T, D> {
    type Output = Result<PageRef<'a, T, D>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.hold.poll(context).map_ok(PageRef::of)
    }
}

impl<'a, T: Element, D: Device> Future for PageMutAsync<'a, T, D> {
    type Output = Result<PageMut<'a, T, D>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.hold.poll(context).map_ok(PageMut::of)
    }
}

debug!(PageAsync: hold.cut, PageMutAsync: hold.cut);
