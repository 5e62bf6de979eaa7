//! Thread-local flag that forbids the thread to block on page guards of other threads.

use std::cell::Cell;

thread_local! {
    /// True while the thread must not block on page guards, although it may hold none.
    static NEVER_WAITS: Cell<bool> = const { Cell::new(false) };
}

/// Decides if the calling thread may block on other threads' page guards. The drop restores the old rule.
#[must_use]
pub struct WaitRule(bool);

impl WaitRule {
    /// Until the drop, the thread gets an error instead of blocking on a page guard.
    #[inline]
    pub fn never() -> Self {
        Self(NEVER_WAITS.replace(true))
    }

    /// Until the drop, the thread may block on page guards: for program code within an operation.
    #[inline]
    pub fn usual() -> Self {
        Self(NEVER_WAITS.try_with(|never| never.replace(false)).unwrap_or(false))
    }
}

impl Drop for WaitRule {
    fn drop(&mut self) {
        let _ = NEVER_WAITS.try_with(|never| never.set(self.0));
    }
}

/// Returns true if the rule of the calling thread forbids it to block on page guards.
pub(super) fn never_waits() -> bool {
    NEVER_WAITS.try_with(Cell::get).unwrap_or(false)
}
