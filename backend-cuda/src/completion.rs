//! How it is known what a queue has done: a number that the card writes, or events.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use parking_lot::Mutex;

use crate::context::Context;
use crate::driver::{Code, Event, Outcome, Stream, check};
use crate::memory::HostRange;

/// Counters live this far apart, so that the card's write to one does not disturb those who poll another.
const COUNTER_SPACING: usize = 128;
const COUNTERS_PER_PAGE: usize = 4096 / COUNTER_SPACING;

/// The counters of a device, in pages of pinned memory.
#[derive(Debug)]
pub(crate) struct CounterPool {
    context: Arc<Context>,
    state: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    pages: Vec<HostRange>,
    /// Page and place of each counter that no queue uses.
    free: Vec<(usize, usize)>,
}

impl CounterPool {
    pub(crate) fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), state: Mutex::default() })
    }

    fn take(self: &Arc<Self>) -> Outcome<Counter> {
        let mut state = self.state.lock();
        if state.free.is_empty() {
            let page = HostRange::pinned(&self.context, COUNTER_SPACING * COUNTERS_PER_PAGE)?;
            let number = state.pages.len();
            state.pages.push(page);
            state.free.extend((0..COUNTERS_PER_PAGE).rev().map(|place| (number, place)));
        }
        let place = state.free.pop().ok_or(Code::OUT_OF_MEMORY)?;
        let page = &state.pages[place.0];
        let offset = place.1 * COUNTER_SPACING;
        // SAFETY: the offset is inside of the page.
        let cell = unsafe { page.address.add(offset) }.cast::<AtomicU64>();
        let mapped = page.mapped.ok_or(Code::NOT_SUPPORTED)? + offset as u64;
        // SAFETY: page-aligned plus a multiple of 128, zeroed, and alive as long as the pool.
        let base = unsafe { cell.as_ref() }.load(Ordering::Acquire);
        Ok(Counter { pool: Arc::clone(self), place, cell, mapped, base })
    }
}

/// One counter, in use by one queue.
///
/// Its number only ever rises, also from one queue to the next that uses it: another queue may still have to
/// *execute* its wait for a number that was reached long ago.
#[derive(Debug)]
pub(crate) struct Counter {
    pool: Arc<CounterPool>,
    place: (usize, usize),
    cell: std::ptr::NonNull<AtomicU64>,
    mapped: u64,
    /// The number with which this queue began.
    base: u64,
}

// SAFETY: the cell is an atomic in memory that the pool keeps alive.
unsafe impl Send for Counter {}
// SAFETY: as above.
unsafe impl Sync for Counter {}

impl Counter {
    fn read(&self) -> u64 {
        // SAFETY: the pool keeps the page alive. The card writes to it as an atomic store of eight aligned
        // bytes does.
        unsafe { self.cell.as_ref() }.load(Ordering::Acquire).wrapping_sub(self.base)
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        self.pool.state.lock().free.push(self.place);
    }
}

/// What marks the end of each submission.
#[derive(Debug)]
pub(crate) enum Marker {
    Counter(Counter),
    Events(Events),
}

#[derive(Debug)]
pub(crate) struct Events {
    context: Arc<Context>,
    done: AtomicU64,
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    /// Ascending ticket values with the events recorded after them.
    pending: VecDeque<(u64, Event)>,
    idle: Vec<Event>,
}

/// An event costs the driver some memory, so not all are kept for ever. Making one costs about as much as a
/// submission.
const IDLE_EVENTS_MAX: usize = 1024;

impl Marker {
    pub(crate) fn counter(pool: &Arc<CounterPool>) -> Outcome<Self> {
        pool.take().map(Self::Counter)
    }

    pub(crate) fn events(context: &Arc<Context>) -> Self {
        Self::Events(Events {
            context: Arc::clone(context),
            done: AtomicU64::new(0),
            state: Mutex::default(),
        })
    }

    /// Makes the stream announce `value` after all work that it has. The context is current.
    pub(crate) fn record(&self, context: &Context, stream: Stream, value: u64) -> Outcome {
        let table = &context.driver.table;
        match self {
            Self::Counter(counter) => {
                let write = table.stream_write_value_64.ok_or(Code::NOT_SUPPORTED)?;
                let flags = sys::CUstreamWriteValue_flags_enum::CU_STREAM_WRITE_VALUE_DEFAULT as u32;
                // SAFETY: the address is that of a counter of eight aligned bytes, which outlives the
                // stream's work.
                check(unsafe { write(stream, counter.mapped, counter.base.wrapping_add(value), flags) })
            }
            Self::Events(events) => events.record(stream, value),
        }
    }

    /// The newest value that was announced; of those up to `wanted` at least, if all of them were. The
    /// context need not be current.
    pub(crate) fn reached(&self, wanted: u64) -> Outcome<u64> {
        match self {
            Self::Counter(counter) => Ok(counter.read()),
            Self::Events(events) => events.reached(wanted),
        }
    }

