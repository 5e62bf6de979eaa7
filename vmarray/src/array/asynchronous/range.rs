//! Futures that read, prefetch or write back a range of elements.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use backend_api::{Device, QueueProgress, Ticket};

use super::Asked;
use super::acquire::{Acquire, AcquireRefusal, Got, Want};
use crate::array::VirtualArray;
use crate::array::range::{FetchAhead, parts};
use crate::base::element::Element;
use crate::base::error::{Error, Result};
use crate::engine::channel::{Ask, Channel, Victim, WriteBackFor};
use crate::engine::page::state::{EXCLUSIVE, RESIDENT};
use crate::engine::page::{Refusal, count_hit};
use crate::setup::any::AnyDevice;

/// Maximum number of pages that one poll reads.
const READ_AT_ONCE: usize = 64;
/// Maximum number of pages that one poll prefetches or examines.
const PREFETCHED_AT_ONCE: u64 = 1024;
/// Number of pages of one write-back.
const FLUSH_BATCH: usize = 256;
/// Maximum number of write-backs that one poll starts.
const FLUSHES_AT_ONCE: usize = 4;

/// Wakes the task at once, so that other tasks can run before it continues.
fn next_turn<R>(context: &Context<'_>) -> Poll<R> {
    context.waker().wake_by_ref();
    Poll::Pending
}

/// The future of [`PagedView::read_async`](crate::views::PagedView::read_async).
///
/// ```
/// use vmarray::prelude::*;
/// use futures::executor::block_on;
/// use vmarray::{futures::ReadAsync, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// array.set(11, 5)?;
/// let mut values = [0; 3];
/// let reading: ReadAsync<'_, u32> = array.read_async(10, &mut values);
/// block_on(reading)?;
/// assert_eq!(values, [0, 5, 0]);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct ReadAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    into: &'a mut [T],
    range: Result<Range<usize>>,
    /// Number of elements read so far.
    done: usize,
    ahead: FetchAhead<'a>,
    acquire: Acquire<'a>,
}

impl<'a, T: Element, D: Device> ReadAsync<'a, T, D> {
    /// Returns the future for a range as long as the slice, or for the error of a wrong range.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, range: Result<Range<usize>>, into: &'a mut [T]) -> Self {
        let pages = range.as_ref().map_or(0..0, |range| array.touched_pages(range));
        let acquire = Acquire::new(array.pager(), pages.start, Want::Share);
        Self { array, into, range, done: 0, ahead: FetchAhead::new(array.pager(), pages), acquire }
    }
}

impl<T: Element, D: Device> Future for ReadAsync<'_, T, D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let range = this.range.clone()?;
        let (array, pager) = (this.array, this.array.pager());
        let mut turns = 0..READ_AT_ONCE;
        while this.done < range.len() {
            if turns.next().is_none() {
                return next_turn(context);
            }
            let rest = range.start + this.done..range.end;
            let Some(part) = parts(rest.clone(), array.page_len()).next() else { break };
            let page = part.page as u64;
            if this.acquire.page() != page {
                this.acquire.turn_to(page);
            }
            this.ahead.go_on(page);
            let into = &mut this.into[this.done..this.done + part.within.len()];
            let len = size_of_val(into);
            let read = |_: &Acquire<'_>, _: &mut Context<'_>| {
                let held = pager.try_hold_shared(page)?;
                held.read(part.within.start * size_of::<T>(), bytemuck::cast_slice_mut(into));
                if !pager.recency() {
                    pager.channel(page).touched(page);
                }
                Ok::<_, AcquireRefusal>(())
            };
            let ask = || Some(Ask::Read { offset: part.within.start * size_of::<T>(), len });
            if let Got::Read(bytes) = ready!(this.acquire.poll(context, read, ask))? {
                bytemuck::cast_slice_mut(into).copy_from_slice(&bytes);
            }
            if !this.acquire.has_missed() {
                count_hit(pager.counter());
            }
            this.done += part.within.len();
        }
        Poll::Ready(Ok(()))
    }
}

