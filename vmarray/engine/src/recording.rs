//! Recording of submissions to devices and of cache misses with their times, for display as a timeline.
//!
//! The feature `tracing` compiles the recorder. Each submission and each miss then loads one word in memory,
//! which says if a recording runs; a hit checks nothing.

#[cfg(feature = "tracing")]
mod json;
#[cfg(feature = "tracing")]
mod recorder;

use std::sync::Arc;

use backend_api::{Device, Ticket};

#[cfg(feature = "tracing")]
pub use recorder::Recording;

/// The kind of work submitted to a device.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmittedWork {
    /// Copies from home slots in device memory to the host.
    Fetch,
    /// Copies to home slots in device memory, or a fill of them.
    Write,
    /// A kernel that only reads home slots, such as a search.
    Question,
    /// A kernel that writes to home slots, such as an assignment.
    Change,
}

#[cfg(feature = "tracing")]
impl SubmittedWork {
    fn name(self) -> &'static str {
        match self {
            Self::Fetch => "fetch",
            Self::Write => "write",
            Self::Question => "question",
            Self::Change => "change",
        }
    }
}

/// Records that a thread submitted work to a device's queue.
#[doc(hidden)]
#[inline]
pub fn submitted(work: SubmittedWork, device: &Arc<dyn Device>, ticket: Ticket) {
    #[cfg(feature = "tracing")]
    recorder::submitted(work.name(), &**device, ticket);
    #[cfg(not(feature = "tracing"))]
    let _ = (work, device, ticket);
}

/// Records the amount of the work of a submission (`ticket`): `bytes` bytes in `pieces` copies.
#[doc(hidden)]
#[inline]
pub fn sized(ticket: Ticket, pieces: usize, bytes: impl FnOnce() -> u64) {
    #[cfg(feature = "tracing")]
    recorder::sized(ticket, pieces, bytes);
    #[cfg(not(feature = "tracing"))]
    let _ = (ticket, pieces, bytes);
}

/// Records that a queue has completed all its work up to a ticket (submission).
#[doc(hidden)]
#[inline]
pub fn done(ticket: Ticket) {
    #[cfg(feature = "tracing")]
    recorder::done(ticket);
    #[cfg(not(feature = "tracing"))]
    let _ = ticket;
}

/// Records an activity of a thread of the program, such as a miss, for as long as the value lives.
#[doc(hidden)]
#[cfg(feature = "tracing")]
#[inline]
pub fn spent(on: &'static str) -> recorder::Spent {
    recorder::Spent::begin(on)
}

/// The placeholder of an activity in a build without the feature `tracing`.
#[doc(hidden)]
#[cfg(not(feature = "tracing"))]
pub struct Unrecorded;

/// Does nothing: this build has no recordings.
#[doc(hidden)]
#[cfg(not(feature = "tracing"))]
#[inline]
pub fn spent(_: &'static str) -> Unrecorded {
    Unrecorded
}

/// Records an event of a thread without a duration, which concerns `pages` pages.
#[doc(hidden)]
#[inline]
pub fn happened(what: &'static str, pages: usize) {
    #[cfg(feature = "tracing")]
    recorder::happened(what, pages);
    #[cfg(not(feature = "tracing"))]
    let _ = (what, pages);
}
