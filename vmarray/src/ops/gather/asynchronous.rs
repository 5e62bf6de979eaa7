//! Lists of indices for tasks.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use backend_api::{Device, Progress, Ticket};

use super::{DEPTH, GatherStage, ListedPlace, Places, check_list, room};
use crate::array::VirtualArray;
use crate::array::asynchronous::{Acquire, Asked, Got, Refused, Want, read_of, value_of};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::base::memory::zeroed_vec;
use crate::engine::page::state::{HOME, RESIDENT};
use crate::engine::page::{Refusal, count_hit};
use crate::setup::any::AnyDevice;

/// How many elements one poll looks for at most, before other tasks get their turn.
const LOOKED_FOR_AT_ONCE: usize = 1 << 16;

/// A stage whose kernel was started.
struct UnderWay<T, D: Device> {
    channel: usize,
    stage: GatherStage<T, D>,
    ticket: Ticket,
    /// How many write-backs of the channel had failed before.
    failures: u64,
}

/// What is not done yet.
enum GatherStep {
    /// Nothing was looked at.
    First,
    /// Elements are looked for, kernels started.
    List,
    /// Some elements have to be got one by one: their places in the list.
    OneByOne(Vec<usize>),
    Over,
}

/// The future of [`PagedView::gather_async`](crate::PagedView::gather_async).
///
/// ```
/// # use vmarray::prelude::*;
/// fn is_send<T: Send>(_: &T) {}
/// let array = vmarray::VirtualArray::<u32>::new(100)?;
/// is_send(&array.gather_async(&[3]));
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct GatherAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    places: Places,
    /// Where the indices count from, and what they are to lie within.
    range: Range<usize>,
    indices: &'a [usize],
    values: Vec<T>,
    /// The first place of the list that was not looked at.
    next: usize,
    open: Vec<Option<(GatherStage<T, D>, u64)>>,
    under_way: VecDeque<UnderWay<T, D>>,
    /// What was fetched while a page had no sound home: to be got through the cache.
    doubtful: Vec<usize>,
    step: GatherStep,
    asked: Asked,
    acquire: Acquire<'a, D>,
}

// No future points into itself.
impl<T: Element, D: Device> Unpin for GatherAsync<'_, T, D> {}