/// The future of [`PagedView::prefetch_async`](crate::views::PagedView::prefetch_async).
///
/// ```
/// use vmarray::prelude::*;
/// use futures::executor::block_on;
/// use vmarray::{futures::PrefetchAsync, ErrorKind, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// array.fill(.., 1)?;
/// // The first poll reports a range out of bounds.
/// let outside: PrefetchAsync<'_, u32> = array.prefetch_async(90..200);
/// assert!(matches!(block_on(outside).unwrap_err().kind(), ErrorKind::RangeOutside { .. }));
/// block_on(array.prefetch_async(..))?;
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct PrefetchAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    range: Result<Range<usize>>,
    /// Progress of the prefetch; `None` before its start.
    course: Option<Course>,
    acquire: Acquire<'a>,
}

/// Progress of the prefetch of a range.
struct Course {
    /// Pages that were not examined yet.
    ahead: Range<u64>,
    /// For each channel, the number of pages that may still be prefetched.
    room: Vec<usize>,
    /// Pages that may not have arrived yet.
    coming: Range<u64>,
}

impl<'a, T: Element, D: Device> PrefetchAsync<'a, T, D> {
    /// Returns the future for a range, or for the error of a wrong range.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, range: Result<Range<usize>>) -> Self {
        Self { array, range, course: None, acquire: Acquire::new(array.pager(), 0, Want::Share) }
    }
}

impl<T: Element, D: Device> Future for PrefetchAsync<'_, T, D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let pager = this.array.pager();
        let range = this.array.touched_pages(&this.range.clone()?);
        let Course { ahead, room, coming: pages } = this.course.get_or_insert_with(|| {
            let room = pager.prefetch_room();
            Course { ahead: range.clone(), room, coming: range }
        });
        if !ahead.is_empty() {
            let end = ahead.end.min(ahead.start + PREFETCHED_AT_ONCE);
            pager.prefetch_within(ahead.start..end, room)?;
            // If no channel (share of a device) has free frames (cache buffers), end the prefetch.
            ahead.start = if room.iter().all(|room| *room == 0) { ahead.end } else { end };
            if !ahead.is_empty() {
                return next_turn(context);
            }
        }
        let last = pages.end.min(pages.start + PREFETCHED_AT_ONCE);
        while pages.start < pages.end {
            if pages.start == last {
                return next_turn(context);
            }
            if this.acquire.page() != pages.start {
                this.acquire.turn_to(pages.start);
            }
            let entry = pager.entry(pages.start);
            let arrived = this.acquire.poll_others(context, |_, _| {
                let state = entry.state(std::sync::atomic::Ordering::Acquire);
                // An absent page is in transfer, or will be soon, so wait for it. Do not wait for a cached
                // page: other threads may hold it indefinitely.
                let is_coming = state.any(EXCLUSIVE) && !state.any(RESIDENT);
                if is_coming { Err(Refusal::Busy(state).into()) } else { Ok(()) }
            });
            ready!(arrived)?;
            pages.start += 1;
        }
        Poll::Ready(Ok(()))
    }
}

/// The future of [`View::flush_async`](crate::views::View::flush_async).
///
/// ```
/// use vmarray::prelude::*;
/// use futures::executor::block_on;
/// use vmarray::{futures::FlushAsync, VirtualArray};
/// let array = VirtualArray::<u32>::new(100)?;
/// array.set(5, 55)?;
/// let flushing: FlushAsync<'_, u32> = array.flush_async(..);
/// assert_eq!(array.stats().total().write_backs, 0, "nothing happens before it is polled");
/// block_on(flushing)?;
/// assert_eq!(array.stats().total().write_backs, 1);
/// # Ok::<(), vmarray::Error>(())
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct FlushAsync<'a, T: Element, D: Device = AnyDevice> {
    array: &'a VirtualArray<T, D>,
    range: Result<Range<usize>>,
    /// Dirty pages that remain, of all channels; `None` before the search for them.
    pages: Option<VecDeque<u64>>,
    /// Write-backs in flight: channel and ticket.
    tickets: Vec<(usize, Ticket)>,
    /// Number of write-backs that the present poll has started.
    started: usize,
    first_error: Option<Error>,
    asked: Asked,
    acquire: Acquire<'a>,
}

