//! Completion of the work in a CUDA stream: a driver event after each submission shows that the work is done.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::context::CudaContext;
use crate::driver::DriverResult;
use crate::driver::objects::{Event, Stream};

/// The pending and idle events of one queue.
#[derive(Debug)]
pub(crate) struct QueueEvents {
    context: Arc<CudaContext>,
    done: AtomicU64,
    state: Mutex<EventState>,
}

#[derive(Debug, Default)]
struct EventState {
    /// Ticket values in ascending order, each with the event that completes it.
    pending: VecDeque<(u64, Event)>,
    idle: Vec<Event>,
}

/// Bound of the pool of idle events, which cost the driver memory. Creating an event costs about as much as a
/// submission.
const IDLE_EVENTS_MAX: usize = 1024;
/// The number of pending submissions after which `record` polls for completed ones.
const LOOK_AFTER: usize = 64;

impl QueueEvents {
    pub fn new(context: &Arc<CudaContext>) -> Self {
        Self { context: Arc::clone(context), done: AtomicU64::new(0), state: Mutex::default() }
    }

    /// Records an event after all earlier work of `stream`. Submission `value` is done when the event
    /// completes. The context must be current.
    pub fn record(&self, stream: &Stream, value: u64) -> DriverResult {
        let mut state = self.state.lock();
        if state.idle.is_empty()
            && !state.pending.is_empty()
            && state.pending.len().is_multiple_of(LOOK_AFTER)
        {
            // A program may submit without polling, so also collect completed events here, for reuse.
            self.advance(&mut state, u64::MAX)?;
        }
        let event = match state.idle.pop() {
            Some(event) => event,
            None => Event::new(&self.context)?,
        };
        if let Err(code) = event.record(stream) {
            state.idle.push(event);
            return Err(code);
        }
        state.pending.push_back((value, event));
        Ok(())
    }

    /// Returns the number of a completed submission: at least `wanted` if that one is done, else the newest.
    /// Needs no current context.
    pub fn reached(&self, wanted: u64) -> DriverResult<u64> {
        let done = self.done.load(Ordering::Acquire);
        if done >= wanted {
            return Ok(done);
        }
        let _current = self.context.enter()?;
        self.advance(&mut self.state.lock(), wanted)
    }

    /// Returns a completed number as [`reached`](Self::reached) does. If another thread polls or
    /// submits, returns an older completed value instead of waiting.
    pub fn glimpse(&self, wanted: u64) -> DriverResult<u64> {
        let done = self.done.load(Ordering::Acquire);
        if done >= wanted {
            return Ok(done);
        }
        let _current = self.context.enter()?;
        let Some(mut state) = self.state.try_lock() else { return Ok(self.done.load(Ordering::Acquire)) };
        self.advance(&mut state, wanted)
    }

    /// Makes later work of `stream`, which belongs to another queue, wait for submission `value` of this
    /// queue. The context must be current.
    pub fn order(&self, stream: &Stream, value: u64) -> DriverResult {
        let state = self.state.lock();
        let first = state.pending.partition_point(|(pending, _)| *pending < value);
        state.pending.get(first).map_or(Ok(()), |(_, event)| stream.wait_for(event))
    }

    /// Queries if `wanted` has completed; for `u64::MAX`, finds the newest completed value. The context must
    /// be current.
    ///
    /// Events of one stream complete in order. So one query answers for all earlier events, and a binary
    /// search finds the newest completed event.
    fn advance(&self, state: &mut EventState, wanted: u64) -> DriverResult<u64> {
        let done = self.done.load(Ordering::Acquire);
        let Some(last) = state.pending.len().checked_sub(1) else { return Ok(done) };
        // Binary search: the GPU has passed all events before `low`, but no events from `high` on.
        let (mut low, mut high) = (0, last + 1);
        let asked = state.pending.partition_point(|(value, _)| *value < wanted).min(last);
        if state.pending[asked].1.query()? {
            low = asked + 1;
        } else {
            high = asked;
        }
        while wanted == u64::MAX && low < high {
            let middle = low.midpoint(high);
            if state.pending[middle].1.query()? {
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
            }
        }
        self.done.store(done, Ordering::Release);
        Ok(done)
    }
}