impl<'a, T: Element, D: Device> GatherAsync<'a, T, D> {
    /// Of elements of a range of the array, with indices that count from its start.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, range: Range<usize>, indices: &'a [usize]) -> Self {
        Self {
            array,
            range,
            places: Places::new(array.len(), array.page_len(), array.pager().channels().len()),
            indices,
            values: Vec::new(),
            next: 0,
            open: Vec::new(),
            under_way: VecDeque::new(),
            doubtful: Vec::new(),
            step: GatherStep::First,
            asked: Asked::default(),
            acquire: Acquire::new(array.pager(), 0, Want::Share),
        }
    }

    fn begin(&mut self) -> Result<()> {
        check_list(self.indices, self.range.len())?;
        self.values = zeroed_vec(self.indices.len())?;
        self.open = (0..self.array.pager().channels().len()).map(|_| None).collect();
        Ok(())
    }

    /// Reads what is in RAM, and has the rest fetched. Pending while a page is busy, or enough is under way.
    fn poll_list(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let mut turns = 0..LOOKED_FOR_AT_ONCE;
        while self.next < self.indices.len() {
            if turns.next().is_none() {
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            let place = self.places.of(self.range.start + self.indices[self.next]);
            match self.poll_one(place, context) {
                Poll::Ready(Ok(())) => self.next += 1,
                other => return other,
            }
        }
        for channel in 0..self.open.len() {
            self.start(channel)?;
        }
        while !self.under_way.is_empty() {
            match self.poll_oldest(context) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
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
                            Err(Refused::Page(Refusal::Busy(state)))
                        }
                        Err(_) => Ok(None),
                    }
                });
                match read {
                    Poll::Pending => return Poll::Pending,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Ready(Ok(Some(value))) => {
                        self.values[self.next] = value;
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Ready(Ok(None)) => {}
                }
            } else if !state.has(HOME) {
                return Poll::Ready(Ok(()));
            } else if let Some((stage, _)) = &mut self.open[place.channel]
                && stage.try_push(place.element, self.next)
            {
                return Poll::Ready(Ok(()));
            } else {
                match self.poll_room(place.channel, context) {
                    // Its page is looked at again: what it was before there was a stage does not count.
                    Poll::Ready(Ok(())) => {}
                    other => return other,
                }
            }
        }
    }

    /// Opens a new stage.
    fn poll_room(&mut self, channel: usize, context: &mut Context<'_>) -> Poll<Result<()>> {
        self.start(channel)?;
        while self.under_way.iter().filter(|work| work.channel == channel).count() >= DEPTH {
            match self.poll_oldest(context) {
                Poll::Ready(Ok(())) => {}
                other => return other,
            }
        }
        let pager = self.array.pager();
        let of = &pager.channels()[channel];
        let room = room::<T>(self.indices.len(), pager.channels().len());
        let stage = GatherStage::new(of, room)?;
        self.open[channel] = Some((stage, of.failed_write_backs(pager.table())));
        Poll::Ready(Ok(()))
    }

    fn start(&mut self, channel: usize) -> Result<()> {
        let Some((stage, failures)) = self.open[channel].take() else { return Ok(()) };
        let of = &self.array.pager().channels()[channel];
        if stage.count() == 0 {
            stage.give_back(of);
            return Ok(());
        }
        let gather = stage.gather(of.slot_memory(), of.slot_bytes());
        let ticket = of.queues.between_writes(&[], |queue| queue.gather(&gather))?;
        of.counters.bytes_to_device.add(8 * stage.count() as u64);
        self.under_way.push_back(UnderWay { channel, stage, ticket, failures });
        Ok(())
    }

    fn poll_oldest(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        let Some(work) = self.under_way.front() else { return Poll::Ready(Ok(())) };
        let pager = self.array.pager();
        let of = &pager.channels()[work.channel];
        if let Progress::Pending = of.device().poll(work.ticket).map_err(Error::from)? {
            self.asked.wake(&**of.device(), work.ticket, context.waker());
            return Poll::Pending;
        }
        of.queues.note_done(work.ticket);
        let Some(UnderWay { stage, failures, .. }) = self.under_way.pop_front() else {
            return Poll::Ready(Ok(()));
        };
        of.counters.bytes_from_device.add((stage.count() * size_of::<T>()) as u64);
        if of.failed_write_backs(pager.table()) == failures {
            // SAFETY: the kernel is done; the vector has a value for each place of the list.
            unsafe { stage.copy_out(self.values.as_mut_ptr(), false) };
        } else {
            self.doubtful.extend(stage.positions());
        }
        stage.give_back(of);
        Poll::Ready(Ok(()))
    }

    /// Gets elements through the cache.
    fn poll_one_by_one(&mut self, left: &mut Vec<usize>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let array = self.array;
        while let Some(&position) = left.last() {
            let place = self.places.of(self.range.start + self.indices[position]);
            if self.acquire.page() != place.page {
                self.acquire.turn_to(place.page);
            }
            let read = |acquire: &Acquire<'_, D>, _: &mut Context<'_>| {
                array.try_read(acquire.page(), place.at).map_err(Refused::Page)
            };
            match self.acquire.poll(context, read, || Some(read_of::<T>(place.at))) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(Got::Tried(value))) => self.values[position] = value,
                Poll::Ready(Ok(Got::Read(bytes))) => {
                    if !self.acquire.has_missed() {
                        count_hit(array.pager().counter());
                    }
                    self.values[position] = value_of(&bytes);
                }
                Poll::Ready(Ok(Got::Written)) => unreachable!("it was asked to be read"),
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
                GatherStep::First => {
                    this.begin()?;
                    this.step = GatherStep::List;
                    continue;
                }
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
                GatherStep::Over => panic!("polled after it was ready"),
            };
            if polled.is_ready() {
                this.step = GatherStep::Over;
            }
            return polled.map_ok(|()| std::mem::take(&mut this.values));
        }
    }
}

impl<T: Element, D: Device> Drop for GatherAsync<'_, T, D> {
    fn drop(&mut self) {
        for UnderWay { channel, stage, ticket, .. } in self.under_way.drain(..) {
            // Until its kernel is done.
            drop(stage);
            self.array.pager().channels()[channel].queues.note_done(ticket);
        }
    }
}

impl<T: Element, D: Device> fmt::Debug for GatherAsync<'_, T, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GatherAsync").field("len", &self.indices.len()).finish_non_exhaustive()
    }
}
