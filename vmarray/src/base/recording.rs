//! What the engine does, as events in time: for a picture of it.
//!
//! Without the feature `tracing` nothing of this is compiled. With it, a submission to a device and a miss
//! ask one word in memory whether anybody records; a hit asks nothing.

#[cfg(feature = "tracing")]
mod json;
#[cfg(feature = "tracing")]
mod recorder;

use std::sync::Arc;

use backend_api::{Device, Ticket};

#[cfg(feature = "tracing")]
pub use recorder::Recording;

/// What was submitted to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmittedWork {
    /// Copies from home slots.
    Fetch,
    /// Copies to home slots, or a fill of them.
    Write,
    /// A kernel that reads home slots.
    Question,
    /// A kernel that writes to home slots.
    Change,
}

/// Notes that work was submitted.
pub(crate) fn submitted(work: SubmittedWork, device: &Arc<dyn Device>, ticket: Ticket) {
    #[cfg(feature = "tracing")]
    recorder::submitted(work, &**device, ticket);
    #[cfg(not(feature = "tracing"))]
    let _ = (work, device, ticket);
}

/// Notes how much that work is: so many bytes in so many pieces.
pub(crate) fn sized(ticket: Ticket, pieces: usize, bytes: impl FnOnce() -> u64) {
    #[cfg(feature = "tracing")]
    recorder::sized(ticket, pieces, bytes);
    #[cfg(not(feature = "tracing"))]
    let _ = (ticket, pieces, bytes);
}

/// Notes that all work of a queue is done up to a ticket.
pub(crate) fn done(ticket: Ticket) {
    #[cfg(feature = "tracing")]
    recorder::done(ticket);
    #[cfg(not(feature = "tracing"))]
    let _ = ticket;
}

/// Notes what a thread of the program does as long as the value lives.
#[cfg(feature = "tracing")]
pub(crate) fn spent(on: &'static str) -> recorder::Spent {
    recorder::Spent::begin(on)
}

/// In the place of what a thread does, where nobody can record.
#[cfg(not(feature = "tracing"))]
pub(crate) struct Unrecorded;

/// Nothing: nobody can record.
#[cfg(not(feature = "tracing"))]
pub(crate) fn spent(_: &'static str) -> Unrecorded {
    Unrecorded
}

/// Notes that something has happened to so many pages.
pub(crate) fn happened(what: &'static str, pages: usize) {
    #[cfg(feature = "tracing")]
    recorder::happened(what, pages);
    #[cfg(not(feature = "tracing"))]
    let _ = (what, pages);
}
