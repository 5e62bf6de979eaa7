//! Kinds of recorded work.

/// The kind of work submitted to a device.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubmittedWork {
    /// Copies from home slots.
    Fetch,
    /// Copies to home slots, or a fill of them.
    Write,
    /// A kernel that reads home slots.
    Question,
    /// A kernel that writes to home slots.
    Change,
}
