//! Gathers in async tasks: a future that reads elements by a list of indices.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use backend_api::{Device, QueueProgress};

use super::check_list;
use super::kernels::GatherKernels;
use super::lanes::Lanes;
use super::places::{ListedPlace, Places};
use super::stage::StagePlan;
use crate::array::VirtualArray;
use crate::array::asynchronous::{Acquire, AcquireRefusal, Asked, Got, Want, read_of, value_of};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::engine::page::state::{HOME, RESIDENT};
use crate::engine::page::{Refusal, count_hit};
use crate::setup::any::AnyDevice;

/// The most elements that one poll processes before other tasks may run.
const LOOKED_FOR_AT_ONCE: usize = 1 << 16;

enum GatherStep {
    /// The future reads elements in RAM, and submits kernels for the others.
    List,
    /// The future reads the remaining elements, at these positions of the list, through the cache.
    OneByOne(Vec<usize>),
    Over,
}

/// The future that [`PagedView::gather_async`](crate::views::PagedView::gather_async) returns.
///
/// ```
/// use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.gather_async(&[3]));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct GatherAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    places: Places,
    /// The range of the array from which indices count; an index outside is an error.
    range: Range<usize>,
    indices: &'a [usize],
    values: Vec<T>,
    /// The first position of the list that was not processed yet.
    next: usize,
    kernels: GatherKernels<'a, T>,
    /// Positions of elements gathered while a page had undefined home contents. They are read again through
    /// the cache.
    doubtful: Vec<usize>,
    step: GatherStep,
    asked: Asked,
    acquire: Acquire<'a>,
}

// Moving the future is safe, because no field points into the future itself.
impl<T: Element, D: Device> Unpin for GatherAsync<'_, T, D> {}