impl<'a, T: Element, D: Device> FlushAsync<'a, T, D> {
    /// Returns the future for a range, or for the error of a wrong range.
    pub(crate) fn new(array: &'a VirtualArray<T, D>, range: Result<Range<usize>>) -> Self {
        let acquire = Acquire::new(array.pager(), 0, Want::Share);
        let (tickets, asked) = (Vec::new(), Asked::default());
        Self { array, range, pages: None, tickets, started: 0, first_error: None, asked, acquire }
    }

    fn keep(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.first_error.get_or_insert(error);
        }
    }

    /// Starts the write-back of a batch of pages of one channel.
    fn start(&mut self, number: usize, batch: &mut Vec<Victim>) {
        if batch.is_empty() {
            return;
        }
        self.started += 1;
        let pager = self.array.pager();
        match pager.channels()[number].write_back(pager.table(), batch, WriteBackFor::Flush) {
            Ok(ticket) => self.tickets.extend(ticket.map(|ticket| (number, ticket))),
            Err(error) => self.keep(Err(error)),
        }
        batch.clear();
    }

    /// Starts the write-backs of all pages that the task can take. Pending if another thread holds a page.
    fn poll_pages(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let pager = self.array.pager();
        let channels = pager.channels().len() as u64;
        let mut batch = Vec::new();
        self.started = 0;
        while let Some(&page) = self.pages.as_ref().and_then(VecDeque::front) {
            let number = (page % channels) as usize;
            let channel: &Channel = &pager.channels()[number];
            let entry = pager.entry(page);
            match entry.try_write_back() {
                Ok(before) => {
                    // Look up the frame after pinning the page, because unpinned pages may move.
                    let frame = channel.frame_at(entry.address());
                    batch.push(Victim { page, frame, before });
                }
                Err(Refusal::Absent) => {}
                Err(Refusal::Busy(_)) => {
                    // Submit the batch before waiting: the batch holds pages, and the holder of this page may
                    // wait for one of them.
                    self.start(number, &mut batch);
                    if self.acquire.page() != page {
                        self.acquire.turn_to(page);
                    }
                    let waited = self.acquire.poll_others(context, |_, _| match entry.try_write_back() {
                        Ok(before) => Ok(Some(before)),
                        Err(Refusal::Absent) => Ok(None),
                        Err(busy) => Err(AcquireRefusal::Page(busy)),
                    });
                    match waited {
                        Poll::Pending => return Poll::Pending,
                        Poll::Ready(Err(error)) => self.keep(Err(error)),
                        Poll::Ready(Ok(None)) => {}
                        Poll::Ready(Ok(Some(before))) => {
                            let frame = channel.frame_at(entry.address());
                            batch.push(Victim { page, frame, before });
                        }
                    }
                }
            }
            let next = self.pages.as_mut().and_then(|pages| {
                pages.pop_front();
                pages.front().copied()
            });
            if batch.len() == FLUSH_BATCH || next.is_none_or(|next| (next % channels) as usize != number) {
                self.start(number, &mut batch);
                if self.started >= FLUSHES_AT_ONCE && next.is_some() {
                    return next_turn(context);
                }
            }
        }
        Poll::Ready(())
    }
}

impl<T: Element, D: Device> Future for FlushAsync<'_, T, D> {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let pager = this.array.pager();
        if this.pages.is_none() {
            let range = this.array.touched_pages(&this.range.clone()?);
            let dirty = |channel: &Arc<Channel>| channel.resident_pages(pager.table(), &range, true);
            this.pages = Some(pager.channels().iter().flat_map(dirty).collect());
        }
        if this.poll_pages(context).is_pending() {
            return Poll::Pending;
        }
        while let Some(&(number, ticket)) = this.tickets.last() {
            let channel = &pager.channels()[number];
            if matches!(channel.device().poll(ticket), Ok(QueueProgress::Pending)) {
                this.asked.wake(&**channel.device(), ticket, context.waker());
                return Poll::Pending;
            }
            this.tickets.pop();
            // This call does not block, because the device has finished.
            let outcome = channel.finish(pager.table(), ticket);
            this.keep(outcome);
        }
        let range = this.array.touched_pages(&this.range.clone()?);
        if let Some(error) = pager.take_write_error(&range) {
            this.keep(Err(error.into()));
        }
        Poll::Ready(this.first_error.take().map_or(Ok(()), Err))
    }
}

debug!(ReadAsync: range, PrefetchAsync: range, FlushAsync: range);