    /// As [`reached`](Self::reached), but does not wait for another thread that is asking or submitting at
    /// the moment: the answer may then be somewhat old.
    pub(crate) fn glimpse(&self, wanted: u64) -> Outcome<u64> {
        match self {
            Self::Counter(counter) => Ok(counter.read()),
            Self::Events(events) => events.glimpse(wanted),
        }
    }

    /// Makes `stream`, of another queue, wait for a value of this one. The context is current.
    pub(crate) fn order(&self, context: &Context, stream: Stream, value: u64) -> Outcome {
        let table = &context.driver.table;
        match self {
            Self::Counter(counter) => {
                let wait = table.stream_wait_value_64.ok_or(Code::NOT_SUPPORTED)?;
                let flags = sys::CUstreamWaitValue_flags_enum::CU_STREAM_WAIT_VALUE_GEQ as u32;
                // SAFETY: as in `record`; the pool keeps the page as long as the device.
                check(unsafe { wait(stream, counter.mapped, counter.base.wrapping_add(value), flags) })
            }
            Self::Events(events) => {
                let state = events.state.lock();
                let first = state.pending.partition_point(|(pending, _)| *pending < value);
                let Some((_, event)) = state.pending.get(first) else { return Ok(()) };
                // SAFETY: both handles are alive; the driver keeps what it needs of an event that is
                // destroyed later.
                check(unsafe { (table.stream_wait_event)(stream, *event, 0) })
            }
        }
    }
}

impl Events {
    fn record(&self, stream: Stream, value: u64) -> Outcome {
        let table = &self.context.driver.table;
        let mut state = self.state.lock();
        if state.idle.is_empty() && state.pending.len() >= IDLE_EVENTS_MAX {
            // Somebody submits and never asks: what was reached meanwhile is used again.
            self.advance(&mut state, 0)?;
        }
        let event = match state.idle.pop() {
            Some(event) => event,
            None => Event::new(table)?,
        };
        // SAFETY: both handles are alive.
        if let Err(code) = check(unsafe { (table.event_record)(event, stream) }) {
            state.idle.push(event);
            return Err(code);
        }
        state.pending.push_back((value, event));
        Ok(())
    }

    fn reached(&self, wanted: u64) -> Outcome<u64> {
        let done = self.done.load(Ordering::Acquire);
        if done >= wanted {
            return Ok(done);
        }
        let _current = self.context.enter()?;
        self.advance(&mut self.state.lock(), wanted)
    }

    fn glimpse(&self, wanted: u64) -> Outcome<u64> {
        let done = self.done.load(Ordering::Acquire);
        if done >= wanted {
            return Ok(done);
        }
        let _current = self.context.enter()?;
        let Some(mut state) = self.state.try_lock() else { return Ok(self.done.load(Ordering::Acquire)) };
        self.advance(&mut state, wanted)
    }

    /// Finds out whether `wanted` was reached; for `u64::MAX`, what was. The context is current.
    ///
    /// Events of one stream are reached in their order, so one question answers for all before it, and the
    /// newest one that was reached is found by halving.
    fn advance(&self, state: &mut EventState, wanted: u64) -> Outcome<u64> {
        let query = self.context.driver.table.event_query;
        // SAFETY: pending events are alive.
        let is_reached = |place: &(u64, Event)| match check(unsafe { query(place.1) }) {
            Ok(()) => Ok(true),
            Err(Code::NOT_READY) => Ok(false),
            Err(code) => Err(code),
        };
        let done = self.done.load(Ordering::Acquire);
        let Some(last) = state.pending.len().checked_sub(1) else { return Ok(done) };
        // Those before `low` were reached, those from `high` on were not.
        let (mut low, mut high) = (0, last + 1);
        let asked = state.pending.partition_point(|(value, _)| *value < wanted).min(last);
        if is_reached(&state.pending[asked])? {
            low = asked + 1;
        } else {
            high = asked;
        }
        while wanted == u64::MAX && low < high {
            let middle = low.midpoint(high);
            if is_reached(&state.pending[middle])? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let Some(newest) = low.checked_sub(1) else { return Ok(done) };
        let done = state.pending[newest].0;
        for (_, event) in state.pending.drain(..low) {
            if state.idle.len() < IDLE_EVENTS_MAX {
                state.idle.push(event);
            } else {
                // SAFETY: the event is alive, and this was its only name.
                let _ = check(unsafe { (self.context.driver.table.event_destroy)(event) });
            }
        }
        self.done.store(done, Ordering::Release);
        Ok(done)
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Ok(_current) = self.context.enter() else { return };
        let state = self.state.get_mut();
        for event in state.pending.drain(..).map(|(_, event)| event).chain(state.idle.drain(..)) {
            // SAFETY: the event is alive, and this was its only name.
            let _ = check(unsafe { (self.context.driver.table.event_destroy)(event) });
        }
    }
}