impl<'a, T: Element, D: Device> GatherAsync<'a, T, D> {
    /// Creates a gather from a range of the array. The indices count from the start of the range.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, range: Range<usize>, indices: &'a [usize]) -> Self {
        let lanes = Arc::new(Lanes::divided(array));
        Self {
            array,
            range,
            places: lanes.homes(),
            indices,
            values: Vec::new(),
            next: 0,
            kernels: GatherKernels::new(&lanes, StagePlan::new::<T>(indices.len(), lanes.is_divided())),
            doubtful: Vec::new(),
            step: GatherStep::List,
            asked: Asked::default(),
            acquire: Acquire::new(array.pager(), 0, Want::Share),
        }
    }

    /// Reads elements in RAM, and submits kernels for all others. Returns `Pending` while a page is busy, or
    /// while the maximum number of kernels is in flight.
    fn poll_list(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if self.values.len() < self.indices.len() {
            // First poll: check the list before any element is read.
            check_list(self.indices, self.range.len())?;
            self.values = zeroed_vec(self.indices.len())?;
        }
        let mut turns = 0..LOOKED_FOR_AT_ONCE;
        while self.next < self.indices.len() {
            if turns.next().is_none() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let place = self.places.of(self.range.start + self.indices[self.next]);
            ready!(self.poll_one(place, context))?;
            self.next += 1;
        }
        self.kernels.start_all()?;
        while self.kernels.oldest().is_some() {
            ready!(self.poll_oldest(context))?;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_one(&mut self, place: ListedPlace, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            let state = self.array.pager().entry(place.page).state(Ordering::Acquire);
            if state.has(RESIDENT) {
                if self.acquire.page() != place.page {
                    self.acquire.turn_to(place.page);
                }
                let array = self.array;
                let read = self.acquire.poll_others(context, |acquire, _| {
                    match array.try_read(acquire.page(), place.at) {
                        Ok(value) => Ok(Some(value)),
                        Err(Refusal::Busy(state)) if state.has(RESIDENT) => {
                            Err(AcquireRefusal::Page(Refusal::Busy(state)))
                        }
                        Err(_) => Ok(None),
                    }
                });
                if let Some(value) = ready!(read)? {
                    self.values[self.next] = value;
                    return Poll::Ready(Ok(()));
                }
            } else if !state.has(HOME) || self.kernels.try_push(place, self.next) {
                return Poll::Ready(Ok(()));
            } else {
                // Wait for an empty stage (list of a kernel), then read the page's state again, which may
                // have changed meanwhile.
                ready!(self.poll_room(place.channel, context))?;
            }
        }
    }

    /// Opens a new stage for a channel, or waits for one.
    fn poll_room(&mut self, channel: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.kernels.start(channel)?;
        while self.kernels.is_busy(channel) {
            ready!(self.poll_oldest(context))?;
        }
        Poll::Ready(self.kernels.open_stage(channel))
    }

    fn poll_oldest(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some((channel, ticket)) = self.kernels.oldest() else { return Poll::Ready(Ok(())) };
        let of = &self.array.pager().channels()[channel];
        if let QueueProgress::Pending = of.device().poll(ticket).map_err(Error::from)? {
            self.asked.wake(&**of.device(), ticket, context.waker());
            return Poll::Pending;
        }
        of.queues.note_done(ticket);
        Poll::Ready(self.kernels.take_oldest(|stage, is_sound| {
            if is_sound {
                stage.copy_to(&mut self.values);
            } else {
                self.doubtful.extend(stage.positions());
            }
            Ok(())
        }))
    }

    /// Reads elements through the cache.
    fn poll_one_by_one(&mut self, left: &mut Vec<usize>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let array = self.array;
        while let Some(&position) = left.last() {
            let place = self.places.of(self.range.start + self.indices[position]);
            if self.acquire.page() != place.page {
                self.acquire.turn_to(place.page);
            }
            let read = |acquire: &Acquire<'_>, _: &mut Context<'_>| {
                array.try_read(acquire.page(), place.at).map_err(AcquireRefusal::Page)
            };
            match ready!(self.acquire.poll(context, read, || Some(read_of::<T>(place.at))))? {
                Got::Tried(value) => self.values[position] = value,
                Got::Read(bytes) => {
                    if !self.acquire.has_missed() {
                        count_hit(array.pager().counter());
                    }
                    self.values[position] = value_of(&bytes);
                }
                Got::Written => unreachable!("the request was a read"),
            }
            left.pop();
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: Element, D: Device> Future for GatherAsync<'_, T, D> {
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Vec<T>>> {
        let this = &mut *self;
        loop {
            let polled = match std::mem::replace(&mut this.step, GatherStep::Over) {
                GatherStep::List => match this.poll_list(context) {
                    Poll::Ready(Ok(())) => {
                        this.step = GatherStep::OneByOne(std::mem::take(&mut this.doubtful));
                        continue;
                    }
                    polled => {
                        this.step = GatherStep::List;
                        polled
                    }
                },
                GatherStep::OneByOne(mut left) => {
                    let polled = this.poll_one_by_one(&mut left, context);
                    this.step = GatherStep::OneByOne(left);
                    polled
                }
                GatherStep::Over => panic!("the future was polled after completion"),
            };
            if polled.is_ready() {
                this.step = GatherStep::Over;
            }
            return polled.map_ok(|()| std::mem::take(&mut this.values));
        }
    }
}

impl<T: Element, D: Device> fmt::Debug for GatherAsync<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherAsync").field("len", &self.indices.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::task::Waker;

    use backend_host::SimulatedDevice;

    use super::*;
    use crate::array::testing::one_channel;
    use crate::prelude::*;

    /// A failed write-back during a gather leaves undefined contents in a slot that the kernel may have
    /// read.
    #[test]
    fn a_gather_during_a_failed_write_back_is_repeated() {
        let device = Arc::new(SimulatedDevice::builder(7).build());
        let array = one_channel::<u32, _>(&device, (8, 16), 4).count_hits(true).build().unwrap();
        array.write(0, &(0..128).collect::<Vec<u32>>()).unwrap();
        array.evict(..).unwrap();
        array.reset_stats();
        let mut gather = array.gather_async(&[50, 80]);
        let mut poll = || Pin::new(&mut gather).poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        array.pager().channels()[0].counters.failed_write_backs.add(1);
        // A page that is already being loaded when a thread needs it counts as a hit.
        array.prefetch(80..96).unwrap();
        let values = loop {
            device.run();
            if let Poll::Ready(values) = poll() {
                break values.unwrap();
            }
        };
        assert_eq!(values, [50, 80]);
        let stats = array.stats();
        assert_eq!((stats.hits, stats.total().misses), (Some(1), 1));
    }
}
